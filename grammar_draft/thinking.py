"""Thinking blocks: what constrains a text leaves them alone, and a budget may end them.

Outside a block its opening tag is looked for, inside one its closing tag, in bytes, however tokens part
them. Inside every token counts. When the budget is spent, the text goes on to the end of a character,
and then the end is forced: a message, if there is one, and the closing tag. A block that opens later
has the whole budget again.

What waits for a trigger sees nothing of a block but its closing tag, which may be the trigger; it
begins its search anew there. What constrains a text from its start begins behind the block: a block
may then only be opened by the prompt or as the first token, and the text may not end inside.

    rules = Thinking(Lazy(...), Tags(b"<think>", b"</think>", 7, 8), budget=100, message=ids)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from diskmoe.grammar_draft.constraint import Constraint, State
from diskmoe.grammar_draft.lazy import OVER, Free, completing, everything_but, written
from diskmoe.grammar_draft.rules import Grammar, Literal, Rule
from diskmoe.grammar_draft.triggers import Finder, Spot
from diskmoe.grammar_draft.vocabulary import Words

MAX_MASKS = 256  # remembered at a time
UNLIMITED = -1


class Tags(NamedTuple):
    """What opens and closes a block, as written and as the token that is written so."""

    opening: bytes
    closing: bytes
    opening_id: int
    closing_id: int


class Outside(NamedTuple):
    spot: Spot
    state: State  # of what constrains the text


class Inside(NamedTuple):
    spot: Spot
    left: int  # tokens of the budget
    gap: int  # bytes that the latest character lacks


class Forced(NamedTuple):
    at: int  # how much of the end has come


class Thinking:
    """Rules for a text with thinking blocks, around the rules for what is outside them."""

    def __init__(
        self,
        inner: Free | Constraint,
        tags: Tags,
        budget: int = UNLIMITED,
        message: Sequence[int] = (),
        inside: bool = False,
    ) -> None:
        """budget: tokens of a block. message: tokens before a forced end. inside: the text begins in
        a block that the prompt has opened."""
        self.inner = inner
        self.name = inner.name
        self.vocabulary = inner.vocabulary
        self._tags = tags
        self._budget = budget
        self._end = (*message, tags.closing_id)
        self._opening, self._closing = _finder(tags.opening), _finder(tags.closing)
        self._masks: dict[State, Words] = {}
        outside = Outside(self._opening.start, inner.start)
        self.start: State = self._settled(self._opened) if inside else outside

    @property
    def _opened(self) -> Inside:
        return Inside(self._closing.start, self._budget, 0)

    def _free(self, state: State) -> bool:
        return isinstance(self.inner, Free) and self.inner.free(state)

    def accept(self, state: State, token: int) -> State | None:
        """The state behind a token; None when it may not come."""
        if isinstance(state, Forced):
            if token != self._end[state.at]:
                return None
            more = state.at + 1 < len(self._end)
            return Forced(state.at + 1) if more else self._closed(b"", token)
        if isinstance(state, Inside):
            return self._accept_inside(state, token)
        if isinstance(state, Outside):
            return self._accept_outside(state, token)
        return None if state is OVER else self.inner.accept(state, token)

    def _accept_outside(self, state: Outside, token: int) -> State | None:
        inner, spot = self.inner, state.spot
        if not self._free(state.state):
            if token == self._tags.opening_id:
                return self._settled(self._opened)
            return inner.accept(state.state, token)
        data = written(self.vocabulary, token) or b""
        for at, byte in enumerate(data, 1):
            spot = self._opening.step(spot, byte)
            if spot.found and (at == len(data) or token not in self.vocabulary.special):
                head = data[: max(0, at - spot.found)]
                before = inner.walk(state.state, head) if head else state.state
                if self._free(before):
                    return self._read(self._opened, data[at:], None)
                break  # a trigger stood before it
        return self._outside(spot, inner.accept(state.state, token))

    def _outside(self, spot: Spot, state: State | None) -> State | None:
        return Outside(spot, state) if self._free(state) else state

    def _accept_inside(self, state: Inside, token: int) -> State | None:
        if token in self.vocabulary.ends:
            return OVER if self._free(self.inner.start) else None
        data = written(self.vocabulary, token)
        if data is None:
            return None
        left = state.left if state.left <= 0 else state.left - 1
        return self._read(state._replace(left=left), data, token)

    def _read(self, state: Inside, data: bytes, token: int | None) -> State | None:
        """Some bytes inside a block: a token's, None: of its rest."""
        spot, gap = state.spot, state.gap
        whole = token in self.vocabulary.special
        for at, byte in enumerate(data, 1):
            spot = self._closing.step(spot, byte)
            if spot.found and (at == len(data) or not whole):
                return self._closed(data[at:], token if data == self._tags.closing else None)
            gap = 0 if whole else _lacking(gap, byte)
        return self._settled(Inside(spot, state.left, gap))

    def _settled(self, state: Inside) -> State:
        return Forced(0) if state.left == 0 and not state.gap else state

    def _closed(self, rest: bytes, token: int | None) -> State | None:
        """The state behind a closing tag and some more bytes. token: the tag is this one."""
        inner = self.inner
        if not self._free(inner.start):
            return inner.walk(inner.start, rest) if rest else inner.start
        if token is not None:
            after = inner.accept(inner.start, token)
        else:
            after = inner.walk(inner.start, self._tags.closing + rest)
        return self._outside(self._opening.start, after)

    def mask(self, state: State) -> Words:
        """The tokens that may come next; see `Constraint.mask`."""
        if isinstance(state, Inside):  # what is left of the budget is all the same
            state = Inside(state.spot, UNLIMITED, 0)
        elif state is OVER:
            return self.vocabulary.mask_of(())
        elif not isinstance(state, Outside | Forced):
            return self.inner.mask(state)
        mask = self._masks.get(state)
        if mask is None:
            if len(self._masks) >= MAX_MASKS:
                self._masks.clear()
            mask = self._masks[state] = self._made(state)
        return mask

    def _made(self, state: Outside | Inside | Forced) -> Words:
        vocabulary = self.vocabulary
        if isinstance(state, Forced):
            return vocabulary.mask_of([self._end[state.at]])
        if isinstance(state, Inside):
            looked_at = completing(self._closing, state.spot, vocabulary)
            looked_at += list(vocabulary.ends)
            others = everything_but(vocabulary, looked_at)
        elif self._free(state.state):
            looked_at = completing(self._opening, state.spot, vocabulary)
            others = self.inner.mask(state.state) & ~vocabulary.mask_of(looked_at)
        else:
            looked_at, others = [self._tags.opening_id], self.inner.mask(state.state)
        allowed = [token for token in looked_at if self.accept(state, token) is not None]
        mask = others | vocabulary.mask_of(allowed)
        mask.setflags(write=False)
        return mask

    def allows(self, state: State, token: int) -> bool:
        return self.accept(state, token) is not None

    def known(self, state: State) -> bool:
        if isinstance(state, Inside):
            state = Inside(state.spot, UNLIMITED, 0)
        elif isinstance(state, Forced) or state is OVER:
            return True
        elif not isinstance(state, Outside):
            return self.inner.known(state)
        return state in self._masks

    def only(self, state: State) -> int | None:
        if isinstance(state, Forced):
            return self._end[state.at]
        return self.inner.only(state) if self._is_inners(state) else None

    def complete(self, state: State) -> bool:
        return state is OVER or (self._is_inners(state) and self.inner.complete(state))

    def may_end(self, state: State) -> bool:
        if isinstance(state, Outside):
            state = state.state
        elif isinstance(state, Inside | Forced):
            return isinstance(state, Inside) and self._free(self.inner.start)
        return state is OVER or self.inner.may_end(state)

    def wanted(self, state: State) -> str:
        if isinstance(state, Forced):
            return f"token {self._end[state.at]}"
        if isinstance(state, Outside):
            state = state.state
        elif state is OVER or isinstance(state, Inside):
            return "anything" if state is not OVER else "nothing: the text has ended"
        return self.inner.wanted(state)

    def _is_inners(self, state: State) -> bool:
        return state is not OVER and not isinstance(state, Outside | Inside | Forced)


def _finder(tag: bytes) -> Finder:
    return Finder([Grammar([Rule("root", [(Literal(tag),)])], name=repr(tag.decode()))])


def _lacking(gap: int, byte: int) -> int:
    """How many bytes a character lacks behind one more."""
    if byte & 0xC0 == 0x80:
        return max(gap - 1, 0)
    return (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
