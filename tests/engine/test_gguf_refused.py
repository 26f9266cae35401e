"""A GGUF that lies, lacks something or has more than its model is refused in one line."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_gguf import golden_gguf, rewrite

from diskmoe.engine.cli import main
from diskmoe.engine.converting import convert_model
from diskmoe.engine.gguf_source import open_gguf
from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.tensors import tensor_plan
from diskmoe.experts.errors import BadModel
from diskmoe.experts.gguf_file import read_gguf
from diskmoe.experts.gguf_in import GgufCheckpoint


def silent(line: str) -> None:
    pass


def refusal(path: Path, out: Path) -> str:
    with pytest.raises(BadModel) as caught:
        convert_model(path, out, "auto", "q8", silent)
    assert not out.exists() and "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"entries": {"olmoe.block_count": 3}}, "tensor 'model.layers.2.input_layernorm.weight'"),
        ({"entries": {"olmoe.block_count": 1}}, "has no place in this olmoe model"),
        ({"entries": {"olmoe.block_count": 0}}, "leaves 0 layers"),
        ({"entries": {"olmoe.expert_count": 5}}, "'blk.0.ffn_gate_inp.weight' has shape [4, 32]"),
        (
            {"entries": {"olmoe.feed_forward_length": 64}},
            "'blk.0.ffn_gate_exps.weight' is F32 [4, 32, 32], its metadata ask for [4, 64, 32]",
        ),
        (
            {"entries": {"olmoe.attention.head_count": None}},
            "olmoe.attention.head_count is missing",
        ),
        ({"entries": {"olmoe.embedding_length": "big"}}, "is a str, not a int"),
        (
            {"entries": {"general.architecture2": 1, "olmoe.rope.scaling.type": "longrope"}},
            "longrope",
        ),
        ({"without": ("blk.1.ffn_up_exps.weight",)}, "'blk.1.ffn_up_exps.weight' is missing"),
        ({"without": ("token_embd.weight",)}, "'token_embd.weight' is missing"),
        ({"more": {"rope_freqs.weight": np.ones(8, np.float32)}}, "'rope_freqs.weight' [8] has no"),
        ({"entries": {"tokenizer.ggml.pre": "unheard"}}, "tokenizer.ggml.pre is 'unheard'"),
        ({"entries": {"tokenizer.ggml.model": "bert"}}, "is 'bert', not 'gpt2' or 'llama'"),
    ],
)
def test_a_gguf_that_does_not_add_up_is_refused(tmp_path, changes: dict[str, Any], told):
    path = rewrite(golden_gguf("olmoe"), tmp_path / "m.gguf", **changes)
    assert told in refusal(path, tmp_path / "out")


def test_an_architecture_that_is_not_supported_is_named_with_those_that_are(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    told = refusal(tmp_path / "m.gguf", tmp_path / "out")
    assert "general.architecture is 'mamba'; supported are: qwen3moe, olmoe" in told


def test_a_vocabulary_larger_than_the_model_is_refused(tmp_path):
    path = tmp_path / "m.gguf"
    embedding = np.zeros((200, 32), np.float32)
    rewrite(
        golden_gguf("olmoe"),
        path,
        without=("token_embd.weight",),
        more={"token_embd.weight": embedding},
    )
    assert "has 264 entries, the model has 200" in refusal(path, tmp_path / "out")


def test_a_gguf_that_is_run_or_lies_in_a_directory_is_told_how_to_be_used(tmp_path, capsys):
    path = tmp_path / "m.gguf"
    path.write_bytes(golden_gguf("olmoe").read_bytes())
    for place in (path, tmp_path):
        assert main(["--model", str(place), "--prompt-ids", "1"]) == 2
        assert f"diskmoe convert {tmp_path}/" in capsys.readouterr().err


def test_weights_that_are_no_numbers_are_refused_by_name(tmp_path):
    path = rewrite(golden_gguf("olmoe"), tmp_path / "m.gguf", types={"_exps.weight": "Q8_0"})
    info = GgufCheckpoint.open(path).files[0].tensors["blk.1.ffn_down_exps.weight"]
    raw = bytearray(path.read_bytes())
    raw[info.offset : info.offset + 2] = b"\x00\x7e"  # the first block's step: not a number
    path.write_bytes(raw)
    assert "'blk.1.ffn_down_exps.weight', expert 0" in refusal(path, tmp_path / "out")


DAMAGED = {
    name: (golden_gguf(name).read_bytes(), read_gguf(golden_gguf(name))[0][0].data_start)
    for name in ("olmoe", "gpt_oss", "deepseek_v2", "qwen3_5_moe")
}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(sorted(DAMAGED)),
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.one_of(st.none(), st.floats(0, 1)),
)
def test_a_damaged_file_is_refused_or_is_a_whole_model(tmp_path_factory, name, flips, cut):
    """From the header to the plan of its tensors: nothing but BadModel ever comes out."""
    whole, header_nbytes = DAMAGED[name]
    changed = bytearray(whole)
    for place, value in flips:
        changed[place % header_nbytes] = value
    path = tmp_path_factory.mktemp("damaged") / "m.gguf"
    path.write_bytes(changed[: None if cut is None else int(cut * len(whole))])
    try:
        checkpoint, files = open_gguf(path)
        plan = tensor_plan(read_config(checkpoint.config, str(path)), checkpoint.has)
        checkpoint.verify(plan)
    except BadModel as error:
        assert "\n" not in str(error)
        return
    assert set(files) >= {"config.json", "tokenizer.json"}
    for found in plan.dense:
        assert checkpoint.f32(found.name).shape == found.shape
