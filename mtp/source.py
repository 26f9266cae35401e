"""What a draft source is: something that guesses how a text goes on, and hears how it did.

The one rule: a source never sees or changes what is emitted otherwise than by guessing. The model
judges every guess (``diskmoe.mtp.verify``), so a wrong one costs time and no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


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

    def propose(self, history: Sequence[int], room: int) -> Sequence[int]:
        """At most `room` (>= 1) token ids that should follow `history`, which is the prompt and all
        that was emitted; none where the source has no idea. What is longer is cut, and so is a
        proposal at an id that the model does not have."""
        ...

    def observe(self, tokens: Sequence[int]) -> None:
        """These tokens were emitted, drafts or not, in order."""
        ...
