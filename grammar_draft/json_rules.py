"""The rules that all JSON grammars share: blanks, strings, numbers, any value; made when needed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.rules import (
    Alternative,
    Chars,
    Grammar,
    Literal,
    Ref,
    Repeat,
    Rule,
    Symbol,
    normal,
)

MAX_RULES = 20_000
_BLANKS = Chars(normal([(9, 10), (13, 13), (32, 32)]))
_DIGIT = Chars(normal([(48, 57)]))
_NONZERO = Chars(normal([(49, 57)]))
_HEX = Chars(normal([(48, 57), (65, 70), (97, 102)]))
_PLAIN = Chars(normal([(0, 31), (34, 34), (92, 92)], negated=True))
_DIGITS = Repeat(_DIGIT, 0, None)
_PARTS = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}:,]|[^][{}:,"]+')  # of JSON without blanks


def word(text: str) -> Literal:
    return Literal(text.encode())


def _shape(pattern: str) -> Alternative:
    """``9`` a digit, ``F`` a hexadecimal digit, else the character itself, quotes around all."""
    kinds: dict[str, Symbol] = {"9": _DIGIT, "F": _HEX}
    return (word('"'), *(kinds.get(c) or word(c) for c in pattern), word('"'))


_DATE, _TIME = "9999-99-99", "99:99:99"
_ZONE: Alternative = (
    Chars(normal([(43, 43), (45, 45)])),
    *(_DIGIT,) * 2,
    word(":"),
    *(_DIGIT,) * 2,
)
FORMATS = ("date", "time", "date-time", "uuid")


class JsonRules:
    """Rules under construction. `blanks`: whether blanks may stand between the parts of JSON."""

    def __init__(self, name: str, blanks: bool):
        self.grammar = Grammar([], name=name)
        self._spaced = blanks
        self._shared: dict[str, Ref] = {}

    def rule(self, name: str, alternatives: Sequence[Alternative] = ()) -> Ref:
        rules = self.grammar.rules
        if len(rules) >= MAX_RULES:
            raise BadGrammar(f"the schema needs more than {MAX_RULES} rules", self.grammar.name)
        rules.append(Rule(name, list(alternatives), made="json"))
        return Ref(len(rules) - 1)

    def define(self, ref: Ref, alternatives: Sequence[Alternative]) -> None:
        self.grammar.rules[ref.rule].alternatives = list(alternatives)

    def ws(self) -> Alternative:
        """Blanks, where they are allowed."""
        return (self.shared("blanks"),) if self._spaced else ()

    def shared(self, name: str) -> Ref:
        """A rule of everybody's: string, number, integer, boolean, null, value, a format."""
        known = self._shared.get(name)
        if known is None:
            known = self._shared[name] = self.rule(name)
            self.define(known, getattr(self, "_" + name.replace("-", "_"))())
        return known

    def _null(self) -> list[Alternative]:
        return [(word("null"),)]

    def _boolean(self) -> list[Alternative]:
        return [(word("true"),), (word("false"),)]

    def _integer(self) -> list[Alternative]:
        return [(Repeat(word("-"), 0, 1), self.shared("natural"))]

    def _natural(self) -> list[Alternative]:
        return [(word("0"),), (_NONZERO, _DIGITS)]

    def _number(self) -> list[Alternative]:
        return [(Repeat(word("-"), 0, 1), self.shared("positive"))]

    def _positive(self) -> list[Alternative]:
        fraction = self.rule("fraction", [(word("."), Repeat(_DIGIT, 1, None)), ()])
        sign = Repeat(Chars(normal([(43, 43), (45, 45)])), 0, 1)
        power = (Chars(normal([(69, 69), (101, 101)])), sign, Repeat(_DIGIT, 1, None))
        return [(self.shared("natural"), fraction, self.rule("exponent", [power, ()]))]

    def _character(self) -> list[Alternative]:
        escaped = Chars(normal((ord(c), ord(c)) for c in '"\\/bfnrt'))
        return [(_PLAIN,), (word("\\"), escaped), (word("\\u"), Repeat(_HEX, 4, 4))]

    def _string(self) -> list[Alternative]:
        return [(word('"'), Repeat(self.shared("character"), 0, None), word('"'))]

    def _blanks(self) -> list[Alternative]:
        return [(Repeat(_BLANKS, 0, None),)]

    def _value(self) -> list[Alternative]:
        names = ("string", "number", "boolean", "null")
        value = self.shared("value")
        return [
            *((self.shared(name),) for name in names),
            self.members(
                "{", (self.shared("string"), *self.ws(), word(":"), *self.ws(), value), "}"
            ),
            self.members("[", (value,), "]"),
        ]

    def _date(self) -> list[Alternative]:
        return [_shape(_DATE)]

    def _time(self) -> list[Alternative]:
        return [(*_shape(_TIME)[:-1], self.shared("zone"), word('"'))]

    def _date_time(self) -> list[Alternative]:
        return [(*_shape(f"{_DATE}T{_TIME}")[:-1], self.shared("zone"), word('"'))]

    def _zone(self) -> list[Alternative]:
        fraction = self.rule("split-second", [(word("."), Repeat(_DIGIT, 1, None)), ()])
        return [(fraction, word("Z")), (fraction, *_ZONE), (fraction,)]

    def _uuid(self) -> list[Alternative]:
        return [_shape("FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF")]

    def members(
        self, opening: str, member: Alternative, closing: str, low: int = 0, high: int | None = None
    ) -> Alternative:
        """``[`` members between commas ``]``, `low` to `high` of them."""
        if high == 0:
            return (word(opening), *self.ws(), word(closing))
        item = self.rule("member", [member])
        more = self.rule("members", [(*self.ws(), word(","), *self.ws(), item)])
        most = None if high is None else high - 1
        several: Alternative = (item, Repeat(more, max(low - 1, 0), most))
        inside = self.rule("list", [several] if low else [several, ()])
        return (word(opening), *self.ws(), inside, *self.ws(), word(closing))

    def sized_string(self, low: int, high: int | None) -> Alternative:
        return (word('"'), Repeat(self.shared("character"), low, high), word('"'))

    def constant(self, value: Any) -> Alternative:
        """One JSON value as it is written, blanks between its parts where they are allowed."""
        parts = _PARTS.findall(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
        symbols: list[Symbol] = [word(parts[0])]
        for part in parts[1:]:
            symbols += [*self.ws(), word(part)]
        return tuple(symbols)
