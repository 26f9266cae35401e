"""What is accepted of the drafts of a forward, greedy and sampled.

A draft that is certain of itself, which is what all of our sources give, is taken when it is what
plain decoding picks from the row before it. That is the accept-or-resample rule of Leviathan et al.
(arXiv 2211.17192) with a point mass as the proposal: the pick is the draft x with probability p(x),
and where it is another token that one has the distribution p without x. So the target's distribution
is kept exactly, whatever temperature and filters make of it. And as a row takes the same random
numbers either way, a seed gives the same text with drafts and without.

A draft with `odds` was drawn from a distribution q by chance of the source's own, and is judged by
the full rule: taken with probability min(1, p(x) / q(x)), else replaced by a token of max(p - q, 0),
normalised. The distribution is exact here too, but only if it does not depend on the token that was
drawn whether the draft gets its row (its share of q may not decide, nor that it is no id of the
model); and the text of a seed depends on which drafts there were, and so, where a planner looks at
the clock, on the clock. A source that asks ``Sampler.guess`` for its drafts (the same noise for draft
and row, see ``kernels/race.py``) has neither trouble and is certain of itself again. Of drafts from
disturbed logits were taken (4,000 tokens, temperatures 0.7 and 1, three spreads, three disturbances):

    full rule 0.87     same noise 0.86     likeliest token 0.73     drawn without regard 0.66

Random numbers: a place in the text has two streams. A pick reads the first, at the numbers of the
ids that it chooses among; the full rule reads two numbers of the second, one to accept and one to
choose what replaces. A place takes nothing of another's.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from diskmoe.grammar_draft.errors import DeadEnd
from diskmoe.mtp.source import Draft, Odds


class Picker(Protocol):
    """Chooses tokens of one text, place by place: ``diskmoe.engine.sampling.Sampler``."""

    def pick(self, logits: npt.NDArray[np.float32]) -> int:
        """The token of the next place, as plain decoding has it."""
        ...

    @property
    def done(self) -> bool:
        """Whether the text is over with the token picked last."""
        ...


@runtime_checkable
class Judge(Picker, Protocol):
    """A picker that says what it draws from, as the full rule asks. One that does not say it picks,
    which is right for every draft, and takes fewer of those with odds."""

    def probabilities(
        self, logits: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """What `pick` draws from: ids, ascending, and their probabilities."""
        ...

    def uniforms(self) -> tuple[float, float]:
        """Two random numbers for the next place, in place of a pick."""
        ...

    def take(self, token: int) -> None:
        """This is the token of that place."""
        ...


def verify(
    picker: Picker,
    logits: npt.NDArray[np.float32],
    drafts: Sequence[Draft],
    stops: Container[int] = (),
) -> list[int]:
    """The tokens that a forward is good for: drafts that were right, then one that the model picked.

    logits (1 + drafts, vocab), of the row before the drafts and of each of them. A stop token ends
    the list, as a draft too, and so does the picker when the text is over. What was picked last is
    the token to be fed next. A place that has no token (DeadEnd) is none of the forward's when it
    has others: without drafts those would have been emitted before it is found.
    """
    tokens: list[int] = []
    for place, row in enumerate(logits):
        draft = drafts[place] if place < len(drafts) else None
        try:
            if draft is None or draft.odds is None or not isinstance(picker, Judge):
                token = picker.pick(row)
            else:
                token = _judged(picker, row, draft.token, draft.odds)
        except DeadEnd:
            if not tokens:
                raise
            break
        tokens.append(token)
        if draft is None or token != draft.token or token in stops or picker.done:
            break
    return tokens


def _judged(judge: Judge, row: npt.NDArray[np.float32], token: int, odds: Odds) -> int:
    """A draft that was drawn from `odds`, or what replaces it."""
    ids, probs = judge.probabilities(row)
    accept, choose = judge.uniforms()
    if accept * _share(odds.ids, odds.probs, token) >= _share(ids, probs, token):
        token = _replaced(ids, probs, odds, choose)
    judge.take(token)
    return token


def _replaced(
    ids: npt.NDArray[np.int32], probs: npt.NDArray[np.float64], odds: Odds, choose: float
) -> int:
    """A token of max(p - q, 0), normalised."""
    at = np.searchsorted(ids, odds.ids)
    known = np.flatnonzero(at < len(ids))
    known = known[ids[at[known]] == odds.ids[known]]
    rest = probs.copy()
    rest[at[known]] -= odds.probs[known]
    rest = np.maximum(rest, 0.0)
    # p and q that are equal but for rounding may leave nothing
    return _drawn(ids, rest if rest.any() else probs, choose)


def _share(ids: npt.NDArray[np.int32], probs: npt.NDArray[np.float64], token: int) -> float:
    at = int(np.searchsorted(ids, token))
    return float(probs[at]) if at < len(ids) and ids[at] == token else 0.0


def _drawn(ids: npt.NDArray[np.int32], weights: npt.NDArray[np.float64], uniform: float) -> int:
    """The id in whose share of (0, 1) the number falls; shares lie in ascending order of id."""
    shares = np.cumsum(weights)
    place = int(np.searchsorted(shares, uniform * shares[-1], side="right"))
    # rounded, the number may be all of the last share
    return int(ids[min(place, int(np.flatnonzero(weights)[-1]))])
