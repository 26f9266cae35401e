"""The messages of a request, checked, as chat templates take them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from diskmoe.engine.server.fields import Fields
from diskmoe.engine.server.refusals import Refusal

_ROLES = ("system", "developer", "user", "assistant", "tool")


def messages_asked(fields: Fields) -> list[dict[str, Any]]:
    found = fields.take("messages")
    if not isinstance(found, list) or not found:
        raise fields.refuse("messages", "a list of at least one message")
    return [_message(each, number) for number, each in enumerate(found)]


def _message(given: Any, number: int) -> dict[str, Any]:
    at = f"messages[{number}]"
    if not isinstance(given, dict):
        raise Refusal(400, f"{at} must be an object with role and content", param=at)
    fields = Fields(given, f"{at}.")
    role = fields.one_of("role", _ROLES, None)
    if role is None:
        raise fields.refuse("role", "one of " + ", ".join(_ROLES))
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    message["content"] = _content(fields)
    for name in ("reasoning_content", "tool_call_id", "name"):
        value = fields.text(name)
        if value is not None:
            message[name] = value
    calls = fields.take("tool_calls")
    if calls:
        message["tool_calls"] = _calls(calls, at)
    elif message["content"] is None:
        raise fields.refuse("content", "a string, or a list of text parts")
    fields.ignore("refusal", "annotations", "audio", "function_call")
    fields.end()
    return message


def _content(fields: Fields) -> str | None:
    found = fields.take("content")
    if found is None or isinstance(found, str):
        return found
    if not isinstance(found, list):
        raise fields.refuse("content", "a string, or a list of text parts")
    parts: list[str] = []
    for part in found:
        if not isinstance(part, dict) or part.get("type") not in ("text", "refusal"):
            raise fields.refuse("content", "of text parts: nothing else is understood")
        text = part.get(part["type"])
        if not isinstance(text, str):
            raise fields.refuse("content", "of parts that have a text")
        parts.append(text)
    return "".join(parts)


def _calls(given: Any, at: str) -> Sequence[dict[str, Any]]:
    """Calls of an earlier answer, with arguments as objects: what templates render."""
    calls: list[dict[str, Any]] = []
    for given_call in given if isinstance(given, list) else [None]:
        call: dict[str, Any] = given_call if isinstance(given_call, dict) else {}
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Refusal(400, f"{at}.tool_calls must be a list of function calls", param=at)
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                raise Refusal(
                    400, f"{at}.tool_calls: the arguments of {function['name'][:60]} are not JSON"
                ) from None
        inner = {"name": function["name"], "arguments": arguments}
        calls.append({"id": call.get("id"), "type": "function", "function": inner})
    return calls
