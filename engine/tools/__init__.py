"""Tools that a model may call: what they are, how its family writes a call, how one is read."""

if __name__ != "diskmoe.engine.tools":  # Numba's on-disk cache records this name
    raise ImportError("import diskmoe.engine.tools: run 'pip install -e .' first")
