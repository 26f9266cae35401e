"""Whatever drafts there are: ids, ends and logits are those of plain decoding, and accounts add up.

The default run is short. ``DRAFT_FUZZ=300 pytest tests/engine/test_every_source.py`` makes that many
random runs of each model.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from letters import VOCAB, Letters, Scripted, grammars
from tiny_model import random_tensors, running, running_head, tiny_config, write_checkpoint

from diskmoe.engine.decode import decode
from diskmoe.engine.model.forward import Transformer
from diskmoe.engine.model.mtp_layer import MtpLayer
from diskmoe.engine.sampling import Sampler, Sampling
from diskmoe.engine.stats import RunStats
from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.constraint import Constraint
from diskmoe.grammar_draft.course import Course
from diskmoe.grammar_draft.errors import DeadEnd
from diskmoe.grammar_draft.gbnf import parse
from diskmoe.grammar_draft.lazy import Lazy
from diskmoe.grammar_draft.thinking import Tags, Thinking
from diskmoe.grammar_draft.vocabulary import Vocabulary
from diskmoe.mtp.certain_source import CertainSource
from diskmoe.mtp.compose import Composer
from diskmoe.mtp.corpus import Corpus, CorpusSource, write_corpus
from diskmoe.mtp.grammar_source import GrammarSource
from diskmoe.mtp.head import MtpSource
from diskmoe.mtp.ngram import NgramSource
from diskmoe.mtp.planner import Planner
from diskmoe.mtp.source import DraftSource

Sources = tuple[list[DraftSource], list[DraftSource]]  # forced, others
RUNS = int(os.environ.get("DRAFT_FUZZ", "12"))
MODELS = [  # slots below, above and at top-k; latent attention, and a state that must be taken back
    ("qwen3_moe", 2),
    ("glm4_moe", 4),
    ("gpt_oss", 8),
    ("deepseek_v3", 3),
    ("qwen3_next", 4),
]


WITH_HEAD = "glm4_moe"


class Tiny(NamedTuple):
    """A model, the head that it may have, and a corpus that knows some of what it says."""

    transformer: Transformer
    head: MtpLayer | None
    corpus: Corpus


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: model[0])
def model(request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    family, slots = request.param
    path = tmp_path_factory.mktemp(family)
    with_head = family == WITH_HEAD
    config = tiny_config(family, **({"num_nextn_predict_layers": 1} if with_head else {}))
    write_checkpoint(path, config, random_tensors(config, seed=5, mtp=with_head))
    with ExitStack() as stack:
        if with_head:
            made = stack.enter_context(running_head(path, "q8", "q4", slots=slots))
        else:
            made = (
                stack.enter_context(
                    running(path, expert_format="q4", dense_format="q8", slots=slots)
                ),
                None,
            )
        transformer, head = made
        known = [[first, *run(transformer, [first], Sampling(), 50, ()).ids] for first in (1, 2, 3)]
        write_corpus(path / "corpus", known, "")
        corpus = Corpus.open(path / "corpus", "")
        stack.callback(corpus.close)
        yield Tiny(transformer, head, corpus)


CONSTRAINTS = [
    'root ::= ("{" [a-z]{1,4} ":" [0-9]+ "}")+',
    'root ::= [^a-p]* ("end" | "!")',
    'root ::= (!<[95]>)* <[95]> "so" .*',
    "root ::= a\na ::= . | . a",
    'root ::= "twenty letters that are forced" [a-z]{0,20} "."?',
    'root ::= "A" [0-9] "B"',
]


HASH = 3  # "#", here what closes a thinking block
TAGS = Tags(b"<think>", b"#", VOCAB - 1, HASH)


def rules_of(constraint: Constraint, random: Random) -> Constraint | Lazy | Thinking:
    """A constraint from the first token on, from a trigger on, or behind thinking."""
    rules: Constraint | Lazy = constraint
    if random.random() < 0.5:
        rules = Lazy(constraint, random.sample(["a", "/[0-9A-F]/", "qu", "<[40]>", "#"], 2))
    if random.random() < 0.4:
        return rules
    budget, inside = random.choice([-1, 0, 2, 9]), random.random() < 0.5
    words = [token for token in range(VOCAB) if token not in constraint.vocabulary.ends]
    return Thinking(rules, TAGS, budget, random.choices(words, k=2), inside)


def constraint_of(grammar: str, stops: Sequence[int]) -> Constraint:
    ends = frozenset(stop for stop in stops if stop not in (HASH, VOCAB - 1))
    return Constraint(parse(grammar), Vocabulary(Letters.token_bytes, Letters().special_text, ends))


class Watched:
    """A model that keeps the bytes of the logits of each position."""

    def __init__(self, model: Transformer) -> None:
        self._model = model
        self.rows: dict[int, bytes] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, ids: np.ndarray, rows: Any, on_layer: Any = None) -> np.ndarray:
        first = self._model.kv.length
        logits = self._model.forward(ids, rows, on_layer)
        if rows != "none":
            last = first + len(ids)
            for position, row in zip(range(last - len(logits), last), logits, strict=True):
                self.rows[position] = row.tobytes()  # a later one takes a rejected one's place
        return logits


@dataclass
class Run:
    """What a run said, and what it cost."""

    ids: list[int]
    rows: dict[int, bytes]
    stats: RunStats
    told: list[int] = field(default_factory=list)  # rows of use, by forward


def run(
    model: Transformer,
    prompt: Sequence[int],
    sampling: Sampling,
    limit: int,
    stops: Sequence[int],
    sources_for: Callable[[Sampler], Sources] | None = None,
    rules: Constraint | Lazy | Thinking | None = None,
    mode: str = "1",
    **limits: Any,
) -> Run:
    """With the sources, where there are some, and the composer's own `limits`."""
    course = None if rules is None else Course(rules)
    watched, stats, sampler = Watched(model), RunStats(), Sampler(sampling, VOCAB, course, mode)
    composer, heads, told = None, [], []
    if sources_for is not None:
        forced, others = sources_for(sampler)
        if course is not None:
            forced = [CertainSource(course), *forced]
            limits["fits"] = lambda chain: course.after(chain) is not None
        composer = Composer(forced, others, VOCAB, **limits)
        heads = [source for source in others if isinstance(source, MtpSource)]

    def absorb(following: Sequence[int]) -> None:
        for head in heads:
            head.absorb(following, model.hidden[: len(following)])

    tokens = decode(
        watched,  # pyright: ignore[reportArgumentType] - the rest of a model is the model's
        prompt,
        sampler,
        limit=limit,
        stop_ids=stops,
        prefill_chunk=7,
        stats=stats,
        drafts=composer,
        on_verified=told.append,
        on_rows=absorb,
    )
    ids: list[int] = []
    try:
        ids.extend(tokens)
    except DeadEnd as error:  # a letter that the grammar wants ends texts
        stats.stop_reason = str(error)
    if composer is not None:
        stats.drafts = composer.accounts
    return Run(ids, watched.rows, stats, told)


def samplings(random: Random) -> Sampling:
    """Greedy half of the time, else with any filters."""
    if random.random() < 0.5:
        return Sampling()
    return Sampling(
        temperature=random.choice([0.3, 1.0, 2.0]),
        top_k=random.choice([0, 1, 5, 40]),
        top_p=random.choice([1.0, 0.9, 0.5]),
        min_p=random.choice([0.0, 0.05]),
        seed=random.randrange(1000),
    )


def some_sources(
    model: Tiny, plain: list[int], prompt: Sequence[int], random: Random, sampler: Sampler
) -> Sources:
    """Some of all there are."""
    forced: list[DraftSource] = []
    if random.random() < 0.5 and len(plain) > 20:
        grammar = random.choice([text for _, text in grammars(plain, random)])
        forced.append(GrammarSource(Automaton(parse(grammar)), Letters(), prompt, cap=24))
    others: list[DraftSource] = [
        Scripted(plain, random, share, f"scripted {share}", cheap=random.random() < 0.5)
        for share in (1.0, 0.7, 0.3, 0.0)
        if random.random() < 0.4
    ]
    if random.random() < 0.6:
        others.append(NgramSource(prompt))
    if random.random() < 0.6:
        others.append(CorpusSource(model.corpus, prompt))
    if model.head is not None and random.random() < 0.7:
        others.append(MtpSource(model.head, model.transformer.config.hidden, sampler.guess))
    random.shuffle(others)
    return forced, others


def check_same(drafted: Run, plain: Run, said: str) -> None:
    """The run with drafts is the one without: ids, why it ended, the bytes of its logits."""
    assert drafted.ids == plain.ids, said
    assert drafted.stats.stop_reason == plain.stats.stop_reason, said
    assert {place: drafted.rows[place] for place in plain.rows} == plain.rows, said
    check_accounts(drafted)


def check_accounts(drafted: Run) -> None:
    """Emitted = accepted + sampled, judged <= proposed, and the sources' sums are the totals."""
    stats, accounts = drafted.stats, drafted.stats.drafts.values()
    assert len(drafted.ids) == stats.tokens
    assert stats.tokens == stats.sampled + sum(account.accepted for account in accounts)
    assert all(a.accepted <= a.judged <= a.proposed for a in accounts)
    proposed = sum(account.proposed for account in accounts)
    assert stats.decode.rows == stats.decode.forwards + proposed
    # a forward's rows of use: what was right, and the one that was picked or ended the text
    assert sum(drafted.told) + stats.decode.forwards - len(drafted.told) == stats.tokens


@pytest.mark.parametrize("seed", range(3))
def test_any_drafts_leave_a_constrained_text_its_end_and_its_logits_as_they_are(
    model: Tiny, seed: int
) -> None:
    random, transformer = Random(seed), model.transformer
    accepted = 0
    for number in range(-(-RUNS // 3)):
        prompt = random.choices(range(VOCAB), k=random.choice([1, 2, 9, 40]))
        sampling, limit = samplings(random), random.choice([1, 2, 3, 30, 50, 50])
        stops = random.sample(range(VOCAB), random.choice([0, 1, 2]))
        grammar, mode = random.choice(CONSTRAINTS), random.choice(["mask", "check", "1"])
        rules = rules_of(constraint_of(grammar, stops), random)
        plain = run(transformer, prompt, sampling, limit, stops, rules=rules, mode="mask")
        drafted = run(
            transformer,
            prompt,
            sampling,
            limit,
            stops,
            partial(some_sources, model, plain.ids, prompt, random),
            rules,
            mode,
            most=random.choice([1, 3, 24]),
            planner=Planner(random.choice([None, None, 1, 4, 24])),
            guard=random.random() < 0.7,
        )
        said = f"seed {seed}, run {number}, {grammar}"
        check_same(drafted, plain, said)
        check_valid(plain, rules, stops, said)
        for account in drafted.stats.drafts.items():
            assert account[0] != "forced" or account[1].judged == account[1].accepted
        accepted += drafted.stats.tokens - drafted.stats.sampled
    assert accepted


def check_valid(
    run: Run, rules: Constraint | Lazy | Thinking, stops: Sequence[int], said: str
) -> None:
    """The text begins a document, and is one when it has ended by itself."""
    state = rules.start
    for token in run.ids:
        after = rules.accept(state, token)
        assert after is not None, said
        state = after
    reason = run.stats.stop_reason
    if reason == "grammar complete" or run.ids[-1:] and run.ids[-1] in rules.vocabulary.ends:
        assert rules.may_end(state), said
    assert (reason == "grammar complete") <= rules.complete(state), said


@pytest.mark.parametrize("seed", range(3))
def test_any_drafts_leave_the_text_its_end_and_its_logits_as_they_are(
    model: Tiny, seed: int
) -> None:
    random, transformer = Random(seed), model.transformer
    accepted = 0
    for number in range(-(-RUNS // 3)):
        length = random.choice([1, 2, 9, 40, transformer.kv.capacity - random.randrange(1, 12)])
        prompt = random.choices(range(random.choice([4, VOCAB])), k=length)
        sampling, limit = samplings(random), random.choice([1, 2, 3, 30, 50, 50])
        plain = run(transformer, prompt, sampling, 50, ())
        full, stops = plain.ids, []
        if random.random() < 0.4:  # within the text, and so within drafts
            stops = random.sample(full, min(2, len(full)))
        if stops or limit < 50:
            plain = run(transformer, prompt, sampling, limit, stops)
        drafted = run(
            transformer,
            prompt,
            sampling,
            limit,
            stops,
            partial(some_sources, model, full, prompt, random),
            most=random.choice([1, 3, 24]),
            planner=Planner(random.choice([None, None, 1, 4, 24])),
            guard=random.random() < 0.7,
        )
        said = f"seed {seed}, run {number}"
        check_same(drafted, plain, said)
        accepted += drafted.stats.tokens - drafted.stats.sampled
    assert accepted
