"""The HTTP server: OpenAI's endpoints on one model, several clients at once."""

if __name__ != "diskmoe.engine.server":  # Numba's on-disk cache records this name
    raise ImportError("import diskmoe.engine.server, not server: run 'pip install -e .' first")
