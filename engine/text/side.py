"""The text side of a model directory: tokenizer, template, stop tokens, sampling defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, cast

from diskmoe.engine.errors import BadModel, BadRequest
from diskmoe.engine.sampling import Sampling
from diskmoe.engine.text.files import one_line, read_json_object
from diskmoe.engine.text.session import chat_ids, prepare_prompt
from diskmoe.engine.text.stops import collect_stop_ids, turn_ends
from diskmoe.engine.text.template import ChatTemplate
from diskmoe.engine.text.tokenizer import TextTokenizer, load_tokenizer

SAMPLING_KEYS = ("temperature", "top_k", "top_p", "min_p")
# what generation_config.json may ask for beyond our filters, with the value that changes nothing
_NEUTRAL: Mapping[str, Any] = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "typical_p": 1.0,
    "num_beams": 1,
    "penalty_alpha": 0,
}
# vocabularies in forms that are not read
_OTHER_VOCABULARIES = ("tiktoken.model", "tokenizer.model", "vocab.json")
# what opens and closes a thinking block, in the families that have one
_THINKING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
_MODES = {"auto": "auto", "1": "chat", "0": "raw"}


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model gets it.

    ids: its tokens. how: what they were made by, in words.
    in_chat: the answer begins anew, so a SentencePiece tokenizer's leading space is no part of it;
    a raw prompt is continued, space and all.
    """

    ids: tuple[int, ...]
    how: str
    in_chat: bool


@dataclass(frozen=True)
class TextSide:
    """What turns text into token ids and back for one model.

    tokenizer, template: None where the directory has none. stop_ids: tokens that end a text, with
    what says so in stop_sources. turn_ends: further ones that end an answer in a chat. sampling_defaults:
    of generation_config.json, as arguments of ``Sampling``. notes: what is odd about the files.
    """

    path: Path
    tokenizer: TextTokenizer | None
    template: ChatTemplate | None
    stop_ids: frozenset[int]
    stop_sources: Mapping[int, str]
    turn_ends: Mapping[int, str]
    sampling_defaults: Mapping[str, Any]
    notes: tuple[str, ...]
    longest: int | None = None  # tokens that a prompt may have, where it is known

    @classmethod
    def load(
        cls, path: Path, config: dict[str, Any], vocab_size: int, longest: int | None = None
    ) -> TextSide:
        """Reads the files beside the weights.

        Raises:
            BadModel: a file that is broken or disagrees with the model; its name is in the line.
        """
        tokenizer = load_tokenizer(path, vocab_size)
        template = ChatTemplate.load(path)
        generation_path = path / "generation_config.json"
        generation = read_json_object(generation_path)
        if tokenizer is None:
            stops, sources = collect_stop_ids(vocab_size, generation, config)
            ends: dict[int, str] = {}
        else:
            tokenizer_config = read_json_object(path / "tokenizer_config.json")
            stops, sources = tokenizer.stop_ids(generation, config, tokenizer_config, template)
            ends = turn_ends(tokenizer.special_text) if template is not None else {}
            ends = {token: text for token, text in ends.items() if token not in stops}
        defaults = _sampling_defaults(generation, generation_path)
        notes = (*_not_applied(generation, generation_path), *_odd_stops(stops, sources, tokenizer))
        return cls(path, tokenizer, template, stops, sources, ends, defaults, notes, longest)

    def encode_prompt(self, prompt: str, chat: str = "auto", system: str | None = None) -> Prompt:
        """A prompt's token ids, with the chat template around it or without.

        Args:
            prompt: the text.
            chat: ``"auto"``, ``"1"`` (chat template) or ``"0"`` (raw text).
            system: the system message, where there is a template.

        Raises:
            BadRequest: no tokenizer, no template though one was asked for, an empty prompt, or one
                that is far too long.
        """
        if self.tokenizer is None:
            raise BadRequest(
                f"{self.path} has no tokenizer.json{self.unread}: give the prompt as PROMPT_IDS=1,2,3"
            )
        if chat not in _MODES:
            raise BadRequest(f"chat is {chat!r}; it must be auto, 1 or 0")
        mode = cast(Literal["auto", "chat", "raw"], _MODES[chat])
        tokenizer = replace(self.tokenizer, most=self.longest)
        ids, how = prepare_prompt(prompt, mode, tokenizer, self.template, system)
        in_chat = mode == "chat" or (mode == "auto" and self.template is not None)
        return Prompt(tuple(ids), how, in_chat)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Prompt:
        """The token ids of a conversation that the model is to go on with.

        Args:
            messages: ``{"role": ..., "content": ...}`` each.
            options: the template's own, such as tools or enable_thinking.

        Raises:
            BadRequest: no tokenizer or no chat template; messages that the template refuses, or that
                are far too long.
        """
        if self.tokenizer is None or self.template is None:
            what = "tokenizer.json" if self.tokenizer is None else "chat template"
            raise BadRequest(f"{self.path} has no {what}: it cannot be chatted with")
        tokenizer = replace(self.tokenizer, most=self.longest)
        ids = chat_ids(messages, tokenizer, self.template, **options)
        return Prompt(tuple(ids), f"chat template ({self.template.source})", in_chat=True)

    @property
    def unread(self) -> str:
        """ " (NAME is not read)" of a vocabulary that is there in another form, else nothing."""
        name = next((name for name in _OTHER_VOCABULARIES if (self.path / name).exists()), None)
        return "" if name is None or self.tokenizer is not None else f" ({name} is not read)"

    def thinking(self, ids: Sequence[int]) -> tuple[tuple[str, str] | None, bool]:
        """The tags of the model's thinking blocks, None where its tokenizer has none; and whether
        a prompt ends inside such a block."""
        for tags in _THINKING:
            opening, closing = (self.tokenizer and self.tokenizer.token_id(tag) for tag in tags)
            if opening is not None and closing is not None:
                latest = next((i for i in reversed(ids) if i in (opening, closing)), closing)
                return tags, latest == opening
        return None, False

    def may_think(self, ids: Sequence[int]) -> bool:
        """Whether an answer to a prompt may begin a thinking block: the model has them, and the
        prompt does not end with one."""
        tags, inside = self.thinking(ids)
        if tags is None or self.tokenizer is None or inside:
            return False
        closing = self.tokenizer.token_id(tags[1])
        behind = list(takewhile(lambda token: token != closing, reversed(ids)))
        return len(behind) == len(ids) or bool(self.tokenizer.decode_bytes(behind).strip())

    def stops(self, in_chat: bool) -> frozenset[int]:
        """The tokens that end a text."""
        return self.stop_ids | frozenset(self.turn_ends if in_chat else ())

    def describe_stops(self) -> str:
        """The tokens that end a text and what says so, in one line."""
        said = [f"{token} ({why})" for token, why in self.stop_sources.items()]
        said += [f"{token} ({text}, in a chat)" for token, text in self.turn_ends.items()]
        return "; ".join(said) or "no stop token is named by the model: the text ends at NGEN"


def _odd_stops(
    stops: frozenset[int], sources: Mapping[int, str], tokenizer: TextTokenizer | None
) -> tuple[str, ...]:
    """A line for each stop that the tokenizer takes for a word, or for nothing."""
    if tokenizer is None:
        return ()
    lines: list[str] = []
    for token in sorted(stops):
        printed = tokenizer.token_bytes[token]
        # some that are not marked as special look so all the same
        if token in tokenizer.special_text or (printed or b"").startswith(b"<"):
            continue
        what = f"the word {one_line(repr(printed), 40)}" if printed is not None else "no token"
        lines.append(
            f"stop token {token} ({sources[token]}) is {what} in tokenizer.json: the files may not "
            "belong together"
        )
    return tuple(lines)


def _not_applied(generation: dict[str, Any] | None, path: Path) -> tuple[str, ...]:
    """A line for what the model's file asks for and this version does not do."""
    asked = [
        f"{key}={generation[key]}"
        for key, neutral in _NEUTRAL.items()
        if generation and generation.get(key) not in (None, neutral)
    ]
    return (f"{path.name} asks for {', '.join(asked)}: not applied",) if asked else ()


def _sampling_defaults(generation: dict[str, Any] | None, path: Path) -> dict[str, Any]:
    """Temperature and filters from generation_config.json, when it asks for sampling at all."""
    asked = (generation or {}).get("do_sample")
    if asked not in (True, False, None):
        raise BadModel(f"{path}: do_sample is {asked!r}; it must be true or false")
    if not generation or not asked:
        return {}
    found: dict[str, Any] = {"temperature": 1.0}
    for key in SAMPLING_KEYS:
        value = generation.get(key)
        if value is None:
            continue
        if key == "top_k" and isinstance(value, float) and value.is_integer():
            value = int(value)
        found[key] = value
    try:
        Sampling(**found)
    except BadRequest as error:
        raise BadModel(f"{path}: {error}; mend the file or remove it") from None
    return found
