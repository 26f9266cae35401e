"""``llama-cpp-python``'s names on this engine: a script changes one import.

    from diskmoe.engine.llama_compat import Llama, LlamaGrammar

    with Llama("models/qwen3-q4", n_ctx=4096) as llm:
        answer = llm.create_chat_completion([{"role": "user", "content": "Hello"}])
        print(answer["choices"][0]["message"]["content"])

The rule of this file: names, defaults and shapes are theirs; what is asked for is done or refused. An
argument that would change the text and is not built, or that nobody knows, raises.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diskmoe.engine.api import Model
from diskmoe.engine.conversation import Turn
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.generation import Run
from diskmoe.engine.llama_arguments import CHOOSING, LOADING, refuse_unsupported
from diskmoe.engine.logprobs import chat_logprobs, completion_logprobs
from diskmoe.engine.observed import Floats, Processor
from diskmoe.engine.options import Options
from diskmoe.engine.replies import Reply
from diskmoe.engine.sampling import Sampling
from diskmoe.engine.text.side import Prompt
from diskmoe.engine.text.thinking import Thinking
from diskmoe.grammar_draft.languages import from_gbnf, from_schema
from diskmoe.grammar_draft.library import load as load_grammar
from diskmoe.grammar_draft.rules import Grammar

if TYPE_CHECKING:
    from typing_extensions import Self

_RANDOM_SEED = 0xFFFFFFFF
_FORMATS = ("text", "json_object", "json_schema")


@dataclass(frozen=True)
class LlamaGrammar:
    """What a text must follow."""

    grammar: Grammar

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """A GBNF grammar. BadGrammar with its line and column."""
        return cls(from_gbnf(grammar))

    @classmethod
    def from_file(cls, file: str | os.PathLike[str], verbose: bool = True) -> LlamaGrammar:
        """A file of GBNF."""
        return cls(load_grammar(os.fspath(file)))

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """A JSON Schema as text. BadGrammar with the JSON Pointer of what is wrong."""
        return cls(from_schema(json_schema))


class Llama:
    """A model behind the methods of ``llama_cpp.Llama``.

    model_path: a converted model or a Hugging Face directory (a GGUF is converted first, by ``diskmoe
    convert``). n_ctx: 0 for as much as the engine would take. options: of this engine, beside theirs.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        n_ctx: int = 512,
        n_batch: int = 512,
        n_threads: int | None = None,
        seed: int = _RANDOM_SEED,
        verbose: bool = True,
        options: Options | None = None,
        **others: Any,
    ) -> None:
        """Raises BadRequest for an argument that is not supported, BadModel, OutOfBudget."""
        refuse_unsupported("Llama", others, LOADING)
        options = replace(
            options or Options(),
            ctx=n_ctx or None,
            prefill_chunk=n_batch,
            **({} if n_threads is None else {"threads": n_threads}),
        )
        self.model_path = os.fspath(model_path)
        self.verbose = verbose
        self._seed = seed
        self._model = Model.load(Path(model_path), options, self._say)

    def __call__(self, prompt: str, **how: Any) -> Any:
        """See ``create_completion``."""
        return self.create_completion(prompt, **how)

    def create_completion(
        self,
        prompt: str | Sequence[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | Sequence[str] | None = None,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        model: str | None = None,
        logits_processor: Sequence[Processor] | Processor | None = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: Mapping[int, float] | None = None,
        **others: Any,
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """A text goes on. max_tokens: None or below 1: as many as fit."""
        refuse_unsupported(
            "create_completion", {**others, "suffix": suffix}, {**CHOOSING, "suffix": (None,)}
        )
        if isinstance(prompt, str):
            given = self._model.text.encode_prompt(prompt, chat="0")
        else:
            given = Prompt(tuple(prompt), "given as token ids", in_chat=False)
        run = self._run(
            given,
            Sampling(temperature, max(top_k, 0), top_p, min_p, self._seeded(seed)),
            max_tokens,
            stop,
            grammar and grammar.grammar,
            logprobs,
            _processors(logits_processor, logit_bias),
        )
        reply = Reply(model or self.model_path, chat=False)
        head = self.detokenize(given.ids).decode("utf-8", "replace") if echo else ""
        if stream:
            return self._text_stream(run, reply, head, logprobs is not None)
        text = head + "".join(run)
        noted = None
        if logprobs is not None:
            noted = completion_logprobs(self._model.text, run.logprobs, len(head))
        return reply.whole({"content": text}, run.stats, noted)

    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        stream: bool = False,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        model: str | None = None,
        logits_processor: Sequence[Processor] | Processor | None = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: Mapping[int, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        **others: Any,
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """An answer in a conversation.

        A tool that is chosen by name is called: the answer is its arguments, by its schema. Choosing
        among tools ("auto", "required") is not supported.
        """
        allowed = {**CHOOSING, "functions": (None,), "function_call": (None,)}
        refuse_unsupported("create_chat_completion", others, allowed)
        tool = _chosen_tool(tools, tool_choice)
        language = _language(response_format, grammar, tool)
        shown = [] if tools is None or tool_choice == "none" else [dict(each) for each in tools]
        prompt = self._model.text.encode_chat(messages, **({"tools": shown} if shown else {}))
        most = (top_logprobs or 0) if logprobs else None
        run = self._run(
            prompt,
            Sampling(temperature, max(top_k, 0), top_p, min_p, self._seeded(seed)),
            max_tokens,
            stop,
            language,
            most,
            _processors(logits_processor, logit_bias),
        )
        turn = Turn(run, Thinking.of(self._model.text, prompt.ids))
        reply = Reply(model or self.model_path, chat=True)
        if stream:
            if tool is not None:
                raise BadRequest("a tool that is chosen by name is not streamed: leave out stream")
            return self._chat_stream(turn, reply, most is not None)
        for _ in turn:
            pass
        message: dict[str, Any] = {**turn.message}
        if tool is not None:
            message = {"content": None, "tool_calls": [_call(reply, tool, message["content"])]}
        noted = None if most is None else chat_logprobs(self._model.text, run.logprobs)
        return reply.whole(message, run.stats, noted)

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of a text. special: names of special tokens in it are these tokens."""
        tokenizer, found = self._tokenizer, text.decode("utf-8", "replace")
        named = [name for name in tokenizer.special_text.values() if name in found]
        if named and not special:
            raise BadRequest(f"the text holds {named[0]!r}, which is a token: pass special=True")
        ids = tokenizer.encode(found)
        return [*tokenizer.prefix_ids, *ids] if add_bos else ids

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """The bytes that tokens print. special: those of special tokens, too."""
        tokenizer = self._tokenizer
        named = tokenizer.special_text if special else {}
        return b"".join(
            named[token].encode() if token in named else tokenizer.token_bytes[token] or b""
            for token in tokens
        )

    def reset(self) -> None:
        """Nothing is left of earlier texts: the next prompt is read from its beginning."""
        self._model.forget()

    def set_seed(self, seed: int) -> None:
        """Of texts to come that are given none."""
        self._seed = seed

    def n_ctx(self) -> int:
        """Positions of the KV cache."""
        return self._model.opened.context

    def n_vocab(self) -> int:
        """Rows of the vocabulary."""
        return self._model.config.vocab

    def token_eos(self) -> int:
        """The first of the tokens that end a text, -1 without any."""
        return next(iter(self._model.text.stop_sources), -1)

    def token_bos(self) -> int:
        """What texts begin with, -1 where they begin with nothing."""
        return next(iter(self._tokenizer.prefix_ids), -1)

    def close(self) -> None:
        """Ends threads, closes files, gives memory back."""
        self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _tokenizer(self) -> Any:
        if self._model.text.tokenizer is None:
            raise BadRequest(f"{self.model_path} has no tokenizer.json")
        return self._model.text.tokenizer

    def _say(self, line: str) -> None:
        if self.verbose:
            print(line, file=sys.stderr)

    def _seeded(self, seed: int | None) -> int | None:
        chosen = self._seed if seed is None else seed
        return None if chosen in (_RANDOM_SEED, -1) else chosen

    def _run(
        self,
        prompt: Prompt,
        sampling: Sampling,
        max_tokens: int | None,
        stop: str | Sequence[str] | None,
        language: Grammar | None,
        logprobs: int | None,
        processors: Sequence[Processor],
    ) -> Run:
        room = max(1, self._model.opened.context - len(prompt.ids))
        stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
        return self._model.generate(
            prompt,
            sampling=sampling,
            limit=room if max_tokens is None or max_tokens < 1 else max_tokens,
            stop=stops,
            grammar=language,
            constrain=language is not None,
            logprobs=logprobs,
            processors=processors,
        )

    def _text_stream(
        self, run: Run, reply: Reply, head: str, with_logprobs: bool
    ) -> Iterator[dict[str, Any]]:
        if head:
            yield reply.piece(head)
        told, place = 0, len(head)
        for piece in run:
            noted = None
            if with_logprobs:
                noted = completion_logprobs(self._model.text, run.logprobs[told:], place)
                told = len(run.logprobs)
            place += len(piece)
            yield reply.piece(piece, logprobs=noted)
        yield reply.last(run.stats)

    def _chat_stream(
        self, turn: Turn, reply: Reply, with_logprobs: bool
    ) -> Iterator[dict[str, Any]]:
        yield reply.first()
        told = 0
        for reasoning, piece in turn:
            noted = None
            if with_logprobs:
                noted = chat_logprobs(self._model.text, turn.run.logprobs[told:])
                told = len(turn.run.logprobs)
            yield reply.piece(piece, reasoning, noted)
        yield reply.last(turn.run.stats)


def _processors(
    given: Sequence[Processor] | Processor | None, bias: Mapping[int, float] | None
) -> tuple[Processor, ...]:
    found: list[Processor] = []
    if bias:
        ids = np.array([int(each) for each in bias], np.intp)
        weights = np.array(list(bias.values()), np.float32)

        def biased(tokens: Any, logits: Floats) -> Floats:
            if ids.min() < 0 or ids.max() >= len(logits):
                raise BadRequest(f"logit_bias names a token outside the {len(logits)} of the model")
            logits[ids] += weights
            return logits

        found.append(biased)
    if callable(given):
        found.append(given)
    else:
        found += given or ()
    return tuple(found)


def _language(
    asked: Mapping[str, Any] | None, grammar: LlamaGrammar | None, tool: Mapping[str, Any] | None
) -> Grammar | None:
    """What the answer must follow."""
    if not isinstance(asked, Mapping | None):
        raise BadRequest(
            f"response_format is {asked!r:.40}; it must have a type: text or json_object"
        )
    kind = "text" if asked is None else asked.get("type")
    if kind not in _FORMATS:
        raise BadRequest(f"response_format.type is {kind!r:.40}; it must be text or json_object")
    saying = {"tool_choice": tool, "grammar": grammar, "response_format": asked}
    said = [
        n
        for n, each in saying.items()
        if each is not None and (each is not asked or kind != "text")
    ]
    if len(said) > 1:
        raise BadRequest(f"{said[1]} and {said[0]} both say what the answer must follow")
    schema: Any = None
    if tool is not None:
        schema = tool.get("parameters") or {"type": "object"}
    elif asked is not None and kind == "json_schema":
        schema = (asked.get("json_schema") or {}).get("schema")
    elif asked is not None and kind == "json_object":
        schema = asked.get("schema")
        schema = {"type": "object"} if schema is None else schema
    else:
        return None if grammar is None else grammar.grammar
    return from_schema(schema)


def _chosen_tool(
    tools: Sequence[Mapping[str, Any]] | None, choice: str | Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """The function that must be called; None where none must and none may."""
    if choice in (None, "none") or tools is None:
        if tools and choice is None:
            raise BadRequest('tools need tool_choice: a function by name, or "none"')
        return None
    name = choice.get("function", {}).get("name") if isinstance(choice, Mapping) else None
    if name is None:
        raise BadRequest(f"tool_choice={choice!r:.60} is not supported: name a function")
    for tool in tools:
        if tool.get("function", {}).get("name") == name:
            return tool["function"]
    raise BadRequest(f"tool_choice names {name!r:.60}, which is none of the tools")


def _call(reply: Reply, tool: Mapping[str, Any], arguments: str) -> dict[str, Any]:
    function = {"name": tool["name"], "arguments": _compact(arguments)}
    return {"id": f"call_{reply.id.rpartition('-')[2]}", "type": "function", "function": function}


def _compact(arguments: str) -> str:
    """As other servers write them; as they are where the answer was cut short."""
    try:
        return json.dumps(json.loads(arguments), ensure_ascii=False)
    except ValueError:
        return arguments
