"""Expected bytes as the tokens that a model would spell them with: the draft.

The bytes are encoded behind the last tokens of the text, so that the first token is the one this
model's tokenizer puts there. The last token of a span is held back only where the tokenizer could
merge it with what may follow (tried, once per place), not where the document ends, and no longer
where the model was seen to write it. Drafts are verified, so a wrong one costs time and no text.

    spans = Spans(Walker(automaton), tokenizer)
    spans.accept(ids)                   # everything that was emitted, in order
    drafts = spans.propose(room=24)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol

from diskmoe.grammar_draft.automaton import State
from diskmoe.grammar_draft.walker import Walker

DEFAULT_CAP = 24  # tokens of a span
MAX_CAP = 48
_BYTES_PER_TOKEN = 12  # bytes looked ahead per token of the cap
_CONTEXT_TOKENS = 4  # tokens of the text that a span is encoded behind ...
_CONTEXT_BYTES = 8  # ... or fewer, when they have this many bytes
_MERGES = 64  # longer tokens that are looked at ...
_TRIED = 8  # ... and tried, to see whether a last token could be part of one
_REMEMBERED = 4096  # spans and verdicts kept

Tokens = tuple[int, ...]


class Tokenizer(Protocol):
    """What is needed of a model's tokenizer."""

    @property
    def token_bytes(self) -> Sequence[bytes | None]:
        """Per id the bytes that it prints; None for tokens that print nothing."""
        ...

    @property
    def special_text(self) -> Mapping[int, str]:
        """How the tokens that print nothing are written; tags of thinking blocks may be some."""
        ...

    def encode(self, text: str) -> Sequence[int]:
        """The ids of a text, none added."""
        ...


class Spans:
    """Drafts for one text at a time."""

    def __init__(self, walker: Walker, tokenizer: Tokenizer, cap: int = DEFAULT_CAP):
        """cap: tokens of a span, 1 to MAX_CAP."""
        self.walker = walker
        self._tokenizer = tokenizer
        self._bytes = tokenizer.token_bytes
        self._cap = max(1, min(cap, MAX_CAP))
        self._sorted: list[bytes] = []  # the vocabulary, made when first needed
        self._spelled: dict[tuple[tuple[int, ...], bytes], list[int]] = {}
        self._merges: dict[tuple[int, int, State], bool] = {}
        self.restart()

    def restart(
        self, prompt: Sequence[int] = (), thinking: bool = False, begun: bool = False
    ) -> None:
        """A new text begins behind a prompt, of which only habits are learned (and the last tokens
        kept, for spelling). thinking: the prompt has opened a thinking block. begun: it is known
        that the text's first byte is the grammar's."""
        self._recent: tuple[int, ...] = ()
        self._held: tuple[Hashable, list[int]] | None = None  # a place, and the span with its last
        if prompt:
            self.walker.restart()
            self.accept(prompt)
            self._held = None
        self.walker.restart(thinking, begun)

    def accept(self, tokens: Sequence[int]) -> None:
        """Tokens that were emitted."""
        for token in tokens:
            data = self._printed(token)
            if data is None and self.walker.state is None:
                data = self._tokenizer.special_text.get(token, "").encode()
            self.walker.feed(data or b"", token)
            self._compare(token)
        self._recent = (*self._recent, *tokens[-_CONTEXT_TOKENS:])[-_CONTEXT_TOKENS:]

    def _printed(self, token: int) -> bytes | None:
        return self._bytes[token] if 0 <= token < len(self._bytes) else None

    def _compare(self, token: int) -> None:
        """Learns whether a last token that was held back has come all the same."""
        if self._held is None:
            return
        place, span = self._held
        if len(span) == 1:
            self.walker.habits.learn(place, int(token == span[0]), few=False)
        self._held = (place, span[1:]) if len(span) > 1 and token == span[0] else None

    def propose(self, room: int, chain: Sequence[int] = ()) -> list[int]:
        """The tokens that the text should go on with; none where nothing is expected.

        room: how many can be verified. chain: tokens that the text may say before these.
        """
        walker, place, recent = self.walker, None, self._recent
        if not chain:
            self._held = None
        if not walker.ready or room <= 0:
            return []
        assert walker.state is not None
        if chain:
            printed = [self._printed(token) for token in chain]
            if None in printed:
                return []
            place = walker.behind(b"".join(data for data in printed if data))
            if place is None:
                return []
            recent = (*recent, *chain)[-_CONTEXT_TOKENS:]
        cap = min(self._cap, room)
        data, end = walker.expected(cap * _BYTES_PER_TOKEN, place)
        if not data:
            token = walker.automaton.forced_token(walker.state if place is None else place[0])
            return [] if token is None else [token]
        key = (recent, data)
        span = self._spelled.get(key)
        if span is None:
            if len(self._spelled) >= _REMEMBERED:
                self._spelled.clear()
            span = self._spelled[key] = self._spell(data, recent)
        if len(span) > cap or len(data) >= cap * _BYTES_PER_TOKEN:
            return span[:cap] if len(span) > cap else span[:-1]
        if span and self._could_merge(span, data, end, recent):
            return span[:-1] if chain else self._without_last(span, end)
        return list(span)

    def _without_last(self, span: list[int], end: State) -> list[int]:
        """Holds the last token back, unless the model was seen to write it all the same."""
        place = ("last", *(self._recent + tuple(span))[-2:], end.key)
        known = self.walker.habits.guess(place)
        if known is not None and known[0]:
            return list(span)
        self._held = (place, span)
        return span[:-1]

    # spelling

    def _spell(self, data: bytes, recent: Tokens) -> list[int]:
        """The tokens of some bytes behind the text's last tokens; none when they do not part there."""
        before = self._context(recent)
        for context in (before, b"") if before else (b"",):
            text = _whole_characters(context + data)
            if text is None:
                continue
            ids = self._tokenizer.encode(text)
            joined = b"".join(self._bytes[i] or b"" for i in ids)
            at = len(joined) - len(text.encode()) + len(context)  # a tokenizer may add a blank
            if not joined.endswith(text.encode()):
                continue
            first = 0
            while at > 0 and first < len(ids):
                at -= len(self._bytes[ids[first]] or b"")
                first += 1
            if at == 0:
                return list(ids[first:])
        return []

    def _context(self, recent: Tokens) -> bytes:
        """The bytes of the last tokens, from the start of a character on."""
        found = b""
        for token in reversed(recent):
            data = self._printed(token)
            if data is None:
                break
            found = data + found
            if len(found) >= _CONTEXT_BYTES and found[0] & 0xC0 != 0x80:
                break
        return found

    # the last token

    def _could_merge(self, span: list[int], data: bytes, end: State, recent: Tokens) -> bool:
        """Whether some text that may follow would be spelled without the last token of a span."""
        if not end.allowed:
            return False
        last = span[-1]
        before = span[-2] if len(span) > 1 else (recent or (-1,))[-1]
        key = (before, last, end)
        verdict = self._merges.get(key)
        if verdict is None:
            if len(self._merges) >= _REMEMBERED:
                self._merges.clear()
            verdict = self._merges[key] = self._try_merges(last, data, end, recent)
        return verdict

    def _try_merges(self, last: int, data: bytes, end: State, recent: Tokens) -> bool:
        spelled = self._bytes[last] or b""
        tried = 0
        for longer in self._longer(spelled):
            rest = longer[len(spelled) :]
            if self.walker.automaton.walk(end, rest) is None:
                continue
            tail = self._spell(data + rest, recent)
            covered = 0
            for token in tail:
                if covered == len(data) - len(spelled) and token == last:
                    break
                covered += len(self._bytes[token] or b"")
            else:
                return True
            tried += 1
            if tried >= _TRIED:
                break
        return False

    def _longer(self, start: bytes) -> list[bytes]:
        """Tokens that begin with some bytes and go on, at most _MERGES."""
        if not self._sorted:
            self._sorted = sorted({data for data in self._bytes if data})
        first = bisect_left(self._sorted, start + b"\0")
        found = []
        for data in self._sorted[first : first + _MERGES]:
            if not data.startswith(start):
                break
            found.append(data)
        return found


def _whole_characters(data: bytes) -> str | None:
    """The text of some bytes but for an incomplete character at the end; None when it is none."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if error.end < len(data) or error.reason != "unexpected end of data":
            return None
        return data[: error.start].decode()
