"""The learned history of uses: what counts, what is kept, and that a bad file never matters."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskmoe.experts.trace import DECODE, PROMPT
from diskmoe.experts.usage import HALF_LIFE, UsageHistory, model_fingerprint

LAYERS = (1, 4)


def rows(*ids: list[int]) -> np.ndarray:
    return np.array(ids, np.int32)


def opened(folder: Path, said: list[str] | None = None, fingerprint: str = "f0") -> UsageHistory:
    return UsageHistory(folder, fingerprint, LAYERS, 4, (said if said is not None else []).append)


def learn(history: UsageHistory, *forwards: list[list[int]]) -> None:
    for chosen in forwards:
        for layer in LAYERS:
            history.record(layer, rows(*chosen), DECODE)


def kept(folder: Path) -> list[float]:
    return opened(folder).counts[1].tolist()


@settings(deadline=None)
@given(forwards=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2, unique=True)))
def test_every_decoded_row_counts_once(
    forwards: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("usage")
    history = opened(folder)
    learn(history, *([row] for row in forwards))
    history.save()
    found = opened(folder)
    assert found.tokens == len(forwards)
    for layer in LAYERS:
        expected = np.bincount([e for row in forwards for e in row], minlength=4)
        assert found.counts[layer].tolist() == expected.tolist()


def test_prompts_and_layers_of_other_models_do_not_count(tmp_path: Path) -> None:
    history = opened(tmp_path)
    history.record(1, rows([0, 1]), PROMPT)
    history.record(2, rows([0, 1]), DECODE)
    history.save()
    assert not list(tmp_path.iterdir())


def test_rejected_rows_teach_nothing(tmp_path: Path) -> None:
    history = opened(tmp_path)
    learn(history, [[0, 1], [2, 3]])
    history.accepted([0])
    learn(history, [[0, 2]])
    history.save()
    assert kept(tmp_path) == [2, 1, 1, 0]


def test_what_was_recorded_is_a_copy(tmp_path: Path) -> None:
    history, ids = opened(tmp_path), rows([0, 1])
    history.record(1, ids, DECODE)
    ids[:] = 3
    history.save()
    assert kept(tmp_path) == [1, 1, 0, 0]


def test_nothing_is_written_before_the_end(tmp_path: Path) -> None:
    history = opened(tmp_path / "not" / "there")
    learn(history, [[0, 1]], [[0, 1]])
    assert not list(tmp_path.iterdir())
    history.save()
    assert [path.name for path in (tmp_path / "not" / "there").iterdir()] == ["f0.json"]


def test_older_uses_count_less_the_longer_the_runs_after_them(tmp_path: Path) -> None:
    history = opened(tmp_path)
    learn(history, *([[[0, 1]]] * 8))
    history.save()
    history = opened(tmp_path)
    learn(history, *([[[2, 3]]] * int(HALF_LIFE)))
    history.save()
    assert kept(tmp_path) == [4, 4, HALF_LIFE, HALF_LIFE]


def test_two_runs_at_once_lose_nothing_of_one_another(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    learn(first, [[0, 1]])
    learn(second, [[2, 3]])
    first.save()
    second.save()
    assert np.allclose(kept(tmp_path), 1, atol=1e-3)


def test_the_most_used_of_all_layers_come_first_within_each_layers_room(tmp_path: Path) -> None:
    history = opened(tmp_path)
    history.counts = {1: np.array([5.0, 1, 0, 4]), 4: np.array([3.0, 0, 0, 2])}
    assert history.most_used(3, {1: 2, 4: 2}) == {1: [0, 3], 4: [0]}
    assert history.most_used(9, {1: 1, 4: 4}) == {1: [0], 4: [0, 3]}
    assert history.most_used(0, {1: 1, 4: 4}) == {}


def _good() -> dict:
    layers = {"1": [1.0, 2, 3, 4], "4": [0, 0, 0, 0]}
    return {"version": 1, "fingerprint": "f0", "tokens": 5, "layers": layers}


def _bad() -> dict[str, str]:
    good = _good()
    return {
        "no json": "{",
        "a list": "[]",
        "deep": "[" * 100_000,
        "another model": json.dumps({**good, "fingerprint": "f1"}),
        "another version": json.dumps({**good, "version": 2}),
        "a layer less": json.dumps({**good, "layers": {"1": [1, 2, 3, 4]}}),
        "other layers": json.dumps({**good, "layers": {"1": [0] * 4, "5": [0] * 4}}),
        "an expert more": json.dumps({**good, "layers": {"1": [0] * 5, "4": [0] * 4}}),
        "negative": json.dumps({**good, "layers": {"1": [0, 0, 0, -1], "4": [0] * 4}}),
        "not a number": json.dumps({**good, "layers": {"1": [0, 0, 0, "1"], "4": [0] * 4}}),
        "true": json.dumps({**good, "layers": {"1": [0, 0, 0, True], "4": [0] * 4}}),
        "nan": json.dumps(good).replace("1.0", "NaN"),
        "infinite": json.dumps(good).replace("1.0", "Infinity"),
        "huge": json.dumps(good).replace("1.0", "1" + "0" * 400),
        "no tokens": json.dumps({**good, "tokens": None}),
        "layers no object": json.dumps({**good, "layers": [1, 2]}),
        "not utf-8": "\udcff",
    }


@pytest.mark.parametrize("what", _bad())
def test_a_file_that_is_not_ours_is_passed_over_in_one_line_and_replaced(
    what: str, tmp_path: Path
) -> None:
    path = tmp_path / "f0.json"
    path.write_bytes(_bad()[what].encode("utf-8", "surrogateescape"))
    said: list[str] = []
    history = opened(tmp_path, said)
    assert history.tokens == 0 and not history.counts[1].any()
    (line,) = said
    assert line.startswith("note      the usage history is ignored: ") and str(path) in line
    assert "\n" not in line
    learn(history, [[0, 1]])
    history.save()
    assert kept(tmp_path) == [1, 1, 0, 0]


def test_a_good_file_is_taken(tmp_path: Path) -> None:
    (tmp_path / "f0.json").write_text(json.dumps(_good()))
    said: list[str] = []
    assert opened(tmp_path, said).counts[1].tolist() == [1, 2, 3, 4] and not said


def test_a_file_without_an_end_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "f0.json").open("wb") as file:
        file.truncate(1 << 40)
    said: list[str] = []
    assert opened(tmp_path, said).tokens == 0
    assert "is no file of at most 16777216 bytes" in said[0]


def test_a_place_that_takes_no_file_is_one_line_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    said: list[str] = []
    history = opened(tmp_path / "taken", said)
    learn(history, [[0, 1]])
    history.save()
    assert said and "the usage history was not saved: " in said[-1]
    (tmp_path / "f0.json").mkdir()
    said.clear()
    history = opened(tmp_path, said)
    learn(history, [[0, 1]])
    history.save()
    assert "was not saved" in said[-1] and list(tmp_path.glob("*.tmp")) == []


def test_a_model_has_the_same_name_wherever_it_lies_and_another_after_a_change(
    tmp_path: Path,
) -> None:
    names = []
    for folder, middle in (("a", b"x"), ("b", b"x"), ("c", b"y")):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "experts.safetensors"
        path.write_bytes(bytes(9000) + middle + bytes(9000))
        names.append(model_fingerprint({"layers": 2}, [path]))
    assert names[0] == names[1] != names[2]
    assert model_fingerprint({"layers": 3}, [path]) != names[2]
