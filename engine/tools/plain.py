"""Tools for a chat template that does not know of them: what it lacks is put into the messages.

Tools that it does not show are told in the system message. Where it writes no calls, earlier ones are
the assistant's text, and what came of them is the user's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from diskmoe.engine.tools.forms import Form
from diskmoe.engine.tools.toolbox import Toolbox


def told(
    messages: Sequence[Mapping[str, Any]], toolbox: Toolbox, form: Form
) -> list[dict[str, Any]]:
    """A conversation that begins with what tools there are, and how they are called."""
    functions = "\n".join(
        json.dumps(tool.given["function"], ensure_ascii=False) for tool in toolbox.tools
    )
    text = (
        f"You can call these functions, given as JSON:\n{functions}\n"
        f"To call one, write nothing but this, with its name and arguments:\n{form.example}"
    )
    found = [dict(message) for message in messages]
    if found and found[0]["role"] == "system":
        found[0]["content"] = f"{found[0].get('content') or ''}\n\n{text}".lstrip("\n")
        return found
    return [{"role": "system", "content": text}, *found]


def without_calls(messages: Sequence[Mapping[str, Any]], form: Form) -> list[dict[str, Any]]:
    """A conversation in which calls and what came of them are words."""
    return [_worded(message, form) for message in messages]


def _worded(message: Mapping[str, Any], form: Form) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"The function's result: {message.get('content')}"}
    if not message.get("tool_calls"):
        return dict(message)
    calls = [call["function"] for call in message["tool_calls"]]
    written = form.written([(each["name"], each["arguments"]) for each in calls])
    texts = [message["content"]] if message.get("content") else []
    texts.append(written)
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": "\n".join(texts)}
