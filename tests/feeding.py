"""A text fed token by token to what constrains it, and what may follow."""

import naive
import numpy as np

from diskmoe.grammar_draft.constraint import Constraint, State
from diskmoe.grammar_draft.lazy import Free
from diskmoe.grammar_draft.thinking import Thinking

Rules = Constraint | Free | Thinking


def fed(rules: Rules, *tokens: int) -> State | None:
    """The state behind these tokens; None: one of them was not allowed."""
    state: State | None = rules.start
    for token in tokens:
        if state is None:
            return None
        state = rules.accept(state, token)
    return state


def allowed(rules: Rules, state: State) -> set[int]:
    """The tokens that the mask lets through."""
    mask = naive.mask_of(rules.mask(state), len(rules.vocabulary))
    return set(np.flatnonzero(mask).tolist())
