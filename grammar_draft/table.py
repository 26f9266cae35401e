"""A deterministic automaton with a stack, as arrays: what compiled functions and states read.

A state and a byte lead to one action. The actions:

    Go(to, push)       go to a state; before that push symbols (states to come back to), deepest first
    Return()           pop a symbol, and do what that state does with the same byte
    Switch(pops, ...)  pop so many symbols; the last one says which action is next
    Accept()           the end of the text is fine (it is a byte of its own, behind the 256)

A regular grammar has only Go without pushes, and so is a finite automaton. In `act` a state stands
for Go without pushes, REFUSED for a byte that may not come, and -2 - i for action i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from diskmoe.grammar_draft.loops import find_loops, tails

I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]

REFUSED = -1
GO, RETURN, SWITCH, ACCEPT = range(4)
END_OF_TEXT = 1 << 256  # as a set of bytes


@dataclass(frozen=True, slots=True)
class Go:
    to: int
    push: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Return:
    pass


@dataclass(frozen=True, slots=True)
class Switch:
    pops: int
    cases: tuple[tuple[int, Action], ...]  # by symbol


@dataclass(frozen=True, slots=True)
class Accept:
    pass


Action: TypeAlias = Go | Return | Switch | Accept
Row: TypeAlias = list[tuple[int, Action]]  # (set of bytes, what they lead to), sets disjoint


@dataclass(frozen=True, eq=False)
class Table:
    """The arrays. State 0 is below everything: all it does is accept the end."""

    classes: U8  # (256,): bytes that every state treats alike are one class
    act: I32  # (states, classes + 1): last the end of the text
    kind: U8  # (actions,): GO, RETURN, SWITCH or ACCEPT
    number: I32  # (actions,): the state to go to, or how many symbols are popped
    at: I32  # (actions + 1,): where its part of `listed` begins
    listed: I32  # symbols that are pushed, deepest first; or symbols of cases, ascending
    found: I32  # beside symbols of cases: what they lead to, as in `act`
    loops: (
        U64  # (states, 2): the ASCII bytes with which a state stays as it is, or goes to the next
    )
    #             of a chain of states that have these loops as well
    room: I32  # (states,): how often; FOREVER where it stays
    whole: U8  # (states,): 1 where every other character leads to the same state
    only: I32  # (states,): the byte that must come next whatever lies below and leads to a state, or -1
    start: int

    @property
    def states(self) -> int:
        """How many there are, the one below everything left out."""
        return len(self.act) - 1

    @property
    def regular(self) -> bool:
        """Whether nothing is ever pushed."""
        return not bool((self.kind[:-1] == SWITCH).any()) and len(self.listed) == 0


def completed(
    classes: U8, act: I32, kind: U8, number: I32, at: I32, listed: I32, found: I32, start: int
) -> Table:
    """The table of these arrays, with what follows from them."""
    loops = np.zeros((len(act), 2), np.uint64)
    room = np.zeros(len(act), np.int32)
    whole = np.zeros(len(act), np.uint8)
    find_loops(act, classes, tails(classes), loops, room, whole)
    only = only_bytes(act, classes)
    return Table(classes, act, kind, number, at, listed, found, loops, room, whole, only, start)


def only_bytes(act: I32, classes: U8) -> I32:
    """Per state the byte that must come next; see `Table`."""
    fits = act != REFUSED
    sizes = np.bincount(classes, minlength=act.shape[1])
    one = (fits.sum(1) == 1) & (act.max(1) >= 0)
    column = fits.argmax(1)
    alone = {int(c): b for b, c in enumerate(classes.tolist()) if sizes[c] == 1}
    byte = np.array([alone.get(c, -1) for c in range(act.shape[1])], np.int32)[column]
    return np.where(one, byte, -1).astype(np.int32)
