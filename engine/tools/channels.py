"""gpt-oss's answers: messages in channels, of which one may be a call.

A message is a head, ``<|message|>``, a body and a token that ends it. The channel ``analysis`` is
reasoning; a message ``to=functions.NAME`` is a call, its body the arguments; all else is said.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from diskmoe.engine.tools.cursor import CutShort, Malformed, Step
from diskmoe.engine.tools.parts import Said

if TYPE_CHECKING:
    from diskmoe.engine.tools.reading import Reader

MOST_HEAD = 512
_ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>")
_HEADS = ("<|", "to=", "assistant")
_RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*([a-z]*)")


def messages(reader: Reader) -> Step[None]:
    """The parts of an answer, which begins within the head of its first message."""
    cursor = reader.cursor
    try:
        while True:
            mark = cursor.at
            head = yield from _head(reader)
            name, channel = _RECIPIENT.search(head), _CHANNEL.search(head)
            if name is not None:
                yield from reader.guarded(reader.json(name[1]), mark)
            reasoning = channel is not None and channel[1] == "analysis"
            say = partial(Said, reasoning=reasoning)
            if name is not None:
                yield from cursor.blanks()
            end = yield from cursor.stream(_ENDS, say)
            if end != "<|start|>":
                yield from cursor.follows("<|start|>")
            cursor.forget()
    except CutShort:
        return


def _head(reader: Reader) -> Step[str]:
    """A message's head, passed with its end; "" where a body begins at once."""
    cursor = reader.cursor
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
