"""Everything that a language can be written as, made into rules.

from_gbnf('root ::= "yes" | "no"')
from_schema({"type": "integer", "minimum": 3})
from_regex("[a-z]+@example\\\\.org")
from_choices(["red", "green"])
from_type(list[int])
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from diskmoe.grammar_draft import gbnf
from diskmoe.grammar_draft.checks import check
from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.json_rules import JsonRules
from diskmoe.grammar_draft.lexer import TokenId
from diskmoe.grammar_draft.python_types import schema_of
from diskmoe.grammar_draft.regex.dfa import TooLarge
from diskmoe.grammar_draft.regex.emit import write, write_shape
from diskmoe.grammar_draft.regex.pattern import from_pattern
from diskmoe.grammar_draft.regex.syntax import BadPattern, parse
from diskmoe.grammar_draft.rules import Alternative, Grammar
from diskmoe.grammar_draft.schema.compile import compile_schema
from diskmoe.grammar_draft.schema.document import read
from diskmoe.grammar_draft.schema.profiles import profile_of
from diskmoe.grammar_draft.tries import trie

MAX_CHOICES = 100_000
MAX_BYTES = 1 << 20  # of all choices together


def from_gbnf(
    text: str | bytes,
    *,
    name: str = "grammar",
    root: str = "root",
    strict: bool = False,
    token_id: TokenId | None = None,
) -> Grammar:
    """A GBNF grammar.

    Args:
        text: the grammar.
        name: what errors call it.
        root: the rule to start from.
        strict: give the verdicts of llama.cpp, its limits and refusals included.
        token_id: the number of a token by its text, for grammars that name tokens; see ``gbnf.parse``.

    Raises:
        BadGrammar: with line and column.
    """
    return gbnf.parse(text, name, root, strict, token_id)


def from_schema(
    schema: Any,
    *,
    profile: str = "json-schema",
    whitespace: str = "flexible",
    lax: bool = False,
    name: str = "schema",
) -> Grammar:
    """A JSON Schema: its text, or what its JSON means.

    Args:
        schema: JSON text, or a dict or bool.
        profile: "json-schema" (the specification), "llama.cpp" (what its converter assumes), "drafts"
            (what is likely; for drafts that are verified).
        whitespace: "flexible" (bounded blanks between the parts of JSON) or "compact" (none).
        lax: let pass, with a note, what cannot be expressed.
        name: what errors call it.

    Raises:
        BadGrammar: with the JSON Pointer of what is wrong.
    """
    if isinstance(schema, str | bytes):
        schema = read(schema, name)
    return compile_schema(schema, name, profile_of(profile), whitespace, lax)


def from_regex(pattern: str, *, name: str = "regex") -> Grammar:
    """Texts that match a pattern of ECMA-262 as a whole, whether it is anchored or not; name: what errors
    call it. BadGrammar: no such pattern, one that cannot be expressed, or that nothing matches."""
    made = JsonRules(name, None)
    whole = f"^(?:{pattern})$"
    try:
        parse(pattern)
        nodes = parse(whole)
        try:
            dfa = from_pattern(whole)
            if dfa.empty:
                raise BadGrammar("no text matches the pattern", name)
            alternatives = write(made, dfa, [()], "pattern", False)
        except TooLarge:
            alternatives = [write_shape(made, nodes, "pattern", False)]
    except (BadPattern, TooLarge) as error:
        raise BadGrammar(str(error), name) from None
    return _finished(made, alternatives)


def from_choices(choices: Iterable[str], *, name: str = "choices") -> Grammar:
    """One of some choices, to the byte; name: what errors call them. BadGrammar: none, one that is no
    text, or too many."""
    made = JsonRules(name, None)
    found: list[tuple[bytes, Alternative]] = []
    size = 0
    for choice in choices:
        if not isinstance(choice, str):
            raise BadGrammar(f"choice {len(found) + 1} is {choice!r:.60}, not a text", name)
        try:
            found.append((choice.encode(), ()))
        except UnicodeEncodeError:
            raise BadGrammar(f"choice {len(found) + 1} holds half a character", name) from None
        size += len(found[-1][0])
        if len(found) > MAX_CHOICES or size > MAX_BYTES:
            raise BadGrammar(f"more than {MAX_CHOICES} choices or {MAX_BYTES} bytes of them", name)
    if not found:
        raise BadGrammar("there is nothing to choose from", name)
    return _finished(made, trie(made, found, "choice"))


def from_type(
    kind: Any,
    *,
    profile: str = "json-schema",
    whitespace: str = "flexible",
    lax: bool = False,
    name: str = "",
) -> Grammar:
    """The JSON of a Python type: a dataclass, TypedDict, Enum, Literal, Optional, list, dict, ..., or
    a pydantic model.

    Args:
        kind: the type.
        profile, whitespace, lax: as of ``from_schema``.
        name: what errors call it; else the type's own.

    Raises:
        BadGrammar: a type whose JSON is not known.
    """
    name = name or getattr(kind, "__name__", str(kind))
    schema = schema_of(kind)
    return from_schema(schema, profile=profile, whitespace=whitespace, lax=lax, name=name)


def _finished(made: JsonRules, alternatives: list[Alternative]) -> Grammar:
    root = made.rule("root", alternatives)
    made.grammar.root = root.rule
    check(made.grammar, strict=False)
    return made.grammar
