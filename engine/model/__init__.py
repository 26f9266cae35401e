"""One parameterised decoder: config, weights, attention, experts, forward."""

if __name__ != "diskmoe.engine.model":  # Numba's on-disk cache records this name
    raise ImportError("import diskmoe.engine.model: run 'pip install -e .' first")
