"""The slips that people make in grammars, and what they meant.

Only asked once something is wrong already: a slip explains an error and never causes one.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection

_DOUBLE = "\u201c\u201d\u201e\u201f\u00ab\u00bb\uff02"
_SINGLE = "'`\u2018\u2019\u201a\uff07"
_WIDE = {chr(ord(plain) + 0xFEE0): plain for plain in "()[]{}|*+?"}  # the full-width block
_ESCAPES = {
    "/": 'a "/" needs no backslash',
    "'": "a ' needs no backslash",
    "b": "write \\x08 for a backspace",
    "f": "write \\x0C for a form feed",
    "v": "write \\x0B for a vertical tab",
    "a": "write \\x07 for a bell",
    "0": "write \\x00",
    "d": "write the class [0-9]",
    "w": "write the class [A-Za-z0-9_]",
    "s": "write the class [ \\t\\r\\n]",
    "^": "strict mode has no \\^; put the ^ anywhere but first",
    "x": "two hexadecimal digits follow \\x, as in \\x0A",
    "u": "four hexadecimal digits follow \\u, as in \\u00E9",
    "U": "eight hexadecimal digits follow \\U, as in \\U0001F600",
}


def meant(text: str, position: int) -> str:
    """What was probably meant by the character at a place, else an empty string."""
    here = text[position : position + 3]
    if not here:
        return ""
    first = here[0]
    if first in _DOUBLE:
        return f'{first} is a typographic quote; write "'
    if first in _SINGLE:
        return 'literals stand in "double quotes"'
    if first in _WIDE:
        return f"{first} is a full-width character; write {_WIDE[first]}"
    if first in ":=\uff1a\u2192" or here.startswith("->"):
        return "a rule is written name ::= ..."
    if here.startswith(("//", "/*", "--")):
        return "a comment starts with #"
    if first == ",":
        return "items of a sequence are separated by spaces"
    if first == ";":
        return "a rule ends with its line; remove the ;"
    if first == "_":
        return "strict mode has no _ in names; write -"
    if first == "\\":
        return 'escapes stand inside "..." or [...]'
    if first in ")]}":
        return f"this {first} closes nothing"
    return ""


def escape(character: str) -> str:
    """What to write for an escape that does not exist."""
    return _ESCAPES.get(character, 'there are \\n \\r \\t \\\\ \\" \\[ \\] \\- \\xHH \\uHHHH')


def nearest(name: str, names: Collection[str]) -> str:
    """`` (did you mean 'x'?)`` for a name that is nearly one of `names`, else nothing."""
    if len(names) > 2000 or len(name) > 200:  # the comparison is slow, and a hint is a courtesy
        return ""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""


def named(text: str, position: int) -> str:
    """The character at a place, for "found ..."."""
    if position >= len(text):
        return "the end of the grammar"
    character = text[position]
    if character in "\r\n":
        return "the end of the line"
    return repr(character)
