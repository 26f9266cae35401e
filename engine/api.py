"""The public door: load a model, ask it, read what it cost.

from diskmoe.engine import Model, Sampling

with Model.load("models/qwen3-q4", ram_gb=6) as model:
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
from typing import TYPE_CHECKING, Any

from diskmoe.engine.assembling import Parts, assemble, described
from diskmoe.engine.constraining import Constraints, ThinkBudget, Wanted, mode_of
from diskmoe.engine.decode import check_prompt, decode
from diskmoe.engine.draft_head import absorb
from diskmoe.engine.drafting import Experience, composer_of
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.forks import Home
from diskmoe.engine.generation import Run, of_text
from diskmoe.engine.learning import to_each
from diskmoe.engine.model.forward import Transformer
from diskmoe.engine.model.moe import Record
from diskmoe.engine.observed import Observed, Processor
from diskmoe.engine.options import Options, options_with
from diskmoe.engine.prepared import Prepared, Say, prepare, silent
from diskmoe.engine.report import ModelFacts
from diskmoe.engine.sampling import Sampler, Sampling
from diskmoe.engine.stats import Phase, RunStats
from diskmoe.engine.text.session import TextStream
from diskmoe.engine.text.side import Prompt
from diskmoe.engine.turns import DraftsInTurn
from diskmoe.experts.store import ExpertStore
from diskmoe.grammar_draft.library import load as load_grammar
from diskmoe.grammar_draft.rules import Grammar
from diskmoe.mtp.draft_model import DraftModelSource
from diskmoe.mtp.head import MtpSource
from diskmoe.mtp.source import DraftSource

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from diskmoe.engine.conversation import Conversation
    from diskmoe.engine.options import OptionWords

__all__ = ["Model", "Options", "Prepared", "Prompt", "Run", "Sampling", "ThinkBudget", "prepare"]

WARM_SHARE = 0.1  # of the expert bytes in the page cache; below it a run counts as cold


class Model:
    """A loaded model: weights in memory, experts on disk, a KV cache for each text at once.

    text: its tokenizer, chat template and stop tokens. options: how it runs. memory: the plan that it
    keeps to. Leave it by ``with`` or ``close``: threads end, files are closed, memory is given back.
    Several models, and several texts of one (``Options.parallel``), may run in threads of one process.
    """

    def __init__(self, prepared: Prepared, parts: Parts, say: Say = silent) -> None:
        self.opened = prepared.opened
        self.text = prepared.text
        self.helpers = prepared.helpers
        self.options = prepared.options
        self.config = prepared.opened.config
        self.memory = parts.memory
        self.workers = parts.workers
        self._cached_share = parts.cached_share
        self._transformer = parts.transformer
        self._store = parts.store
        self._lanes = parts.lanes
        self._trace = parts.trace
        self._history = parts.history
        self._say = say
        recorders = [part.record for part in (self._trace, self._history) if part is not None]
        self._recorders: Sequence[Record] = recorders
        self.look(None)
        self._experience = Experience()
        self._constraints = Constraints(prepared.text, say, prepared.options.grammar_cache)
        self._closed = False
        self._home = Home()

    @classmethod
    def load(
        cls,
        path: str | Path,
        options: Options | None = None,
        say: Say = silent,
        **words: Unpack[OptionWords],
    ) -> Model:
        """Opens, plans and loads a model.

        Args:
            path: a converted model or a Hugging Face directory.
            options: how to run it, or the same in words: ``Model.load(path, ram_gb=6, cap=64)``;
                where both are given, words win.
            say: gets each line that a run says on stderr, such as ``print``.

        Raises:
            BadModel: one line that names the file and what is wrong with it.
            BadRequest: an option that there is not, or out of its range.
            OutOfBudget: what does not fit into the memory budget, in numbers.
        """
        return cls.finish(prepare(path, options_with(options, **words), say), say)

    @classmethod
    def finish(cls, prepared: Prepared, say: Say = silent) -> Model:
        """Plans and loads a prepared model; say: gets the lines of the plan.

        Raises:
            OutOfBudget, BadModel: one line each.
        """
        return cls(prepared, assemble(prepared, say), say)

    def describe(self) -> str:
        """Name, family, layers, experts and their format, in one line."""
        return described(self.opened)

    @property
    def prefill_chunk(self) -> int:
        """Rows of a prompt that go through the model at once."""
        return self.memory.request.prompt_rows or 1

    @property
    def transformer(self) -> Transformer:
        """The forward itself, for benchmarks that feed it fixed token ids."""
        return self._transformer

    @property
    def store(self) -> ExpertStore:
        """The hot store, to be looked at: it is for the thread that computes."""
        return self._store

    @property
    def phases(self) -> tuple[Phase, Phase]:
        """Prefill and decode of all texts since the start, counting on."""
        return self._lanes.books.prefill, self._lanes.books.decode

    def look(self, record: Record | None) -> None:
        """From the next layer on, ``record(layer, ids, phase)`` is told what its rows chose, before
        the hot store is asked for it, in the thread that computes. None: nobody is told."""
        recorders = [*self._recorders, *([record] if record else [])]
        self._transformer.record_with(to_each(recorders) if recorders else None)

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
            sampling: how to choose tokens; None: the likeliest.
            limit: most tokens.
            stop: strings that end the text and are not part of it.
            ignore_eos: go on after the model's stop tokens.
            on_prefill: called with (rows done, rows) while the prompt is read.
            grammar: what the text probably follows, as made by ``grammar_draft.languages``, or the
                file for it. By itself it makes drafts and so changes speed, never the text.
            constrain: whether the text must follow it: ``Options.constrain`` for this run, or True
                for "1" and False for "0". A text that ends by itself is then a whole document, one
                that meets `limit` the beginning of one.
            triggers: words, ``/patterns/`` or ``<[ids]>`` of tokens, of which the first that comes
                begins what is enforced; none: the text does.
            thinking: how long its thinking blocks may be, where the model has them. With it a text
                that is enforced may begin with one.
            reuse: go on from the keys and values of another text, as far as it began like this
                one; that changes how long the prompt takes, and nothing else.
            logprobs: note each token's log-probability, and those of so many likeliest, in
                ``Run.logprobs``.
            processors: each is given the tokens so far, i32 (n,), and the logits of the next, a copy,
                f32 (vocab,), and returns the logits to choose by.
            shown: special tokens that are in the text as they are written; others print nothing.

        Raises:
            BadGrammar: a grammar's file that cannot be used, a trigger that is none.
            BadRequest: a prompt that cannot be fed; nothing to constrain by; a process that is a fork
                of the model's; while iterating, when it was ended by a newer run.
            DeadEnd: while iterating, when no token of the model goes on as the grammar says.
        """
        self._home.check()
        if self._closed:
            raise BadRequest("the model is closed: load it again")
        if logprobs is not None and not 0 <= logprobs <= self.config.vocab:
            raise BadRequest(f"logprobs is {logprobs}; it must be from 0 to {self.config.vocab}")
        if limit < 1:
            raise BadRequest(f"limit is {limit}; it must be at least 1")
        for name, given in (("stop", stop), ("triggers", triggers)):
            if isinstance(given, str):  # its characters would be taken one by one
                raise BadRequest(f"{name} is {given[:40]!r}; it must be a list of such texts")
        if isinstance(prompt, bytes):  # they would be taken for token ids
            raise BadRequest("the prompt is bytes; it must be text or a list of token ids")
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
        stream = None
        if tokenizer is not None:
            at_start = tokenizer.leading_space and prompt.in_chat
            stream = TextStream(tokenizer, stop, at_start, shown)
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
        in_turn = partial(text.alone, text.books.decode)
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
            drafts=DraftsInTurn(drafts, in_turn) if drafts is not None and models else drafts,
            on_verified=text.accepted,
            on_rows=partial(absorb, head, text),
        )
        noted = [] if observed is None else observed.logprobs
        return Run(of_text(tokens, text, give_back), stream, stats, noted)

    def make_ready(self, wanted: Wanted, prompt: Prompt) -> None:
        """Compiles what is to constrain an answer to a prompt, so that its run begins at once; raises
        what that run would raise for it."""
        _, give_back = self._constraints.course(wanted, prompt, self.text.stops(prompt.in_chat))
        give_back()

    def chat(
        self,
        system: str | None = None,
        messages: Sequence[dict[str, str]] = (),
        **how: Any,
    ) -> Conversation:
        """A conversation, of which each turn computes what is new of it.

        Args:
            system: the system message.
            messages: questions and answers to go on from, ``{"role": ..., "content": ...}`` in turn.
            how: what ``generate`` takes beside the prompt, for every answer.

        Raises:
            BadRequest: messages that are no conversation.
        """
        from diskmoe.engine.conversation import Conversation  # a single run needs none of it

        return Conversation(self, system, messages, **how)

    def forget(self) -> None:
        """Texts to come go on from nothing that earlier ones have left."""
        self._home.check()
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
        """Ends threads, closes files, gives the arena back. Safe to call twice; in a fork of the
        model's process, where there is nothing to end, it does nothing."""
        if self._closed or not self._home.is_here:
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
