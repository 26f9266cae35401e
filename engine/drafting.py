"""From what a run asks for to its draft sources."""

from __future__ import annotations

from collections.abc import Callable

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.loading import Options
from diskmoe.engine.places import as_path
from diskmoe.engine.text.side import Prompt, TextSide
from diskmoe.engine.text.tokenizer import TextTokenizer
from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.library import load, load_schema
from diskmoe.grammar_draft.rules import Grammar
from diskmoe.mtp.compose import Composer
from diskmoe.mtp.grammar_source import GrammarSource
from diskmoe.mtp.head import MtpSource
from diskmoe.mtp.source import DraftSource

Say = Callable[[str], None]


def grammar_of(grammar: str | None, schema: str | None, text: TextSide, say: Say) -> Grammar | None:
    """The grammar that a run's settings name: GRAMMAR, or else SCHEMA.

    Raises:
        BadGrammar: no such file, or one that cannot be used; the line has the place.
        BadRequest: the model has no tokenizer.
    """
    if grammar is None and schema is None:
        return None
    if grammar is not None and schema is not None:
        say("note      SCHEMA has no effect beside GRAMMAR")
    tokenizer = _tokenizer(text)
    if grammar is not None:
        found = load(str(as_path(grammar)), token_id=tokenizer.token_id)
    else:
        assert schema is not None
        found = load_schema(str(as_path(schema)))
    for note in found.notes:
        say(f"note      {found.name}: {note}")
    return found


def composer_of(
    grammar: Grammar | None,
    head: MtpSource | None,
    vocab: int,
    text: TextSide,
    prompt: Prompt,
    options: Options,
    say: Say,
) -> Composer | None:
    """What drafts for one run; None where nothing does. `vocab`: ids of the model.

    Raises:
        BadRequest: a grammar, and the model has no tokenizer.
    """
    sources: list[DraftSource] = []
    if grammar is not None:
        sources.append(_grammar_source(grammar, text, prompt, options.draft_rows))
    if head is not None:
        sources.append(head)
    if not (sources and options.draft_rows):
        return None
    return Composer(sources, vocab, options.draft_rows, options.guard, say)


def _grammar_source(grammar: Grammar, text: TextSide, prompt: Prompt, cap: int) -> GrammarSource:
    tags, thinking = text.thinking(prompt.ids)
    return GrammarSource(
        Automaton(grammar),
        _tokenizer(text),
        prompt.ids,
        cap=cap,
        continues=not prompt.in_chat,
        tags=tags,
        thinking=thinking,
    )


def _tokenizer(text: TextSide) -> TextTokenizer:
    if text.tokenizer is None:
        raise BadRequest(f"a grammar is of text, and {text.path} has no tokenizer.json")
    return text.tokenizer
