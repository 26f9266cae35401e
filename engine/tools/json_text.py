"""JSON within an answer: where it ends, whether it is any, and texts that are to become some."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from diskmoe.engine.tools.cursor import Malformed
from diskmoe.engine.tools.toolbox import kinds_of

_CLOSING = {"{": "}", "[": "]"}
_MOST_DEPTH = 200
_BLANKS = " \t\r\n"
_PYTHON = {"True": "true", "False": "false", "None": "null"}


class Brackets:
    """Looks for the end of a JSON object or list. closed: it was found."""

    def __init__(self, opened: str = "") -> None:
        """opened: brackets that are open already."""
        self.closed = False
        self._open = [_CLOSING[each] for each in opened]
        self._in_string = False
        self._escaped = False

    def read(self, text: str, at: int) -> int:
        """Reads on from a place; the place behind the end, or behind all there is. Malformed: a
        bracket that closes another."""
        for place in range(at, len(text)):
            character = text[place]
            if self._in_string:
                self._in_string = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            elif character == '"':
                self._in_string = True
            elif character in _CLOSING:
                self._open.append(_CLOSING[character])
                if len(self._open) > _MOST_DEPTH:
                    raise Malformed(f"it is nested deeper than {_MOST_DEPTH} levels", place)
            elif character in "]}":
                if self._open.pop() != character:
                    raise Malformed(f"{character!r} closes what it has not opened", place)
                if not self._open:
                    self.closed = True
                    return place + 1
        return len(text)


def checked(text: str) -> dict[str, Any]:
    """The object that a text is. Malformed: it is none."""
    found = parsed(text)
    if not isinstance(found, dict):
        raise Malformed("its arguments are no JSON object")
    return found


def parsed(text: str) -> Any:
    """What JSON says. Malformed: it is none."""
    try:
        return json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"its arguments are no JSON: {error}") from None


def quoted(text: str) -> str:
    """A text as JSON."""
    return json.dumps(text, ensure_ascii=False)


def converted(text: str, kinds: Collection[str]) -> str:
    """The JSON of a value that may be of some types: as it is written where it is JSON of one of
    them, else as a text."""
    bare = text.strip(_BLANKS)
    bare = _PYTHON.get(bare, bare)
    try:
        found = parsed(bare)
    except Malformed:
        return quoted(text)
    wanted = not kinds_of(found).isdisjoint(kinds)
    if isinstance(found, str):  # a text within quotes is one without, where it may be a text
        wanted = "string" not in kinds
    return bare if wanted else quoted(text)


def _refused(word: str) -> float:
    raise ValueError(f"{word} is no JSON")
