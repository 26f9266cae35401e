"""Drafts on real forwards: whatever a grammar says, the ids are those of plain decoding."""

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
from letters import VOCAB, Letters, grammars, literal
from tiny_model import random_tensors, running, running_scarce, tiny_config, write_checkpoint

from diskmoe.bench.replay import replay
from diskmoe.bench.trace import read_recording
from diskmoe.engine.api import Model, Options
from diskmoe.engine.decode import decode
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.model.forward import Transformer
from diskmoe.engine.sampling import Sampler, Sampling
from diskmoe.engine.stats import RunStats
from diskmoe.experts.policy import POLICIES
from diskmoe.experts.trace import DECODE
from diskmoe.experts.usage import UsageHistory
from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.gbnf import parse
from diskmoe.mtp.compose import Composer
from diskmoe.mtp.grammar_source import GrammarSource
from diskmoe.mtp.planner import Planner
from diskmoe.mtp.source import Draft


class NowAndThenRight:
    """Drafts of a text that is known, every fifth token of them another."""

    name, gave_up, prior, grades, cheap = "now and then", "", (0.7,), (), True

    def __init__(self, text: Sequence[int]) -> None:
        self._text = [(token + (at % 5 == 2)) % VOCAB for at, token in enumerate(text)]

    def drafts(self, chain: Sequence[int]) -> Generator[Draft, None, None]:
        yield from map(Draft, self._text[len(chain) :])

    def observe(self, tokens: Sequence[int]) -> None:
        del self._text[: len(tokens)]


@pytest.fixture(
    scope="module",
    params=["qwen3_moe", "glm4_moe", "gpt_oss", "glm_moe_dsa", "qwen3_next", "qwen3_5_moe"],
)
def model(request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Transformer]:
    with running_scarce(tmp_path_factory.mktemp(request.param), request.param) as transformer:
        yield transformer


def ids_of(
    model: Transformer,
    prompt: list[int],
    sampling: Sampling,
    grammar: str | None = None,
    limit: int = 40,
    stops: Sequence[int] = (),
    on_verified=lambda rows: None,
) -> tuple[list[int], RunStats]:
    composer, stats = None, RunStats()
    if grammar is not None:
        source = GrammarSource(Automaton(parse(grammar)), Letters(), prompt, cap=24)
        composer = Composer([source], [], VOCAB, most=24, planner=Planner(fixed=24))
        stats.drafts = composer.accounts
    tokens = decode(
        model,
        prompt,
        Sampler(sampling, VOCAB),
        limit=limit,
        stop_ids=stops,
        stats=stats,
        drafts=composer,
        on_verified=on_verified,
    )
    ids = list(tokens)
    if composer is not None:
        account = composer.accounts["grammar"]
        assert len(ids) == stats.tokens == stats.sampled + account.accepted
        assert account.accepted <= account.judged <= account.proposed
    return ids, stats


SAMPLINGS = [Sampling(), Sampling(temperature=0.8, top_p=0.9, seed=3)]


def _tell(history: UsageHistory, rows: int) -> None:
    history.accepted(range(rows))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
def test_ids_are_the_same_with_every_grammar(model: Transformer, sampling: Sampling) -> None:
    random = Random(1)
    taken = 0
    for _ in range(6):
        prompt = [random.randrange(VOCAB) for _ in range(random.randrange(1, 12))]
        plain, _ = ids_of(model, prompt, sampling)
        for name, grammar in grammars(plain, random):
            ids, stats = ids_of(model, prompt, sampling, grammar)
            assert ids == plain, name
            taken += stats.drafts["grammar"].accepted
    assert taken > 100


def test_stops_limits_and_a_full_context_are_where_they_are_without_drafts(
    model: Transformer,
) -> None:
    prompt = [5, 17, 33]
    plain, _ = ids_of(model, prompt, Sampling())
    grammar = f"root ::= {literal(plain)}"
    for stop in plain[::5]:
        with_drafts, stats = ids_of(model, prompt, Sampling(), grammar, stops=[stop])
        assert with_drafts == plain[: plain.index(stop) + 1] and stats.stop_reason == "stop token"
    for limit in (1, 2, 3, 17):
        with_drafts, stats = ids_of(model, prompt, Sampling(), grammar, limit=limit)
        assert with_drafts == plain[:limit] and stats.stop_reason == "limit"
    long = [1] * (model.kv.capacity - 12)
    plain, stats = ids_of(model, long, Sampling())
    assert len(plain) == 13 and stats.stop_reason == "context full"
    grammar = f"root ::= {literal(plain + plain)}"
    with_drafts, stats = ids_of(model, long, Sampling(), grammar)
    assert with_drafts == plain and stats.stop_reason == "context full"
    assert stats.decode.forwards < 13


def test_rows_of_drafts_have_the_logits_of_plain_decoding_to_the_byte(model: Transformer) -> None:
    prompt = [9, 3, 60, 2]
    plain, _ = ids_of(model, prompt, Sampling(), limit=20)
    text = [*prompt, *plain]
    model.kv.trim(0)
    alone = [model.forward([token]) for token in text]
    drafts = [*text[4:20], 1, 2, 3]  # the last three are wrong
    model.kv.trim(0)
    model.forward(text[:3], rows="none")
    rows = model.forward([text[3], *drafts], rows="all")
    for place, row in enumerate(rows[:17]):
        assert row.tobytes() == alone[3 + place][0].tobytes()
    model.kv.trim(20)
    assert model.forward([text[20]])[0].tobytes() == alone[20][0].tobytes()


def test_usage_is_learned_of_the_rows_that_plain_decoding_has(
    model: Transformer, tmp_path: Path
) -> None:
    """Rejected rows teach nothing: both runs count the same experts."""
    prompt = [9, 3, 60]
    plain, _ = ids_of(model, prompt, Sampling())
    mixed = [*plain[:10], (plain[10] + 1) % 90, *plain[11:]]
    counts = []
    for grammar in (None, f"root ::= {literal(mixed)}"):
        layers = model.config.moe_layers
        history = UsageHistory(tmp_path, "f" * 32, layers, model.config.experts, pytest.fail)
        model.record_with(history.record)
        ids_of(
            model,
            prompt,
            Sampling(),
            grammar,
            on_verified=partial(_tell, history),
        )
        model.record_with(None)
        history.record(layers[0], np.zeros((1, 3), np.int32), DECODE)  # the last forward counts
        history.accepted([])
        history.save()
        counts.append(UsageHistory(tmp_path, "f" * 32, layers, model.config.experts, print).counts)
        (tmp_path / ("f" * 32 + ".json")).unlink()
    for layer in model.config.moe_layers:
        assert np.array_equal(counts[0][layer], counts[1][layer])


def test_misses_are_counted_by_the_first_row_that_wants_the_expert(model: Transformer) -> None:
    chosen: dict[int, list[list[int]]] = {}
    model.record_with(lambda layer, ids, phase: chosen.__setitem__(layer, ids.tolist()))
    random = Random(2)
    model.kv.trim(0)
    seen = 0
    for n in (1, 3, 4, 1, 2, 5, 3):
        layers = model.config.moe_layers
        before = {layer: set(model._store.resident(layer).tolist()) for layer in layers}
        misses = model.counters.misses
        model.forward(random.choices(range(VOCAB), k=n), rows="all")
        expected = [0] * n
        for layer, rows in chosen.items():
            there = before[layer]
            for place, row in enumerate(rows):
                expected[place] += len(set(row) - there)
                there = there | set(row)
        assert model.row_misses == expected
        assert sum(expected) == model.counters.misses - misses
        seen += sum(expected[1:])
    model.record_with(None)
    assert seen > 0
    counted = model.row_misses
    model.forward([1, 2, 3], rows="none")
    assert model.row_misses is counted  # a prompt's are nobody's


def test_rows_that_miss_nothing_count_zero(tmp_path: Path) -> None:
    config = tiny_config("qwen3_moe")
    write_checkpoint(tmp_path, config, random_tensors(config, seed=5))
    with running(tmp_path) as model:
        assert model.row_misses == []
        for _ in range(2):
            model.forward([5, 6, 7], rows="all")
            model.kv.trim(0)
        assert model.row_misses == [0, 0, 0]


@pytest.mark.parametrize("policy", ["lru", "duel"])
@pytest.mark.parametrize("cap", [1, 5, 8, 12])
def test_with_drafts_a_replay_of_the_trace_has_the_counts_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cap: int, policy: str
) -> None:
    config = tiny_config("qwen3_moe", eos_token_id=None, num_experts=16)
    write_checkpoint(tmp_path, config, random_tensors(config, seed=5))
    sampling = Sampling(temperature=1.0, seed=3)
    prompt, trace = [9, 3, 60], tmp_path / "t.csv"
    with Model.load(tmp_path, Options(ctx=128)) as loaded:
        plain = loaded.generate(prompt, limit=60, sampling=sampling)
        list(plain)
    source = NowAndThenRight(plain.token_ids)
    composer = Composer([], [source], VOCAB, most=3, planner=Planner(fixed=3), guard=False)
    monkeypatch.setattr("diskmoe.engine.api.composer_of", lambda *given, **more: composer)
    options = Options(ctx=128, cap=cap, policy=policy, trace=trace)
    with Model.load(tmp_path, options) as loaded:
        drafted = parse("root ::= .")  # any: it is the source that drafts
        run = loaded.generate(prompt, limit=60, sampling=sampling, grammar=drafted)
        list(run)
    assert run.token_ids == plain.token_ids
    account = composer.accounts["now and then"]
    assert 10 < account.accepted < account.judged - 10
    found = replay(read_recording(trace), cap, POLICIES[policy])[DECODE]
    assert (found.hits, found.misses) == (run.stats.decode.hits, run.stats.decode.misses)


def test_a_grammar_for_a_model_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    config = tiny_config("qwen3_moe")
    write_checkpoint(tmp_path, config, random_tensors(config, seed=5))
    with (
        Model.load(tmp_path, Options(ctx=32)) as loaded,
        pytest.raises(BadRequest, match="no tokenizer"),
    ):
        loaded.generate([1, 2], grammar="json")
