"""Names of tensors behind the prefixes of models inside others."""

import json
from pathlib import Path

import numpy as np
import pytest

from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.errors import BadModel
from diskmoe.experts.naming import canonical_names
from diskmoe.experts.safetensors_io import write_safetensors

PARTS = ("embed_tokens.weight", "layers.0.mlp.gate.weight", "norm.weight")


@pytest.mark.parametrize(
    ("prefix", "head"),
    [
        ("model.", "lm_head.weight"),
        ("model.language_model.", "lm_head.weight"),
        ("language_model.model.", "language_model.lm_head.weight"),
        ("", "lm_head.weight"),
    ],
)
def test_every_prefix_is_taken_for_the_same_model(prefix: str, head: str) -> None:
    others = ["model.visual.blocks.0.norm.weight", "mtp.layers.0.mlp.gate.weight"]
    stored = [*(prefix + part for part in PARTS), head, *others]
    wanted = [*("model." + part for part in PARTS), "lm_head.weight", *others]
    assert canonical_names(stored, "here") == dict(zip(wanted, stored, strict=True))


def test_names_that_show_no_prefix_stay_as_they_are() -> None:
    names = ["layers.0.mlp.gate.weight", "language_model.model.embed_tokens.weight"]
    assert list(canonical_names(names, "here")) == names


def test_two_tensors_of_one_name_are_refused_with_both() -> None:
    names = ["language_model.model.norm.weight", "language_model.lm_head.weight", "lm_head.weight"]
    with pytest.raises(BadModel, match=r"here: .*'language_model.lm_head.weight' and 'lm_head"):
        canonical_names(names, "here")


def test_a_checkpoint_answers_to_the_names_without_their_prefix(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({}))
    values = np.arange(4, dtype=np.float32)
    write_safetensors(
        tmp_path / "model.safetensors", {"model.language_model.norm.weight": ("F32", values)}, {}
    )
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.names == ["model.norm.weight"]
    np.testing.assert_array_equal(checkpoint.f32("model.norm.weight"), values)
    assert checkpoint.info("model.norm.weight").name == "model.language_model.norm.weight"
