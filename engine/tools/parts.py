"""What an answer with calls is made of, as it comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Said:
    """Text, of the answer or of the reasoning before it."""

    text: str
    reasoning: bool = False


@dataclass(frozen=True)
class Called:
    """A call begins: the index-th of the answer."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class Argued:
    """More of a call's arguments; all together are one JSON object."""

    index: int
    text: str


@dataclass(frozen=True)
class Unmade:
    """What had begun as a call is none: its text, from the marker on. index: of the call that was
    begun, None where none was."""

    index: int | None
    text: str


Part = Said | Called | Argued | Unmade


class Gathered:
    """The parts of an answer put together."""

    def __init__(self) -> None:
        self._said: dict[bool, list[str]] = {True: [], False: []}
        self._calls: dict[int, tuple[Called, list[str]]] = {}

    def add(self, part: Part) -> None:
        if isinstance(part, Said):
            self._said[part.reasoning].append(part.text)
        elif isinstance(part, Called):
            self._calls[part.index] = part, []
        elif isinstance(part, Argued):
            self._calls[part.index][1].append(part.text)
        else:
            self._said[False].append(part.text)
            self._calls.pop(-1 if part.index is None else part.index, None)

    @property
    def called(self) -> bool:
        """Whether there is a call."""
        return bool(self._calls)

    @property
    def message(self) -> dict[str, Any]:
        """As a chat's message, without its role: ``content``, and what else there is of
        ``reasoning_content`` and ``tool_calls``. Without the blank lines behind the reasoning."""
        reasoning = "".join(self._said[True]).strip("\n")
        content = "".join(self._said[False])
        content = content.lstrip("\n") if reasoning else content
        message: dict[str, Any] = {"content": content}
        if reasoning:
            message["reasoning_content"] = reasoning
        if self._calls:
            message["content"] = content or None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": "".join(texts)},
                }
                for call, texts in self._calls.values()
            ]
        return message
