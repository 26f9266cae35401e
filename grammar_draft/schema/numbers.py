"""Numbers between bounds, multiples of something, with or without a fraction: as an automaton that
reads digits. Such a number is written without an exponent, and zero without a sign."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

from diskmoe.grammar_draft.regex.dfa import NO, Dfa, TooLarge, explore
from diskmoe.grammar_draft.rules import Ranges

_MAX_DIGITS = 1000  # of a bound


class Demand(NamedTuple):
    """What a number must be. Bounds: (number, whether it is excluded itself)."""

    whole: bool | None
    low: tuple[Decimal, bool] | None
    high: tuple[Decimal, bool] | None
    multiples: tuple[tuple[Decimal, bool], ...]
    excluded: tuple[Decimal, ...]
    digits: int | None  # of each part, at most


class _Against(NamedTuple):
    """A number that a magnitude is compared with: which outcomes (-1, 0, 1) are allowed."""

    digits: str
    fraction: str
    allowed: tuple[int, ...]


class _State(NamedTuple):
    """Where a reading of digits stands. place: digits read of the part at hand, as far as it matters;
    order: per comparison -1, 0 or 1 so far; rests: per multiple the remainder, -1 for none."""

    negative: bool
    part: str  # "sign", "zero", "whole", "point", "fraction"
    place: int
    order: tuple[int, ...]
    rests: tuple[int, ...]
    broken: bool  # a digit behind the point was not 0


@lru_cache(128)
def numbers(demand: Demand) -> Dfa:
    """The numbers that meet a demand. Raises TooLarge."""
    reader = _Reader(demand)
    start = _State(False, "start", 0, (), (), False)
    return explore(start, reader.moves, reader.label)


class _Reader:
    def __init__(self, demand: Demand):
        self.demand = demand
        self.against = {sign: _comparisons(demand, sign) for sign in (False, True)}
        self.steps = [_as_integer(step) for step, _ in demand.multiples]
        known = [one for some in self.against.values() if some for one in some]
        self.longest = max((len(one.digits) for one in known), default=0) + 1
        self.deepest = max(
            [*(len(one.fraction) for one in known), *(places for _, places in self.steps)],
            default=0,
        )
        if demand.digits is not None:
            self.longest = self.deepest = demand.digits
        if max(self.longest, self.deepest) > _MAX_DIGITS:
            raise TooLarge(f"a bound has more than {_MAX_DIGITS} digits")

    def moves(self, state: _State) -> Iterator[tuple[Ranges, _State]]:
        if state.part == "start":
            for negative in (False, True):
                some = self.against[negative]
                if some is None:
                    continue
                begun = _State(negative, "sign", 0, (0,) * len(some), (0,) * len(self.steps), False)
                if negative:
                    yield _one("-"), begun
                else:
                    yield from self.moves(begun)
            return
        most = self.demand.digits
        if state.part in ("zero", "whole") and self.demand.whole is not True:
            yield _one("."), self._pointed(state)
        if state.part == "zero" or (most is not None and state.place >= most):
            return
        groups: dict[_State, list[int]] = {}
        for digit in range(10):
            if state.part in ("point", "fraction"):
                after = self._fraction(state, digit)
            else:
                after = self._whole(state, digit)
            groups.setdefault(after, []).append(48 + digit)
        for after, codes in groups.items():
            yield tuple((code, code) for code in codes), after

    def _whole(self, state: _State, digit: int) -> _State:
        some = self.against[state.negative] or ()
        order = []
        for one, before in zip(some, state.order, strict=True):
            if state.place < len(one.digits):
                beside = int(one.digits[state.place])
                order.append(before or (digit > beside) - (digit < beside))
            else:
                order.append(1)
        rests = tuple(
            (rest * 10 + digit) % step
            for rest, (step, _) in zip(state.rests, self.steps, strict=True)
        )
        zero = state.part == "sign" and digit == 0
        place = min(state.place + 1, self.longest)
        return state._replace(
            part="zero" if zero else "whole", place=place, order=tuple(order), rests=rests
        )

    def _settled(self, state: _State) -> tuple[int, ...]:
        """The comparisons once the digits before the point are all known."""
        some = self.against[state.negative] or ()
        return tuple(
            -1 if state.place < len(one.digits) else 1 if state.place > len(one.digits) else before
            for one, before in zip(some, state.order, strict=True)
        )

    def _pointed(self, state: _State) -> _State:
        return state._replace(part="point", place=0, order=self._settled(state))

    def _fraction(self, state: _State, digit: int) -> _State:
        some = self.against[state.negative] or ()
        order = []
        for one, before in zip(some, state.order, strict=True):
            beside = int(one.fraction[state.place]) if state.place < len(one.fraction) else 0
            order.append(before or (digit > beside) - (digit < beside))
        rests = []
        for rest, (step, places) in zip(state.rests, self.steps, strict=True):
            if state.place < places and rest >= 0:
                rests.append((rest * 10 + digit) % step)
            else:
                rests.append(-1 if digit else rest)
        return state._replace(
            part="fraction",
            place=min(state.place + 1, self.deepest),
            order=tuple(order),
            rests=tuple(rests),
            broken=state.broken or (digit > 0 and self.demand.whole is False),
        )

    def label(self, state: _State) -> int:
        if state.part not in ("zero", "whole", "fraction"):
            return NO
        if self.demand.whole is False and not state.broken:
            return NO
        some = self.against[state.negative] or ()
        place = state.place if state.part == "fraction" else 0
        order = state.order if state.part == "fraction" else self._settled(state)
        for one, outcome in zip(some, order, strict=True):
            if outcome == 0 and place < len(one.fraction):
                outcome = -1
            if outcome not in one.allowed:
                return NO
        for rest, (step, places), (_, wanted) in zip(
            state.rests, self.steps, self.demand.multiples, strict=True
        ):
            whole = rest >= 0 and rest * 10 ** max(places - place, 0) % step == 0
            if whole != wanted:
                return NO
        return 0


def _comparisons(demand: Demand, negative: bool) -> tuple[_Against, ...] | None:
    """What magnitudes of one sign must be compared with; None where no number has this sign."""
    below: tuple[tuple[Decimal, bool] | None, tuple[Decimal, bool] | None]
    below = (demand.low, demand.high)
    if negative:
        low, high = (None if b is None else (-b[0], b[1]) for b in reversed(below))
    else:
        low, high = below
    found: list[_Against] = []
    if negative:
        found.append(_Against("0", "", (1,)))  # zero has no sign
    if high is not None:
        if high[0] < 0:
            return None
        found.append(_against(high[0], (-1,) if high[1] else (-1, 0)))
    if low is not None and low[0] >= 0:
        found.append(_against(low[0], (1,) if low[1] else (0, 1)))
    for value in demand.excluded:
        if (value < 0) == negative or value == 0:
            found.append(_against(abs(value), (-1, 1)))
    return tuple(found)


def _against(value: Decimal, allowed: tuple[int, ...]) -> _Against:
    if value.adjusted() > _MAX_DIGITS or value.as_tuple().exponent < -_MAX_DIGITS:  # type: ignore[operator]
        raise TooLarge(f"a bound has more than {_MAX_DIGITS} digits")
    whole, _, fraction = f"{value:f}".partition(".")
    return _Against(whole, fraction.rstrip("0"), allowed)


def _as_integer(step: Decimal) -> tuple[int, int]:
    """A step as (an integer, how many places its point is moved)."""
    sign, digits, exponent = step.normalize().as_tuple()
    del sign
    number = int("".join(map(str, digits)))
    places = int(exponent)
    if places > 9 or number > 100_000:
        raise TooLarge(f"multiples of {step} have too many remainders")
    return (number * 10**places, 0) if places >= 0 else (number, -places)


def _one(character: str) -> Ranges:
    return ((ord(character), ord(character)),)
