"""What a draft source is: something that guesses how a text goes on, and hears how it did.

The one rule: a source never sees or changes what is emitted otherwise than by guessing. The model
judges every guess (``diskmoe.mtp.verify``), so a wrong one costs time and no text.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

GRADES = 4  # classes of how sure a source is of a draft


class Odds(NamedTuple):
    """A distribution over tokens: those that are not named have none of it."""

    ids: npt.NDArray[np.int32]  # (n,), ascending
    probs: npt.NDArray[np.float64]  # (n,), sum 1


@dataclass(frozen=True)
class Draft:
    """A guess of one token.

    grade: how sure the source is, 0 to GRADES - 1 in classes of its own, the surest last; what
    they are worth is learned. odds: what the token was drawn from; None: it is all the source says.
    """

    token: int
    grade: int = 0
    odds: Odds | None = None


class DraftSource(Protocol):
    """Drafts for one text, from its prompt to its end."""

    @property
    def name(self) -> str:
        """Its key in reports."""
        ...

    @property
    def gave_up(self) -> str:
        """Why it will not draft any more in this text; "" while it may."""
        ...

    @property
    def prior(self) -> tuple[float, ...]:
        """How often its first, second, ... draft is probably right where those before it were,
        until that was seen. The last holds for all behind it."""
        ...

    @property
    def grades(self) -> tuple[float, ...]:
        """The same by grade, wherever it stands; () where grades say nothing."""
        ...

    @property
    def cheap(self) -> bool:
        """Whether drafts are looked up, so that asking costs next to nothing; else each takes a
        forward of some model, and the source is asked where that is likely to pay."""
        ...

    def drafts(self, chain: Sequence[int]) -> Generator[Draft, None, None]:
        """What should follow all that was emitted, and then `chain`: drafts of other sources that
        stand before these in the same forward and are not judged yet.

        One by one, each worked out when it is asked for: the caller stops, and closes the iterator,
        when it has enough. None where the source has no idea. What was tried on the way leaves no
        trace in the source. A draft that is no id of the model ends them.
        """
        ...

    def observe(self, tokens: Sequence[int]) -> None:
        """These tokens were emitted, drafts or not, in order."""
        ...
