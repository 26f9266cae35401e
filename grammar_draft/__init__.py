"""Grammars as draft sources: languages in, forced bytes and token ids out; imports no other part."""

if __name__ != "diskmoe.grammar_draft":  # one name for one package, as everywhere in diskmoe
    raise ImportError(
        "import diskmoe.grammar_draft, not grammar_draft: run 'pip install -e .' first"
    )
