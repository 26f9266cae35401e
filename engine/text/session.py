"""One text in, one text out: a prompt becomes token ids, token ids become text as they arrive.

The rule kept here: what has been shown is never taken back. Half a UTF-8 character waits for its
other half, and text that may turn out to be a stop string waits until it is decided.

    ids, note = prepare_prompt("Hello", "auto", tokenizer, template)
    stream = TextStream(tokenizer, stops=["\\n\\n"])
    for new_ids in decode(ids):
        print(stream.push(new_ids), end="")
        if stream.stopped is not None:
            break
    print(stream.flush())
"""

import codecs
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Literal

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.text.template import ChatTemplate
from diskmoe.engine.text.tokenizer import TextTokenizer

Mode = Literal["auto", "chat", "raw"]


class TextStream:
    """Turns token ids into text piece by piece.

    The pieces together are the tokens' bytes decoded as UTF-8 (invalid bytes become U+FFFD), cut
    before the first stop string. The first is the one that is complete first, the longest if
    several end together, so the cut does not depend on how ids are grouped into pushes. A special
    token prints nothing unless it is to be shown, but ends the text when it is named as a stop
    string.

    `stopped` is the stop string that ended the text, else None; `consumed` counts the ids taken,
    the one that completed the stop string included. Ids after it are ignored.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        stops: Sequence[str] = (),
        skip_leading_space: bool = False,
        shown: Container[int] = (),
    ):
        """`skip_leading_space`: drop a space at the very start, as a chat answer from a
        SentencePiece tokenizer needs (`tokenizer.leading_space`). `shown`: special tokens that are
        printed as they are written."""
        if not all(isinstance(stop, str) and stop for stop in stops):
            raise BadRequest("a stop string must be a text that is not empty")
        self.stopped: str | None = None
        self.consumed = 0
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""  # decoded, but a stop string may begin in it
        self._at_start = skip_leading_space
        self._shown = shown

    def push(self, ids: Iterable[int]) -> str:
        """The text that is certain after these ids; empty after a stop."""
        pieces: list[str] = []
        for token_id in ids:
            if self.stopped is not None:
                break
            self.consumed += 1
            name = self._tokenizer.special_text.get(token_id)
            if name is None:
                data = self._tokenizer.token_bytes[token_id] or b""
                pieces.append(self._advance(self._decoder.decode(data)))
            elif name in self._stops:
                pieces.append(self.flush())
                if self.stopped is None:
                    self.stopped = name
            elif token_id in self._shown:
                pieces.append(self._advance(self._decoder.decode(name.encode())))
        return "".join(pieces)

    def flush(self) -> str:
        """The text that was held back; call it once at the end."""
        if self.stopped is not None:
            return ""
        text = self._advance(self._decoder.decode(b"", final=True))
        if self.stopped is None:
            text += self._held
            self._held = ""
        return text

    def _advance(self, new_text: str) -> str:
        if self._at_start and new_text:
            new_text = new_text.removeprefix(" ")
            self._at_start = False
        self._held += new_text
        found = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := self._held.find(stop)) >= 0
        ]
        if found:
            _, start, self.stopped = min(found)
            text, self._held = self._held[:start], ""
            return text
        keep = max((begun(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text


def begun(text: str, stop: str) -> int:
    """How many characters of `stop` the end of `text` already has (not all of them)."""
    for n in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0


def prepare_prompt(
    prompt: str,
    mode: Mode,
    tokenizer: TextTokenizer,
    template: ChatTemplate | None,
    system: str | None = None,
    **options: Any,
) -> tuple[list[int], str]:
    """Token ids of a user's prompt, and a note that says how they were made.

    `auto` (the bare command) is a chat where the model has a chat template, else raw text: people
    ask a chat model questions, and without its template it answers badly. `options` such as
    enable_thinking go to the template. Raises BadRequest for a chat without a template, a system
    message without a chat, and a prompt of no tokens.
    """
    if mode not in ("auto", "chat", "raw"):
        raise BadRequest(f"prompt mode {mode!r} is none of auto, chat, raw")
    chat = mode == "chat" or (mode == "auto" and template is not None)
    if chat:
        if template is None:
            raise BadRequest(
                f"{tokenizer.path.parent}: has no chat template (chat_template.jinja, or "
                "chat_template in tokenizer_config.json); use --raw"
            )
        ids = chat_ids(_conversation(prompt, system), tokenizer, template, **options)
        note = f"chat template ({template.source})"
    else:
        if system is not None:
            raise BadRequest("a system message needs a chat template; put it into the raw prompt")
        ids = tokenizer.encode(prompt, special=True)
        note = "raw text"
        if mode == "auto":
            note += ": the model has no chat template"
        if tokenizer.prefix_ids:
            first = tokenizer.prefix_ids[0]
            note += f", after {tokenizer.special_text.get(first, first)}"
    if not ids:
        raise BadRequest("the prompt is empty")
    return ids, note


def chat_ids(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: TextTokenizer,
    template: ChatTemplate,
    **options: Any,
) -> list[int]:
    """Token ids of a conversation. The template writes BOS itself; none is added."""
    return tokenizer.encode(template.render(messages, **options), special=False)


def _conversation(prompt: str, system: str | None) -> list[dict[str, str]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": prompt}]
