"""Words and patterns looked for in a text, byte by byte: where one has ended, and how long it was.

A spot is where a search stands: the matches that are under way, one per state of their automaton,
the longest of each. Spots are immutable, one object per content, and remember where each byte leads:
for words this is the machine of Aho and Corasick (1975), made as it is needed, and a byte is one
look-up; for patterns the work per byte is at most the states of their automaton, whatever the text.

    finder = Finder.of(["<tool_call>", "/[0-9]+;/"])
    spot = finder.start
    for byte in data:
        spot = finder.step(spot, byte)
        if spot.found:                      # the last `found` bytes are a match
            break
"""

from __future__ import annotations

from collections.abc import Iterable

from diskmoe.grammar_draft.automaton import Automaton, State
from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.languages import from_regex
from diskmoe.grammar_draft.rules import Alternative, Grammar, Literal, Rule

MOST_BYTES = 4096  # of a match; what is longer is none
MAX_SPOTS = 4096  # remembered at a time

Match = tuple[int, State]  # which automaton, and where in it


class Spot:
    """Where a search stands. found: bytes of the match that ends here, the longest; 0: none does.
    reach: bytes of the longest match under way."""

    __slots__ = ("found", "next", "reach", "under_way")

    def __init__(self, under_way: tuple[tuple[Match, int], ...]) -> None:
        self.under_way = under_way
        self.next: dict[int, Spot] = {}
        self.found = max((n for (_, state), n in under_way if state.may_end), default=0)
        self.reach = max((n for _, n in under_way), default=0)


class Finder:
    """A search for any of some languages."""

    def __init__(self, grammars: Iterable[Grammar]) -> None:
        """Raises BadGrammar: one of them is matched by nothing at all."""
        self._automatons = [Automaton(grammar) for grammar in grammars]
        for automaton in self._automatons:
            if automaton.start.may_end:
                raise BadGrammar("it is matched by no text at all, so anywhere", automaton.name)
        self._spots: dict[tuple[tuple[Match, int], ...], Spot] = {}
        self.start = self._spot(())

    @classmethod
    def of(cls, texts: Iterable[str]) -> Finder:
        """Of words, and of patterns between slashes.

        Raises:
            BadGrammar: an empty word, or a pattern that is none.
        """
        words: list[bytes] = []
        grammars: list[Grammar] = []
        for text in texts:
            if len(text) > 2 and text[0] == text[-1] == "/":
                grammars.append(from_regex(text[1:-1], name=f"trigger {text}"))
            elif text:
                words.append(text.encode())
            else:
                raise BadGrammar("a trigger is empty: give a word, /a pattern/ or a <token>")
        if words:
            alternatives: list[Alternative] = [(Literal(word),) for word in words]
            grammars.append(Grammar([Rule("root", alternatives)], name="trigger"))
        return cls(grammars)

    def step(self, spot: Spot, byte: int) -> Spot:
        """Where the search stands behind one more byte."""
        return spot.next.get(byte) or self._stepped(spot, byte)

    def _stepped(self, spot: Spot, byte: int) -> Spot:
        reached: dict[Match, int] = {}
        begins = [((at, each.start), 0) for at, each in enumerate(self._automatons)]
        for (at, state), length in (*spot.under_way, *begins):
            after = self._automatons[at].advance(state, byte)
            if after is not None and length < MOST_BYTES:
                reached.setdefault((at, after), length + 1)  # the longest stand first
        by_length = sorted(reached.items(), key=lambda item: -item[1])
        spot.next[byte] = found = self._spot(tuple(by_length))
        return found

    def _spot(self, under_way: tuple[tuple[Match, int], ...]) -> Spot:
        spot = self._spots.get(under_way)
        if spot is None:
            if len(self._spots) >= MAX_SPOTS:
                for other in self._spots.values():
                    other.next.clear()
                self._spots.clear()
            spot = self._spots[under_way] = Spot(under_way)
        return spot
