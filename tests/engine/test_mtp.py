"""The model's own MTP head as a draft source: the ids are those of plain decoding, whatever it says."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random

import pytest
from tiny_model import Tensors, random_tensors, running_head, tiny_config, write_checkpoint

from diskmoe.engine.api import Model, Options, prepare
from diskmoe.engine.converting import convert_model
from diskmoe.engine.decode import decode
from diskmoe.engine.model.families import FAMILIES
from diskmoe.engine.model.forward import Transformer
from diskmoe.engine.model.mtp_layer import MtpLayer
from diskmoe.engine.sampling import Sampler, Sampling
from diskmoe.engine.stats import RunStats
from diskmoe.mtp.compose import Composer
from diskmoe.mtp.head import MOST_DEPTH, MtpSource
from diskmoe.mtp.planner import Planner

VOCAB = 96


def half_right(config: dict, seed: int) -> Tensors:
    """A model that mostly says what its last token alone makes likely, and a head that says the same
    of the token it is given: right often, and not always."""
    tensors = random_tensors(config, seed, mtp=True)
    names = FAMILIES[config["model_type"]].names
    projection = tensors[names.mtp_projection.format(L=3, M=0)]
    projection *= 0.1
    projection[range(len(projection)), range(len(projection))] += 1.0
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            tensor *= 0.5
        elif name.endswith("embed_tokens.weight"):
            tensor *= 12.0
    return tensors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config("glm4_moe", num_nextn_predict_layers=1, eos_token_id=None)
    path = tmp_path_factory.mktemp("half-right")
    return write_checkpoint(path, config, half_right(config, seed=7), "bf16")


@pytest.fixture(
    scope="module", params=[("glm4_moe", 1), ("deepseek_v3", 8), ("qwen3_5_moe_text", 3)]
)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Transformer, MtpLayer]]:
    """A model with so many slots in each layer, of eight experts; the last has recurrent states."""
    family, slots = request.param
    config = tiny_config(family, num_nextn_predict_layers=1, eos_token_id=None)
    path = tmp_path_factory.mktemp(family)
    write_checkpoint(path, config, half_right(config, seed=7), "bf16")
    with running_head(path, "q8", "q4", slots=slots, threads=2) as found:
        yield found


def ids_of(
    model: tuple[Transformer, MtpLayer],
    prompt: Sequence[int],
    sampling: Sampling,
    depth: int,
    limit: int = 30,
    stops: Sequence[int] = (),
    chunk: int = 64,
) -> tuple[list[int], RunStats]:
    """The ids of a run with so many drafts a forward; 0: plain."""
    transformer, layer = model
    stats, composer = RunStats(), None
    sampler = Sampler(sampling, VOCAB)
    source = MtpSource(layer, transformer.config.hidden, sampler.guess)
    if depth:
        composer = Composer([], [source], VOCAB, most=depth, planner=Planner(depth), guard=False)
        stats.drafts = composer.accounts

    def absorb(following: Sequence[int]) -> None:
        source.absorb(following, transformer.hidden[: len(following)])

    run = decode(
        transformer,
        prompt,
        sampler,
        limit=limit,
        stop_ids=stops,
        prefill_chunk=chunk,
        stats=stats,
        drafts=composer,
        on_rows=absorb if depth else lambda following: None,
    )
    ids = list(run)
    for account in stats.drafts.values():
        assert len(ids) == stats.tokens == stats.sampled + account.accepted
        assert account.accepted <= account.judged <= account.proposed
    return ids, stats


SAMPLINGS = [Sampling(), Sampling(temperature=0.8, top_p=0.9, seed=3)]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
def test_ids_are_the_same_at_every_depth(model, sampling: Sampling) -> None:
    random = Random(1)
    accepted = wrong = 0
    for depth in range(1, MOST_DEPTH + 1):
        for _ in range(3):
            prompt = [random.randrange(VOCAB) for _ in range(random.randrange(1, 100))]
            chunk = random.choice((1, 5, 64, 100))
            plain, _ = ids_of(model, prompt, sampling, 0)
            ids, stats = ids_of(model, prompt, sampling, depth, chunk=chunk)
            assert ids == plain
            accepted += stats.drafts["mtp"].accepted
            wrong += stats.drafts["mtp"].judged - stats.drafts["mtp"].accepted
    assert accepted > 10 and wrong > 10


def test_stops_limits_and_a_full_context_are_where_they_are_without_drafts(model) -> None:
    prompt, most = [5, 17, 33], MOST_DEPTH
    plain, _ = ids_of(model, prompt, Sampling(), 0)
    for stop in plain[::4]:
        ids, stats = ids_of(model, prompt, Sampling(), most, stops=[stop])
        assert ids == plain[: plain.index(stop) + 1] and stats.stop_reason == "stop token"
    for limit in (1, 2, 3, 17):
        ids, stats = ids_of(model, prompt, Sampling(), most, limit=limit)
        assert ids == plain[:limit] and stats.stop_reason == "limit"
    capacity = model[0].kv.capacity
    for rows in (capacity - 12, capacity - 2, capacity - 1):
        plain, _ = ids_of(model, [1] * rows, Sampling(), 0)
        ids, stats = ids_of(model, [1] * rows, Sampling(), most)
        assert ids == plain and len(ids) == capacity - rows + 1
        assert stats.stop_reason == "context full"


def test_the_cache_of_the_head_holds_the_rows_that_were_of_use(model) -> None:
    """What a run leaves behind, rejected drafts and all, is what one pass over its text leaves."""
    transformer, layer = model
    prompt = [9, 3, 60, 2]
    ids, stats = ids_of(model, prompt, SAMPLINGS[1], MOST_DEPTH, limit=20)
    assert stats.drafts["mtp"].judged > stats.drafts["mtp"].accepted > 0
    rows, text = layer.kv.length, [*prompt, *ids]
    assert len(prompt) < rows < len(text)
    left = layer.kv._kv._numbers[:, :, :rows].copy()
    source = MtpSource(layer, transformer.config.hidden)
    transformer.kv.trim(0)
    transformer.forward(text[:rows])
    source.absorb(text[1 : rows + 1], transformer.hidden)
    assert next(source.drafts([])) is not None
    assert layer.kv._kv._numbers[:, :, :rows].tobytes() == left.tobytes()


def loaded(folder: Path, **options) -> Model:
    return Model.load(folder, Options(ctx=96, **options))


def test_a_run_after_one_that_was_left_says_what_it_says_alone(folder: Path) -> None:
    with loaded(folder, draft_rows=0) as plain:
        expected = list(plain_ids(plain, [4, 8, 15], 40))
    with loaded(folder, draft_rows=3, draft=3, guard=False, ngram=False) as model:
        for left in (1, 2, 5, 11):
            run = model.generate([16, 23, 42], limit=40)
            for _ in islice(run._tokens, left):
                pass
            run.stop("left")
            again = model.generate([4, 8, 15], limit=40)
            assert list(islice(again._tokens, 40)) == expected
            assert again.stats.drafts["mtp"].accepted > 5
            assert again.stats.tokens_per_forward is not None
            assert again.stats.tokens_per_forward > 1.2


def plain_ids(model: Model, prompt: Sequence[int], limit: int) -> list[int]:
    run = model.generate(prompt, limit=limit)
    for _ in run:
        pass
    return run.token_ids


def test_a_head_that_is_not_wanted_is_not_loaded(folder: Path) -> None:
    for options in ({"mtp": False}, {"draft_rows": 0}, {"draft": 0}):
        with loaded(folder, **options) as model:
            assert not model.memory.mtp_slots
            run = model.generate([1, 2, 3], limit=5)
            assert len(list(run._tokens)) == 5 and "mtp" not in run.stats.drafts


def test_a_head_that_is_asked_for_and_not_there_is_told_once(tmp_path: Path) -> None:
    config = tiny_config("qwen3_moe", eos_token_id=None)
    write_checkpoint(tmp_path, config, random_tensors(config, 1))
    for mtp, expected in ((True, 1), (None, 0)):
        said: list[str] = []
        with Model.load(tmp_path, Options(ctx=64, mtp=mtp), said.append) as model:
            assert not model.memory.mtp_slots
        assert sum("MTP=1 has no effect: the model has no MTP head" in line for line in said) == (
            expected
        )


def test_the_plan_tells_of_the_head(folder: Path) -> None:
    prepared = prepare(folder, Options(ctx=96))
    plan = prepared.plan()
    prepared.close()
    assert plan.mtp_slots == 8 and plan.request.mtp_whole
    assert plan.as_json()["mtp_slots"] == 8
    line = plan.lines()[-1]
    assert line.startswith("MTP layer: weights and KV cache ") and "all of its experts" in line
    assert plan.total_bytes <= plan.budget_bytes


def test_a_head_without_room_is_left_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least budget of the model alone is not the least with its head."""
    monkeypatch.setattr("diskmoe.engine.memory.resident_bytes", lambda: 100 << 20)
    small = tmp_path / "converted"  # which takes less to load
    convert_model(folder, small, "q4", "q8", lambda line: None)
    alone = prepare(small, Options(ctx=96, mtp=False))
    least = alone.plan().request
    alone.close()
    needed = (least.fixed_bytes + least.set_bytes + (4 << 10)) / 2**30
    for mtp in (None, True):
        said: list[str] = []
        prepared = prepare(small, Options(ctx=96, ram_gb=needed, mtp=mtp))
        plan = prepared.plan(said.append)
        prepared.close()
        assert plan.slots_per_layer == 1 and not plan.mtp_slots
        assert any("the MTP head is left out" in line for line in said)
