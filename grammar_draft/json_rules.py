"""The rules that all JSON grammars share: blanks, strings, numbers, any value; made when needed.

A character in a free string may be written in any way that JSON has for it, surrogates only in
pairs. Constants, keys and what a pattern matches are written one way (see `JsonRules.character`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.regex.charsets import difference, intersection
from diskmoe.grammar_draft.rules import (
    Alternative,
    Chars,
    Grammar,
    Item,
    Literal,
    Ranges,
    Ref,
    Repeat,
    Rule,
    Symbol,
    normal,
)

MAX_RULES = 20_000
MUST_ESCAPE: Ranges = ((0, 31), (34, 34), (92, 92))
SHORT = {34: '"', 92: "\\", 8: "b", 9: "t", 10: "n", 12: "f", 13: "r"}
_DIGIT = Chars(normal([(48, 57)]))
_NONZERO = Chars(normal([(49, 57)]))
_HEX = Chars(normal([(48, 57), (65, 70), (97, 102)]))
_PLAIN = Chars(normal([(0, 31), (34, 34), (92, 92)], negated=True))
_D = Chars(normal([(68, 68), (100, 100)]))
_SIGN = Chars(normal([(43, 43), (45, 45)]))
_PARTS = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}:,]|[^][{}:,"]+')  # of JSON without blanks
_LONE = re.compile("[\ud800-\udfff]")


def word(text: str) -> Literal:
    return Literal(text.encode())


def spelled(value: Any) -> str:
    """JSON without blanks, characters as they are where they may be; halves of pairs escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _LONE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


class JsonRules:
    """Rules under construction.

    blanks: between the parts of JSON: None for none, else (new lines in a row, blanks behind them),
    or (-1, -1) for any.
    """

    def __init__(
        self,
        name: str,
        blanks: tuple[int, int] | None,
        digits: int | None = None,
        most: int = MAX_RULES,
    ):
        self.grammar = Grammar([], name=name)
        self._blanks_of = blanks
        self._digits = digits  # of each part of a number, at most
        self._most = most
        self._shared: dict[object, Ref] = {}
        self._symbols: dict[object, Literal | Chars | Ref] = {}

    def rule(self, name: str, alternatives: Sequence[Alternative] = ()) -> Ref:
        rules = self.grammar.rules
        if len(rules) >= self._most:
            raise BadGrammar(f"the schema needs more than {self._most} rules", self.grammar.name)
        rules.append(Rule(name, list(alternatives), made="json"))
        return Ref(len(rules) - 1)

    def define(self, ref: Ref, alternatives: Sequence[Alternative]) -> None:
        self.grammar.rules[ref.rule].alternatives = list(alternatives)

    def item(self, shape: Alternative, name: str) -> Item:
        """Symbols as one item, that can be repeated."""
        if len(shape) == 1 and not isinstance(shape[0], Repeat):
            return shape[0]
        return self.rule(name, [shape])

    def known(self, key: object) -> Ref | None:
        """The rule of a key, if there is one."""
        return self._shared.get(key)

    def kept(self, key: object, name: str, alternatives: Iterable[Alternative]) -> Ref:
        """The one rule of a key."""
        known = self._shared.get(key)
        if known is None:
            known = self._shared[key] = self.rule(name, list(alternatives))
        return known

    def ws(self) -> Alternative:
        """Blanks, where they are allowed."""
        return (self.shared("blanks"),) if self._blanks_of else ()

    def shared(self, name: str) -> Ref:
        """A rule of everybody's: string, number, integer, boolean, null, value."""
        known = self._shared.get(name)
        if known is None:
            known = self._shared[name] = self.rule(name)
            self.define(known, getattr(self, "_" + name)())
        return known

    def _null(self) -> list[Alternative]:
        return [(word("null"),)]

    def _boolean(self) -> list[Alternative]:
        return [(word("true"),), (word("false"),)]

    def _integer(self) -> list[Alternative]:
        return [(Repeat(word("-"), 0, 1), self.shared("natural"))]

    def _natural(self) -> list[Alternative]:
        most = None if self._digits is None else self._digits - 1
        return [(word("0"),), (_NONZERO, Repeat(_DIGIT, 0, most))]

    def _number(self) -> list[Alternative]:
        return [(Repeat(word("-"), 0, 1), self.shared("positive"))]

    def _positive(self) -> list[Alternative]:
        fraction = self.rule("fraction", [(word("."), Repeat(_DIGIT, 1, self._digits)), ()])
        power = (
            Chars(normal([(69, 69), (101, 101)])),
            Repeat(_SIGN, 0, 1),
            Repeat(_DIGIT, 1, self._digits),
        )
        return [(self.shared("natural"), fraction, self.rule("exponent", [power, ()]))]

    def _character(self) -> list[Alternative]:
        return [(_PLAIN,), (word("\\"), self.shared("escape"))]

    def _escape(self) -> list[Alternative]:
        letters = Chars(normal((ord(c), ord(c)) for c in '"\\/bfnrt'))
        return [(letters,), (word("u"), self.shared("unit"))]

    def _unit(self) -> list[Alternative]:
        """Four hexadecimal digits that are no half of a pair, or a whole pair."""
        most = Chars(difference(_HEX.ranges, _D.ranges))
        lone = Chars(normal([(48, 55)]))
        first = Chars(normal([(56, 57), (65, 66), (97, 98)]))
        second = Chars(normal([(67, 70), (99, 102)]))
        pair = (first, _HEX, _HEX, word("\\u"), _D, second, _HEX, _HEX)
        half = self.rule("half", [(lone, _HEX, _HEX), pair])
        return [(most, _HEX, _HEX, _HEX), (_D, half)]

    def _string(self) -> list[Alternative]:
        return [self.sized_string(0, None)]

    def _blanks(self) -> list[Alternative]:
        lines, indent = self._blanks_of or (0, 0)
        if lines < 0:
            return [(Repeat(Chars(normal([(9, 10), (13, 13), (32, 32)])), 0, None),)]
        behind = Repeat(Chars(normal([(9, 9), (32, 32)])), 0, indent)
        return [(), (word(" "),), (Repeat(word("\n"), 1, lines), behind)]

    def _value(self) -> list[Alternative]:
        names = ("string", "number", "boolean", "null")
        return [*((self.shared(name),) for name in names), *map(self.any, ("object", "array"))]

    def any(self, kind: str) -> Alternative:
        """Any object or array."""
        value = self.shared("value")
        if kind == "array":
            return self.members("[", (value,), "]")
        return self.members("{", (self.shared("string"), *self.colon(), value), "}")

    def colon(self) -> Alternative:
        return (*self.ws(), word(":"), *self.ws())

    def members(
        self, opening: str, member: Alternative, closing: str, low: int = 0, high: int | None = None
    ) -> Alternative:
        """``[`` members between commas ``]``, `low` to `high` of them. Blanks stand behind what they
        follow, so that the byte behind them says where to go."""
        if high == 0:
            return (word(opening), *self.ws(), word(closing))
        more = self.rule("members", [(word(","), *self.ws(), *member, *self.ws())])
        most = None if high is None else high - 1
        several: Alternative = (*member, *self.ws(), Repeat(more, max(low - 1, 0), most))
        inside = self.rule("list", [several] if low else [several, ()])
        return (word(opening), *self.ws(), inside, word(closing))

    def sized_string(self, low: int, high: int | None) -> Alternative:
        return (word('"'), Repeat(self.shared("character"), low, high), word('"'))

    def constant(self, value: Any) -> Alternative:
        """One JSON value as it is written, blanks between its parts where they are allowed."""
        parts = _PARTS.findall(spelled(value))
        symbols: list[Symbol] = [word(parts[0])]
        for part in parts[1:]:
            symbols += [*self.ws(), word(part)]
        return tuple(symbols)

    # characters of strings that are spelled one way

    def character(self, ranges: Ranges, quoted: bool) -> Literal | Chars | Ref:
        """One character of a set, inside a JSON string where `quoted`: as it is if JSON allows that,
        else its short escape, else \\u00XX in either case."""
        key = ("character", ranges, quoted)
        known = self._symbols.get(key)
        if known is None:
            known = self._symbols[key] = self._character_of(ranges, quoted)
        return known

    def _character_of(self, ranges: Ranges, quoted: bool) -> Literal | Chars | Ref:
        escaped = intersection(ranges, MUST_ESCAPE) if quoted else ()
        plain = difference(ranges, MUST_ESCAPE) if escaped else ranges
        one = len(plain) == 1 and plain[0][0] == plain[0][1]
        symbol = Literal(chr(plain[0][0]).encode()) if one else Chars(plain)
        if not escaped:
            return symbol
        spellings = self.escapes(escaped)
        if not plain and len(spellings) == len(spellings[0]) == 1:
            letter = spellings[0][0]
            if type(letter) is Literal:
                return Literal(b"\\" + letter.data)
        alternatives: list[Alternative] = [(symbol,)] if plain else []
        alternatives.append((word("\\"), self.kept(("escape", escaped), "escape", spellings)))
        return self.rule("character", alternatives)

    def escapes(self, ranges: Ranges) -> list[Alternative]:
        """What stands behind the backslash for characters that must be escaped."""
        points = [point for low, high in ranges for point in range(low, high + 1)]
        letters = normal((ord(SHORT[p]), ord(SHORT[p])) for p in points if p in SHORT)
        found: list[Alternative] = []
        if letters:
            one = len(letters) == 1 and letters[0][0] == letters[0][1]
            found.append((word(chr(letters[0][0])) if one else Chars(letters),))
        rest: list[Alternative] = []
        for high in (0, 1):
            low = [p & 15 for p in points if p not in SHORT and p >> 4 == high]
            digits = {ord(c) for d in low for c in (f"{d:x}", f"{d:X}")}
            if digits:
                rest.append((word(str(high)), Chars(normal((c, c) for c in digits))))
        if rest:
            found.append((word("u00"), self.kept(("hex", tuple(rest)), "escape", rest)))
        return found
