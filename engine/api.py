"""The public door: load a model, ask it, read what it cost.

from pathlib import Path
from diskmoe.engine.api import Model, Options
from diskmoe.engine.sampling import Sampling

with Model.load(Path("models/qwen3-q4"), Options(ram_gb=6)) as model:
    ids, how = model.encode_prompt("What is a disk?")
    answer = model.generate(ids, sampling=Sampling(temperature=0), limit=100)
    for piece in answer:
        print(piece, end="")
    print(answer.stats.decode.hit_rate)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import psutil

from diskmoe.engine.decode import check_prompt, decode
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.loading import (
    Opened,
    Options,
    check_options,
    json_file,
    memory_plan,
    open_model,
    ready_kernels,
)
from diskmoe.engine.model.forward import Transformer
from diskmoe.engine.model.kvcache import KvCache
from diskmoe.engine.model.weights import load_dense
from diskmoe.engine.report import ModelFacts
from diskmoe.engine.sampling import Sampler, Sampling
from diskmoe.engine.stats import RunStats
from diskmoe.engine.text.session import TextStream, prepare_prompt
from diskmoe.engine.text.template import ChatTemplate
from diskmoe.engine.text.tokenizer import TextTokenizer, collect_stop_ids, load_tokenizer
from diskmoe.experts.budget import MemoryPlan, shown_bytes
from diskmoe.experts.pagecache import cached_share
from diskmoe.experts.store import ExpertStore

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Model", "Options", "Prompt", "Run", "Sampling"]

WARM_SHARE = 0.1  # of the expert bytes in the page cache; below it a run counts as cold


def _silent(line: str) -> None:
    """Says nothing."""


def usable_cores() -> tuple[int, str]:
    """Compute threads by default: physical cores this process may use, and why that many."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        allowed = os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or allowed
    if physical < allowed:
        return physical, f"{physical} physical cores"
    return allowed, f"{allowed} cores allowed"


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model gets it.

    in_chat: the answer begins anew, so a SentencePiece tokenizer's leading space is no part of it;
    a raw prompt is continued, space and all.
    """

    ids: tuple[int, ...]
    how: str
    in_chat: bool


class Model:
    """A loaded model: weights in memory, experts on disk, one KV cache."""

    def __init__(
        self,
        opened: Opened,
        memory: MemoryPlan,
        transformer: Transformer,
        store: ExpertStore,
        workers: Workers,
        options: Options,
    ) -> None:
        self.config = opened.config
        self.path = opened.path
        self.memory = memory
        self.options = options
        self._records = opened.records
        self._transformer = transformer
        self._store = store
        self._workers = workers
        self._closed = False
        self.tokenizer: TextTokenizer | None = load_tokenizer(opened.path, self.config.vocab)
        self.template: ChatTemplate | None = ChatTemplate.load(opened.path)
        generation = json_file(opened.path / "generation_config.json")
        self.sampling_defaults = _sampling_defaults(generation)
        self.stop_ids, self.stop_sources = self._find_stops(generation)

    def _find_stops(self, generation: dict[str, Any] | None) -> tuple[frozenset[int], Any]:
        config = json_file(self.path / "config.json")
        if self.tokenizer is None:
            return collect_stop_ids(self.config.vocab, generation, config)
        return self.tokenizer.stop_ids(
            generation, config, json_file(self.path / "tokenizer_config.json"), self.template
        )

    @classmethod
    def load(
        cls, path: str | Path, options: Options | None = None, say: Callable[[str], None] = _silent
    ) -> Model:
        """Opens, plans and loads a model.

        Args:
            path: a converted model or a Hugging Face directory.
            say: gets one line per decision that was taken.

        Raises:
            BadModel, OutOfBudget, BadRequest: one line each, before any weight is read where
                headers can tell.
        """
        options = options or Options()
        opened = open_model(Path(path), options)
        for note in [*opened.notes, *check_options(options, opened.config)]:
            say(f"note      {note}")
        ready_kernels(opened, say)
        memory = memory_plan(opened, options)
        for line in memory.lines():
            say(f"memory    {line.removeprefix('memory ')}")
        threads, reason = usable_cores()
        if options.threads is not None:
            threads, reason = options.threads, "as set"
        workers = Workers(threads)
        store = None
        try:
            weights = load_dense(opened.source, opened.config, opened.dense_format)
            store = ExpertStore(
                opened.records,
                memory.slots_per_layer,
                opened.config.moe_layers,
                opened.config.experts,
                options.io_threads,
            )
            kv = KvCache(opened.config, options.ctx)
            transformer = Transformer(opened.config, weights, store, kv, workers)
            model = cls(opened, memory, transformer, store, workers, options)
        except BaseException:
            workers.close()
            if store is not None:
                store.close()
            opened.records.close()
            raise
        say(f"model     {model.describe()}")
        say(f"threads   {threads} compute ({reason}), {options.io_threads} reading")
        say(f"disk      {opened.records.io_mode}")
        say(f"stops     {model.describe_stops()}")
        return model

    def describe(self) -> str:
        config = self.config
        return (
            f"{self.path.name}: {config.family}, {config.layers} layers, {config.experts} experts, "
            f"top-{config.top_k}; experts {self._records.expert_format}, "
            f"{shown_bytes(self._records.record_layout.nbytes)} each"
        )

    def describe_stops(self) -> str:
        if not self.stop_sources:
            return "no stop token is named by the model: the text ends at NGEN"
        return "; ".join(f"{token} ({why})" for token, why in self.stop_sources.items())

    @property
    def facts(self) -> ModelFacts:
        """What reports say about this model."""
        return ModelFacts(
            name=self.path.name,
            family=self.config.family,
            layers=self.config.layers,
            experts=self.config.experts,
            top_k=self.config.top_k,
            expert_bytes=self._records.record_layout.nbytes,
            expert_format=self._records.expert_format,
            budget_bytes=self.memory.budget_bytes,
            slots_per_layer=self.memory.slots_per_layer,
        )

    def encode_prompt(self, prompt: str, chat: str = "auto", system: str | None = None) -> Prompt:
        """A prompt's token ids, with the chat template around it or without.

        Args:
            chat: ``"auto"``, ``"1"`` (chat template) or ``"0"`` (raw text).

        Raises:
            BadRequest: no tokenizer, no template though one was asked for, an empty prompt.
        """
        if self.tokenizer is None:
            raise BadRequest(
                f"{self.path} has no tokenizer.json: give the prompt as PROMPT_IDS=1,2,3"
            )
        modes = {"auto": "auto", "1": "chat", "0": "raw"}
        if chat not in modes:
            raise BadRequest(f"chat is {chat!r}; it must be auto, 1 or 0")
        mode = cast(Literal["auto", "chat", "raw"], modes[chat])
        ids, how = prepare_prompt(prompt, mode, self.tokenizer, self.template, system)
        in_chat = mode == "chat" or (mode == "auto" and self.template is not None)
        return Prompt(tuple(ids), how, in_chat)

    def generate(
        self,
        prompt: Prompt | str | Sequence[int],
        *,
        sampling: Sampling | None = None,
        limit: int = 256,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Run:
        """Starts a run; iterate over it for the text.

        Args:
            prompt: what ``encode_prompt`` made, or text for it, or token ids.
            limit: most tokens.
            stop: strings that end the text and are not part of it.
            ignore_eos: go on after the model's stop tokens.

        Raises:
            BadRequest: a prompt that cannot be fed.
        """
        if self._closed:
            raise BadRequest("the model is closed: load it again")
        if isinstance(prompt, str):
            prompt = self.encode_prompt(prompt)
        elif not isinstance(prompt, Prompt):
            prompt = Prompt(tuple(prompt), "given as token ids", in_chat=False)
        ids = prompt.ids
        check_prompt(ids, self.config.vocab, self.options.ctx)
        if stop and self.tokenizer is None:
            raise BadRequest("a stop string needs a tokenizer, and this model has none")
        self._transformer.kv.trim(0)
        stats = RunStats(cache_state=self._cache_state())
        valid = self.config.vocab if self.tokenizer is None else self.tokenizer.valid_mask
        tokens = decode(
            self._transformer,
            ids,
            Sampler(sampling or Sampling(temperature=0.0), valid),
            limit=limit,
            stop_ids=frozenset() if ignore_eos else self.stop_ids,
            prefill_chunk=self.options.prefill_chunk,
            stats=stats,
            on_prefill=on_prefill,
        )
        stream = None
        if self.tokenizer is not None:
            stream = TextStream(
                self.tokenizer, stop, self.tokenizer.leading_space and prompt.in_chat
            )
        return Run(tokens, stream, stats)

    def _cache_state(self) -> str:
        """``warm`` when the hot store or the page cache already holds experts.

        Where the system cannot tell, ``warm``: a claim of cold must be one that was checked.
        """
        if self._store.counters.misses:
            return "warm"
        if self._records.io_mode.startswith("O_DIRECT"):
            return "cold"
        share = cached_share(self._records.files)
        return "cold" if share is not None and share < WARM_SHARE else "warm"

    def close(self) -> None:
        """Ends threads, closes files, gives the arena back. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._workers.close()
        self._store.close()
        self._records.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Run:
    """A run under way: yields pieces of text; afterwards ``token_ids``, ``text``, ``stats``."""

    def __init__(
        self, tokens: Generator[int, None, None], stream: TextStream | None, stats: RunStats
    ) -> None:
        self._tokens = tokens
        self._stream = stream
        self._pieces: list[str] = []
        self.token_ids: list[int] = []
        self.stats = stats

    @property
    def text(self) -> str:
        """All text so far; empty for a model without a tokenizer."""
        return "".join(self._pieces)

    def __iter__(self) -> Iterator[str]:
        try:
            for token in self._tokens:
                self.token_ids.append(token)
                yield from self._piece([token])
                if self._stream is not None and self._stream.stopped is not None:
                    self.stats.stop_reason = "stop string"
                    break
        finally:
            reason = self.stats.stop_reason
            self._tokens.close()
            self.stats.stop_reason = reason
        if self._stream is not None:
            yield from self._kept(self._stream.flush())

    def _piece(self, ids: list[int]) -> Iterator[str]:
        if self._stream is not None:
            yield from self._kept(self._stream.push(ids))

    def _kept(self, piece: str) -> Iterator[str]:
        if piece:
            self._pieces.append(piece)
            yield piece


def plan_model(path: Path, options: Options) -> PlanReport:
    """The memory plan of a model; headers are read, no weight is."""
    opened = open_model(path, options)
    try:
        ready_kernels(opened, _silent)
        return PlanReport(opened, memory_plan(opened, options))
    finally:
        opened.records.close()


class PlanReport:
    """What ``diskmoe plan`` prints."""

    def __init__(self, opened: Opened, memory: MemoryPlan) -> None:
        self.opened = opened
        self.memory = memory

    @property
    def bytes_per_cold_token(self) -> int:
        """Disk bytes of one token when no expert is resident."""
        config, records = self.opened.config, self.opened.records
        if not config.moe_layers:
            return 0
        return config.top_k * sum(records.disk_bytes(layer, 0) for layer in config.moe_layers)

    def lines(self) -> list[str]:
        config, records = self.opened.config, self.opened.records
        experts = len(config.moe_layers) * config.experts
        return [
            (
                f"{self.opened.path}: {config.family}, {config.layers} layers, "
                f"{config.experts} experts, top-{config.top_k}"
            ),
            (
                f"experts {records.expert_format}: {shown_bytes(records.record_layout.nbytes)} "
                f"each, {experts} in all, {shown_bytes(experts * records.record_layout.nbytes)}"
            ),
            *self.memory.lines(),
            (
                f"a token reads {shown_bytes(self.bytes_per_cold_token)} from disk when nothing "
                "is resident"
            ),
        ]

    def as_json(self) -> dict[str, Any]:
        config, records, memory = self.opened.config, self.opened.records, self.memory
        return {
            "model": str(self.opened.path),
            "family": config.family,
            "layers": config.layers,
            "experts": config.experts,
            "top_k": config.top_k,
            "expert_format": records.expert_format,
            "expert_bytes": records.record_layout.nbytes,
            "bytes_per_cold_token": self.bytes_per_cold_token,
            "memory": {
                "budget_bytes": memory.budget_bytes,
                "reason": memory.reason,
                "base_bytes": memory.request.base_bytes,
                "dense_bytes": memory.request.dense_bytes,
                "kv_bytes": memory.request.kv_bytes,
                "scratch_bytes": memory.request.scratch_bytes,
                "loader_bytes": memory.request.loader_bytes,
                "arena_bytes": memory.arena_bytes,
                "slots_per_layer": memory.slots_per_layer,
            },
        }


def _sampling_defaults(generation: dict[str, Any] | None) -> dict[str, Any]:
    """Temperature and filters from generation_config.json, when it asks for sampling at all."""
    if not generation or generation.get("do_sample") is not True:
        return {}
    found = {}
    for key in ("temperature", "top_k", "top_p", "min_p"):
        value = generation.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found[key] = value
    found.setdefault("temperature", 1.0)
    return found
