"""What can be wrong with a grammar, with the place of it.

The message is one line, ``file:line:column: what is wrong; what to do``. The line it happened in,
with a caret below, is kept beside it for those who can show more than one line.
"""

from __future__ import annotations

_WINDOW = 72  # characters of a source line that an excerpt shows
_LONGEST = 500  # characters of a message; names of rules, keys and files can be of any length


class BadGrammar(Exception):
    """A grammar, a schema or a case file that cannot be used.

    The command line catches it beside the engine's own errors, and the engine passes it on under
    the same name: this package imports neither.
    """

    exit_code = 2

    def __init__(self, message: str, name: str = "", text: str = "", position: int | None = None):
        """position: index into `text`, None where no place can be named."""
        self.name = name
        self.line = self.column = 0
        self.excerpt = ""
        if position is not None:
            self.line, self.column = place(text, position)
            self.excerpt = _excerpt(text, position)
        where = f"{name}:" if name else ""
        if self.line:
            where += f"{self.line}:{self.column}:"
        if len(message) > _LONGEST:
            message = f"{message[: _LONGEST // 2]} ... {message[-_LONGEST // 2 :]}"
        super().__init__(f"{where} {message}".strip())


class DeadEnd(BadGrammar):
    """A text that cannot go on as its grammar says, or not be followed: no usage is to blame."""

    exit_code = 1


def place(text: str, position: int) -> tuple[int, int]:
    """Line and column of an index, both counted from 1."""
    before = text[:position]
    return before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1


def _excerpt(text: str, position: int) -> str:
    """The line around a place and a caret under it; long lines are shown in part."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    end = len(text) if end < 0 else end
    first = max(start, position - _WINDOW // 2)
    shown = text[first : min(end, first + _WINDOW)].rstrip("\r")
    blanks = "".join(c if c == "\t" else " " for c in shown[: position - first])
    return f"{shown}\n{blanks}^"
