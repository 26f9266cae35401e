"""Texts that share a forward get what forwards of their own give them, and share what is read."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tiny_model import random_tensors, running, tiny_config, write_checkpoint

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.model.forward import Transformer
from diskmoe.engine.model.kvcache import KvCache
from diskmoe.engine.model.together import Part, Together

FAMILIES = ["qwen3_moe", "gpt_oss", "deepseek_v3", "glm_moe_dsa", "qwen3_next", "granitemoe"]
TEXTS, LENGTH = 3, 40


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config(request.param)
    path = tmp_path_factory.mktemp("together") / request.param
    return write_checkpoint(path, config, random_tensors(config, seed=11))


@pytest.fixture
def model(folder: Path) -> Iterator[Transformer]:
    """With so few slots that texts take experts from each other."""
    with running(folder, expert_format="q8", dense_format="q8", slots=3, threads=2) as model:
        yield model


@pytest.fixture(scope="module")
def texts() -> np.ndarray:
    return np.random.default_rng(8).integers(0, 96, (TEXTS, LENGTH))


@pytest.fixture(scope="module")
def alone(folder: Path, texts: np.ndarray) -> list[list[bytes]]:
    """Each row's logits by forwards of one token of one text, everything resident."""
    with running(folder, expert_format="q8", dense_format="q8", slots=8) as model:
        found = []
        for text in texts:
            model.kv.trim(0)
            found.append([model.forward([token], "all").tobytes() for token in text])
    return found


def cache(model: Transformer) -> KvCache:
    return KvCache(model.config, 128)


def test_programs_are_kept_up_to_a_number_and_no_bit_depends_on_it(
    model, texts, alone, monkeypatch
) -> None:
    monkeypatch.setattr("diskmoe.engine.model.programs.KEPT", 3)
    programs = model._programs
    together, (first, second) = Together(model), (cache(model), cache(model))
    for n in (1, 2, 3, 2, 1, 3):
        parts = [Part(kv, texts[i][kv.length :][:n], "all") for i, kv in enumerate((first, second))]
        for i, answer in enumerate(together.forward(parts)):
            begin = (first, second)[i].length - n
            assert [row.tobytes() for row in answer.logits] == alone[i][begin : begin + n]
        assert programs._held == sum(map(len, programs._kept.values()))
        of_last = len(programs._kept[0, 2 * n])  # the run in use may be larger than the number
        assert programs._held <= max(3 * model.config.layers, of_last)


@pytest.mark.parametrize("seed", range(4))
def test_every_text_gets_the_bits_of_its_own_forwards(model, texts, alone, seed) -> None:
    rng = np.random.default_rng(seed)
    together, caches = Together(model), [cache(model) for _ in texts]
    while any(kv.length < LENGTH - 6 for kv in caches):
        parts, at = [], []
        for number in rng.permutation(TEXTS)[: rng.integers(1, TEXTS + 1)]:
            kv = caches[number]
            count = int(rng.integers(1, 6))
            if kv.length + count > LENGTH:
                continue
            if not kv.length:  # a prompt goes in by a forward of its own
                model.forward(texts[number][:3], "none", kv=kv)
            ids = texts[number][kv.length : kv.length + count]
            parts.append(Part(kv, ids, "all" if rng.integers(2) else "last"))
            at.append((number, kv.length, count))
        if not parts:
            continue
        for answer, part, (number, begin, count) in zip(
            together.forward(parts), parts, at, strict=True
        ):
            rows = [row.tobytes() for row in answer.logits]
            wanted = alone[number][begin : begin + count]
            assert rows == (wanted if part.rows == "all" else wanted[-1:])
            assert answer.hidden.shape == (count, model.config.hidden)
            part.kv.trim(begin + int(rng.integers(1, count + 1)))  # the others were wrong drafts


def test_what_two_texts_want_is_read_once(model, texts) -> None:
    def misses(texts_at_once: int) -> int:
        caches = [cache(model) for _ in range(texts_at_once)]
        before = model.counters.misses
        together = Together(model)
        for token in texts[0][:12]:
            together.forward([Part(kv, [token], "last") for kv in caches])
        return model.counters.misses - before

    misses(1)  # so that both begin with the same in the store
    assert misses(1) == misses(2) == misses(3)


def test_a_text_that_does_not_fit_leaves_all_caches_as_they_were(model, texts) -> None:
    first, small = cache(model), KvCache(model.config, 2)
    together = Together(model)
    with pytest.raises(BadRequest, match="do not fit in a context of 2"):
        together.forward([Part(first, [1], "last"), Part(small, [1, 2, 3], "all")])
    assert first.length == small.length == 0
    with pytest.raises(BadRequest, match="a cache each"):
        together.forward([Part(first, [1], "last"), Part(first, [2], "last")])
    with pytest.raises(BadRequest, match="a token at least"):
        together.forward([Part(first, [], "last")])


def test_only_what_no_certain_row_wants_is_in_doubt(model, monkeypatch) -> None:
    """Rows of a text stand together, so a draft may stand before another text's certain row."""
    cooled: set[tuple[int, int]] = set()
    monkeypatch.setattr(
        model._store, "cool", lambda layer, experts: cooled.update((layer, e) for e in experts)
    )
    sure: set[tuple[int, int]] = set()
    drafted: set[tuple[int, int]] = set()

    def record(layer: int, ids: np.ndarray, phase: int) -> None:
        sure.update((layer, int(e)) for e in ids[[0, 3]].ravel())
        drafted.update((layer, int(e)) for e in ids[1:3].ravel())

    model.record_with(record)
    answers = Together(model).forward(
        [Part(cache(model), [1, 2, 3], "all"), Part(cache(model), [4, 5], "all")]
    )
    assert [list(answer.places) for answer in answers] == [[0, 1, 2], [3, 4]]
    model.accepted({0, 3})
    assert cooled and not cooled & sure
    assert drafted & sure  # so that there was something to be wrong about
