"""A deterministic automaton with a stack, as arrays: what compiled functions and states read.

A state and a byte lead to one action. The actions:

    a number           go to that state
    Go(to, push)       push symbols (states to come back to), deepest first, then go to a state
    Return()           pop a symbol, and do what that state does with the same byte
    Switch(pops, ...)  pop so many symbols; the last one says which action is next
    Accept()           the end of the text is fine (it is a byte of its own, behind the 256)

A regular grammar has only states to go to, and so is a finite automaton. In `act` a state stands for
itself, REFUSED for a byte that may not come, and -2 - i for action i of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from diskmoe.grammar_draft.loops import find_loops, find_only, tails

I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]

GO, RETURN, SWITCH, ACCEPT = range(4)
END_OF_TEXT = 1 << 256  # as a set of bytes


@dataclass(frozen=True, slots=True)
class Go:
    to: int
    push: tuple[int, ...]


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


Action: TypeAlias = int | Go | Return | Switch | Accept
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
    leaves: U64  # (states, 2): the other ASCII bytes that a state, or one of its chain, can read
    ascii_only: (
        U8  # (states,): 1 where neither it nor one of its chain can read bytes that are not ASCII
    )
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
    loops, leaves = np.zeros((2, len(act), 2), np.uint64)
    room = np.zeros(len(act), np.int32)
    whole, ascii_only = np.zeros((2, len(act)), np.uint8)
    find_loops(act, classes, tails(classes), loops, room, whole, leaves, ascii_only)
    only = np.empty(len(act), np.int32)
    find_only(act, classes, only)
    chains = (loops, room, whole, leaves, ascii_only)
    return Table(classes, act, kind, number, at, listed, found, *chains, only, start)
