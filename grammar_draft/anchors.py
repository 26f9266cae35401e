"""Where a text that has left its grammar may come back: the spellings ahead, and their states.

From the state that a text has left, and from its last branch, everything the grammar could say next is looked through,
nearest first, whatever it was that the text said instead. A few bytes that are forced there, or
nearly so (a key, the end of an enum and what follows it), are an anchor: when the text says them,
it is taken to stand behind them. Blanks do not count; what lies behind a line's end is not looked
at, since lines are taken up where they start.

    >>> from diskmoe.grammar_draft.gbnf import parse
    >>> automaton = Automaton(parse('root ::= "{kind:" ("good" | "bad") ",score:" [0-9]+ "}"'))
    >>> left = automaton.walk(automaton.start, b"{kind:")
    >>> sorted(anchors(automaton, [left]))[:2]
    [b',score', b'ad,sco']
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from diskmoe.grammar_draft.automaton import Automaton, State

SIZE = 6  # bytes of an anchor
_STATES = 160  # looked through from one state
_FEW = 8  # bytes possible where one still belongs to an anchor
BLANKS = b" \t\r\n"
NEWLINE = ord("\n")


def anchors(automaton: Automaton, places: Sequence[State]) -> dict[bytes, State]:
    """The anchors ahead of some states: their bytes, and the state behind each."""
    found: dict[bytes, State] = {}
    seen = set(places)
    queue = deque((place, b"") for place in places)
    for _ in range(_STATES):
        if not queue:
            break
        state, before = queue.popleft()
        for byte in range(256):
            if not state.allowed >> byte & 1 or byte == NEWLINE:
                continue
            after = automaton.advance(state, byte)
            if after is None:
                continue
            spelled = window(before, byte) if state.choices <= _FEW else b""
            if len(spelled) == SIZE:
                found.setdefault(spelled, after)
            if after not in seen:
                seen.add(after)
                queue.append((after, spelled))
    return found


def window(before: bytes, byte: int) -> bytes:
    """The last bytes of a text that are no blanks, behind one more."""
    return before if byte in BLANKS else (before + bytes([byte]))[-SIZE:]
