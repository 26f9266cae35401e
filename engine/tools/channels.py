"""gpt-oss's answers: messages in channels, of which one may be a call.

A message is a head, ``<|message|>``, a body and a token that ends it. The channel ``analysis`` is
reasoning; a message ``to=functions.NAME`` is a call, its body the arguments; all else is said.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from diskmoe.engine.tools.cursor import Cursor, CutShort, Malformed, Step
from diskmoe.engine.tools.parts import Said

MOST_HEAD = 512
_ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>")
_HEADS = ("<|", "to=", "assistant")
_RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*([a-z]*)")


def messages(cursor: Cursor, call: Callable[[str, int], Step[bool]]) -> Step[None]:
    """The parts of an answer, which begins within the head of its first message. call: reads the
    arguments of a function by its name; where its message begins."""
    try:
        while True:
            mark = cursor.at
            head = yield from _head(cursor)
            name, channel = _RECIPIENT.search(head), _CHANNEL.search(head)
            if name is not None:
                yield from call(name[1], mark)
                yield from cursor.blanks()
            reasoning = channel is not None and channel[1] == "analysis"
            say = partial(Said, reasoning=reasoning)
            end = yield from cursor.stream(_ENDS, say)
            if end != "<|start|>":
                yield from cursor.follows("<|start|>")
            cursor.forget()
    except CutShort:
        return


def _head(cursor: Cursor) -> Step[str]:
    """A message's head, passed with its end; "" where a body begins at once."""
    begin = cursor.at
    for word in _HEADS:
        there = yield from cursor.follows(word)
        cursor.at = begin
        if there:
            try:
                return (yield from cursor.until("<|message|>", MOST_HEAD))
            except Malformed:
                cursor.at = begin
            except CutShort:
                if word == "<|":  # half a head is nothing to be read
                    raise
                cursor.at = begin
    return ""
