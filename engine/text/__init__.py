"""Text in, text out: tokenizer, chat template, stop strings, UTF-8 streaming."""

if __name__ != "diskmoe.engine.text":  # Numba's on-disk cache records this name
    raise ImportError("import diskmoe.engine.text: run 'pip install -e .' first")
