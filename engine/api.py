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

from collections.abc import Callable, Container, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from diskmoe.engine.constraining import Constraints, ThinkBudget, Wanted, mode_of
from diskmoe.engine.cores import usable_cores
from diskmoe.engine.decode import check_prompt, decode
from diskmoe.engine.draft_head import absorb, load_head
from diskmoe.engine.drafting import Experience, composer_of
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.generation import Run, of_text
from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.lanes import DraftsInTurn, Lanes
from diskmoe.engine.learning import history_of, pin, tell_accepted, to_each
from diskmoe.engine.memory import ahead_slots, policy_for, wave_slots
from diskmoe.engine.model.forward import Transformer
from diskmoe.engine.model.kvcache import KvCache
from diskmoe.engine.model.mtp_layer import MtpLayer
from diskmoe.engine.model.weights import load_dense
from diskmoe.engine.observed import Observed, Processor
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

__all__ = ["Model", "Options", "Prepared", "Prompt", "Run", "Sampling", "ThinkBudget", "prepare"]

WARM_SHARE = 0.1  # of the expert bytes in the page cache; below it a run counts as cold


class Model:
    """A loaded model: weights in memory, experts on disk, a KV cache for each text at once."""

    def __init__(
        self,
        prepared: Prepared,
        memory: MemoryPlan,
        transformer: Transformer,
        store: ExpertStore,
        lanes: Lanes,
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
        self._lanes = lanes
        self._trace = trace
        self._history = history
        self._say = say
        recorders = [part.record for part in (self._trace, history) if part is not None]
        if recorders:
            transformer.record_with(to_each(recorders))
        self._experience = Experience()
        self._constraints = Constraints(prepared.text, say, prepared.options.grammar_cache)
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
        heads: list[MtpLayer] = []
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
            caches = [
                KvCache(
                    opened.config,
                    opened.context,
                    kv_format=options.kv,
                    kept=1 + options.draft_rows,
                )
                for _ in range(options.parallel)
            ]
            transformer = Transformer(
                opened.config,
                weights,
                store,
                caches[0],
                workers,
                look_ahead=options.prefetch != "0",
                prefetch=options.prefetch == "1",
            )
            prepared.helpers.load(workers, opened.context, options)
            heads = load_head(opened, options, memory, transformer, workers)
            lanes = Lanes(
                transformer,
                caches,
                heads or [None] * options.parallel,
                MemoryWatch(memory.budget_bytes, store.shrink, say).look,
                partial(tell_accepted, trace, history),
            )
            model = cls(
                prepared, memory, transformer, store, lanes, workers, share, say, history, trace
            )
        except BaseException:
            if workers is not None:
                workers.close()
            if heads:
                heads[0].close()
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
        constrain: str | bool | None = None,
        triggers: Sequence[str] = (),
        thinking: ThinkBudget | None = None,
        reuse: bool = True,
        logprobs: int | None = None,
        processors: Sequence[Processor] = (),
        shown: Container[int] = (),
    ) -> Run:
        """Starts a run; iterate over it for the text.

        There are as many runs at a time as ``Options.parallel`` says, each of which may be in a
        thread of its own; one more ends the first of them.

        Args:
            prompt: what ``TextSide.encode_prompt`` made, or text for it, or token ids.
            limit: most tokens.
            stop: strings that end the text and are not part of it.
            ignore_eos: go on after the model's stop tokens.
            grammar: what the text probably follows, as made by ``grammar_draft.library.load`` or the
                file for it. It makes drafts and so changes speed, never the text.
            constrain: whether the text must follow it: ``Options.constrain`` for this run, or True
                for "1" and False for "0". A text that ends by itself is then a whole document, one
                that meets `limit` the beginning of one.
            triggers: words, ``/patterns/`` or ``<[ids]>`` of tokens, of which the first that comes
                begins what is enforced; none: the text does.
            thinking: how long its thinking blocks may be, where the model has them. With it a text
                that is enforced may begin with one.
            reuse: go on from the keys and values of an earlier text, as far as it began like this
                one; that changes how long the prompt takes, and nothing else.
            logprobs: note each token's log-probability, and those of so many likeliest, in
                ``Run.logprobs``.
            processors: each is given the tokens so far (n,) and the logits (vocab,) of the next, a
                copy, and returns the logits to choose by.
            shown: special tokens that are in the text as they are written; others print nothing.

        Raises:
            BadGrammar: a grammar's file that cannot be used, a trigger that is none.
            BadRequest: a prompt that cannot be fed; nothing to constrain by; while iterating, when it
                was ended by a newer run.
            DeadEnd: while iterating, when no token of the model goes on as the grammar says.
        """
        if self._closed:
            raise BadRequest("the model is closed: load it again")
        if logprobs is not None and not 0 <= logprobs <= self.config.vocab:
            raise BadRequest(f"logprobs is {logprobs}; it must be from 0 to {self.config.vocab}")
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
            grammar = load_grammar(grammar, token_id=tokenizer and tokenizer.token_id)
        stop_ids = frozenset() if ignore_eos else self.text.stops(prompt.in_chat)
        mode = self.options.constrain if constrain is None else mode_of(constrain)
        wanted = Wanted(grammar, mode, triggers, thinking)
        course, give_back = self._constraints.course(wanted, prompt, stop_ids)
        sampler = Sampler(sampling or Sampling(temperature=0.0), valid, course, wanted.way)
        text, stats.reused_tokens = self._lanes.begin(prompt.ids, reuse)
        models: list[DraftSource] = []
        head = None
        if text.lane.head is not None:
            reused = stats.reused_tokens
            head = MtpSource(text.lane.head, self.config.hidden, sampler.guess, reused)
            models.append(head)
        if self.helpers.small is not None:
            small, p_min = self.helpers.small.for_text(text.number), self.options.p_min
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
            course,
            begun=wanted.from_the_start,
        )
        if drafts is not None:
            stats.drafts, stats.planner = drafts.accounts, drafts.planner
        observed = None
        if logprobs is not None or processors:
            observed = Observed(sampler, prompt.ids, logprobs, processors)
        tokens = decode(
            text,
            prompt.ids,
            observed or sampler,
            limit=limit,
            stop_ids=stop_ids,
            prefill_chunk=self.prefill_chunk,
            reused=stats.reused_tokens,
            stats=stats,
            on_prefill=on_prefill,
            drafts=DraftsInTurn(drafts, text) if drafts is not None and models else drafts,
            on_verified=text.accepted,
            on_rows=partial(absorb, head, text),
        )
        stream = None
        if tokenizer is not None:
            at_start = tokenizer.leading_space and prompt.in_chat
            stream = TextStream(tokenizer, stop, at_start, shown)
        noted = [] if observed is None else observed.logprobs
        return Run(of_text(tokens, text, give_back), stream, stats, noted)

    def make_ready(self, wanted: Wanted, prompt: Prompt) -> None:
        """Compiles what is to constrain an answer to a prompt, so that its run begins at once; raises
        what that run would raise for it."""
        _, give_back = self._constraints.course(wanted, prompt, self.text.stops(prompt.in_chat))
        give_back()

    def forget(self) -> None:
        """Texts to come go on from nothing that earlier ones have left."""
        self._lanes.forget()

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
        self._lanes.close()
        with ExitStack() as last_first:  # all of it, whatever fails: a trace may find no room
            last_first.callback(self.opened.records.close)
            last_first.callback(self.helpers.close)
            last_first.callback(self._store.close)
            if self._lanes.lanes[0].head is not None:
                last_first.callback(self._lanes.lanes[0].head.close)
            last_first.callback(self.workers.close)
            if self._trace is not None:
                last_first.callback(self._trace.close)
            if self._history is not None:
                last_first.callback(self._history.save)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
