"""Several tokens in one forward: who drafts them, how many, and what is accepted."""

if __name__ != "diskmoe.mtp":  # one name for one package, as everywhere in diskmoe
    raise ImportError("import diskmoe.mtp, not mtp: run 'pip install -e .' first")
