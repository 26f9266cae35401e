"""Regular expressions as automata over code points, and those as rules."""

if __name__ != "diskmoe.grammar_draft.regex":
    raise ImportError("import diskmoe.grammar_draft.regex: run 'pip install -e .' first")
