"""How long the model may think before it answers, as requests say it."""

from __future__ import annotations

from diskmoe.engine.constraining import ThinkBudget
from diskmoe.engine.server.fields import Fields
from diskmoe.engine.text.side import TextSide

MOST_TOKENS = 10_000_000
_NAMES = ("thinking_budget_tokens", "thinking_token_budget")  # of llama.cpp and of vLLM
_MESSAGE = "thinking_budget_message"


def thinking_asked(fields: Fields, text: TextSide) -> ThinkBudget | None:
    """What `thinking_budget_tokens` (or vLLM's name of it) and its message say; None: nothing.

    Raises:
        Refusal: two budgets, a message without one, a model that does not think.
    """
    given = [name for name in _NAMES if fields.has(name)]
    tokens = [fields.whole(name, -1, MOST_TOKENS) for name in _NAMES]
    message = fields.text(_MESSAGE)
    if len(given) == 2:
        raise fields.refuse(given[1], f"left out beside {given[0]}")
    if not given:
        if message is not None:
            raise fields.refuse(_MESSAGE, f"beside {_NAMES[0]}, whose end it is said at")
        return None
    if text.thinking(())[0] is None:
        raise fields.refuse(given[0], "left out: this model has no thinking blocks")
    budget = next(each for each in tokens if each is not None)
    return ThinkBudget(budget, message or "")
