"""The public door: load a model, ask it, read what it cost.

from pathlib import Path
from diskmoe.engine.api import Model, Options, Sampling

with Model.load(Path("models/qwen3-q4"), Options(ram_gb=6)) as model:
    answer = model.generate("What is a disk?", sampling=Sampling(temperature=0), limit=100)
    for piece in answer:
        print(piece, end="")
    print(answer.stats.decode.hit_rate)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from diskmoe.engine.cores import usable_cores
from diskmoe.engine.decode import check_prompt, decode
from diskmoe.engine.draft_head import load_head
from diskmoe.engine.drafting import Experience, composer_of
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.generation import Run
from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.learning import history_of, pin
from diskmoe.engine.memory import ahead_slots, policy_for, wave_slots
from diskmoe.engine.model.forward import Transformer
from diskmoe.engine.model.kvcache import KvCache
from diskmoe.engine.model.moe import Ints, Record
from diskmoe.engine.model.mtp_layer import MtpLayer
from diskmoe.engine.model.weights import load_dense
from diskmoe.engine.options import Options
from diskmoe.engine.prepared import Prepared, Say, prepare, silent
from diskmoe.engine.report import ModelFacts
from diskmoe.engine.sampling import Sampler, Sampling
from diskmoe.engine.stats import RunStats
from diskmoe.engine.text.session import TextStream
from diskmoe.engine.text.side import Prompt
from diskmoe.experts.budget import MemoryPlan, shown_bytes
from diskmoe.experts.pagecache import cached_share
from diskmoe.experts.policy import POLICIES
from diskmoe.experts.store import ExpertStore
from diskmoe.experts.trace import TraceRecorder
from diskmoe.experts.usage import UsageHistory
from diskmoe.experts.watch import MemoryWatch
from diskmoe.grammar_draft.library import load as load_grammar
from diskmoe.grammar_draft.rules import Grammar
from diskmoe.mtp.draft_model import DraftModelSource
from diskmoe.mtp.head import MtpSource
from diskmoe.mtp.source import DraftSource

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Model", "Options", "Prepared", "Prompt", "Run", "Sampling", "prepare"]

WARM_SHARE = 0.1  # of the expert bytes in the page cache; below it a run counts as cold


def _to_each(recorders: Sequence[Record]) -> Record:
    def record(layer: int, ids: Ints, phase: int) -> None:
        for each in recorders:
            each(layer, ids, phase)

    return record


class Model:
    """A loaded model: weights in memory, experts on disk, one KV cache."""

    def __init__(
        self,
        prepared: Prepared,
        memory: MemoryPlan,
        transformer: Transformer,
        store: ExpertStore,
        head: MtpLayer | None,
        workers: Workers,
        share: float | None,  # of the expert files in the page cache, before a weight was read
        say: Say = silent,
        history: UsageHistory | None = None,
        trace: TraceRecorder | None = None,
    ) -> None:
        self.opened = prepared.opened
        self.text = prepared.text
        self.helpers = prepared.helpers
        self.options = prepared.options
        self._cached_share = share
        self.config = prepared.opened.config
        self.memory = memory
        self.workers = workers
        self._transformer = transformer
        self._store = store
        self._head = head
        self._watch = MemoryWatch(memory.budget_bytes, store.shrink, say)
        self._trace = trace
        self._history = history
        self._say = say
        recorders = [part.record for part in (self._trace, history) if part is not None]
        if recorders:
            transformer.record_with(_to_each(recorders))
        self._experience = Experience()
        self._runs = 0
        self._closed = False

    @classmethod
    def load(cls, path: str | Path, options: Options | None = None, say: Say = silent) -> Model:
        """Opens, plans and loads a model; see ``prepare`` and ``finish``."""
        return cls.finish(prepare(path, options, say), say)

    @classmethod
    def finish(cls, prepared: Prepared, say: Say = silent) -> Model:
        """Plans and loads a prepared model.

        Raises:
            OutOfBudget, BadModel: one line each.
        """
        opened, options = prepared.opened, prepared.options
        workers: Workers | None = None
        store: ExpertStore | None = None
        head: MtpLayer | None = None
        try:
            # first, as it may be refused
            trace = None if options.trace is None else TraceRecorder(options.trace, say)
            memory = prepared.plan(say)
            for line in memory.lines():
                say(f"memory    {line.removeprefix('memory ')}")
            policy, why = policy_for(options, opened.records.record_layout.nbytes)
            if options.policy != "auto" and memory.slots_per_layer >= opened.config.experts:
                say(f"note      POLICY={options.policy} has no effect: all experts fit")
            threads, reason = usable_cores()
            if options.threads is not None:
                if options.threads > threads:
                    say(
                        f"note      THREADS={options.threads} where {threads} can be had ({reason}): "
                        "threads that share a core wait for each other"
                    )
                threads, reason = options.threads, "as set"
            workers = Workers(threads)
            share = cached_share(opened.records.files)
            weights = load_dense(opened.source, opened.config, opened.dense_format)
            store = ExpertStore(
                opened.records,
                memory.slots_of(opened.config.moe_layers),
                opened.config.moe_layers,
                opened.config.experts,
                options.io_threads,
                POLICIES[policy],
                wave_slots(options, opened.config),
                ahead_slots(options, opened.config),
            )
            history = history_of(opened, options, say)
            pin(store, history, options, say)
            kv = KvCache(
                opened.config,
                opened.context,
                kv_format=options.kv,
                kept=1 + options.draft_rows,
            )
            transformer = Transformer(
                opened.config,
                weights,
                store,
                kv,
                workers,
                look_ahead=options.prefetch != "0",
                prefetch=options.prefetch == "1",
            )
            prepared.helpers.load(workers, opened.context, options)
            head = load_head(opened, options, memory, transformer, workers)
            model = cls(
                prepared, memory, transformer, store, head, workers, share, say, history, trace
            )
        except BaseException:
            if workers is not None:
                workers.close()
            if head is not None:
                head.close()
            if store is not None:
                store.close()
            prepared.close()
            raise
        say(f"model     {model.describe()}")
        say(f"threads   {threads} compute ({reason}), {options.io_threads} reading")
        say(f"disk      {opened.io_mode}")
        if memory.slots_per_layer < opened.config.experts:
            say(f"policy    {policy}: {why}")
        for line in prepared.helpers.describe(opened.context, options):
            say(line)
        say(f"stops     {model.text.describe_stops()}")
        return model

    def describe(self) -> str:
        config, records = self.config, self.opened.records
        head = f"{self.opened.name}: {config.family}, {config.layers} layers"
        if not config.moe_layers:
            return f"{head}, no experts"
        return (
            f"{head}, {config.experts} experts, top-{config.top_k}; experts "
            f"{records.expert_format}, {shown_bytes(records.record_layout.nbytes)} each"
        )

    @property
    def prefill_chunk(self) -> int:
        """Rows of a prompt that go through the model at once."""
        return self.memory.request.prompt_rows or 1

    @property
    def transformer(self) -> Transformer:
        """The forward itself, for benchmarks that feed it fixed token ids."""
        return self._transformer

    @property
    def facts(self) -> ModelFacts:
        """What reports say about this model."""
        records = self.opened.records
        return ModelFacts(
            name=self.opened.name,
            family=self.config.family,
            layers=self.config.layers,
            experts=self.config.experts,
            top_k=self.config.top_k,
            expert_bytes=records.record_layout.nbytes,
            expert_format=records.expert_format,
            budget_bytes=self.memory.budget_bytes,
            slots_per_layer=self.memory.slots_per_layer,
            paced=str(records.pacer or ""),
        )

    def generate(
        self,
        prompt: Prompt | str | Sequence[int],
        *,
        sampling: Sampling | None = None,
        limit: int = 256,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        on_prefill: Callable[[int, int], None] | None = None,
        grammar: Grammar | str | None = None,
    ) -> Run:
        """Starts a run; iterate over it for the text. A new run ends the one before it.

        Args:
            prompt: what ``TextSide.encode_prompt`` made, or text for it, or token ids.
            limit: most tokens.
            stop: strings that end the text and are not part of it.
            ignore_eos: go on after the model's stop tokens.
            grammar: what the text probably follows, as made by ``grammar_draft.library.load`` or the
                file for it. It makes drafts and so changes speed, never the text.

        Raises:
            BadGrammar: a grammar's file that cannot be used.
            BadRequest: a prompt that cannot be fed; while iterating, when a newer run has begun.
        """
        if self._closed:
            raise BadRequest("the model is closed: load it again")
        if limit < 1:
            raise BadRequest(f"limit is {limit}; it must be at least 1")
        if isinstance(prompt, str):
            prompt = self.text.encode_prompt(prompt)
        elif not isinstance(prompt, Prompt):
            prompt = Prompt(tuple(prompt), "given as token ids", in_chat=False)
        check_prompt(prompt.ids, self.config.vocab, self.opened.context)
        tokenizer = self.text.tokenizer
        if stop and tokenizer is None:
            raise BadRequest("a stop string needs a tokenizer, and this model has none")
        stats = RunStats(cache_state=self._cache_state(), recall=self._transformer.new_recall())
        valid = self.config.vocab if tokenizer is None else tokenizer.valid_mask
        if isinstance(grammar, str):
            grammar = load_grammar(grammar)
        sampler = Sampler(sampling or Sampling(temperature=0.0), valid)
        models: list[DraftSource] = []
        head = None
        if self._head is not None:
            head = MtpSource(self._head, self.config.hidden, sampler.guess)
            models.append(head)
        if self.helpers.small is not None:
            small, p_min = self.helpers.small.transformer, self.options.p_min
            models.append(DraftModelSource(small, prompt.ids, sampler.guess, p_min))
        vocab = self.config.vocab
        drafts = composer_of(
            grammar,
            models,
            self.text,
            prompt,
            vocab,
            self.options,
            self.helpers,
            self._experience,
            self._say,
        )
        if drafts is not None:
            stats.drafts, stats.planner = drafts.accounts, drafts.planner
        self._runs += 1
        tokens = decode(
            self._transformer,
            prompt.ids,
            sampler,
            limit=limit,
            stop_ids=frozenset() if ignore_eos else self.text.stops(prompt.in_chat),
            prefill_chunk=self.prefill_chunk,
            stats=stats,
            on_prefill=on_prefill,
            on_forward=self._watch.look,
            drafts=drafts,
            on_verified=self._accepted,
            on_rows=partial(self._absorb, head),
        )
        stream = None
        if tokenizer is not None:
            stream = TextStream(tokenizer, stop, tokenizer.leading_space and prompt.in_chat)
        return Run(self._alone(tokens, self._runs), stream, stats)

    def _alone(self, tokens: Generator[int, None, None], run: int) -> Generator[int, None, None]:
        """The tokens of a run for as long as it is the newest: there is one KV cache."""
        try:
            while True:
                self._refuse_ended(run)
                try:
                    token = next(tokens)
                except StopIteration:
                    return
                self._refuse_ended(run)  # by what `on_prefill` did
                yield token
        finally:
            tokens.close()

    def _refuse_ended(self, run: int) -> None:
        if run != self._runs or self._closed:
            raise BadRequest("this run was ended by a newer one, or the model was closed")

    def _absorb(self, head: MtpSource | None, following: Sequence[int]) -> None:
        if head is not None:
            head.absorb(following, self._transformer.hidden[: len(following)])

    def _accepted(self, rows: int) -> None:
        """Of the latest forward's rows the first so many were right."""
        self._transformer.accepted(rows)
        for part in (self._trace, self._history):
            if part is not None:
                part.accepted(rows)

    def _cache_state(self) -> str:
        """``warm`` when the hot store or the page cache already holds experts.

        Where the system cannot tell, ``warm``: a claim of cold must be one that was checked.
        """
        if self._store.counters.misses:
            return "warm"
        if self.opened.io_mode.startswith("O_DIRECT"):
            return "cold"
        share = self._cached_share
        return "cold" if share is not None and share < WARM_SHARE else "warm"

    def close(self) -> None:
        """Ends threads, closes files, gives the arena back. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as last_first:  # all of it, whatever fails: a trace may find no room
            last_first.callback(self.opened.records.close)
            last_first.callback(self.helpers.close)
            last_first.callback(self._store.close)
            if self._head is not None:
                last_first.callback(self._head.close)
            last_first.callback(self.workers.close)
            if self._trace is not None:
                last_first.callback(self._trace.close)
            if self._history is not None:
                last_first.callback(self._history.save)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
