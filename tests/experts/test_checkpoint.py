"""Model directories: what is read from good ones, what is said of bad ones."""

import json
import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diskmoe.experts import checkpoint as module
from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.errors import BadModel
from diskmoe.experts.formats import FORMATS, widen_bf16
from diskmoe.experts.packing import pack
from diskmoe.experts.safetensors_io import write_safetensors
from diskmoe.experts.tiles import matrix_layout

INDEX = "model.safetensors.index.json"


def refusal(action: Callable[[], object], *said: str) -> None:
    with pytest.raises(BadModel) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    for part in said:
        assert part in message, message


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_every_tensor_is_read_as_it_was_stored(tiny_model: Any, dtype: str, shards: int) -> None:
    model = tiny_model(dtype=dtype, shards=shards)
    checkpoint = model.open()
    assert sorted(checkpoint.names) == sorted(model.weights)
    for name, weights in model.weights.items():
        np.testing.assert_array_equal(checkpoint.f32(name), weights)
    assert checkpoint.format_for("model.norm.weight", None) == (
        "bf16" if dtype == "BF16" else "f32"
    )
    checkpoint.verify(model.plan)
    assert checkpoint.config["model_type"] == "tiny"


def test_rows_of_bf16_come_as_bits_and_others_as_f32(tiny_model: Any) -> None:
    name = "model.embed_tokens.weight"
    for dtype in ("BF16", "F16"):
        model = tiny_model(dtype=dtype, name=dtype)
        rows = model.open().rows(name, 10, 30)
        wide = widen_bf16(rows) if dtype == "BF16" else rows
        assert wide.dtype == np.float32
        np.testing.assert_array_equal(wide, model.weights[name][10:30])


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_packing_from_disk_in_blocks_equals_packing_the_matrix(
    tiny_model: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROW_BLOCK_BYTES", 16 * 40 * 4)
    model = tiny_model(dtype="BF16")
    layout = matrix_layout(name, 50, 40)
    expected = pack(model.weights["model.embed_tokens.weight"], layout)
    np.testing.assert_array_equal(model.open().pack("model.embed_tokens.weight", layout), expected)


def test_a_weight_that_is_not_finite_is_refused_by_name_when_quantising(tiny_model: Any) -> None:
    model = tiny_model()
    bad = np.ones((16, 32), np.float32)
    bad[3, 4] = np.nan
    write_safetensors(model.path / "model.safetensors", {"w": ("F32", bad)})
    checkpoint = model.open()
    checkpoint.pack("w", matrix_layout("f32", 16, 32))
    refusal(lambda: checkpoint.pack("w", matrix_layout("q8", 16, 32)), "'w'", "row 3")


def test_a_missing_directory_says_what_was_looked_for(tmp_path: Path) -> None:
    refusal(
        lambda: Checkpoint.open(tmp_path / "no"), str(tmp_path / "no"), "config.json", "safetensors"
    )


def test_an_empty_directory_says_what_was_looked_for(tmp_path: Path) -> None:
    refusal(lambda: Checkpoint.open(tmp_path), "empty", "config.json", INDEX, "*.safetensors")


def test_a_directory_without_tensors_or_config_says_which(tiny_model: Any) -> None:
    model = tiny_model()
    (model.path / "model.safetensors").rename(model.path / "model.bin")
    refusal(model.open, "no safetensors file")
    (model.path / "model.bin").rename(model.path / "model.safetensors")
    (model.path / "config.json").unlink()
    refusal(model.open, "config.json is missing")


def test_a_gguf_is_told_to_be_converted(tmp_path: Path) -> None:
    (tmp_path / "model.Q4_K_M.gguf").write_bytes(b"GGUF")
    told = f"diskmoe convert {tmp_path}/"
    refusal(lambda: Checkpoint.open(tmp_path), told, "'model.Q4_K_M.gguf' OUT")
    refusal(lambda: Checkpoint.open(tmp_path / "model.Q4_K_M.gguf"), told, "model.Q4_K_M.gguf OUT")


def test_a_plain_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("?")
    refusal(lambda: Checkpoint.open(tmp_path / "x"), "a file; give a directory")


def test_an_unfinished_conversion_is_no_model(tiny_model: Any) -> None:
    model = tiny_model(name="out.partial")
    refusal(model.open, "unfinished conversion")


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "JSON"), ("[]", "list"), ("\udcff", "UTF-8"), ('{"a": 1, "a": 2}', "twice")],
)
def test_a_config_that_is_no_object_is_refused(tiny_model: Any, text: str, said: str) -> None:
    model = tiny_model()
    (model.path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    refusal(model.open, "config.json", said)


def test_missing_shards_are_named(tiny_model: Any) -> None:
    model = tiny_model(shards=4)
    (model.path / "model-00002-of-00004.safetensors").unlink()
    refusal(model.open, "model-00002-of-00004.safetensors is missing", "3 of 4", INDEX)
    (model.path / INDEX).unlink()
    refusal(model.open, "model-00002-of-00004.safetensors is missing", "numbered set")


def test_numbered_shards_without_an_index_are_read(tiny_model: Any) -> None:
    model = tiny_model(shards=3)
    (model.path / INDEX).unlink()
    assert sorted(model.open().names) == sorted(model.weights)


def test_the_same_tensor_in_two_files_without_an_index_is_refused(tiny_model: Any) -> None:
    model = tiny_model()
    (model.path / "model.safetensors").rename(model.path / "a.safetensors")
    shutil.copy(model.path / "a.safetensors", model.path / "b.safetensors")
    refusal(model.open, "'a.safetensors'", "'b.safetensors'")


@pytest.mark.parametrize(
    "shard",
    ["../evil.safetensors", "/etc/passwd", "a/b.safetensors", "..", "c:x.safetensors", "", 7, "\n"],
)
def test_an_index_that_points_elsewhere_is_refused(tiny_model: Any, shard: Any) -> None:
    model = tiny_model(shards=2)
    shutil.copy(
        model.path / "model-00001-of-00002.safetensors", model.path.parent / "evil.safetensors"
    )

    def point(index: dict[str, Any]) -> None:
        index["weight_map"]["model.norm.weight"] = shard

    rewrite(model.path / INDEX, point)
    refusal(model.open, INDEX, "'model.norm.weight'", "refused")


@pytest.mark.parametrize("text", ["{}", "[]", "x", '{"weight_map": []}', '{"weight_map": {}}'])
def test_an_index_without_a_weight_map_is_refused(tiny_model: Any, text: str) -> None:
    model = tiny_model(shards=2)
    (model.path / INDEX).write_text(text)
    refusal(model.open, INDEX)


def test_an_index_that_names_the_wrong_shard_is_refused(tiny_model: Any) -> None:
    model = tiny_model(shards=2)
    name = "model.layers.1.mlp.gate.weight"

    def swap(index: dict[str, Any]) -> None:
        index["weight_map"][name] = {
            "model-00001-of-00002.safetensors": "model-00002-of-00002.safetensors",
            "model-00002-of-00002.safetensors": "model-00001-of-00002.safetensors",
        }[index["weight_map"][name]]

    rewrite(model.path / INDEX, swap)
    refusal(model.open, repr(name), "of layer 1", "is missing")


def test_a_planned_tensor_that_is_missing_is_named_with_its_layer(tiny_model: Any) -> None:
    model = tiny_model(layers=1)
    extra = replace(model.plan.experts[0], up="model.layers.7.mlp.experts.{e}.up_proj.weight")
    plan = replace(model.plan, experts=(*model.plan.experts, extra))
    refusal(
        lambda: model.open().verify(plan),
        "'model.layers.7.mlp.experts.0.up_proj.weight' of layer 7 is missing; ",
        "asks for 21 tensors",
    )
    refusal(lambda: model.open().info("model.layers.9.x"), "of layer 9")


def test_a_plan_of_millions_of_tensors_is_refused_at_its_first_missing_one(tiny_model: Any) -> None:
    model = tiny_model()
    layers = tuple(replace(model.plan.experts[0], layer=layer) for layer in range(1024))
    plan = replace(model.plan, n_experts=1 << 22, experts=layers)
    checkpoint = model.open()
    tracemalloc.start()
    try:
        refusal(
            lambda: checkpoint.verify(plan), "experts.3.gate_proj.weight' of layer 0 is missing"
        )
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
    refusal(lambda: checkpoint.verify(plan), f"asks for {4 + 3 * 1024 * (1 << 22)} tensors")


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_packing_takes_two_blocks_of_memory_at_most(
    tmp_path: Path, dtype: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = 2 << 20
    monkeypatch.setattr(module, "ROW_BLOCK_BYTES", block)
    weights = np.zeros(
        (2048, 768), {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[dtype]
    )
    write_safetensors(tmp_path / "model.safetensors", {"w": (dtype, weights)})
    (tmp_path / "config.json").write_text("{}")
    checkpoint, layout = Checkpoint.open(tmp_path), matrix_layout(name, 2048, 768)
    out = checkpoint.pack("w", layout)  # kernels are loaded by now
    tracemalloc.start()
    try:
        checkpoint.pack("w", layout, out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * block


def test_a_wrong_shape_gives_found_and_expected(tiny_model: Any) -> None:
    model = tiny_model()
    plan = replace(model.plan, ffn=25)
    refusal(
        lambda: model.open().verify(plan),
        "'model.layers.0.mlp.experts.0.gate_proj.weight' of layer 0",
        "[24, 40]",
        "[25, 40]",
    )
    layout = matrix_layout("q8", 51, 40)
    refusal(lambda: model.open().pack("model.embed_tokens.weight", layout), "[50, 40]", "[51, 40]")


def test_types_that_are_not_read_yet_are_named(tiny_model: Any) -> None:
    model = tiny_model()
    write_safetensors(
        model.path / "model.safetensors", {"model.norm.weight": ("F8_E5M2", np.zeros(40, np.uint8))}
    )
    plan = replace(model.plan, dense=model.plan.dense[1:2], experts=())
    refusal(lambda: model.open().verify(plan), "F8_E5M2", "F32, F16, BF16, F8_E4M3")


_JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=12) | st.just("model-00001-of-00002.safetensors"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(index=_JSON | st.fixed_dictionaries({"weight_map": _JSON}), config=_JSON)
def test_any_index_and_config_raise_nothing_but_bad_model(
    tmp_path: Path, index: Any, config: Any
) -> None:
    if not (tmp_path / "model-00001-of-00002.safetensors").exists():
        write_safetensors(
            tmp_path / "model-00001-of-00002.safetensors", {"w": ("U8", np.zeros(4, np.uint8))}
        )
    (tmp_path / INDEX).write_text(json.dumps(index))
    (tmp_path / "config.json").write_text(json.dumps(config))
    try:
        Checkpoint.open(tmp_path)
    except BadModel as error:
        assert "\n" not in str(error)
