"""``llama-cpp-python``'s names on this engine: a script changes one import.

    from diskmoe.engine.llama_compat import Llama, LlamaGrammar

    with Llama("models/qwen3-q4", n_ctx=4096) as llm:
        answer = llm.create_chat_completion([{"role": "user", "content": "Hello"}])
        print(answer["choices"][0]["message"]["content"])

The rule of this file: names, defaults and shapes are theirs; what is asked for is done or refused. An
argument that would change the text and is not built, or that nobody knows, raises.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diskmoe.engine.answer import Answer
from diskmoe.engine.api import Model
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.llama_arguments import CHOOSING, LOADING, refuse_unsupported
from diskmoe.engine.llama_biases import processors_of
from diskmoe.engine.llama_grammar import LlamaGrammar, language_of
from diskmoe.engine.observed import Processor
from diskmoe.engine.options import Options
from diskmoe.engine.replies import Reply
from diskmoe.engine.sampling import Sampling
from diskmoe.engine.text.side import Prompt
from diskmoe.engine.text.thinking import Thinking
from diskmoe.engine.tools.calling import Calling
from diskmoe.engine.tools.enforcing import Enforcing
from diskmoe.engine.tools.parts import Said
from diskmoe.engine.tools.toolbox import Toolbox
from diskmoe.engine.writer import Writer
from diskmoe.grammar_draft.rules import Grammar

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Llama", "LlamaGrammar"]

_RANDOM_SEED = 0xFFFFFFFF


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
        self._calling = Calling.of(self._model.text)
        self._say(self._calling.line)

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
        elif isinstance(prompt, bytes):
            raise BadRequest("the prompt is bytes; it must be text or a list of token ids")
        else:
            given = Prompt(tuple(prompt), "given as token ids", in_chat=False)
        answer = self._answer(
            given,
            Sampling(temperature, max(top_k, 0), top_p, min_p, self._seeded(seed)),
            max_tokens,
            stop,
            grammar and grammar.grammar,
            logprobs,
            processors_of(logits_processor, logit_bias),
        )
        head = self.detokenize(given.ids).decode("utf-8", "replace") if echo else ""
        reply = Reply(model or self.model_path, chat=False)
        writer = Writer(reply, self._model.text, logprobs is not None, len(head))
        return self._written(answer, writer, stream, head)

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

        Tools are called in the form of the model's family. tool_choice: "auto" (where there are tools),
        "none", "required" or a function by name; a call that must come has arguments by its schema, as
        has any call of a tool that is ``strict``.
        """
        allowed = {**CHOOSING, "functions": (None,), "function_call": (None,)}
        several = others.pop("parallel_tool_calls", None)
        refuse_unsupported("create_chat_completion", others, allowed)
        toolbox = Toolbox.of(tools, tool_choice, several is not False)
        language = language_of(response_format, grammar, toolbox is not None and toolbox.must)
        answer = self._answer(
            self._calling.encode(self._model.text, messages, toolbox),
            Sampling(temperature, max(top_k, 0), top_p, min_p, self._seeded(seed)),
            max_tokens,
            stop,
            language,
            (top_logprobs or 0) if logprobs else None,
            processors_of(logits_processor, logit_bias),
            toolbox,
        )
        reply = Reply(model or self.model_path, chat=True)
        return self._written(answer, Writer(reply, self._model.text, bool(logprobs)), stream)

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
        count = len(tokenizer.token_bytes)
        for token in tokens:
            if not 0 <= token < count:
                raise BadRequest(
                    f"token {token} is none of the model: ids are from 0 to {count - 1}"
                )
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

    def _answer(
        self,
        prompt: Prompt,
        sampling: Sampling,
        max_tokens: int | None,
        stop: str | Sequence[str] | None,
        language: Grammar | None,
        logprobs: int | None,
        processors: Sequence[Processor],
        toolbox: Toolbox | None = None,
    ) -> Answer:
        text, calling, triggers, thinking = self._model.text, self._calling, (), None
        if toolbox is not None:
            enforcing = Enforcing(calling.need(), toolbox, language)
            if enforcing.needed:
                language, triggers = enforcing.grammar(text), enforcing.triggers
                thinking = enforcing.thinking(text, prompt)
        room = max(1, self._model.opened.context - len(prompt.ids))
        run = self._model.generate(
            prompt,
            sampling=sampling,
            limit=room if max_tokens is None or max_tokens < 1 else max_tokens,
            stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
            grammar=language,
            constrain=language is not None,
            triggers=triggers,
            thinking=thinking,
            logprobs=logprobs,
            processors=processors,
            shown=calling.shown_tokens(text, toolbox) if prompt.in_chat else (),
        )
        if not prompt.in_chat:
            return Answer(run, Thinking.none())
        several = toolbox is None or toolbox.several
        return Answer(run, Thinking.of(text, prompt.ids), calling.reader(toolbox), several)

    def _written(
        self, answer: Answer, writer: Writer, stream: bool, head: str = ""
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """An answer in their shapes. head: text before it."""
        if stream:
            return self._chunks(answer, writer, head)
        if head:
            writer.add(Said(head))
        for part in answer:
            writer.add(part)
        self._note(answer)
        return writer.whole(answer.run.stats, answer.logprobs())

    def _chunks(self, answer: Answer, writer: Writer, head: str) -> Iterator[dict[str, Any]]:
        if writer.reply.chat:
            yield writer.reply.first()
        if head:
            yield writer.chunk(Said(head))
        for part in answer:
            yield writer.chunk(part, answer.logprobs())
        self._note(answer)
        yield writer.last(answer.run.stats, answer.logprobs())

    def _note(self, answer: Answer) -> None:
        for note in answer.notes:
            self._say(f"note      {note}")
