"""The program: models, decoding, text, and the faces that people use."""

if __name__ != "diskmoe.engine":  # Numba's on-disk cache records this name
    raise ImportError("import diskmoe.engine, not engine: run 'pip install -e .' first")
