"""Which token comes next, given logits.

Filters come in transformers' order: temperature, top_k, top_p, min_p. (llama.cpp applies the
temperature last, so its top_p and min_p see sharper or flatter numbers than ours.) Each filter
sees what the one before has left, renormalised. Equal logits are ordered by token id, so top_k
keeps exactly k tokens.

What a grammar forbids is and-ed to the words of 64 ids that say what may be taken at all, so a mask
costs no pass of its own. A mask need not be made where one look at a grammar decides: chance belongs
to ids, so the winner of all is the winner of those allowed if it is one of them. Greedy, at a plain
temperature and with min_p that is all there is to it; for top_k and top_p see `Filters.decisive`. So
both ways (CONSTRAIN=mask, check) choose the same tokens, but where two numbers differ by rounding.

The rule kept here: chance is a function of the seed, of a token's place in the text and of its id
(``kernels/race.py``), and no stream that is used up. So a seed gives the same text however many
tokens were guessed at, rejected or computed side by side; and whoever has other logits for the same
place, as drafts do, can be asked to choose with the same chance (`Sampler.guess`).
"""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from diskmoe.engine.errors import BadModel, BadRequest
from diskmoe.engine.filters import Filters, Ids, Weights, Words
from diskmoe.engine.kernels.race import race, race_all, stream_of, uniform
from diskmoe.engine.kernels.select import BLOCK, largest_of_blocks, share_of
from diskmoe.grammar_draft.constraint import State
from diskmoe.grammar_draft.course import Course

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Sampling:
    """How to choose tokens, in this order (transformers').

    temperature: logits are divided by it; 0 takes the likeliest token and ignores the rest. top_k: the
    k likeliest are left, 0: all. top_p: the likeliest that together have this share of probability,
    above 0; 1: all. min_p: those with at least this share of the likeliest's, 0: all. seed: from 0 to
    2^64-1; the same seed gives the same text, with drafts and without; None: another each time.

    Raises:
        BadRequest: a value that is out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self):
        _check("temperature", self.temperature, 0.0, math.inf, "0 (greedy) or more")
        _check("top_k", self.top_k, 0, math.inf, "0 (off) or a number of tokens", whole=True)
        _check("top_p", self.top_p, 0.0, 1.0, "above 0 and at most 1 (off)")
        if self.top_p == 0:
            raise BadRequest("top_p is 0: it must be above 0 and at most 1 (off)")
        _check("min_p", self.min_p, 0.0, 1.0, "between 0 (off) and 1")
        if self.seed is not None:
            _check("seed", self.seed, 0, 2**64 - 1, "between 0 and 2^64-1", whole=True)


def _check(name: str, value: Any, low: float, high: float, rule: str, whole: bool = False) -> None:
    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    is_number = isinstance(value, kinds) and not isinstance(value, (bool, np.bool_))
    # Written so that NaN fails; an infinite temperature is refused with the rest.
    if not is_number or not (low <= value <= high) or value == math.inf:
        raise BadRequest(f"{name} is {value!r}: it must be {rule}")


class Sampler:
    """Chooses the tokens of one text, one by one.

    `valid_vocab` says which ids have a token: a number n for ids below n, or a bool mask (vocab,).
    `seed` is the seed in use, drawn from the operating system when none was given, so that any run
    can be repeated. `place` counts the tokens chosen; each place has two streams of random numbers,
    one for `pick` and one for `uniforms`.
    """

    def __init__(
        self,
        sampling: Sampling,
        valid_vocab: int | NDArray[np.bool_],
        course: Course | None = None,
        mode: str = "1",
    ):
        """course: what constrains the text; it is taken along. mode: "mask" makes masks, "check"
        looks at the chosen token first where that decides, "1" does so where no mask is at hand."""
        self.sampling = sampling
        self.course = course
        self._mode = mode
        self.seed = secrets.randbits(63) if sampling.seed is None else int(sampling.seed)
        self.place = 0
        if isinstance(valid_vocab, (int, np.integer)):
            valid_vocab = np.ones(int(valid_vocab), np.bool_)
        valid = np.flatnonzero(valid_vocab)
        if not len(valid):
            raise BadModel("the tokenizer leaves no token to sample")
        # Most vocabularies are one block and then padding, which is cut off.
        self._count = int(valid[-1]) + 1
        blocks = -(-self._count // BLOCK)
        bits = np.zeros(blocks * BLOCK, np.bool_)
        bits[valid] = True
        # a word for 64 ids
        self._allowed = np.packbits(bits, bitorder="little").view("<u8").astype(np.uint64)
        self._maxima = np.empty(blocks, np.float32)
        self._masked = np.empty_like(self._allowed)
        self._filters = Filters(
            len(valid),
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
        )

    @property
    def done(self) -> bool:
        """Whether the text is over: it is a whole document of its grammar and nothing may follow."""
        return self.course is not None and self.course.complete

    def pick(self, logits: Floats) -> int:
        """The next token id, from logits (vocab,).

        Raises:
            BadModel: they are not finite.
            DeadEnd: the grammar leaves no token to take.
        """
        state = None if self.course is None else self.course.state
        token, _ = self._choice(self._whole(logits), self.place, state)
        if token < 0:
            raise self._dead_end()
        self.place += 1
        if self.course is not None:
            self.course.take(token)
        return token

    def guess(self, logits: Floats, chain: Sequence[int] = ()) -> tuple[int, float]:
        """What `pick` would take behind tokens that may come first, if these were its logits, and
        its share of all that may be taken, at temperature 1. (-1, 0) where nothing fits.

        logits (n,) for the first n ids, or for all and more. Nothing is changed by it. A draft that
        is guessed so is right nearly as often as the two distributions allow.
        """
        state = None
        if self.course is not None:
            state = self.course.after(chain)
            if state is None or self.course.rules.complete(state):
                return -1, 0.0
        logits = _as_given_to_kernels(logits)
        token, allowed = self._choice(logits, self.place + len(chain), state)
        if token < 0:
            return -1, 0.0
        maxima = self._maxima_of(logits)  # as the choice has left them
        return token, float(share_of(logits, allowed, maxima, token))

    def uniforms(self) -> tuple[float, float]:
        """Two numbers in (0, 1) for the next place, which is then taken: for what chooses in
        another way than `pick`, and says by `take` what."""
        stream = self._stream(self.place, 1)
        self.place += 1
        return uniform(stream, np.uint64(0)), uniform(stream, np.uint64(1))

    def take(self, token: int) -> None:
        """The text goes on by a token that was not picked here, but had a probability."""
        if self.course is not None:
            self.course.take(token)

    def probabilities(self, logits: Floats) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """The exact distribution that `pick` draws from.

        Returns ids int32 (n,), ascending, and their probabilities float64 (n,), which sum to 1 up
        to rounding. Greedy is one id with probability 1. Raises as `pick` does.
        """
        logits = _as_given_to_kernels(self._whole(logits))
        allowed = self._allowed if self.course is None else self._under(self.course.state)
        best, maxima = self._best(logits, allowed)
        if best < 0:
            raise self._dead_end()
        if self.sampling.temperature == 0:
            return np.array([best], dtype=np.int32), np.ones(1)
        kept = self._filters.kept(logits, allowed, best, maxima)
        ids, weights = kept or self._filters.all(logits, allowed, best, maxima)
        possible = weights > 0
        ids, weights = ids[possible], weights[possible]
        return ids, weights / weights.sum()

    def _choice(self, logits: Floats, place: int, state: State) -> tuple[int, Words]:
        """The token of a place, -1 where none may come, and what it was chosen from. state: of the
        course, None without one."""
        logits = _as_given_to_kernels(logits)
        if state is None:
            return self._winner(logits, place, self._allowed)[0], self._allowed
        assert self.course is not None
        rules = self.course.rules
        if self._mode == "check" or (self._mode == "1" and not rules.known(state)):
            token = self._checked(logits, place, state)
            if token is not None:
                return token, self._allowed
        allowed = self._under(state)
        return self._winner(logits, place, allowed)[0], allowed

    def _under(self, state: State) -> Words:
        """The ids that may be taken in a state: valid until the next."""
        assert self.course is not None
        mask = self.course.rules.mask(state)
        return np.bitwise_and(self._allowed, mask[: len(self._allowed)], out=self._masked)

    def _checked(self, logits: Floats, place: int, state: State) -> int | None:
        """The token that the mask would lead to, where it can be told without."""
        assert self.course is not None
        winner, best, kept = self._winner(logits, place, self._allowed)
        allows = self.course.rules.allows
        if not allows(state, winner):
            return None
        if kept is None:
            return winner
        decisive = self._filters.decisive(logits, best, kept, winner)
        if decisive is None or not all(allows(state, token) for token in decisive):
            return None
        return winner

    def _winner(
        self, logits: Floats, place: int, allowed: Words
    ) -> tuple[int, int, tuple[Ids, Weights] | None]:
        """The token of a place, -1 where none is allowed; the likeliest; what filters keep, if
        there are any."""
        best, maxima = self._best(logits, allowed)
        if best < 0 or self.sampling.temperature == 0:
            return best, best, None
        stream = self._stream(place, 0)
        kept = self._filters.kept(logits, allowed, best, maxima)
        if kept is None:
            temperature = float(self.sampling.temperature)
            return race_all(logits, allowed, maxima, best, temperature, stream), best, None
        return race(*kept, stream), best, kept

    def _stream(self, place: int, use: int) -> np.uint64:
        return np.uint64(stream_of(np.uint64(self.seed), np.uint64(2 * place + use)))

    def _best(self, logits: Floats, allowed: Words) -> tuple[int, Floats]:
        """The likeliest id that is allowed, -1 where none is, and each block's largest logit."""
        maxima = self._maxima_of(logits)
        best = largest_of_blocks(logits, allowed, maxima)
        if best < -1:
            self._refuse(logits, allowed)
        return best, maxima

    def _maxima_of(self, logits: Floats) -> Floats:
        return self._maxima[: -(-len(logits) // BLOCK)]

    def _dead_end(self) -> Exception:
        assert self.course is not None  # some token of the vocabulary may be taken
        return self.course.dead_end()

    def _whole(self, logits: Floats) -> Floats:
        if logits.ndim != 1 or logits.shape[0] < self._count:
            raise ValueError(f"logits have shape {logits.shape}, expected at least {self._count}")
        return logits

    def _refuse(self, logits: Floats, allowed: Words) -> NoReturn:
        usable = logits[: self._count]
        bits = np.unpackbits(allowed.astype("<u8").view(np.uint8), bitorder="little")
        bad = (bits[: len(usable)] != 0) & ~np.isfinite(usable)
        token = int(np.argmax(bad))
        raise BadModel(
            f"the model computed {usable[token]} as the logit of token {token} "
            f"({int(bad.sum())} of {len(usable)} are not finite): its weights are "
            "damaged or its numbers overflow"
        )


def _as_given_to_kernels(logits: Floats) -> Floats:
    """As the one kind of array that they are compiled for: a copy where it is another."""
    return np.require(logits, np.float32, ["C", "A", "W"])


def warm_sampler() -> None:
    """Compiles what a sampler calls."""
    for top_k, top_p in ((0, 1.0), (1, 1.0), (0, 0.5)):
        sampler = Sampler(Sampling(1.0, top_k, top_p, seed=0), BLOCK)
        sampler.pick(np.zeros(BLOCK, np.float32))
        sampler.guess(np.zeros(BLOCK, np.float32))
        sampler.uniforms()
