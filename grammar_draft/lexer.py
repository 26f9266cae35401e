"""The words of GBNF: literals, classes, tokens, names, bounds; and what to say when they are not.

A word is read at an index into the text and returned with the index behind it. Nothing here knows
of rules. Escapes stand for code points, not bytes, as llama.cpp has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

from diskmoe.grammar_draft import slips
from diskmoe.grammar_draft.errors import BadGrammar, place
from diskmoe.grammar_draft.rules import (
    LAST_CODE_POINT,
    MAX_TIMES,
    Chars,
    Item,
    Literal,
    Token,
    normal,
)

STRICT_TIMES = 2000  # llama.cpp's

TokenId = Callable[[str], "int | None"]

_SPACE = re.compile(r"(?:[ \t]+|#[^\r\n]*)*")
_LINES = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)*")
_STRICT_NAME = re.compile(r"[A-Za-z0-9-]+")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_LITERAL = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
_CLASS = re.compile(r"\[(\^?)([^\]\\]*(?:\\.[^\]\\]*)*)\]", re.DOTALL)
_PART = re.compile(
    r"\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}|\\?.", re.DOTALL
)  # one character of a literal or a class
_TOKEN = re.compile(r"(!?)<(?:\[([0-9]+)\]|([^>]*))>")
_DIGITS = re.compile(r"[0-9]+")
_PLAIN = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_QUOTES = "\u201c\u201d\uff02"


class Lexer:
    """A grammar's text; a cursor is an index into it."""

    def __init__(self, text: str, name: str, strict: bool, token_id: TokenId | None):
        self.text = text
        self.name = name
        self.strict = strict
        self._token_id = token_id
        self._names = _STRICT_NAME if strict else _NAME
        self._classes: dict[str, Chars] = {}
        self._long_literal: int | None = None  # the first literal that runs over a line's end

    def skip(self, at: int, lines: bool) -> int:
        """The index behind blanks and comments, line ends too where `lines` says so."""
        return (_LINES if lines else _SPACE).match(self.text, at).end()  # type: ignore[union-attr]

    def word(self, at: int) -> str:
        """The name of a rule that stands here, or nothing."""
        found = self._names.match(self.text, at)
        return found.group() if found else ""

    def is_head(self, at: int) -> bool:
        """Whether a rule starts here: a name and ::= behind it."""
        found = self._names.match(self.text, at)
        return found is not None and self.text.startswith("::=", self.skip(found.end(), False))

    def literal(self, at: int) -> tuple[int, Item | None]:
        """``"..."``; None for the empty one."""
        found = _LITERAL.match(self.text, at)
        if found is None:
            self._unclosed(at, "literal", '"')
        body = found.group(1)
        if self._long_literal is None and "\n" in body:
            self._long_literal = at
        if "\\" not in body:
            return found.end(), Literal(body.encode()) if body else None
        points, inside = [], at + 1
        for part in _PART.findall(body):
            points.append(self._code_point(part, inside))
            inside += len(part)
        if any(point > LAST_CODE_POINT or 0xD800 <= point <= 0xDFFF for point in points):
            return found.end(), Chars(())  # no UTF-8 text holds these
        return found.end(), Literal("".join(map(chr, points)).encode())

    def char_class(self, at: int) -> tuple[int, Item | None]:
        """``[...]`` or ``[^...]``; None for ``[]`` and ``[^]``, which stand for nothing at all."""
        found = _CLASS.match(self.text, at)
        if found is None:
            self._unclosed(at, "class", "]")
        whole, (caret, body) = found.group(), found.groups()
        if not body:
            return found.end(), None
        known = self._classes.get(whole)
        if known is None:
            ranges = self._ranges(body, at + 1 + len(caret))
            known = self._classes[whole] = Chars(normal(ranges, bool(caret)))
        return found.end(), known

    def _ranges(self, body: str, at: int) -> list[tuple[int, int]]:
        """The ranges of a class; a dash that is first, last or escaped stands for itself."""
        parts = _PART.findall(body)
        ranges, i = [], 0
        while i < len(parts):
            low = high = self._code_point(parts[i], at)
            at += len(parts[i])
            i += 1
            if i + 1 < len(parts) and parts[i] == "-":
                high = self._code_point(parts[i + 1], at + 1)
                at += 1 + len(parts[i + 1])
                i += 2
            ranges.append((low, high))
        return ranges

    def _code_point(self, part: str, at: int) -> int:
        if part[0] != "\\":
            return ord(part)
        if len(part) > 2:
            digits = part[2:]
            return int(digits, 16)
        plain = _PLAIN.get(part[1:])
        if plain is None:
            if part == "\\^" and not self.strict:
                return ord("^")
            raise self.error(at, f"unknown escape {part}; {slips.escape(part[1:])}")
        return ord(plain)

    def token(self, at: int) -> tuple[int, Token]:
        """``<[1234]>``, ``<text>``, or ``!`` and one of them."""
        found = _TOKEN.match(self.text, at)
        if found is None:
            self.fail(at, "a token: <[1234]>, <text> or !<text>")
        negated, digits, name = found.groups()
        if digits is not None:
            if len(digits) > 10 or int(digits) > 0xFFFFFFFF:
                raise self.error(at, "a token id is at most 4294967295")
            return found.end(), Token(int(digits), bool(negated))
        if self._token_id is None:
            raise self.error(
                at,
                f"<{name}> is a token, and there is no vocabulary to look it up in; "
                f"for the rule of that name write {name or 'its name'} alone",
            )
        number = self._token_id(f"<{name}>")
        if number is None:
            raise self.error(at, f"<{name}> is not one token of this model's vocabulary")
        return found.end(), Token(number, bool(negated))

    def times(self, at: int, lines: bool) -> tuple[int, int, int | None]:
        """``* + ? {m} {m,} {m,n}``: the index behind, and the bounds (None: without end).

        lines: whether line ends may stand between, as inside a group.
        """
        text = self.text
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(text[at])
        if simple is not None:
            return self.skip(at + 1, lines), *simple
        opened, at = at, self.skip(at + 1, lines)
        at, low = self._whole(at, "a number; {,n} is written {0,n}")
        at = self.skip(at, lines)
        high: int | None = low
        if text.startswith(",", at):
            at, high = self.skip(at + 1, lines), None
            if _DIGITS.match(text, at):
                at, high = self._whole(at, "a number")
                at = self.skip(at, lines)
        if not text.startswith("}", at):
            self.fail(at, "} behind the bounds of a repetition")
        if high is not None and high < low:
            raise self.error(opened, f"{{{low},{high}}} has its bounds swapped")
        limit = STRICT_TIMES if self.strict else MAX_TIMES
        if low > limit:
            raise self.error(opened, f"a repetition of {low}; at most {limit} are possible")
        if high is not None and high > limit:
            if not self.strict:
                raise self.error(
                    opened, f"a repetition of {high}; at most {limit} are possible, or {{{low},}}"
                )
            high = None  # as llama.cpp does, silently
        return self.skip(at + 1, lines), low, high

    def _whole(self, at: int, expected: str) -> tuple[int, int]:
        digits = _DIGITS.match(self.text, at)
        if digits is None:
            self.fail(at, expected)
        if len(digits.group()) > 20 or int(digits.group()) >= 1 << 64:
            raise self.error(at, "a number that no repetition can have")
        return digits.end(), int(digits.group())

    def _unclosed(self, at: int, what: str, closing: str) -> NoReturn:
        hint = ""
        if self._long_literal is not None:
            line, column = place(self.text, self._long_literal)
            hint = f"; the literal of {line}:{column} runs over several lines: is its end missing?"
        elif any(quote in self.text[at:].split("\n", 1)[0] for quote in _QUOTES):
            hint = '; it ends in a typographic quote, write "'
        raise self.error(at, f"this {what} is not closed: expected {closing}{hint}")

    def fail(self, at: int, expected: str) -> NoReturn:
        """Raises BadGrammar: expected one thing, found what stands here."""
        hint = slips.meant(self.text, at)
        found = slips.named(self.text, at)
        raise self.error(at, f"expected {expected}, found {found}" + (f"; {hint}" if hint else ""))

    def error(self, at: int, message: str) -> BadGrammar:
        return BadGrammar(message, self.name, self.text, at)
