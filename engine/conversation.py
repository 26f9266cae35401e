"""A conversation with a model: messages, turn by turn.

The rule kept here: a conversation is its messages. Every turn is rendered and encoded from them, so
what the model gets is what any other program would give it; that only the new part of it is computed
is the business of the model's caches.

    talk = model.chat(system="Answer in one line.", limit=100)
    for reasoning, text in talk.ask("What is a disk?"):
        print(text, end="")
    turn = talk.ask("And an SSD?")
    print(turn.answer(), turn.stats.reused_tokens)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from diskmoe.engine.answer import Answer
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.generation import Run
from diskmoe.engine.report import ModelFacts
from diskmoe.engine.stats import RunStats
from diskmoe.engine.text.side import TextSide
from diskmoe.engine.text.thinking import Thinking
from diskmoe.engine.tools.calling import Calling
from diskmoe.engine.tools.parts import Called, Gathered, Part, Said

ROLES = ("system", "user", "assistant")


class Answering(Protocol):
    """What a conversation asks of a ``Model``."""

    @property
    def text(self) -> TextSide: ...

    @property
    def facts(self) -> ModelFacts: ...

    @property
    def generate(self) -> Callable[..., Run]: ...


class Turn:
    """An answer as it comes: iterate for (is it reasoning, text), or take ``answer()`` at once."""

    def __init__(self, answer: Answer, at_end: Callable[[Turn], None] | None = None) -> None:
        """at_end: called once, when all of it has come or it was stopped."""
        self.run = answer.run
        self._answer = answer
        self._gathered = Gathered()
        self._at_end = at_end

    def __iter__(self) -> Iterator[tuple[bool, str]]:
        for part in self._answer:
            yield from self._told(part)
        self._ended()

    def stop(self, reason: str) -> Iterator[tuple[bool, str]]:
        """Ends it early, for a reason that its stats then say; what was held back comes."""
        self.run.stop(reason)
        parts = [*self._answer.parts(self.run.rest()), *self._answer.last()]
        held = [each for part in parts for each in self._told(part)]
        self._ended()
        return iter(held)

    def answer(self) -> str:
        """All of it that is no reasoning; waits until it is there."""
        for _ in self:
            pass
        return self.content

    @property
    def content(self) -> str:
        """The answer so far, without reasoning."""
        return self._gathered.message["content"]

    @property
    def reasoning(self) -> str:
        """The reasoning so far; empty for a model that does not show any."""
        return self._gathered.message.get("reasoning_content", "")

    @property
    def stats(self) -> RunStats:
        """What it cost."""
        return self.run.stats

    @property
    def message(self) -> dict[str, str]:
        """What is kept of it."""
        return {"role": "assistant", **self._gathered.message}

    def _told(self, part: Part) -> Iterator[tuple[bool, str]]:
        """A part as text; nobody asked for calls, so what there is of one is said."""
        if isinstance(part, Called):
            return
        said = part if isinstance(part, Said) else Said(part.text)
        self._gathered.add(said)
        yield said.reasoning, said.text

    def _ended(self) -> None:
        at_end, self._at_end = self._at_end, None
        if at_end is not None:
            at_end(self)


class Conversation:
    """Messages, and the model that answers them; made by ``Model.chat``.

    system: the system message, None where there is none; may be set. messages: questions and answers
    in turn, from the first question on.
    """

    def __init__(
        self,
        model: Answering,
        system: str | None = None,
        messages: Sequence[dict[str, str]] = (),
        **how: Any,
    ) -> None:
        """how: for every answer, as for ``Model.generate``. BadRequest: messages that are none."""
        self.model = model
        self.system = system
        self.messages: list[dict[str, str]] = []
        self._how = how
        self._calling = Calling.of(model.text)
        if messages:
            self.load([*self.all_messages, *messages])

    @property
    def all_messages(self) -> list[dict[str, str]]:
        """With the system message."""
        if self.system is None:
            return list(self.messages)
        return [{"role": "system", "content": self.system}, *self.messages]

    def ask(self, text: str, **how: Any) -> Turn:
        """The answer to a question. Both are part of the conversation when all of it has come, or it
        was stopped.

        Args:
            text: the question.
            how: as for ``Model.generate``, for this answer alone.

        Raises:
            BadRequest: the conversation is longer than the context, or the template refuses it.
        """
        question = {"role": "user", "content": text}

        def keep(turn: Turn) -> None:
            self.messages += [question, turn.message]

        side, calling = self.model.text, self._calling
        prompt = calling.encode(side, [*self.all_messages, question], None)
        shown = calling.shown_tokens(side, None)
        run = self.model.generate(prompt, **{"shown": shown, **self._how, **how})
        thinking = Thinking.of(side, prompt.ids)
        return Turn(Answer(run, thinking, calling.reader(None)), keep)

    def take_back(self) -> str | None:
        """Forgets the last question and its answer; the question, None where there is none."""
        if not self.messages:
            return None
        self.messages.pop()
        return self.messages.pop()["content"]

    def load(self, messages: Sequence[dict[str, str]]) -> None:
        """Goes on from these messages, the first of which may be the system's. BadRequest when they
        are no conversation."""
        expected = 0
        for number, message in enumerate(messages):
            if not isinstance(message, dict):
                raise BadRequest(f"message {number} is {message!r:.60}; it must be a dict")
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
