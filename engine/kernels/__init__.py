"""Numba kernels: every row is computed by the same operations in the same order."""

if __name__ != "diskmoe.engine.kernels":  # Numba's on-disk cache records this name
    raise ImportError("import diskmoe.engine.kernels: run 'pip install -e .' first")
