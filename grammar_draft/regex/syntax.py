r"""Regular expressions of ECMA-262, as JSON Schema wants them, read into a flat tree.

Read: literals, classes, ``. \d \w \s \D \W \S``, ``\p{..}`` by general category, escapes,
groups with and without names, alternation, greedy and lazy quantifiers (a language has no greed),
``^`` and ``$`` anywhere. Refused by name: lookaround, backreferences, ``\b``, flags. A tree is a
list of nodes, children before parents, the root last; nothing recurses.

    >>> [node.kind for node in parse("a|b*")]
    ['chars', 'chars', 'repeat', 'alt']
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from diskmoe.grammar_draft.regex.charsets import (
    DIGITS,
    LINE_ENDS,
    SPACES,
    UNIVERSE,
    WORDS,
    category,
    complement,
    union,
)
from diskmoe.grammar_draft.rules import Ranges, normal

MAX_PATTERN = 20_000  # characters
MAX_TIMES = 1_000_000

_TIMES = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_CLASSES = {"d": DIGITS, "w": WORDS, "s": SPACES}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_REFUSED_GROUPS = {
    "(?=": "lookahead (?=",
    "(?!": "lookahead (?!",
    "(?<=": "lookbehind (?<=",
    "(?<!": "lookbehind (?<!",
    "(?>": "atomic group (?>",
    "(?P": "(?P, which ECMA-262 writes (?<name>",
}
_GROUP = re.compile(r"\((?:\?:|\?<[A-Za-z_$][\w$]*>)?")
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}")
_LOW_HALF = re.compile(r"\\u([dD][c-fC-F][0-9A-Fa-f]{2})")
_PROPERTY = re.compile(r"[pP]\{([A-Za-z_=]+)\}|[pP]([A-Z])")


class BadPattern(ValueError):
    """A pattern that is none, or uses what is not supported."""


class Node(NamedTuple):
    """kind: chars (`ranges`), start, end, cat, alt (`children`), repeat (one child, low, high)."""

    kind: str
    children: tuple[int, ...] = ()
    ranges: Ranges = ()
    low: int = 0
    high: int | None = None


@lru_cache(256)
def parse(pattern: str) -> tuple[Node, ...]:
    """Reads a pattern. Raises BadPattern with the character it happened at, counted from 1."""
    if len(pattern) > MAX_PATTERN:
        raise BadPattern(
            f"the pattern has {len(pattern)} characters; at most {MAX_PATTERN} are read"
        )
    return tuple(_Parser(pattern).parse())


class _Parser:
    def __init__(self, pattern: str):
        self.text = pattern
        self.nodes: list[Node] = []

    def parse(self) -> list[Node]:
        text, at = self.text, 0
        # open groups: (where, alternatives that are done, items of the last one)
        groups: list[tuple[int, list[int], list[int]]] = []
        done: list[int] = []
        items: list[int] = []
        while at < len(text):
            character = text[at]
            if character == "|":
                done.append(self._cat(items))
                items = []
                at += 1
            elif character == "(":
                groups.append((at, done, items))
                done, items = [], []
                at = self._opened(at)
            elif character == ")":
                if not groups:
                    raise self._error(at, "a ) that closes nothing")
                done.append(self._cat(items))
                whole = self._alt(done)
                _, done, items = groups.pop()
                at = self._times(at + 1, items, whole)
            elif character in "^$":
                items.append(self._add(Node("start" if character == "^" else "end")))
                at += 1
                if text[at : at + 1] in ("*", "+", "?"):
                    raise self._error(at, f"nothing to repeat before {text[at]}")
            elif character in "*+?" or _TIMES.match(text, at):
                raise self._error(at, f"nothing to repeat before {character}")
            else:
                at, ranges = self._set(at)
                at = self._times(at, items, self._add(Node("chars", ranges=ranges)))
        if groups:
            raise self._error(groups[-1][0], "a group that is not closed")
        done.append(self._cat(items))
        self._alt(done, last=True)
        return self.nodes

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _cat(self, items: list[int]) -> int:
        return items[0] if len(items) == 1 else self._add(Node("cat", tuple(items)))

    def _alt(self, done: list[int], last: bool = False) -> int:
        """An alternation; the root is the last node, so it is repeated there where it is older."""
        if len(done) > 1:
            return self._add(Node("alt", tuple(done)))
        if last and done[0] != len(self.nodes) - 1:
            return self._add(Node("cat", (done[0],)))
        return done[0]

    def _opened(self, at: int) -> int:
        for opening, name in _REFUSED_GROUPS.items():
            if self.text.startswith(opening, at):
                raise self._error(at, f"{name} is not supported")
        found = _GROUP.match(self.text, at)
        if found is None or (len(found.group()) == 1 and self.text.startswith("?", at + 1)):
            raise self._error(
                at, f"{self.text[at : at + 4]!r}: flags and such groups are not supported"
            )
        return found.end()

    def _times(self, at: int, items: list[int], node: int) -> int:
        """Reads a quantifier behind an item, lazy or not, and puts the item in its place."""
        text = self.text
        found = _TIMES.match(text, at)
        if text[at : at + 1] in ("*", "+", "?"):
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[text[at]]
            after = at + 1
        elif found:
            low = int(found.group(1)) if len(found.group(1)) < 8 else MAX_TIMES + 1
            written = found.group(3) or ""
            high = low if found.group(2) is None else int(written[:8]) if written else None
            if max(low, high or 0) > MAX_TIMES:
                raise self._error(at, f"more than {MAX_TIMES} repetitions")
            if high is not None and high < low:
                raise self._error(at, f"{found.group()}: {high} is less than {low}")
            after = found.end()
        else:
            items.append(node)
            return at
        items.append(self._add(Node("repeat", (node,), low=low, high=high)))
        if text[after : after + 1] == "?":
            after += 1
        elif text[after : after + 1] in ("*", "+") or _TIMES.match(text, after):
            raise self._error(after, f"nothing to repeat before {text[after]}")
        return after

    def _set(self, at: int) -> tuple[int, Ranges]:
        """One character, escape or class."""
        character = self.text[at]
        if character == ".":
            return at + 1, complement(LINE_ENDS)
        if character == "[":
            return self._class(at)
        if character == "\\":
            after, found = self._escape(at, inside=False)
            return after, ((found, found),) if isinstance(found, int) else found
        return at + 1, normal([(ord(character), ord(character))])

    def _class(self, at: int) -> tuple[int, Ranges]:
        text, opened = self.text, at
        at += 1
        negated = text.startswith("^", at)
        at += negated
        parts: list[Ranges] = []
        while True:
            if at >= len(text):
                raise self._error(opened, "a class [ that is not closed")
            if text[at] == "]":
                break
            at, low = self._member(at)
            if text.startswith("-", at) and text[at + 1 : at + 2] not in ("]", ""):
                after, high = self._member(at + 1)
                if isinstance(low, int) and isinstance(high, int):
                    if high < low:
                        raise self._error(
                            at, f"a range that ends before it begins ({text[at - 1 : after]!r})"
                        )
                    at = after
                    parts.append(((low, high),))
                    continue
            parts.append(((low, low),) if isinstance(low, int) else low)
        ranges = union(*parts)
        return at + 1, complement(ranges) if negated else ranges

    def _member(self, at: int) -> tuple[int, int | Ranges]:
        if self.text[at] == "\\":
            return self._escape(at, inside=True)
        return at + 1, ord(self.text[at])

    def _escape(self, at: int, inside: bool) -> tuple[int, int | Ranges]:
        r"""What stands behind a backslash: a code point or a set."""
        text = self.text
        kind = text[at + 1 : at + 2]
        after = at + 2
        if kind.lower() in _CLASSES and kind:
            ranges = _CLASSES[kind.lower()]
            return after, complement(ranges) if kind.isupper() else ranges
        if kind == "b" and inside:
            return after, 8
        if kind in ("b", "B"):
            raise self._error(at, f"word boundary \\{kind} is not supported")
        if kind == "0" and text[after : after + 1].isdecimal() or kind in tuple("123456789"):
            raise self._error(at, f"backreference or octal \\{kind} is not supported")
        if kind == "k":
            raise self._error(at, "backreference \\k is not supported")
        if kind in _CONTROLS:
            return after, _CONTROLS[kind]
        if kind == "c" and "a" <= text[after : after + 1].lower() <= "z":
            return after + 1, ord(text[after]) & 31
        hexadecimal = _HEX.match(text, at + 1)
        if hexadecimal:
            point = int(next(filter(None, hexadecimal.groups())), 16)
            after = hexadecimal.end()
            low = _LOW_HALF.match(text, after)
            if 0xD800 <= point < 0xDC00 and low:
                half = int(low.group(1), 16)
                return low.end(), 0x10000 + ((point - 0xD800) << 10) + (half - 0xDC00)
            if point > UNIVERSE[-1][1]:
                raise self._error(at, "an escape beyond U+10FFFF")
            return after, normal([(point, point)]) or ()
        found = _PROPERTY.match(text, at + 1)
        if found:
            name = found.group(1) or found.group(2)
            ranges = category(name)
            if ranges is None:
                raise self._error(at, f"property {name!r} is not supported; general categories are")
            return found.end(), complement(ranges) if kind == "P" else ranges
        if not kind or kind.isalnum():
            raise self._error(at, f"escape {text[at : at + 2]!r} is not supported")
        return after, ord(kind)

    def _error(self, at: int, message: str) -> BadPattern:
        return BadPattern(f"character {at + 1} of the pattern: {message}")
