"""A conversation with a model: messages, turn by turn.

The rule kept here: a conversation is its messages. Every turn is rendered and encoded from them, so
what the model gets is what any other program would give it; that only the new part of it is computed
is the business of the model's caches.

    talk = Conversation(model, system="Answer in one line.")
    for piece in talk.ask("What is a disk?", limit=100):
        print(piece, end="")
    talk.ask("And an SSD?")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from diskmoe.engine.api import Model
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.generation import Run
from diskmoe.engine.text.thinking import Thinking

ROLES = ("system", "user", "assistant")


class Turn:
    """An answer as it comes: iterate for (is it reasoning, text)."""

    def __init__(self, run: Run, thinking: Thinking) -> None:
        self.run = run
        self._thinking = thinking

    def __iter__(self) -> Iterator[tuple[bool, str]]:
        for piece in self.run:
            yield from self._thinking.parts(piece, self.run.token_ids)

    def stop(self, reason: str) -> Iterator[tuple[bool, str]]:
        """Ends it early; what was held back comes."""
        self.run.stop(reason)
        return self._thinking.parts(self.run.rest(), self.run.token_ids)

    @property
    def message(self) -> dict[str, str]:
        """What is kept of it."""
        found = {"role": "assistant", "content": self._thinking.content}
        if self._thinking.reasoning:
            found["reasoning_content"] = self._thinking.reasoning
        return found


class Conversation:
    """Messages, and the model that answers them."""

    def __init__(self, model: Model, system: str | None = None) -> None:
        self.model = model
        self.system = system
        self.messages: list[dict[str, str]] = []  # from the first question on

    @property
    def all_messages(self) -> list[dict[str, str]]:
        """With the system message."""
        if self.system is None:
            return list(self.messages)
        return [{"role": "system", "content": self.system}, *self.messages]

    def ask(self, text: str, **how: Any) -> Turn:
        """The answer to a question; it and the answer are part of the conversation as soon as the
        answer is ``keep``-ed. how: as for ``Model.generate``.

        Raises:
            BadRequest: the conversation is longer than the context, or the template refuses it.
        """
        return self._answer([*self.messages, {"role": "user", "content": text}], how)

    def keep(self, text: str, turn: Turn) -> None:
        """A question and its answer have taken place."""
        self.messages += [{"role": "user", "content": text}, turn.message]

    def take_back(self) -> str | None:
        """Forgets the last question and its answer; the question, None where there is none."""
        if not self.messages:
            return None
        self.messages.pop()
        return self.messages.pop()["content"]

    def load(self, messages: Sequence[dict[str, str]]) -> None:
        """Goes on from these. BadRequest when they are no conversation."""
        expected = 0
        for number, message in enumerate(messages):
            role = message.get("role")
            if role == "system" and number == 0:
                continue
            if role != ROLES[1 + expected % 2] or not isinstance(message.get("content"), str):
                raise BadRequest(
                    f"message {number} is no {ROLES[1 + expected % 2]}'s: a conversation has questions "
                    "and answers in turn"
                )
            expected += 1
        if expected % 2:
            raise BadRequest(
                f"the last of {len(messages)} messages is a question without an answer"
            )
        first = list(messages[:1])
        self.system = first[0]["content"] if first and first[0]["role"] == "system" else None
        self.messages = [dict(message) for message in messages[self.system is not None :]]

    def _answer(self, messages: Sequence[dict[str, str]], how: dict[str, Any]) -> Turn:
        head = self.all_messages[: self.system is not None]
        prompt = self.model.text.encode_chat([*head, *messages])
        return Turn(self.model.generate(prompt, **how), Thinking.of(self.model.text, prompt.ids))
