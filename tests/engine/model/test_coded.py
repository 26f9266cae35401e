"""Checkpoints whose matrices are codes and scales say what the same numbers say when they are plain."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_codes import with_fp8, with_fp8_factors, with_int4
from tiny_model import Stored, random_tensors, running, tiny_config, write_checkpoint

from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.tensors import tensor_plan
from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.container import Container
from diskmoe.experts.convert import convert
from diskmoe.experts.errors import BadModel
from diskmoe.experts.formats import Quantised
from diskmoe.experts.packing import unpack_values
from diskmoe.experts.records import ContainerRecords
from diskmoe.experts.safetensors_io import read_tensor
from diskmoe.experts.tiles import aligned_zeros

IDS = [5, 9, 33, 2, 50, 7, 8, 41, 3, 77]
WAYS = {
    "fp8": with_fp8,
    "fp8 by row": lambda config, tensors: with_fp8_factors(config, tensors, "channel"),
    "fp8 by tensor": lambda config, tensors: with_fp8_factors(config, tensors, "tensor"),
    "int4": with_int4,
}
GATE = "model.layers.1.mlp.experts.2.gate_proj.weight"


def written(folder: Path, way: str, **changes: Any) -> tuple[Path, Path]:
    """(codes, plain): a checkpoint of two layers and blocks that are not whole; the same numbers."""
    sizes = {"hidden_size": 160, "moe_intermediate_size": 160, "num_hidden_layers": 2}
    raw = tiny_config("glm4_moe", **{**sizes, **changes})
    coded, stored, exact = WAYS[way](raw, random_tensors(raw, 1))
    codes = write_checkpoint(folder / "codes", coded, stored, "bf16")
    return codes, write_checkpoint(folder / "plain", raw, rounded(exact, stored), "f32")


def rounded(exact: Stored, stored: Stored) -> Stored:
    """What codes stand for, and of the rest what is left in bf16."""
    bits = {name: array.view(np.uint32) for name, array in exact.items()}
    whole = {name: (b + 0x7FFF + (b >> 16 & 1)) >> 16 << 16 for name, b in bits.items()}
    plain = {name: (b.astype(np.uint32)).view(np.float32) for name, b in whole.items()}
    return {name: array if is_coded(name, stored) else plain[name] for name, array in exact.items()}


def is_coded(name: str, stored: Stored) -> bool:
    return name not in stored or stored[name].dtype == np.uint8


def plan_of(folder: Path):
    checkpoint = Checkpoint.open(folder)
    return checkpoint, tensor_plan(read_config(checkpoint.config, "x"), checkpoint.has)


def converted(folder: Path, experts: str | None, dense: str | None) -> Path:
    out = folder.with_name(f"{folder.name}-{experts}-{dense}")
    convert(*plan_of(folder), out, experts, dense)
    return out


def logits(folder: Path, **options: Any) -> np.ndarray:
    with running(folder, **options) as model:
        return model.forward(IDS, "all")


@pytest.mark.parametrize("way", WAYS)
def test_codes_are_widened_exactly(tmp_path, way):
    codes, plain = written(tmp_path, way)
    wide = {"dense_format": "f32", "expert_format": "f32", "slots": 2}
    expected = logits(plain, **wide)
    assert logits(codes, **wide).tobytes() == expected.tobytes()
    assert logits(converted(codes, "f32", "f32")).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("way", "targets"),
    [
        *((way, [("q4", "q8"), ("q4g64", "bf16")]) for way in WAYS if way != "int4"),
        ("int4", [("q4g64", "q8"), ("mxfp4", "bf16")]),
    ],
)
def test_what_is_quantised_anew_is_dequantised_once(tmp_path, way, targets):
    codes, plain = written(tmp_path, way)
    for experts, dense in targets:
        ours = Container.open(converted(codes, experts, dense))
        theirs = Container.open(converted(plain, experts, dense))
        for expert in range(8):
            pairs = zip(ours.expert_f32(1, expert), theirs.expert_f32(1, expert), strict=True)
            assert all(np.array_equal(a, b) for a, b in pairs)
        for name in ours.names:
            assert np.array_equal(ours.f32(name), theirs.f32(name)), name


@pytest.mark.parametrize(
    ("way", "fmt"),
    [("fp8", "fp8"), ("fp8 by tensor", "fp8"), ("fp8 by row", "f32"), ("int4", "int4")],
)
def test_kept_codes_stand_for_the_same_numbers(tmp_path, way, fmt):
    codes, plain = written(tmp_path, way)
    kept = Container.open(converted(codes, None, None))
    exact = Container.open(converted(plain, "f32", "f32"))
    assert kept.expert_format == fmt
    for expert in range(8):
        pairs = zip(kept.expert_f32(1, expert), exact.expert_f32(1, expert), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)
    for name in kept.names:
        assert np.array_equal(kept.f32(name), exact.f32(name)), name


def numbers_in(container: Container, expert: int) -> Quantised:
    """What the gate of an expert of layer 1 is stored as."""
    record = container.record_layout
    packed = aligned_zeros(record.nbytes)
    records = ContainerRecords(container)
    records.load(1, expert, packed)
    records.close()
    return unpack_values(packed[: record.gate.nbytes], record.gate)


def assert_same_weights(ours: Path, theirs: Path) -> None:
    a, b = Container.open(ours), Container.open(theirs)
    for expert in range(8):
        for found, source in zip(a.expert_f32(1, expert), b.expert_f32(1, expert), strict=True):
            np.testing.assert_array_equal(found, source)


@pytest.mark.parametrize("asked", [None, "q4", "int4"])
def test_int4_stays_as_it_is_bit_for_bit(tmp_path, asked):
    codes, plain = written(tmp_path, "int4")
    ours = converted(codes, asked, "bf16")
    assert Container.open(ours).expert_format == "int4"
    assert_same_weights(ours, converted(plain, "f32", "f32"))
    kept, stored = numbers_in(Container.open(ours), 2), Checkpoint.open(codes)
    pairs = read_tensor(stored.info(GATE + "_packed")).view(np.uint8)
    assert np.array_equal(kept.values[:, 0::2], pairs & 15)
    assert np.array_equal(kept.values[:, 1::2], pairs >> 4)
    scales = stored.info(GATE + "_scale")
    assert scales.dtype == "BF16"
    assert np.array_equal(kept.scales, read_tensor(scales).view(np.uint16))


@pytest.mark.parametrize("group", [64, 192])
def test_a_scale_of_more_columns_is_one_of_each_group_of_them(tmp_path, group):
    raw = tiny_config("qwen3_moe", hidden_size=192, moe_intermediate_size=192)
    coded, stored, exact = with_int4(raw, random_tensors(raw, 1), group)
    codes = write_checkpoint(tmp_path / "codes", coded, stored, "bf16")
    plain = write_checkpoint(tmp_path / "plain", raw, exact)
    ours = converted(codes, None, "q8")
    assert Container.open(ours).expert_format == "int4"
    assert_same_weights(ours, converted(plain, "f32", "q8"))
    checkpoint, plan = plan_of(codes)
    assert checkpoint.matrix(GATE).shape == (192, 192)
    assert (read_tensor(checkpoint.info(GATE + "_scale")).shape) == (192, 192 // group)
    assert plan.ffn == 192


@pytest.mark.parametrize(("dtype", "fmt"), [("f16", "q4_0"), ("f32", "f32")])
def test_other_scales_are_kept_exactly_too(tmp_path, dtype, fmt):
    raw = tiny_config("qwen3_moe", moe_intermediate_size=64)
    coded, stored, exact = with_int4(raw, random_tensors(raw, 1))
    codes = write_checkpoint(tmp_path / "codes", coded, stored, dtype)
    plain = write_checkpoint(tmp_path / "plain", raw, exact)
    ours = converted(codes, None, "q8")
    assert Container.open(ours).expert_format == fmt
    assert_same_weights(ours, converted(plain, "f32", "q8"))


def test_beside_plain_experts_int4_keeps_its_codes_in_q4_where_only_steps_are_rounded(tmp_path):
    raw = tiny_config("qwen3_moe", moe_intermediate_size=64)
    coded, stored, exact = with_int4(raw, random_tensors(raw, 1))
    other = GATE.replace("experts.2", "experts.3")
    for ending in ("_packed", "_scale", "_shape"):
        del stored[other + ending]
    stored[other] = exact[other]
    codes = write_checkpoint(tmp_path / "codes", coded, stored, "bf16")
    plain = write_checkpoint(tmp_path / "plain", raw, exact)
    ours, theirs = (Container.open(converted(codes, asked, "q8")) for asked in ("q4", None))
    assert ours.expert_format == "q4+int4"  # gates are not all in codes
    assert theirs.expert_format == "f32+int4"
    source = Container.open(converted(plain, "f32", "q8"))
    for expert in range(8):
        gate, up, down = ours.expert_f32(1, expert)
        exact_gate, exact_up, exact_down = source.expert_f32(1, expert)
        np.testing.assert_array_equal(down, exact_down)
        np.testing.assert_array_equal(theirs.expert_f32(1, expert)[2], exact_down)
        if expert != 3:  # chosen anew, codes would be 6e-2 away
            assert 0 < np.linalg.norm(gate - exact_gate) < 4e-3 * np.linalg.norm(exact_gate)
        assert 0 < np.linalg.norm(up - exact_up) < 4e-3 * np.linalg.norm(exact_up)
    pairs = read_tensor(Checkpoint.open(codes).info(GATE + "_packed")).view(np.uint8)
    assert np.array_equal(numbers_in(ours, 2).values[:, 0::2], pairs & 15)
    options: dict[str, Any] = {"expert_format": "q4", "dense_format": "q8", "slots": 2}
    with running(ours.path) as model, running(codes, **options) as direct:
        found = model.forward(IDS, "all")
        assert found.tobytes() == direct.forward(IDS, "all").tobytes()
        assert np.isfinite(found).all()


@pytest.mark.parametrize("way", ["fp8", "fp8 by row", "fp8 by tensor"])
def test_fp8_is_multiplied_as_it_is_with_no_rounding_of_rows(tmp_path, way):
    codes, plain = written(tmp_path, way)
    expected = logits(plain)
    found = logits(codes, slots=2)
    assert np.abs(found - expected).max() < 1e-4
    kept = converted(codes, None, None)
    with running(kept, slots=1, threads=2) as model:
        rows = [model.forward(IDS[i : i + 3], "all") for i in range(0, len(IDS), 3)]
    assert np.concatenate(rows).tobytes() == found.tobytes()


def test_an_embedding_in_fp8_is_read_row_by_row(tmp_path):
    raw = tiny_config("qwen3_moe", vocab_size=200, hidden_size=160)
    tensors = random_tensors(raw, 2)
    moved = "model.layers.0.embedding"  # what is within a layer is coded
    name = "model.embed_tokens.weight"
    tensors[moved] = tensors.pop(name)
    coded, stored, exact = with_fp8(raw, tensors)
    for arrays in (stored, exact):
        arrays[name] = arrays.pop(moved)
    stored[name + "_scale_inv"] = stored.pop(moved + "_scale_inv")
    codes = write_checkpoint(tmp_path / "codes", coded, stored)
    plain = write_checkpoint(tmp_path / "plain", raw, exact)
    ids = [0, 127, 128, 199]
    with running(codes) as ours, running(plain) as theirs:
        assert ours.embed(ids).tobytes() == theirs.embed(ids).tobytes()


def test_a_scale_beyond_half_precision_is_not_lost(tmp_path):
    raw = tiny_config("qwen3_moe", moe_intermediate_size=64)
    coded, stored, exact = with_int4(raw, random_tensors(raw, 1))
    stored[GATE + "_scale"][3, 1] = 2.0**-30
    words = stored[GATE + "_packed"].view(np.uint8)[3, 16:32]
    values = np.stack([words & 15, words >> 4], axis=1).reshape(-1).astype(np.float32) - 8
    exact[GATE][3, 32:] = values * np.float32(2.0**-30)
    codes = write_checkpoint(tmp_path / "codes", coded, stored)
    plain = write_checkpoint(tmp_path / "plain", raw, exact)
    wide = {"dense_format": "f32", "expert_format": "f32"}
    assert logits(codes, **wide).tobytes() == logits(plain, **wide).tobytes()


def spoil(way: str, change: str, stored: Stored) -> None:
    scales = GATE + ("_scale_inv" if way == "fp8" else "_scale")
    first = (0,) * stored[scales].ndim
    if change == "missing":
        del stored[scales]
    elif change == "shape":
        stored[scales] = np.zeros((3, 1), np.float32)
    elif change == "dtype":
        stored[scales] = stored[scales].astype(np.int32)
    elif change == "NaN":
        stored[GATE][7, 3] = 0x7F
    elif change.startswith("infinite"):
        stored[scales][first] = np.inf
    elif change in ("order", "zeros"):
        ending = {"order": "_g_idx", "zeros": "_zero_point"}[change]
        stored[GATE + ending] = np.zeros(160, np.int32)
    elif change == "a scale that is NaN":
        stored[scales][first] = np.nan
    else:
        stored[GATE + "_packed"] = np.zeros((160, 3), np.int32)


@pytest.mark.parametrize(
    ("way", "change", "said"),
    [
        ("fp8", "missing", "_scale_inv' are missing"),
        (
            "fp8",
            "shape",
            "shape [3, 1]; the scales of F8_E4M3 [160, 160] are floats of shape [2, 2]",
        ),
        ("fp8", "dtype", "is I32 of shape [2, 2]"),
        ("fp8", "NaN", "not a number"),
        ("fp8", "infinite", "not a number"),
        ("fp8", "a scale that is NaN", "not a number"),
        ("fp8 by row", "missing", "_scale_inv' are missing"),
        ("fp8 by row", "shape", "or [1] or [1, 1] or [160] or [160, 1]"),
        ("fp8 by row", "NaN", "not a number"),
        ("fp8 by row", "infinite", "not a number"),
        ("fp8 by row", "a scale that is NaN", "not a number"),
        ("fp8 by tensor", "missing", "_scale_inv' are missing"),
        ("fp8 by tensor", "infinite", "not a number"),
        ("int4", "a scale that is NaN", "not a number"),
        ("int4", "order", "columns in another order"),
        ("int4", "zeros", "zeros of its own"),
        ("int4", "missing", "_scale' are missing"),
        ("int4", "shape", "the scales of I32 [160, 20] are floats of shape [160, 1]"),
        ("int4", "words", "[160, 3]; packed int4 is I32"),
        ("int4", "infinite", "not a number"),
        ("int4", "infinite in q4", "not a number"),
    ],
)
def test_codes_and_scales_that_do_not_fit_are_refused_by_name(tmp_path, way, change, said):
    raw = tiny_config("glm4_moe", hidden_size=160, moe_intermediate_size=160)
    coded, stored, _ = WAYS[way](raw, random_tensors(raw, 1))
    spoil(way, change, stored)
    folder = write_checkpoint(tmp_path, coded, stored)
    with pytest.raises(BadModel) as caught:
        converted(folder, "q4" if change.endswith("q4") else "q8", "q8")
    message = str(caught.value)
    assert said in message and "experts.2.gate_proj" in message and "\n" not in message


def test_a_dense_matrix_with_a_scale_that_is_no_number_is_refused_by_name(tmp_path):
    raw = tiny_config("qwen3_moe", moe_intermediate_size=64, num_hidden_layers=1)
    tensors = random_tensors(raw, 1)
    name, moved = "model.layers.0.self_attn.o_proj.weight", "model.layers.0.experts.o_proj.weight"
    tensors[moved] = tensors.pop(name)  # what is of experts is coded
    coded, stored, _ = with_int4(raw, tensors)
    for ending in ("_packed", "_scale", "_shape"):
        stored[name + ending] = stored.pop(moved + ending)
    stored[name + "_scale"][17, 1] = np.inf
    folder = write_checkpoint(tmp_path, coded, stored)
    with pytest.raises(BadModel) as caught:
        converted(folder, "q4", "q8")
    message = str(caught.value)
    assert "self_attn.o_proj" in message and "not a number" in message and "\n" not in message


def test_a_config_that_says_nothing_of_it_changes_nothing(tmp_path):
    codes, _ = written(tmp_path, "fp8")
    before = logits(codes)
    config = json.loads((codes / "config.json").read_text())
    del config["quantization_config"]
    (codes / "config.json").write_text(json.dumps(config))
    assert logits(codes).tobytes() == before.tobytes()
