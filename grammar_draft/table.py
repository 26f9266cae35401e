"""A deterministic automaton with a stack, as arrays: what compiled functions and states read.

A state and a byte lead to one action. The actions:

    a number           go to that state
    Go(to, push)       push symbols (states to come back to), deepest first, then go to a state
    Count(more, last)  take one from the number that is counted down; which action is next says
                       whether any is left
    Load(then)         what was popped brings its number along; then another action
    Return()           pop a symbol, and do what that state does with the same byte
    Switch(pops, ...)  pop so many symbols; the last one says which action is next
    Accept()           the end of the text is fine (it is a byte of its own, behind the 256)

A number stands beside a state and each symbol of the stack, where they are in a loop that counts
(`counts`), and goes along from a state to what follows it there. Both are one integer: state |
number << SHIFT.

A regular grammar has only states to go to, and so is a finite automaton. In `act` a state stands for
itself, REFUSED for a byte that may not come, and -2 - i for action i of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from diskmoe.grammar_draft.loops import COUNTED, REFUSED, find_loops, find_only, tails

I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]

GO, RETURN, SWITCH, ACCEPT, COUNT, LOAD = range(6)
NO_ACTION = 255
SHIFT = 13
STATE = (1 << SHIFT) - 1
# as what a number is set to: the number of what was popped last; MAX_TIMES of `rules` is below it
POPPED = (1 << 18) - 1
END_OF_TEXT = 1 << 256  # as a set of bytes


@dataclass(frozen=True, slots=True)
class Go:
    to: int
    push: tuple[int, ...] = ()
    sets: tuple[int, ...] = ()  # what numbers become: of those pushed, then of `to`; 0: see `live`


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


@dataclass(frozen=True, slots=True)
class Count:
    more: Action
    last: Action


@dataclass(frozen=True, slots=True)
class Load:
    then: Action


Action: TypeAlias = int | Go | Return | Switch | Accept | Count | Load
Row: TypeAlias = list[tuple[int, Action]]  # (set of bytes, what they lead to), sets disjoint


@dataclass(frozen=True, eq=False)
class Table:
    """The arrays. State 0 is below everything: all it does is accept the end."""

    classes: U8  # (256,): bytes that every state treats alike are one class
    act: I32  # (states, classes + 1): last the end of the text
    kind: U8  # (actions + 1,): GO, RETURN, SWITCH, ACCEPT, COUNT or LOAD; last NO_ACTION
    number: I32  # likewise: the state to go to (what its number is set to beside it), or how many
    #              symbols are popped
    at: I32  # (actions + 1,): where its part of `listed` begins
    listed: I32  # symbols that are pushed, deepest first (what their numbers are set to beside
    #              them); or symbols of cases, ascending
    found: (
        I32  # beside symbols of cases, or of COUNT (more, last) and LOAD: what is next, as in `act`
    )
    live: U8  # (states,): 1 where a number goes along
    loops: (
        U64  # (states, 2): the ASCII bytes with which a state stays as it is, or goes to the next
    )
    #             of a chain of states that have these loops as well
    room: I32  # (states,): how often; FOREVER where it stays; COUNTED: as its number says, COUNTED - n:
    #            and n times more
    whole: U8  # (states,): 1 where every other character leads to the same state
    leaves: U64  # (states, 2): the other ASCII bytes that a state, or one of its chain, can read
    ascii_only: (
        U8  # (states,): 1 where neither it nor one of its chain can read bytes that are not ASCII
    )
    closed: (
        U8  # (states,): 1 where its number says so exactly: behind it none of these bytes can come
    )
    only: I32  # (states,): the byte that must come next whatever lies below and leads to a state, or -1
    start: int

    @property
    def states(self) -> int:
        """How many there are, the one below everything left out."""
        return len(self.act) - 1

    @property
    def nbytes(self) -> int:
        """What the arrays take."""
        arrays = (getattr(self, field.name) for field in fields(self))
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))

    @property
    def regular(self) -> bool:
        """Whether nothing is ever pushed."""
        at = self.at.tolist()
        return not any(
            kind == SWITCH or (kind == GO and at[i] < at[i + 1])
            for i, kind in enumerate(self.kind[:-1].tolist())
        )

    @property
    def counts(self) -> bool:
        """Whether it has loops that count."""
        return bool(self.live.any())


def completed(
    classes: U8,
    act: I32,
    kind: U8,
    number: I32,
    at: I32,
    listed: I32,
    found: I32,
    live: U8,
    start: int,
) -> Table:
    """The table of these arrays, with what follows from them."""
    loops, leaves = np.zeros((2, len(act), 2), np.uint64)
    room = np.zeros(len(act), np.int32)
    whole, ascii_only, closed = np.zeros((3, len(act)), np.uint8)
    ahead = act, np.zeros_like(act), np.full_like(act, REFUSED)
    if live.any():
        ahead = _ahead(act, kind, number, at, found)
    chains = (loops, room, whole, leaves, ascii_only, closed)
    find_loops(act, *ahead, classes, tails(classes), *chains)
    arrays = (classes, act, kind, number, at, listed, found, live)
    only = np.empty(len(act), np.int32)
    find_only(act, classes, only)
    return Table(*arrays, *chains, only, start)


def _ahead(act: I32, kind: U8, number: I32, at: I32, found: I32) -> tuple[I32, I32, I32]:
    """`act` with the state in the place of an action that only sets a number or counts, as if it never
    counted to the end; what is set there, or COUNTED; and the state behind the last, or REFUSED."""
    pushes = np.append(np.diff(at), 0)
    goes = (kind == GO) & (pushes == 0)
    to = np.where(goes, number & STATE, REFUSED)
    sets = np.where(goes, number >> SHIFT, 0)
    counting = np.flatnonzero(kind == COUNT)
    to[counting] = np.maximum(found[at[counting]], REFUSED)
    sets[counting] = COUNTED
    last = np.full(len(to), REFUSED, np.int32)
    last[counting] = np.maximum(found[at[counting] + 1], REFUSED)
    i = np.where(act < REFUSED, -2 - act, len(to) - 1)
    ahead = np.where(act < REFUSED, to[i], act).astype(np.int32)
    return ahead, np.where(act < REFUSED, sets[i], 0).astype(np.int32), last[i]
