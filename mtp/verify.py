"""What is accepted of the drafts of a forward: one rule for all sources, greedy and sampled.

Each row's token is picked as plain decoding would pick it, and drafts are taken for as long as they
are what was picked. That is the accept-or-resample rule for drafts that are certain of themselves
(Leviathan et al., arXiv 2211.17192, with a point mass as the proposal): the pick is the draft x with
probability p(x), and where it is another token that one has the distribution p without x. So the
target's distribution is kept exactly, whatever temperature and filters make of it. And since a row
takes the same random number either way, a seed gives the same text with drafts and without.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

import numpy as np
import numpy.typing as npt

from diskmoe.mtp.source import Draft

Pick = Callable[[npt.NDArray[np.float32]], int]


def verify(
    pick: Pick,
    logits: npt.NDArray[np.float32],
    drafts: Sequence[Draft],
    stops: Container[int] = (),
) -> list[int]:
    """The tokens that a forward is good for: drafts that were right, then one that the model picked.

    logits (1 + drafts, vocab), of the row before the drafts and of each of them. A stop token ends
    the list, as a draft too. What was picked last is the token to be fed next.
    """
    tokens: list[int] = []
    for place, row in enumerate(logits):
        token = pick(row)
        tokens.append(token)
        if place == len(drafts) or token != drafts[place].token or token in stops:
            break
    return tokens
