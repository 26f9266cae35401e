"""What the templates of ``golden/chat`` are rendered with, for goldens and for the oracle.

The templates are in the manner of the families: the markers and the constructs (macros, namespaces,
loops that look ahead or back, tests, filters, dates, refusals) of each family's, in words of our own.

    for name, talk, number in cases():
        load(name).render(TALKS[talk], **OPTIONS[number])
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

Message = dict[str, Any]

GOLDEN = Path(__file__).parent / "golden" / "chat"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
TODAY = (2026, 3, 5)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather of a city, <b>é</b> & more ",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Its name"},
                    "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
                    "days": {"type": "array", "items": {"type": "integer"}},
                    "wind": {"type": ["string", "null"]},
                    "place": {"type": "object", "properties": {"lat": {"type": "number"}}},
                },
                "required": ["city"],
            },
        },
    }
]
SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = {"role": "user", "content": "How is it in Zürich?"}
CALLED = {
    "role": "assistant",
    "content": None,
    "reasoning": "I look.\n",
    "tool_calls": [
        {
            "id": "call-1",
            "type": "function",
            "function": {
                "name": "weather",
                "arguments": {"city": "Zürich", "days": [1, 2], "wind": "<ü>"},
            },
        }
    ],
}
TOLD = {"role": "tool", "tool_call_id": "call-1", "content": '{"t": 3}'}
BYE = {"role": "user", "content": "Bye"}

TALKS: dict[str, list[Message]] = {
    "asked": [ASKED],
    "system": [SYSTEM, ASKED],
    "turns": [SYSTEM, ASKED, {"role": "assistant", "content": "Cold."}, BYE],
    "thought": [
        ASKED,
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nCold.", "name": None},
        BYE,
    ],
    "answered": [ASKED, {"role": "assistant", "thinking": "\nhm\n", "content": " Cold. "}],
    "called": [SYSTEM, ASKED, CALLED, TOLD],
    "called twice": [
        ASKED,
        CALLED,
        TOLD,
        TOLD,
        {"role": "assistant", "content": "3 degrees."},
        BYE,
    ],
    "parts": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ],
}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"add_generation_prompt": False},
    {"tools": TOOLS},
    {"enable_thinking": False},
    {"enable_thinking": True, "clear_thinking": False, "thinking": True, "tools": TOOLS},
    {"reasoning_effort": "high", "builtin_tools": ["browser"], "controls": {"length": "short"}},
)


def cases() -> Iterator[tuple[str, str, int]]:
    """(template, talk, number of the options) of all there is to render."""
    for path in sorted(GOLDEN.glob("*.jinja")):
        for talk in TALKS:
            for number in range(len(OPTIONS)):
                yield path.stem, talk, number
