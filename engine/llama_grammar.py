"""What an answer must follow, under ``llama-cpp-python``'s names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diskmoe.engine.errors import BadRequest
from diskmoe.grammar_draft.languages import from_gbnf, from_schema
from diskmoe.grammar_draft.library import load as load_grammar
from diskmoe.grammar_draft.rules import Grammar

_FORMATS = ("text", "json_object", "json_schema")


@dataclass(frozen=True)
class LlamaGrammar:
    """What a text must follow."""

    grammar: Grammar

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """A GBNF grammar. BadGrammar with its line and column."""
        return cls(from_gbnf(grammar))

    @classmethod
    def from_file(cls, file: str | os.PathLike[str], verbose: bool = True) -> LlamaGrammar:
        """A file of GBNF."""
        return cls(load_grammar(os.fspath(file)))

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """A JSON Schema as text. BadGrammar with the JSON Pointer of what is wrong."""
        return cls(from_schema(json_schema))


def language_of(
    asked: Mapping[str, Any] | None, grammar: LlamaGrammar | None, tool_must_be_called: bool
) -> Grammar | None:
    """What ``response_format`` or ``grammar`` asks for. BadRequest: more than one thing is."""
    if not isinstance(asked, Mapping | None):
        raise BadRequest(
            f"response_format is {asked!r:.40}; it must have a type: text or json_object"
        )
    kind = "text" if asked is None else asked.get("type")
    if kind not in _FORMATS:
        raise BadRequest(f"response_format.type is {kind!r:.40}; it must be text or json_object")
    saying = {
        "tool_choice": tool_must_be_called,
        "grammar": grammar is not None,
        "response_format": kind != "text",
    }
    said = [name for name, says in saying.items() if says]
    if len(said) > 1:
        raise BadRequest(f"{said[1]} and {said[0]} both say what the answer must follow")
    if asked is None or kind == "text":
        return None if grammar is None else grammar.grammar
    if kind == "json_schema":
        return from_schema((asked.get("json_schema") or {}).get("schema"))
    schema = asked.get("schema")
    return from_schema({"type": "object"} if schema is None else schema)
