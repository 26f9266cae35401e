"""JSON Schema as rules."""

if __name__ != "diskmoe.grammar_draft.schema":
    raise ImportError("import diskmoe.grammar_draft.schema: run 'pip install -e .' first")
