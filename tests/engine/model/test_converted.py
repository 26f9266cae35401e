"""A converted model is the same model: the formats decide the bits, not where they come from."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_codes import with_codes
from tiny_model import random_tensors, running, tiny_config, write_checkpoint

from diskmoe.engine.converting import convert_model
from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.tensors import tensor_plan, verify_container
from diskmoe.engine.model.weights import dense_bytes, load_dense
from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.container import Container
from diskmoe.experts.convert import convert
from diskmoe.experts.errors import BadModel
from diskmoe.experts.verify import pieces_of, verify

PROMPT = [5, 9, 33, 2, 50, 7, 8]


def make(folder: Path, experts: str | None, dense: str | None, **changes: Any) -> tuple[Path, Path]:
    """(checkpoint, converted) of a tiny model with an MTP layer in its files."""
    raw = tiny_config("glm4_moe", num_nextn_predict_layers=1, **changes)
    source = write_checkpoint(folder / "source", raw, random_tensors(raw, 1, mtp=True), "bf16")
    checkpoint = Checkpoint.open(source)
    plan = tensor_plan(read_config(raw, "tiny"), checkpoint.has)
    convert(checkpoint, plan, folder / "converted", experts, dense)
    return source, folder / "converted"


def make_coded(folder: Path, experts: str | None, dense: str | None) -> tuple[Path, Path]:
    """(checkpoint, converted) of a tiny model whose experts are MXFP4 codes."""
    raw = tiny_config("gpt_oss", intermediate_size=96)
    coded, stored, _ = with_codes(raw, random_tensors(raw, 1))
    source = write_checkpoint(folder / "source", coded, stored, "bf16")
    plan = tensor_plan(read_config(coded, "tiny"))
    convert(Checkpoint.open(source), plan, folder / "converted", experts, dense)
    return source, folder / "converted"


@pytest.mark.parametrize(
    ("experts", "dense"),
    [("f32", "f32"), ("bf16", "bf16"), ("q8", "q8"), ("q4", "q8"), (None, None)],
)
@pytest.mark.parametrize("make", [make, make_coded])
def test_checkpoint_and_container_give_the_same_logits_bytes(tmp_path, make, experts, dense):
    source, folder = make(tmp_path, experts, dense)
    with running(source, expert_format=experts, dense_format=dense, slots=3) as model:
        expected = model.forward(PROMPT, "all")
    with running(folder, slots=1, threads=2) as model:
        found = [model.forward(PROMPT[:3], "all"), model.forward(PROMPT[3:], "all")]
    assert b"".join(part.tobytes() for part in found) == expected.tobytes()


@pytest.mark.parametrize("asked", ["auto", "q8"])
def test_experts_in_codes_stay_as_they_are_unless_a_format_is_asked_for(tmp_path, asked):
    source, _ = make_coded(tmp_path, "q4", "q8")
    convert_model(source, tmp_path / "out", asked, "q8", lambda line: None)
    assert Container.open(tmp_path / "out").expert_format == ("mxfp4" if asked == "auto" else "q8")


def test_the_format_of_a_container_wins_over_one_that_is_asked_for(tmp_path):
    _, folder = make(tmp_path, "q4", "q8")
    container = Container.open(folder)
    config = read_config(container.config, "tiny")
    weights = load_dense(container, config, "q4")
    assert set(weights.formats.values()) == {"q8", "f32"}  # f32: the router
    assert weights.nbytes == dense_bytes(container, config)


def test_the_mtp_layer_is_kept_in_the_files_and_not_loaded(tmp_path):
    _, folder = make(tmp_path, "q4", "q8")
    container = Container.open(folder)
    config = read_config(container.config, "tiny")
    verify_container(container, tensor_plan(config, container.has))
    assert container.layers == (1, 2, 3)
    assert "model.layers.3.eh_proj.weight" not in load_dense(container, config)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 32}, "hidden size is 64, config.json says 32"),
        ({"moe_intermediate_size": 32}, "expert width is 48, config.json says 32"),
        ({"n_routed_experts": 4}, "number of experts is 8, config.json says 4"),
        ({"num_hidden_layers": 9}, "experts of layer 4 are missing"),
        (
            {"model_type": "gpt_oss", "num_local_experts": 8, "intermediate_size": 48},
            "experts have biases is False, config.json says True",
        ),
        ({"vocab_size": 90}, "embed_tokens.weight has shape [96, 64]"),
        ({"tie_word_embeddings": False, "head_dim": 16}, "has shape"),
    ],
)
def test_a_plan_of_another_model_is_refused(tmp_path, changes, words):
    _, folder = make(tmp_path, "q8", "q8")
    container = Container.open(folder)
    other = read_config(container.config | changes, "x")
    with pytest.raises(BadModel) as caught:
        verify_container(container, tensor_plan(other))
    assert words in str(caught.value)


@pytest.mark.parametrize("changes", [{"num_experts_per_tok": 1}, {"rope_theta": 100.0}])
def test_a_config_that_was_changed_after_the_conversion_is_refused(tmp_path, changes):
    """Such a model would run, and say something else."""
    _, folder = make(tmp_path, "q8", "q8")
    path = folder / "config.json"
    before = json.loads(path.read_text())
    path.write_text(json.dumps(before, indent=9))
    Container.open(folder)  # spacing is no change
    path.write_text(json.dumps(before | changes))
    with pytest.raises(BadModel, match="changed after the conversion"):
        Container.open(folder)


def test_the_mtp_layer_is_never_below_int8(tmp_path):
    _, four = make(tmp_path / "4", "q4", "q4")
    _, eight = make(tmp_path / "8", "q8", "q8")
    fine, coarse = Container.open(four), Container.open(eight)
    for name, expected in (
        ("model.layers.3.eh_proj.weight", "q8"),
        ("model.embed_tokens.weight", "q4"),
    ):
        layout = fine.dense_layout(name)
        assert layout is not None and layout.format == expected
    for layer, equal in ((3, True), (2, False)):
        for ours, theirs in zip(
            fine.expert_f32(layer, 5), coarse.expert_f32(layer, 5), strict=True
        ):
            assert (ours == theirs).all() == equal
    assert all(damage is None for _, damage in verify(pieces_of(fine)))
