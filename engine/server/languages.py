"""What an answer must follow, as requests say it: a JSON Schema, any JSON object, or a GBNF grammar.

Grammars of earlier requests are kept, so that a schema that is asked for again is ready.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from diskmoe.engine.server.fields import Fields
from diskmoe.engine.server.refusals import Refusal
from diskmoe.engine.text.side import TextSide
from diskmoe.engine.tools.enforcing import Enforcing
from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.languages import from_gbnf, from_schema
from diskmoe.grammar_draft.rules import Grammar

KEPT_BYTES = 8 << 20  # of grammars, about
MOST_TRIGGERS = 16
_FORMATS = ("text", "json_object", "json_schema")


class Languages:
    """The languages of a model's requests. blanks, lax: of schemas, see ``from_schema``."""

    def __init__(self, blanks: str = "flexible", lax: bool = False) -> None:
        self._blanks = blanks
        self._lax = lax
        self._kept: OrderedDict[str, Grammar] = OrderedDict()
        self._lock = threading.Lock()

    def asked(self, fields: Fields, text: TextSide) -> Grammar | None:
        """What `response_format`, or `grammar`, asks for; None: any text.

        Raises:
            Refusal: a grammar or a schema that cannot be used, two of them, a model without text.
        """
        given = fields.text("grammar")
        has_format = fields.has("response_format")
        schema = _schema(fields)
        if given is not None and has_format:
            raise fields.refuse("grammar", "left out beside response_format")
        if given is None and schema is None:
            return None
        tokenizer = text.tokenizer
        if tokenizer is None:
            raise Refusal(400, "an answer is to follow a grammar, and the model has no tokenizer")
        if given is not None:
            return self._made(
                "gbnf " + given, "grammar", lambda: from_gbnf(given, token_id=tokenizer.token_id)
            )
        key = "schema " + json.dumps(schema)
        return self._made(
            key,
            "response_format",
            lambda: from_schema(schema, whitespace=self._blanks, lax=self._lax),
        )

    def of_calls(self, enforcing: Enforcing, text: TextSide) -> Grammar:
        """What an answer that may call tools must follow. Refusal: a tool's schema cannot be used."""
        beside = enforcing.beside
        if beside is not None and not enforcing.toolbox.must:  # seldom, and has no key
            return self._refusing("tools", lambda: enforcing.grammar(text, self._blanks, self._lax))
        toolbox = enforcing.toolbox
        tools = [(tool.name, tool.strict, tool.parameters) for tool in toolbox.only]
        key = "calls " + json.dumps([tools, toolbox.must, toolbox.several])
        return self._made(key, "tools", lambda: enforcing.grammar(text, self._blanks, self._lax))

    def _made(self, key: str, param: str, make: Callable[[], Grammar]) -> Grammar:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        grammar = self._refusing(param, make)
        with self._lock:
            self._kept[key] = grammar
            size = sum(len(other) + made.nbytes for other, made in self._kept.items())
            while size > KEPT_BYTES:
                other, made = self._kept.popitem(last=False)
                size -= len(other) + made.nbytes
        return grammar

    def _refusing(self, param: str, make: Callable[[], Grammar]) -> Grammar:
        try:
            return make()
        except BadGrammar as error:
            raise Refusal(400, " ".join(str(error).split()), param=param) from None


def triggers_asked(fields: Fields, grammar: Grammar | None) -> tuple[str, ...]:
    """What `grammar_triggers` says: words, /patterns/ or <[ids]> of tokens, as TRIGGER has them."""
    triggers = fields.texts("grammar_triggers", MOST_TRIGGERS)
    if triggers and grammar is None:
        raise fields.refuse("grammar_triggers", "beside the grammar or schema that they begin")
    return triggers


def _schema(fields: Fields) -> Any:
    """The schema that `response_format` asks for; None: any text."""
    if not fields.has("response_format"):
        fields.take("response_format")
        return None
    inner = Fields(fields.mapping("response_format"), "response_format.")
    kind = inner.one_of("type", _FORMATS, None)
    if kind is None:
        raise inner.refuse("type", "one of " + ", ".join(_FORMATS))
    schema: Any = None
    if kind == "json_object":
        schema = inner.take("schema")
        schema = {"type": "object"} if schema is None else schema
    elif kind == "json_schema":
        named = Fields(inner.mapping("json_schema"), "response_format.json_schema.")
        schema = named.take("schema")
        if not isinstance(schema, (Mapping, bool)):
            raise named.refuse("schema", "a JSON Schema")
        named.text("name")
        named.text("description")
        named.flag("strict")
        named.end()
    inner.end()
    return schema
