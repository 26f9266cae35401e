"""Compiled functions: Numba's, kept on disk by the text of their sources. Imports nothing of ours."""

if __name__ != "diskmoe.compiled":  # the names of kept functions record this one
    raise ImportError("import diskmoe.compiled, not compiled: run 'pip install -e .' first")
