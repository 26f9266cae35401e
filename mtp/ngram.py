"""Prompt lookup: what followed when the text's last few tokens stood in it before.

The one rule: a token costs the same however long the text is. Each place is found by the 2 and by
the 5 tokens before it, through a table of where they stood latest and a link from there to where
they stood before that; nothing is scanned. What is in memory is 28 to 44 bytes a token.

    source = NgramSource(prompt_ids)
    source.observe([token])
    [draft.token for draft in islice(source.drafts([]), 8)]
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator, Sequence

from diskmoe.mtp.evidence import LONGEST, PLACES, RIGHT, Place, guess
from diskmoe.mtp.source import Draft

_NOWHERE = -1
_FIRST_SLOTS = 256  # of a table; a power of two


class _Chains:
    """Where each n-gram of a text stood, the latest place first."""

    def __init__(self, text: array[int], n: int) -> None:
        self.n = n
        self._text = text
        self._before = array("i")  # by place: where the same n-gram stood before that
        self._latest = array("i", [_NOWHERE]) * _FIRST_SLOTS  # an open hash table
        self._used = 0

    def add(self) -> None:
        """The text's last n tokens stand before the place where it ends now."""
        end, found = len(self._text), _NOWHERE
        if end >= self.n:
            if 2 * self._used >= len(self._latest):
                self._grow()
            slot = self._slot(self._text[-self.n :])
            found, self._latest[slot] = self._latest[slot], end
            self._used += found == _NOWHERE
        self._before.append(found)

    def places(self, context: array[int]) -> Iterator[int]:
        """Where the last n tokens of `context` stood."""
        if len(context) < self.n:
            return
        place = self._latest[self._slot(context[-self.n :])]
        while place != _NOWHERE:
            yield place
            place = self._before[place]

    def _slot(self, gram: array[int]) -> int:
        """Where the table has this n-gram, or would have it."""
        latest, text, n = self._latest, self._text, self.n
        last = len(latest) - 1
        slot = hash(tuple(gram)) & last
        while (end := latest[slot]) != _NOWHERE and text[end - n : end] != gram:
            slot = (slot + 1) & last
        return slot

    def _grow(self) -> None:
        known = [end for end in self._latest if end != _NOWHERE]
        self._latest = array("i", [_NOWHERE]) * (2 * len(self._latest))
        for end in known:
            self._latest[self._slot(self._text[end - self.n : end])] = end


class NgramSource:
    """Drafts for one text from what stands in it and its prompt."""

    name = "ngram"
    gave_up = ""
    cheap = True
    grades = RIGHT
    prior = (0.75, 0.8)

    def __init__(self, prompt: Sequence[int] = ()) -> None:
        self._text = array("i")
        self._chains = [_Chains(self._text, n) for n in (5, 2)]
        self.observe(prompt)

    def drafts(self, chain: Sequence[int]) -> Generator[Draft, None, None]:
        """For as long as the text has places that look like what it and its drafts come to."""
        context = self._text[-LONGEST:]
        context.extend(chain)
        while (found := guess(self._places(context))) is not None:
            token, grade = found
            yield Draft(token, grade)
            context.append(token)

    def observe(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            for chains in self._chains:
                chains.add()
            self._text.append(token)

    def _places(self, context: array[int]) -> list[Place]:
        """The latest that have 5 tokens in common with the end of `context`, or else 2."""
        found: list[Place] = []
        for chains in self._chains:
            for end in chains.places(context):
                found.append(Place(self._text[end], self._common(end, context, chains.n)))
                if len(found) == PLACES:
                    break
            if found:
                break
        return found

    def _common(self, end: int, context: array[int], least: int) -> int:
        """How many tokens before `end` are the last of `context`; `least` are known to be."""
        text = self._text
        most = min(LONGEST, end, len(context))
        if text[end - most : end] == context[-most:]:
            return most
        while text[end - 1 - least] == context[-1 - least]:
            least += 1
        return least
