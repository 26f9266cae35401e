"""``logits_processor`` and ``logit_bias`` of llama-cpp-python, as processors of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.observed import Floats, Processor


def processors_of(
    given: Sequence[Processor] | Processor | None, bias: Mapping[int, float] | None
) -> tuple[Processor, ...]:
    """The bias first."""
    found: list[Processor] = []
    if bias:
        ids = np.array([int(each) for each in bias], np.intp)
        weights = np.array(list(bias.values()), np.float32)

        def biased(tokens: Any, logits: Floats) -> Floats:
            if ids.min() < 0 or ids.max() >= len(logits):
                raise BadRequest(f"logit_bias names a token outside the {len(logits)} of the model")
            logits[ids] += weights
            return logits

        found.append(biased)
    if callable(given):
        found.append(given)
    else:
        found += given or ()
    return tuple(found)
