"""Experts in tensors of all of them, as numbers and as MXFP4 codes."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packed import pack_record

from diskmoe.experts.checkpoint import Checkpoint, ExpertForm, ExpertTensors, TensorPlan
from diskmoe.experts.container import Container
from diskmoe.experts.convert import convert
from diskmoe.experts.errors import BadModel
from diskmoe.experts.export import export_checkpoint
from diskmoe.experts.formats import FORMATS, round_to_bf16, widen_bf16
from diskmoe.experts.packing import unpack_record
from diskmoe.experts.records import CheckpointRecords, ContainerRecords, chosen_expert_format
from diskmoe.experts.safetensors_io import write_safetensors

EXPERTS, HIDDEN, FFN = 3, 64, 96
NUMBERS = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
Arrays = dict[str, tuple[str, np.ndarray]]


def plan_of(form: ExpertForm, hidden: int = HIDDEN, ffn: int = FFN) -> TensorPlan:
    layer = ExpertTensors(0, "l.gate_up", "l.gate_up", "l.down", form=form)
    return TensorPlan(1, EXPERTS, hidden, ffn, (), (layer,), biased=True)


def write(path: Path, tensors: Arrays) -> Checkpoint:
    path.mkdir(exist_ok=True)
    write_safetensors(path / "model.safetensors", tensors)
    (path / "config.json").write_text(json.dumps({"quantization_config": {}, "kind": "tiny"}))
    return Checkpoint.open(path)


def drawn(dtype: str, *shape: int) -> tuple[tuple[str, np.ndarray], np.ndarray]:
    """((dtype, what is stored), what it stands for in f32)."""
    values = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    if dtype == "BF16":
        bits = round_to_bf16(values)
        return (dtype, bits), widen_bf16(bits)
    stored = values.astype({"F16": np.float16, "F32": np.float32}[dtype])
    return (dtype, stored), stored.astype(np.float32)


def fused(
    dtype: str, hidden: int = HIDDEN, ffn: int = FFN
) -> tuple[Arrays, list[list[np.ndarray]]]:
    """(tensors, per expert: gate, up, down and their three biases)."""
    tensors: Arrays = {}
    tensors["l.gate_up"], both = drawn(dtype, EXPERTS, hidden, 2 * ffn)
    tensors["l.down"], down = drawn(dtype, EXPERTS, ffn, hidden)
    tensors["l.gate_up_bias"], bias = drawn(dtype, EXPERTS, 2 * ffn)
    tensors["l.down_bias"], down_bias = drawn(dtype, EXPERTS, hidden)
    return tensors, [
        [
            *(both[e, :, 0::2].T, both[e, :, 1::2].T, down[e].T),
            *(bias[e, 0::2], bias[e, 1::2], down_bias[e]),
        ]
        for e in range(EXPERTS)
    ]


def stacked(
    dtype: str, hidden: int = HIDDEN, ffn: int = FFN
) -> tuple[Arrays, list[list[np.ndarray]]]:
    """The same, output-major: rows of gate before those of up."""
    tensors: Arrays = {}
    tensors["l.gate_up"], both = drawn(dtype, EXPERTS, 2 * ffn, hidden)
    tensors["l.down"], down = drawn(dtype, EXPERTS, hidden, ffn)
    tensors["l.gate_up_bias"], bias = drawn(dtype, EXPERTS, 2 * ffn)
    tensors["l.down_bias"], down_bias = drawn(dtype, EXPERTS, hidden)
    return tensors, [
        [both[e, :ffn], both[e, ffn:], down[e], bias[e, :ffn], bias[e, ffn:], down_bias[e]]
        for e in range(EXPERTS)
    ]


PLAIN = {"stacked": stacked, "fused": fused}  # by form


def coded() -> tuple[Arrays, list[list[np.ndarray]]]:
    """The same as codes; numbers are spelled out one by one, as the format's standard says."""
    rng = np.random.default_rng(5)
    tensors, experts = fused("BF16")
    for name, rows, cols in (("l.gate_up", 2 * FFN, HIDDEN), ("l.down", HIDDEN, FFN)):
        del tensors[name]
        blocks = rng.integers(0, 256, (EXPERTS, rows, cols // 32, 16)).astype(np.uint8)
        scales = rng.integers(118, 130, (EXPERTS, rows, cols // 32)).astype(np.uint8)
        tensors[name + "_blocks"], tensors[name + "_scales"] = ("U8", blocks), ("U8", scales)
        wide = np.zeros((EXPERTS, rows, cols), np.float32)
        for e, row, group, byte in np.ndindex(blocks.shape):
            scale = 2.0 ** (int(scales[e, row, group]) - 127)
            at = 32 * group + 2 * byte
            wide[e, row, at] = NUMBERS[blocks[e, row, group, byte] % 16] * scale
            wide[e, row, at + 1] = NUMBERS[blocks[e, row, group, byte] // 16] * scale
        for e in range(EXPERTS):
            if name == "l.down":
                experts[e][2] = wide[e]
            else:
                experts[e][:2] = wide[e, 0::2], wide[e, 1::2]
    return tensors, experts


def assert_records_are(records: Any, experts: list[list[np.ndarray]]) -> None:
    layout = records.record_layout
    slot = np.full(layout.nbytes, 0xAB, np.uint8)
    for expert in (2, 0):
        records.load(0, expert, slot)
        gate, up, down, *biases = experts[expert]
        wanted = pack_record(gate, up, down, layout, biases=biases)
        np.testing.assert_array_equal(slot, wanted)
    records.close()


@pytest.mark.parametrize("fmt", [None, *FORMATS])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("form", PLAIN)
def test_experts_in_tensors_of_all_are_taken_apart(
    tmp_path: Path, form: ExpertForm, dtype: str, fmt: str | None
) -> None:
    tensors, experts = PLAIN[form](dtype)
    checkpoint, plan = write(tmp_path, tensors), plan_of(form)
    checkpoint.verify(plan)
    records = CheckpointRecords(checkpoint, plan, fmt)
    assert records.expert_format == (fmt or ("bf16" if dtype == "BF16" else "f32"))
    size = 4 if dtype == "F32" else 2
    assert records.disk_bytes(0, 1) == (3 * FFN * HIDDEN + 2 * FFN + HIDDEN) * size
    assert_records_are(records, experts)


@pytest.mark.parametrize("fmt", ["f32", "bf16", "q8", "q4g64"])
def test_codes_become_any_format(tmp_path: Path, fmt: str) -> None:
    tensors, experts = coded()
    checkpoint, plan = write(tmp_path, tensors), plan_of("codes")
    checkpoint.verify(plan)
    assert_records_are(CheckpointRecords(checkpoint, plan, fmt), experts)


def test_codes_are_kept_where_no_format_is_asked_for_or_four_bits(tmp_path: Path) -> None:
    tensors, experts = coded()
    checkpoint, plan = write(tmp_path, tensors), plan_of("codes")
    for asked in (None, "q4", "mxfp4"):
        assert chosen_expert_format(checkpoint, plan, asked) == "mxfp4"
    records = CheckpointRecords(checkpoint, plan)
    slot = np.full(records.record_layout.nbytes, 0xAB, np.uint8)
    for expert, wanted in enumerate(experts):
        records.load(0, expert, slot)
        found = [
            *unpack_record(slot, records.record_layout),
            *records.record_layout.biases(slot),
        ]
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    nbytes = 3 * FFN * HIDDEN * 17 // 32 + 2 * (2 * FFN + HIDDEN)
    assert records.disk_bytes(0, 0) == nbytes
    records.close()


@pytest.mark.parametrize("form", ["stacked", "fused", "codes"])
def test_a_converted_model_has_the_same_records_and_can_be_written_back(
    tmp_path: Path, form: ExpertForm
) -> None:
    tensors, experts = PLAIN[form]("BF16") if form in PLAIN else coded()
    checkpoint, plan = write(tmp_path / "in", tensors), plan_of(form)
    convert(checkpoint, plan, tmp_path / "out", None, None)
    container = Container.open(tmp_path / "out")
    assert container.biased
    theirs, ours = CheckpointRecords(checkpoint, plan), ContainerRecords(container, "off")
    slots = np.empty((2, ours.record_layout.nbytes), np.uint8)
    for expert in range(EXPERTS):
        theirs.load(0, expert, slots[0])
        ours.load(0, expert, slots[1])
        np.testing.assert_array_equal(slots[0], slots[1])
    ours.close()
    theirs.close()
    export_checkpoint(container, plan, tmp_path / "back")
    back = Checkpoint.open(tmp_path / "back")
    assert "quantization_config" not in back.config
    plan = plan_of(form if form in PLAIN else "fused")
    back.verify(plan)
    assert_records_are(CheckpointRecords(back, plan), experts)


@pytest.mark.parametrize("form", ["stacked", "fused", "codes"])
@pytest.mark.parametrize("fmt", [None, "q8", "q4", "f32"])
def test_scratch_is_an_upper_bound(tmp_path: Path, form: ExpertForm, fmt: str | None) -> None:
    hidden, ffn = 1024, 512
    if form in PLAIN:
        tensors, _ = PLAIN[form]("BF16", hidden, ffn)
    else:
        tensors, _ = fused("BF16", 2, 2)
        for name, rows, cols in (("l.gate_up", 2 * ffn, hidden), ("l.down", hidden, ffn)):
            del tensors[name]
            groups = (EXPERTS, rows, cols // 32)
            tensors[name + "_blocks"] = ("U8", np.zeros((*groups, 16), np.uint8))
            tensors[name + "_scales"] = ("U8", np.full(groups, 127, np.uint8))
            tensors[name + "_bias"] = ("BF16", np.zeros((EXPERTS, rows), np.uint16))
    records = CheckpointRecords(write(tmp_path, tensors), plan_of(form, hidden, ffn), fmt, 1)
    slot = np.empty(records.record_layout.nbytes, np.uint8)
    records.load(0, 0, slot)  # kernels are loaded by now
    tracemalloc.start()
    try:
        records.load(0, 0, slot)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        records.close()
    temporary = records.scratch_bytes - records._arena.nbytes
    objects = 30_000  # Python's own
    assert peak - objects < temporary < 1.5 * peak + objects


@pytest.mark.parametrize("fmt", [None, "q8"])
def test_a_scale_that_is_no_number_is_refused(tmp_path: Path, fmt: str | None) -> None:
    tensors, _ = coded()
    tensors["l.down_scales"][1][1, 3, 0] = 0xFF
    records = CheckpointRecords(write(tmp_path, tensors), plan_of("codes"), fmt)
    slot = np.empty(records.record_layout.nbytes, np.uint8)
    records.load(0, 0, slot)
    with pytest.raises(BadModel, match=r"l\.down_scales.*not a number"):
        records.load(0, 1, slot)
    records.close()


@pytest.mark.parametrize(
    ("name", "stored", "words"),
    [
        ("l.down_scales", None, "'l.down_scales' is missing"),
        ("l.gate_up_bias", None, "'l.gate_up_bias' is missing"),
        ("l.down_blocks", ("F32", np.zeros((3, 64, 3, 16), np.float32)), "dtype F32"),
        ("l.down_blocks", ("U8", np.zeros((3, 64, 2, 16), np.uint8)), "asks for [3, 64, 3, 16]"),
        ("l.gate_up_bias", ("F32", np.zeros((3, 96), np.float32)), "asks for [3, 192]"),
    ],
)
def test_codes_that_do_not_fit_the_plan_are_refused(
    tmp_path: Path, name: str, stored: Any, words: str
) -> None:
    tensors, _ = coded()
    del tensors[name]
    if stored is not None:
        tensors[name] = stored
    with pytest.raises(BadModel) as caught:
        write(tmp_path, tensors).verify(plan_of("codes"))
    assert words in str(caught.value)


def test_widths_without_whole_groups_have_no_codes(tmp_path: Path) -> None:
    tensors, _ = coded()
    with pytest.raises(BadModel, match="no whole groups of 32"):
        chosen_expert_format(write(tmp_path, tensors), plan_of("codes", ffn=100), None)
