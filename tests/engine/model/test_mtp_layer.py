"""The MTP head equals what transformers says of committed models (scripts/make_mtp_golden.py), and
its drafts are the same bits however its rows came in."""

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tiny_model import random_tensors, running_head, tiny_config, write_checkpoint

from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.forward import Transformer
from diskmoe.engine.model.mtp_layer import MtpLayer, mtp_scratch_bytes
from diskmoe.engine.model.tensors import tensor_plan
from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.convert import convert
from diskmoe.mtp.head import WAITING_ROWS, MtpSource

TOLERANCE = 1e-4
FOUR: Any = {"expert_format": "q4", "dense_format": "q4"}
GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "mtp"


def converted(folder: Path, out: Path, experts: str, dense: str) -> Path:
    checkpoint = Checkpoint.open(folder)
    plan = tensor_plan(read_config(checkpoint.config, "golden"), checkpoint.has)
    convert(checkpoint, plan, out, experts, dense)
    return out


def read_text(model: Transformer, source: MtpSource, text: Sequence[int], chunk: int) -> None:
    """The model reads a text but for its last token, and the head hears of it."""
    model.kv.trim(0)
    rows = len(text) - 1
    for begin in range(0, rows, chunk):
        end = min(begin + chunk, rows)
        model.forward(text[begin:end], "none")
        source.absorb(text[begin + 1 : end + 1], model.hidden)


def drafts_of(
    source: MtpSource, layer: MtpLayer, chain: Sequence[int] = (), count: int = 4
) -> tuple[list[int], list[npt.NDArray[np.float32]]]:
    """(tokens, logits) of the drafts."""
    seen: list[npt.NDArray[np.float32]] = []
    logits = layer.logits

    def recorded(state: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        seen.append(logits(state))
        return seen[-1]

    layer.logits = recorded  # type: ignore[method-assign]
    try:
        made = source.drafts(chain)
        tokens = [draft.token for draft in islice(made, count)]
        made.close()
    finally:
        del layer.logits
    return tokens, seen


@pytest.fixture(params=sorted(path.name for path in GOLDEN.iterdir()))
def golden(request: pytest.FixtureRequest) -> tuple[Path, dict[str, Any]]:
    folder = GOLDEN / request.param
    return folder, json.loads((folder / "expected.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("form", "slots", "chunk"), [(None, 2, 3), ("f32", 6, 1), ("bf16", 3, 64)])
def test_drafts_and_their_logits_equal_those_of_transformers(golden, tmp_path, form, slots, chunk):
    folder, expected = golden
    if form is not None:
        folder = converted(folder, tmp_path / "converted", form, form)
    with running_head(folder, slots=slots) as (model, layer):
        for entry in expected["drafts"]:
            source = MtpSource(layer, model.config.hidden)
            read_text(model, source, expected["text"][: entry["after"]], chunk)
            tokens, logits = drafts_of(source, layer)
            assert tokens == entry["tokens"]
            assert np.abs(np.array(logits) - np.array(entry["logits"])).max() < TOLERANCE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = tiny_config("glm4_moe", num_nextn_predict_layers=1)
    path = tmp_path_factory.mktemp("head")
    return write_checkpoint(path, raw, random_tensors(raw, 3, mtp=True), "bf16")


@pytest.fixture
def head(folder: Path) -> Iterator[tuple[Transformer, MtpLayer]]:
    with running_head(folder, **FOUR, slots=4, context=256) as found:
        yield found


TEXT = [int(token) for token in np.random.default_rng(5).integers(0, 96, 2 * WAITING_ROWS + 20)]


@pytest.mark.parametrize("chunk", [1, 7, WAITING_ROWS, WAITING_ROWS + 9])
def test_drafts_are_the_same_bits_however_the_rows_came_in(head, folder, chunk):
    model, layer = head
    source = MtpSource(layer, model.config.hidden)
    read_text(model, source, TEXT, len(TEXT))
    expected = drafts_of(source, layer)
    source = MtpSource(layer, model.config.hidden)
    read_text(model, source, TEXT, chunk)
    tokens, logits = drafts_of(source, layer)
    assert tokens == expected[0]
    assert [row.tobytes() for row in logits] == [row.tobytes() for row in expected[1]]


def test_threads_and_slots_do_not_change_a_bit(head, folder):
    model, layer = head
    source = MtpSource(layer, model.config.hidden)
    read_text(model, source, TEXT[:40], 9)
    expected = drafts_of(source, layer)
    with running_head(folder, **FOUR, slots=1, threads=3) as (model, layer):
        source = MtpSource(layer, model.config.hidden)
        read_text(model, source, TEXT[:40], 40)
        tokens, logits = drafts_of(source, layer)
    assert tokens == expected[0]
    assert [row.tobytes() for row in logits] == [row.tobytes() for row in expected[1]]


def test_a_model_of_four_bits_has_a_head_of_eight(folder, tmp_path):
    path = converted(folder, tmp_path / "converted", "q4", "q4")
    found = []
    for place, formats in ((folder, FOUR), (path, {})):
        with running_head(place, **formats, slots=3) as (model, layer):
            assert layer.formats == {"q8", "f32"}  # f32: the router
            source = MtpSource(layer, model.config.hidden)
            read_text(model, source, TEXT[:30], 30)
            found.append(b"".join(row.tobytes() for row in drafts_of(source, layer)[1]))
    assert found[0] == found[1]


def test_drafts_behind_a_chain_are_those_that_the_head_would_give_after_its_own(head):
    """Fed what it would have drafted, it goes on as before; at the end of its depth it says nothing."""
    model, layer = head
    source = MtpSource(layer, model.config.hidden)
    read_text(model, source, TEXT[:21], 21)
    tokens, logits = drafts_of(source, layer)
    for begin in (1, 2, 3):
        found = drafts_of(source, layer, tokens[:begin])
        assert found[0] == tokens[begin:]
        assert [row.tobytes() for row in found[1]] == [row.tobytes() for row in logits[begin:]]
    assert drafts_of(source, layer, tokens) == ([], [])
    other = drafts_of(source, layer, [tokens[0] ^ 1])
    assert other[1][0].tobytes() != logits[1].tobytes()


def test_what_was_tried_leaves_no_trace(head):
    model, layer = head
    source = MtpSource(layer, model.config.hidden)
    read_text(model, source, TEXT[:12], 12)
    expected = drafts_of(source, layer)
    for count in (0, 1, 3):
        drafts_of(source, layer, [5, 7], count)
        assert layer.kv.length == 11
    assert [row.tobytes() for row in drafts_of(source, layer)[1]] == [
        row.tobytes() for row in expected[1]
    ]
    # and the model itself, whose working memory the head shares, says what it says without
    logits = model.forward(TEXT[11:12])
    model.kv.trim(0)
    assert model.forward(TEXT[:12])[0].tobytes() == logits[0].tobytes()


@pytest.mark.parametrize("dense", ["f32", "q4"])
def test_scratch_that_was_planned_covers_what_the_head_takes(folder, dense):
    with running_head(folder, dense, "q4", context=256) as (model, layer):
        model.forward(TEXT, "none")
        before, states = model._scratch.nbytes, model.hidden.copy()
        source = MtpSource(layer, model.config.hidden)
        source.absorb([*TEXT[1:], 5], states)
        taken = model._scratch.nbytes - before + layer._scratch.nbytes
        layout = layer._store.record_layout
        planned = mtp_scratch_bytes(model.config, len(TEXT), layout, layer.formats)
    assert taken <= planned < 3 * taken
