"""Experts on disk and in RAM: formats, files, and the hot store that streams them."""

if __name__ != "diskmoe.experts":  # Numba's on-disk cache records this name
    raise ImportError("import diskmoe.experts, not experts: run 'pip install -e .' first")
