"""Models whose layers have states: drafts are taken back to the bit, errors are lived through."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import random_tensors, running, tiny_config, write_checkpoint

from diskmoe.engine.errors import BadRequest, ReadFailed
from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.forward import Transformer
from diskmoe.engine.model.kvcache import KvCache, kv_cache_bytes

FAMILIES = ("qwen3_next", "qwen3_5_moe")
ROWS = 60
KEPT = 5


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = tiny_config(request.param)
    return write_checkpoint(
        tmp_path_factory.mktemp("hybrid"), raw, random_tensors(raw, seed=5), "bf16"
    )


@pytest.fixture(scope="module")
def ids() -> np.ndarray:
    return np.random.default_rng(6).integers(0, 96, ROWS)


@pytest.fixture(scope="module")
def plain(folder: Path, ids: np.ndarray) -> list[bytes]:
    """Each row's logits, decoded one by one."""
    with running(folder) as model:
        return [model.forward([token], "all").tobytes() for token in ids]


@pytest.mark.parametrize("seed", range(4))
def test_logits_after_rejected_drafts_are_those_of_plain_decoding(folder, ids, plain, seed):
    rng = np.random.default_rng(seed)
    prompt = int(rng.integers(1, 20))
    with running(folder, kept=KEPT, slots=3, threads=2) as model:
        model.forward(ids[:prompt], "none")
        while model.kv.length < ROWS:
            begin = model.kv.length
            n = int(rng.integers(1, min(KEPT, ROWS - begin) + 1))
            right = int(rng.integers(1, n + 1))
            rows = ids[begin : begin + n].copy()
            rows[right:] = rng.integers(0, 96, n - right)
            logits = model.forward(rows, "all")
            assert [row.tobytes() for row in logits[:right]] == plain[begin : begin + right]
            model.kv.trim(begin + right)


@pytest.mark.parametrize("chunk", [1, 4, KEPT, KEPT + 1, 30])
def test_a_prompt_in_chunks_of_any_size_is_the_same_prompt(folder, ids, plain, chunk):
    with running(folder, kept=KEPT) as model:
        for begin in range(0, 40, chunk):
            model.forward(ids[begin : begin + chunk][: 40 - begin], "none")
        assert model.forward(ids[40:41], "all").tobytes() == plain[40]


def test_the_cache_goes_back_within_the_last_forward_or_to_the_beginning(folder, ids, plain):
    with running(folder, kept=KEPT) as model:
        model.forward(ids[:8], "none")
        with pytest.raises(ValueError, match="cannot trim 8 positions to 7"):
            model.kv.trim(7)
        model.forward(ids[8:12], "none")
        assert not model.kv.can_trim(7)
        for length in (12, 10, 8):
            assert model.kv.can_trim(length)
            model.kv.trim(length)
            assert model.kv.length == length
        assert model.forward(ids[8:9], "all").tobytes() == plain[8]
        model.kv.trim(0)
        assert model.forward(ids[:1], "all").tobytes() == plain[0]


def fail_at(model: Transformer, reads: int) -> Callable[[], None]:
    """The hot store's next reads but so many fail, until what is returned is called."""
    store: Any = model._store
    load, left = store._source.load, [reads]

    def failing(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise ReadFailed("the disk is gone")
        load(*arguments)

    store._source.load = failing
    return lambda: setattr(store._source, "load", load)


@pytest.mark.parametrize("reads", [0, 4, 9])
def test_an_error_in_a_forward_leaves_states_as_they_were(folder, ids, plain, reads):
    with running(folder, kept=KEPT, slots=1) as model:
        model.forward(ids[:8], "none")
        model.forward(ids[8:12], "all")
        model.kv.trim(10)
        mend = fail_at(model, reads)
        with pytest.raises(ReadFailed):
            model.forward(ids[20:24], "all")
        mend()
        assert model.kv.length == 10
        logits = model.forward(ids[10:13], "all")
        assert [row.tobytes() for row in logits] == plain[10:13]


def test_an_error_in_a_long_chunk_leaves_the_beginning(folder, ids, plain):
    with running(folder, kept=KEPT, slots=1) as model:
        model.forward(ids[:8], "none")
        mend = fail_at(model, 9)
        with pytest.raises(ReadFailed):
            model.forward(ids[8:20], "none")
        mend()
        with pytest.raises(BadRequest, match="first 8 positions were lost .* begin again"):
            model.forward(ids[8:9])
        model.kv.trim(0)
        assert model.forward(ids[:1], "all").tobytes() == plain[0]


def test_an_error_in_the_first_chunk_leaves_an_empty_cache(folder, ids, plain):
    with running(folder, kept=KEPT, slots=1) as model:
        mend = fail_at(model, 9)
        with pytest.raises(ReadFailed):
            model.forward(ids[8:20], "none")
        mend()
        assert model.forward(ids[:1], "all").tobytes() == plain[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_only_layers_with_attention_have_keys_and_values(family):
    config = read_config(tiny_config(family, num_hidden_layers=8), "tiny")
    assert config.delta_layers == (0, 2, 4, 6)
    shape = config.delta
    assert shape is not None
    for kept in (1, 9):
        row = -(-(shape.channels + 2 * shape.value_heads) // 16) * 16
        states = 4 * 4 * (4 * 16 * 32 + (3 + kept) * row)
        nbytes = 4 * 100 * 2 * 2 * 32 * 4 + states
        assert KvCache(config, 100, kept=kept).nbytes == nbytes
        assert kv_cache_bytes(config, 100, kept=kept) == nbytes
    assert KvCache(config, 100, layers=1).nbytes == 100 * 2 * 2 * 32 * 4
    assert KvCache(config, 100, layers=1).states is None
