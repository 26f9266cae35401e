"""A text that is read as it comes: steps that wait for more, and give the same however it is cut.

A step is a generator: it yields None where it needs more text, and parts of the answer where it has
some; its value is what ``yield from`` gives.

    def greeting(cursor):
        yield from cursor.expect("hello ")
        name = yield from cursor.until("!", 100)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from diskmoe.engine.text.session import begun
from diskmoe.engine.tools.parts import Part

Value = TypeVar("Value")
Step = Generator[Part | None, None, Value]


class Malformed(Exception):
    """What has come is no call; why, in a line. at: where that shows, None: where the cursor is."""

    def __init__(self, why: str, at: int | None = None) -> None:
        super().__init__(why)
        self.at = at


class CutShort(Exception):
    """The text has ended in the middle."""


class Cursor:
    """Where the reading stands: all before ``at`` is read."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.given = 0  # all before it was given as text
        self.ended = False

    def feed(self, text: str) -> None:
        self.text += text

    def forget(self) -> None:
        """Lets go what is read."""
        self.text, self.at, self.given = self.text[self.at :], 0, 0

    def more(self) -> Step[None]:
        """Waits for text. CutShort: there is no more."""
        if self.ended:
            raise CutShort
        yield None

    def blanks(self) -> Step[None]:
        """Passes blanks; stands before something else, or at the end."""
        while True:
            while self.at < len(self.text) and self.text[self.at].isspace():
                self.at += 1
            if self.at < len(self.text) or self.ended:
                return
            yield None

    def follows(self, word: str) -> Step[bool]:
        """Whether a word comes next behind blanks; then it is passed."""
        yield from self.blanks()
        while True:
            there = self.text[self.at : self.at + len(word)]
            if there == word:
                self.at += len(word)
                return True
            if self.ended or not word.startswith(there):
                return False
            yield None

    def expect(self, text: str) -> Step[None]:
        """Passes the words of a text, whatever blanks are between them."""
        for word in text.split():
            if not (yield from self.follows(word)):
                if self.at == len(self.text):
                    raise CutShort
                raise Malformed(f"{self.text[self.at : self.at + 20]!r} stands where {word!r} must")

    def next(self) -> Step[str]:
        """The character that comes next, not passed."""
        while self.at == len(self.text):
            yield from self.more()
        return self.text[self.at]

    def run(self, stops: str, most: int) -> Step[str]:
        """What comes before a blank or one of these characters, which is not passed."""
        begin = self.at
        while True:
            while self.at < len(self.text):
                character = self.text[self.at]
                if character in stops or character.isspace():
                    return self.text[begin : self.at]
                self.at += 1
                if self.at - begin > most:
                    raise Malformed(f"a name of more than {most} characters")
            yield from self.more()

    def until(self, marker: str, most: int) -> Step[str]:
        """What comes before a marker, which is passed."""
        begin = self.at
        while True:
            found = self.text.find(marker, begin)
            far = len(self.text) - len(marker) if found < 0 else found
            if far - begin > most + len(marker):  # it cannot come nearer any more
                self.at = begin + most
                raise Malformed(f"{marker!r} does not come within {most} characters")
            if found >= 0:
                self.at = found + len(marker)
                return self.text[begin:found]
            yield from self.more()

    def stream(
        self, markers: Sequence[str], part: Callable[[str], Part], trailing: str = ""
    ) -> Step[str]:
        """Gives text as it comes up to the first of some markers, which is passed; which one it is.
        Blanks before it that are `trailing` and begin no more are not given: "\\n" one new line,
        " " all. CutShort: none comes, and all that came is given."""
        while True:
            found = min(
                ((i, m) for m in markers if (i := self.text.find(m, self.at)) >= 0), default=None
            )
            end = len(self.text) if found is None else found[0]
            if found is None and not self.ended:
                end -= max((begun(self.text, marker) for marker in markers), default=0)
            certain = end
            if found is not None or not self.ended:
                certain = self._without(trailing, end)
            if certain > self.at:
                text, self.at = self.text[self.at : certain], certain
                self.given = certain
                yield part(text)
            if found is not None:
                self.at = found[0] + len(found[1])
                return found[1]
            yield from self.more()

    def _without(self, trailing: str, end: int) -> int:
        if trailing == "\n":
            return end - (end > self.at and self.text[end - 1] == "\n")
        return self.at + len(self.text[self.at : end].rstrip()) if trailing else end
