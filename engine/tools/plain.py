"""Tools for a chat template that knows of none: told in the system message, called in JSON.

Earlier calls are the assistant's text, and what came of them is the user's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from diskmoe.engine.tools.toolbox import Toolbox

_TOLD = (
    "You can call these functions, given as JSON:\n{functions}\n"
    "To call one, answer with this JSON object and nothing else: "
    '{{"name": FUNCTION, "arguments": {{PARAMETER: VALUE}}}}'
)


def told(messages: Sequence[Mapping[str, Any]], toolbox: Toolbox | None) -> list[dict[str, Any]]:
    """A conversation in which tools are only words."""
    found = [_plain(message) for message in messages]
    if toolbox is None:
        return found
    functions = "\n".join(
        json.dumps(tool.given["function"], ensure_ascii=False) for tool in toolbox.tools
    )
    text = _TOLD.format(functions=functions)
    if found and found[0]["role"] == "system":
        found[0]["content"] = f"{found[0].get('content') or ''}\n\n{text}".lstrip("\n")
        return found
    return [{"role": "system", "content": text}, *found]


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"The function's result: {message.get('content')}"}
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    texts = [message["content"]] if message.get("content") else []
    for call in calls:
        texts.append(json.dumps(call["function"], ensure_ascii=False))
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": "\n".join(texts)}
