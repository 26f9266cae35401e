"""Benchmarks: kernels against the memory's speed, synthetic models, decoding with fixed tokens."""

if __name__ != "diskmoe.bench":  # Numba's on-disk cache records this name
    raise ImportError("import diskmoe.bench, not bench: run 'pip install -e .' first")
