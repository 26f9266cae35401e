"""Committed models and what transformers said of them (scripts/make_golden.py), without torch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import running

from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.families import FAMILIES
from diskmoe.engine.model.tensors import tensor_plan
from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.container import Container
from diskmoe.experts.convert import convert
from diskmoe.experts.errors import BadOutput
from diskmoe.experts.export import export_checkpoint
from diskmoe.experts.packing import unpack_record
from diskmoe.experts.records import CheckpointRecords
from diskmoe.experts.tiles import aligned_zeros

TOLERANCE = 1e-4
_FORMS = {"checkpoint": None, "converted f32": "f32", "converted bf16": "bf16"}


GOLDEN = Path(__file__).parents[2] / "golden"


def with_fixtures() -> list[str]:
    """All families, but those that are another name of a row and have no fixture of their own."""
    rows = [*FAMILIES.values()]
    first = [name for i, (name, row) in enumerate(FAMILIES.items()) if row not in rows[:i]]
    return sorted(name for name in FAMILIES if name in first or (GOLDEN / name).exists())


@pytest.fixture(params=with_fixtures())
def golden(request: pytest.FixtureRequest) -> tuple[Path, dict[str, Any]]:
    folder = GOLDEN / request.param
    return folder, json.loads((folder / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture(params=_FORMS)
def model_folder(request: pytest.FixtureRequest, golden, tmp_path: Path) -> Path:
    """The fixture itself, or converted in a float format."""
    fmt = _FORMS[request.param]
    if fmt is None:
        return golden[0]
    checkpoint = Checkpoint.open(golden[0])
    plan = tensor_plan(read_config(checkpoint.config, "golden"), checkpoint.has)
    convert(checkpoint, plan, tmp_path / "converted", fmt, fmt)
    return tmp_path / "converted"


def test_prompt_logits_equal_those_of_transformers(golden, model_folder):
    expected = np.array(golden[1]["logits"], np.float32)
    with running(model_folder, slots=2) as model:
        found = model.forward(golden[1]["prompt"], "all")
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < TOLERANCE


@pytest.mark.parametrize(("slots", "chunk"), [(1, 8), (2, 3), (6, 1)])
def test_greedy_tokens_equal_those_of_transformers(golden, model_folder, slots, chunk):
    prompt, expected = golden[1]["prompt"], golden[1]["greedy"]
    assert len(expected) == 32 and golden[1]["least_margin"] > 10 * TOLERANCE
    found = []
    with running(model_folder, slots=slots, threads=2) as model:
        for begin in range(0, len(prompt) - 1, chunk):
            model.forward(prompt[begin : begin + chunk][: len(prompt) - 1 - begin], "none")
        for _ in expected:
            logits = model.forward([found[-1] if found else prompt[-1]])
            found.append(int(logits[0].argmax()))
    assert found == expected


@pytest.mark.parametrize(("experts", "dense"), [("q8", "q8"), ("q4", "q8")])
def test_quantised_logits_are_near_those_of_transformers_given_the_same_numbers(
    golden, tmp_path, experts, dense
):
    """What is left is the int8 rounding of activations; no row of these models chooses another
    expert by it."""
    checkpoint = Checkpoint.open(golden[0])
    plan = tensor_plan(read_config(checkpoint.config, "golden"), checkpoint.has)
    convert(checkpoint, plan, tmp_path / "converted", experts, dense)
    expected = np.array(golden[1][f"logits {experts}/{dense}"], np.float32)
    with running(tmp_path / "converted", slots=2) as model:
        found = model.forward(golden[1]["prompt"], "all")
    rows = np.abs(found - expected).max(axis=1) / np.abs(expected).max()
    assert rows.max() < 2e-2


def test_an_exported_model_is_the_converted_one_in_f32(golden, tmp_path):
    checkpoint = Checkpoint.open(golden[0])
    plan = tensor_plan(read_config(checkpoint.config, "golden"), checkpoint.has)
    convert(checkpoint, plan, tmp_path / "converted", "q4", "q8")
    container = Container.open(tmp_path / "converted")
    export_checkpoint(container, plan, tmp_path / "exported")
    exported = Checkpoint.open(tmp_path / "exported")
    exported.verify(plan)
    for tensor in plan.dense:
        np.testing.assert_array_equal(exported.f32(tensor.name), container.f32(tensor.name))
    records = CheckpointRecords(exported, plan, "f32")
    record = aligned_zeros(records.record_layout.nbytes)
    for layer in [experts.layer for experts in plan.experts[-1:]]:
        records.load(layer, 1, record)
        found = unpack_record(record, records.record_layout)
        for ours, theirs in zip(found, container.expert_f32(layer, 1), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    records.close()
    with pytest.raises(BadOutput, match="in use"):
        export_checkpoint(container, plan, tmp_path / "exported")
    # the logits that transformers gave to these numbers
    expected = np.array(golden[1]["logits q4/q8"], np.float32)
    with running(tmp_path / "exported", slots=2) as model:
        assert np.abs(model.forward(golden[1]["prompt"], "all") - expected).max() < TOLERANCE
