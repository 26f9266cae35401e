"""What a request is refused with, in the form of OpenAI's errors.

raise Refusal(400, "temperature is 'hot': it must be a number from 0 to 2", param="temperature")
"""

from __future__ import annotations

from typing import Any

from diskmoe.engine.errors import BadGrammar, BadRequest, DiskMoeError

MOST_CHARACTERS = 600  # of a message
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}


class Refusal(Exception):
    """One line for the client, with the status that it is sent with."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        """message: any text; it is made one line of bounded length."""
        super().__init__(_sendable(message)[:MOST_CHARACTERS])
        self.status = status
        self.param = param if param is None else _sendable(param)
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """``{"error": {"message", "type", "param", "code"}}``."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {
            "error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        }


def _sendable(text: str) -> str:
    """A request's own words as one line of UTF-8: half of a surrogate pair, which JSON can spell, and
    what moves the cursor as escapes."""
    text = " ".join(text.split())
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def refusal_of(error: DiskMoeError | BadGrammar) -> Refusal:
    """What a client is told of an error of the engine: what it asked for is to blame, or not."""
    message = str(error)
    if isinstance(error, (BadRequest, BadGrammar)):
        too_long = "CTX" in message
        return Refusal(400, message, code="context_length_exceeded" if too_long else None)
    return Refusal(500, message)
