"""Replays: by a twin that knows only sets, by real runs, and on the command line."""

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import random_tensors, tiny_config, write_checkpoint

from diskmoe.bench.belady import Belady
from diskmoe.bench.replay import Hits, regrouped, replay
from diskmoe.bench.trace import Forward, Recording, read_recording
from diskmoe.engine.cli import main
from diskmoe.engine.errors import BadModel
from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.forward import Transformer
from diskmoe.engine.model.kvcache import KvCache
from diskmoe.engine.model.tensors import tensor_plan
from diskmoe.engine.model.weights import load_dense
from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.policy import AUTO, POLICIES
from diskmoe.experts.records import CheckpointRecords
from diskmoe.experts.store import ExpertStore
from diskmoe.experts.trace import DECODE, HEADING, PROMPT, TraceRecorder

_ROW = st.lists(st.integers(0, 6), min_size=2, max_size=2, unique=True).map(tuple)


def recording(rows: list[tuple[int, ...]], top_k: int = 2) -> Recording:
    forwards = [Forward(DECODE, [row]) for row in rows]
    return Recording(Path("t.csv"), top_k, {0: forwards}, by_forward=False)


def test_least_recently_used_hits_are_those_of_the_obvious_loop() -> None:
    rng = np.random.default_rng(5)
    rows = [tuple(rng.choice(9, 2, replace=False).tolist()) for _ in range(200)]
    kept: list[int] = []  # the least recently used first
    hits = 0
    for row in rows:
        hits += len(set(row) & set(kept))
        kept = [e for e in kept if e not in row] + sorted(row)
        kept = kept[-5:]
    assert replay(recording(rows), 5, POLICIES["lru"])[DECODE] == Hits(hits, 400 - hits)


@settings(deadline=None)
@given(rows=st.lists(_ROW, max_size=9))
def test_belady_is_the_best_of_all_choices_of_victims(rows: list[tuple[int, ...]]) -> None:
    n_slots = 3

    def best(at: int, kept: frozenset[int]) -> int:
        if at == len(rows):
            return 0
        union = frozenset(rows[at])
        there = kept | union
        surplus = max(0, len(there) - n_slots)
        return len(union & kept) + max(
            best(at + 1, there - frozenset(gone)) for gone in combinations(kept - union, surplus)
        )

    assert replay(recording(rows), n_slots, None)[DECODE].hits == best(0, frozenset())


@settings(deadline=None)
@given(rows=st.lists(_ROW, max_size=20), n_slots=st.integers(2, 5))
def test_no_policy_that_keeps_all_hits_more_often_than_belady(
    rows: list[tuple[int, ...]], n_slots: int
) -> None:
    most = replay(recording(rows), n_slots, None)[DECODE].hits
    for name in ("lru", "lfu", "slru", "stale"):
        assert replay(recording(rows), n_slots, POLICIES[name])[DECODE].hits <= most


def test_a_newcomer_that_is_wanted_later_passes_by() -> None:
    rows = [(0, 1), (0, 2), (0, 1), (0, 3), (0, 1)]
    assert replay(recording(rows), 2, None)[DECODE].hits == 4
    assert replay(recording(rows), 2, None, keeps_all=False)[DECODE].hits == 6


def test_an_expert_that_never_comes_again_goes_first() -> None:
    policy = Belady([[0, 1, 2], [0], [1], [1]], keeps_all=True)
    policy.use([0, 1, 2])
    for expert in (0, 1, 2):
        policy.admit(expert)
    assert [policy.victim(()), policy.victim({2}), policy.victim({1, 2})] == [2, 1, 0]
    policy.use([0])
    assert policy.victim({2}) == 0


def test_rows_are_regrouped_and_no_row_is_lost() -> None:
    rows = [(0, 1), (1, 2), (3, 4), (0, 4), (5, 6)]
    found = regrouped(recording(rows), 2).layers[0]
    assert [forward.rows for forward in found] == [rows[:2], rows[2:4], rows[4:]]
    assert replay(regrouped(recording(rows), 2), 7, POLICIES["lru"])[DECODE] == Hits(1, 7)


def test_a_forward_of_two_phases_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"{HEADING}\n# forward\n0,0,0,1-2\n1,1,0,3-4\n")
    with pytest.raises(BadModel, match=r"t\.csv: line 4: phase 1 in a forward .* have 0"):
        read_recording(tmp_path / "t.csv")


def test_a_pinned_expert_is_hit_from_the_start_and_never_given_up() -> None:
    rows = [(5, 0), (1, 2), (3, 4), (5, 1)]
    assert replay(recording(rows), 3, POLICIES["lru"])[DECODE].hits == 0
    assert replay(recording(rows), 3, POLICIES["lru"], pinned={0: [5]})[DECODE].hits == 2


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("slots", [1, 3, 4, 6])
def test_a_replay_of_a_run_has_the_counts_of_the_run(
    name: str, slots: int, tmp_path: Path, silent: Callable[[str], None]
) -> None:
    config = tiny_config("qwen3_moe", num_experts=12)
    folder = write_checkpoint(tmp_path, config, random_tensors(config, seed=3), dtype="f32")
    source = Checkpoint.open(folder)
    model_config = read_config(source.config, str(folder))
    plan = tensor_plan(model_config)
    store = ExpertStore(
        CheckpointRecords(source, plan, None),
        slots,
        model_config.moe_layers,
        12,
        policy=POLICIES[name],
    )
    recorder = TraceRecorder(tmp_path / "t.csv", silent)
    counted = {}
    try:
        with Workers(1) as workers:
            model = Transformer(
                model_config,
                load_dense(source, model_config, None),
                store,
                KvCache(model_config, 64),
                workers,
            )
            rng = np.random.default_rng(1)
            for phase, sizes in ((PROMPT, (9, 1)), (DECODE, (1,) * 20 + (3, 2, 5) + (1,) * 5)):
                model.choose_with(lambda layer, ids, _, p=phase: recorder.record(layer, ids, p))
                for n in sizes:
                    wanted = "none" if phase == PROMPT else "last"
                    model.forward(rng.integers(0, 96, n), wanted)
                counted[phase] = (store.counters.hits, store.counters.misses)
    finally:
        store.close()
    recorder.close()
    found = replay(read_recording(tmp_path / "t.csv"), slots, POLICIES[name])
    assert (found[PROMPT].hits, found[PROMPT].misses) == counted[PROMPT]
    assert found[PROMPT].hits + found[DECODE].hits == counted[DECODE][0]
    assert found[PROMPT].misses + found[DECODE].misses == counted[DECODE][1]


def test_rows_that_were_wrong_are_no_rows_of_the_text(tmp_path: Path) -> None:
    forwards = [Forward(DECODE, [(0, 1), (1, 2), (3, 4)], accepted=2), Forward(DECODE, [(5, 6)])]
    found = regrouped(Recording(Path("t.csv"), 2, {0: forwards}, by_forward=True), 3).layers[0]
    assert [forward.rows for forward in found] == [[(0, 1), (1, 2), (5, 6)]]


def test_what_was_read_for_wrong_rows_goes_first() -> None:
    wrong = Forward(DECODE, [(2, 3), (8, 9)], accepted=1)
    rest = [Forward(DECODE, [row]) for row in ((4, 5), (0, 1), (2, 3))]
    forwards = [Forward(DECODE, [(0, 1)]), wrong, *rest]
    found = replay(Recording(Path("t.csv"), 2, {0: forwards}, by_forward=True), 6, POLICIES["lru"])
    assert found[DECODE] == Hits(4, 8)


def written(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join([HEADING, *rows, ""]))
    return path


def test_the_command_prints_each_policy_and_what_unions_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(
        tmp_path / "t.csv", [f"1,{s},{la},{s % 5}-9" for s in range(40) for la in (0, 2)]
    )
    assert main(["bench", "replay", str(path), "--slots", "2,6", "--rows", "1,4"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("trace     t.csv: 2 layers, 2 experts per token")
    lines = out.splitlines()
    heading = next(line for line in lines if line.startswith("slots")).split()
    assert heading == ["slots", *POLICIES, "belady", "bypass", f"{AUTO}/belady"]
    # five experts in turn and one always: all but the first of each are hits with six slots
    assert next(line for line in lines if line.startswith("6 ")).split()[1] == "0.925"
    assert [line.split()[:2] for line in lines[-2:]] == [["1", "2.0"], ["4", "5.0"]]


def test_the_json_has_counts_that_a_run_can_be_held_against(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "t.csv", ["0,0,0,1-2", "1,1,0,1-3", "1,2,0,1-3"])
    assert main(["bench", "replay", str(path), "--slots", "4", "--json", "--policy", "lru"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["slots"]["4"]["lru"] == {
        "hit_rate": 0.75,
        "hits": 3,
        "misses": 1,
        "prompt_hits": 0,
        "prompt_misses": 2,
    }
    assert report["unions"]["policy"] == "lru"
    assert report["unions"]["rows"]["2"] == {"unique": 2.0, "misses_per_row": {"4": 0.5}}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "needs one TRACE file"),
        (["a", "b"], "needs one TRACE file"),
        (["{trace}", "--slots", "0"], "--slots is '0'"),
        (["{trace}", "--slots", "4,x"], "--slots is '4,x'"),
        (["{trace}", "--cap", "4"], "--cap has no effect on diskmoe bench replay"),
        (["{trace}"], "nothing was decoded"),
        (["{trace}x"], "is no file, so no trace"),
    ],
)
def test_words_that_make_no_replay_are_refused_in_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "t.csv", ["0,0,0,1-2"])
    assert main(["bench", "replay", *(word.format(trace=path) for word in words)]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
