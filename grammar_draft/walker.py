"""Follows a text through a grammar that the text may leave at any time.

Nothing here constrains a text. Until a byte that the root admits the walker waits (*lazy arming*).
Blanks that the grammar does not foresee are stepped over and remembered as the text's style. At any
other byte out of place it lets go, and takes up again at the latest plausible point: within a line
behind a spelling that the grammar has further on (an anchor: the next key); at the start of a line
where lines have started before (a row of NDJSON, a key of an indented object), all such places
followed until bytes tell them apart; else at the root. Between the tags of a thinking block it
looks at nothing.

    walker = Walker(automaton)
    walker.feed(b'Here you are: {"id":')
    walker.expected(100)
"""

from __future__ import annotations

from collections.abc import Hashable

from diskmoe.grammar_draft.anchors import BLANKS, NEWLINE, SIZE, anchors, window
from diskmoe.grammar_draft.automaton import Automaton, State
from diskmoe.grammar_draft.habits import MAX_PLACES, PAYS, Habits

MAX_BLANKS = 64  # a run of blanks that is told from a longer one, or stepped over out of place
MAX_LINES = 16  # places where lines have started
_KEPT = 16  # bytes of a text that are kept
MAX_LOOKS = 16  # states from which anchors are looked for
_FEW = 8  # bytes possible at a place whose habit is trusted at once
_MANY = 64  # more than these: free text, without habits
_WORK = 200_000  # frames a text may touch in the automaton ...
_WORK_PER_BYTE = 100  # ... and more for every byte of it

Place = tuple[State, bytes]  # and the run of blanks before it


class Walker:
    """Where a text stands in a grammar, and what it usually does there."""

    def __init__(self, automaton: Automaton, tags: tuple[bytes, bytes] | None = None):
        """tags: what opens and closes a thinking block, where a model has one."""
        self.automaton = automaton
        self.habits = Habits()
        self.off = ""  # why the walker has given up on this grammar, if it has
        self._tags = tags
        self._lines: list[State] = []  # places where lines have started, latest first
        # by the state that was left and the branch before it
        self._anchors: dict[tuple[State, State], dict[bytes, State]] = {}
        self._deviant: set[Hashable] = set()  # places where blanks out of place were met
        self._bytes = 0
        self._work = automaton.work
        self.restart()

    def restart(self, thinking: bool = False, begun: bool = False) -> None:
        """A new text begins; what was learned stays. thinking: inside an opened block. begun: it is
        known that the first byte of the text, or behind that block, is the grammar's."""
        self.state: State | None = None
        if begun and not thinking:
            self.state = self.automaton.start
        self._begun = begun
        self._blanks = b""  # the run of blanks the text ends in, out of place or not
        self._others: list[State] = []  # where the text may stand as well, when it is not sure
        self._fits = 0  # bytes that fitted since it was taken up
        self._lost = False  # the grammar was left, and not only because it was complete
        self._ahead: dict[bytes, State] = {}  # anchors to take up at
        self._branch = self.automaton.start  # the latest state with a choice of bytes
        self._said = b""  # the latest bytes of a text that is lost, blanks apart
        self._text = bytearray()  # the latest bytes
        self._line_start = True  # of the whole text; of other lines the blanks tell
        self._thinking = thinking
        self._seen = b""  # while thinking: the latest bytes; else: perhaps the start of a tag

    @property
    def ready(self) -> bool:
        """Whether the walker knows where the text stands."""
        return self.state is not None and not self.off

    def feed(self, data: bytes, token: int = -1) -> None:
        """The text goes on by the bytes of one token (an incomplete character is fine)."""
        if self.off:
            return
        self._bytes += len(data)
        if self._thinking:
            data = self._behind_thinking(data)
        state = self.state
        if (self.automaton.start if state is None else state).tokens and not self._thinking:
            after = self.automaton.advance_token(state or self.automaton.start, token, data)
            if after is not None:
                self.state, self._others = after, []
                self._blanks = b""
                return
        for i, byte in enumerate(data):
            self._text.append(byte)
            self._take(byte)
            if self._thinking:  # a tag ended here
                return self.feed(data[i + 1 :])
        del self._text[:-_KEPT]
        if self.automaton.work - self._work > _WORK + _WORK_PER_BYTE * self._bytes:
            self.off = f"grammar {self.automaton.name} is too ambiguous to follow"
        return None

    def behind(self, data: bytes) -> Place | None:
        """Where the text would stand behind some more bytes; None where they do not fit. Nothing is
        learned."""
        assert self.state is not None
        state, blanks = self.state, self._blanks
        for byte in data:
            after = self.automaton.advance(state, byte)
            if after is not None:
                state = after
            elif (state.key, blanks) not in self._deviant or byte not in BLANKS:
                return None
            blanks = _run(blanks, byte)
        return state, blanks

    def expected(self, limit: int, place: Place | None = None) -> tuple[bytes, State]:
        """What the text will say next, or behind a place that it may come to: forced bytes, and
        habits at branches while they pay.

        Returns (bytes, the state behind them).
        """
        state, blanks = (self.state, self._blanks) if place is None else place
        assert state is not None
        said = bytearray()
        sure = 1.0
        while len(said) < limit:
            byte = state.only
            if byte < 0 or self._deviant:
                spot = (state.key, blanks)
                if byte < 0 or spot in self._deviant:
                    guess = self.habits.guess(spot)
                    if guess is None:
                        if byte < 0:
                            break
                    else:
                        byte, share = guess
                        if byte not in BLANKS and not blanks:  # a style is one guess, not many
                            sure *= share
                        if sure < PAYS:
                            break
            after = self.automaton.advance(state, byte)
            if after is not None:
                state = after
            elif byte not in BLANKS or len(blanks) >= MAX_BLANKS:
                break
            blanks = _run(blanks, byte)
            said.append(byte)
        return bytes(said), state

    # one byte

    def _take(self, byte: int) -> None:
        if self.state is not None:
            self._step(byte)
        else:
            self._wait(byte)

    def _step(self, byte: int) -> None:
        """A byte of a text whose place is known."""
        state = self.state
        assert state is not None
        after = state.next.get(byte) or self.automaton.advance(state, byte)
        if after is None:
            self._misfit(byte)
            return
        if state.choices > 1:
            self._branch = state
        if state.choices <= _MANY and (byte != state.only or self._deviant):
            self._learn(state, byte, state.choices <= _FEW)
        if self._others:
            steps = (self.automaton.advance(other, byte) for other in self._others)
            self._others = [other for other in steps if other is not None and other is not after]
        self.state = after
        self._fits += 1
        if byte in BLANKS:
            self._blanks = _run(self._blanks, byte)
            if byte == NEWLINE:
                self._note_line(after)
        elif self._blanks:
            self._blanks = b""

    def _learn(self, state: State, byte: int, few: bool) -> None:
        place = (state.key, self._blanks)
        if byte != state.only or place in self._deviant:
            self.habits.learn(place, byte, few)

    def _note_line(self, state: State) -> None:
        if self._lines and self._lines[0] is state:
            return
        self._lines = [state, *(line for line in self._lines if line is not state)][:MAX_LINES]

    def _misfit(self, byte: int) -> None:
        """A byte that the grammar does not have here."""
        state = self.state
        assert state is not None
        for other in self._others:
            if self.automaton.advance(other, byte) is not None:
                self.state = other
                self._others.remove(other)
                self._step(byte)
                return
        if byte in BLANKS and state.allowed and len(self._blanks) < MAX_BLANKS:
            if not state.may_end:
                if len(self._deviant) >= MAX_PLACES:
                    self._deviant.clear()
                self._deviant.add((state.key, self._blanks))
                self._learn(state, byte, True)
            self._blanks = _run(self._blanks, byte)
            return
        self.state, self._others = None, []
        if self._fits >= SIZE:  # else it was a false start, and nothing has changed
            self._lost = not state.may_end
            self._ahead = self._anchors_of((state, self._branch))
            self._said = b""
            for said in self._text[:-1]:
                self._said = window(self._said, said)
        self._wait(byte)

    def _anchors_of(self, places: tuple[State, State]) -> dict[bytes, State]:
        known = self._anchors.get(places)
        if known is None:
            if len(self._anchors) >= MAX_LOOKS:
                return {}
            known = self._anchors[places] = anchors(self.automaton, places)
        return known

    def _wait(self, byte: int) -> None:
        """A byte of a text whose place is not known: it may begin here."""
        if self._tags is not None and self._may_open(byte):
            return
        line_start = self._line_start or b"\n" in self._blanks
        self._line_start = line_start and byte in BLANKS
        self._blanks = _run(self._blanks, byte)
        places = [self.automaton.start]
        if line_start:
            places = [*self._lines, *places] if self._lost else [*places, *self._lines]
        elif self._lost and (self._lines or self._ahead):
            self._said = window(self._said, byte)
            self.state = self._ahead.get(self._said)
            self._fits = SIZE
            return
        steps = (self.automaton.advance(place, byte) for place in places)
        found = list(dict.fromkeys(after for after in steps if after is not None))
        if found:
            self.state, self._others = found[0], found[1:]
            self._fits = 1

    # thinking blocks

    def _may_open(self, byte: int) -> bool:
        """Whether the opening tag may be under way; its bytes are then kept back."""
        assert self._tags is not None
        opening = self._tags[0]
        seen = self._seen + bytes([byte])
        if seen == opening:
            self._thinking, self._seen = True, b""
            return True
        if opening.startswith(seen):
            self._seen = seen
            return True
        if self._seen:  # it was none: what was kept back is text
            kept, self._seen = self._seen, b""
            tags, self._tags = self._tags, None
            for other in kept:
                self._take(other)
            self._tags = tags
            self._take(byte)
            return True
        return False

    def _behind_thinking(self, data: bytes) -> bytes:
        """What stands behind the closing tag, nothing while it has not come."""
        assert self._tags is not None
        closing = self._tags[1]
        seen = self._seen + data
        at = seen.find(closing)
        if at < 0:
            self._seen = seen[-len(closing) + 1 :] if len(closing) > 1 else b""
            return b""
        self._thinking, self._seen, self._line_start = False, b"", True
        if self._begun:
            self.state = self.automaton.start
        return seen[at + len(closing) :]


def _run(blanks: bytes, byte: int) -> bytes:
    """The run of blanks that a text ends in, behind one more byte."""
    if byte not in BLANKS:
        return b""
    return blanks + bytes([byte]) if len(blanks) < MAX_BLANKS else blanks
