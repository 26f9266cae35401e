"""GGUFs of llama.cpp's converter (scripts/make_gguf_golden.py) become models that say the same."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_gguf import NAMES, golden_facts, golden_gguf, golden_tensors, rewrite
from tiny_model import running, write_checkpoint

from diskmoe.engine.cli import main
from diskmoe.engine.converting import convert_model
from diskmoe.engine.gguf_source import best_expert_format, describe_types, open_gguf
from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.tensors import tensor_plan
from diskmoe.engine.text.side import TextSide
from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.container import Container, experts_name
from diskmoe.experts.convert import convert
from diskmoe.experts.errors import BadModel
from diskmoe.experts.formats import dequantise, quantise
from diskmoe.experts.gguf_blocks import wide
from diskmoe.experts.gguf_file import read_gguf
from diskmoe.experts.gguf_in import GgufCheckpoint

TOLERANCE = 1e-4


def silent(line: str) -> None:
    pass


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def checkpoint_of(folder: Path, name: str) -> Path:
    """The checkpoint in the hub's layout that the fixture was made of."""
    facts = golden_facts(name)
    tensors = golden_tensors(facts["config"], facts["seed"], facts["mtp"])
    return write_checkpoint(folder, facts["config"], tensors)


def plan_of(checkpoint: Checkpoint):
    return tensor_plan(read_config(checkpoint.config, "tiny"), checkpoint.has)


def greedy(folder: Path, prompt: list[int], count: int) -> list[int]:
    found: list[int] = []
    with running(folder, slots=2) as model:
        logits = model.forward(prompt)
        for _ in range(count):
            found.append(int(logits[0].argmax()))
            logits = model.forward(found[-1:])
    return found


def test_greedy_tokens_equal_those_of_llama_cpp(name, tmp_path):
    facts = golden_facts(name)
    convert_model(golden_gguf(name), tmp_path / "out", "f32", "f32", silent)
    assert facts["least_margin"] > 100 * TOLERANCE and len(set(facts["greedy"])) >= 8
    assert greedy(tmp_path / "out", facts["prompt"], len(facts["greedy"])) == facts["greedy"]


@pytest.mark.parametrize("fmt", ["f32", "q4"])
def test_a_gguf_and_its_checkpoint_convert_to_the_same_bytes(name, tmp_path, fmt):
    hub = Checkpoint.open(checkpoint_of(tmp_path / "hub", name))
    theirs = GgufCheckpoint.open(golden_gguf(name))
    for checkpoint, out in ((hub, "a"), (theirs, "b")):
        made = {"config.json": json.dumps(checkpoint.config).encode()}
        convert(checkpoint, plan_of(checkpoint), tmp_path / out, fmt, fmt, made=made)
    a, b = Container.open(tmp_path / "a"), Container.open(tmp_path / "b")
    assert a.layers == b.layers
    for layer in a.layers:
        for expert in range(a.n_experts):
            of_a, of_b = (c.record_piece(layer, expert) for c in (a, b))
            assert of_a.checksum == of_b.checksum, (layer, expert)
    for tensor in plan_of(hub).dense:
        ours, theirs = a.f32(tensor.name), b.f32(tensor.name)
        if tensor.form == "plus_one" or tensor.name.endswith("A_log"):
            # the file has 1 more, or -exp of it, in f32
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_array_equal(ours, theirs)


def test_the_config_says_what_the_hubs_says(name):
    facts = golden_facts(name)
    theirs = read_config(GgufCheckpoint.open(golden_gguf(name)).config, "gguf")
    hub = read_config(facts["config"], "hub")
    differ = {
        field for field in hub.__dataclass_fields__ if getattr(hub, field) != getattr(theirs, field)
    }
    # the tokenizer's ids; what a family's other name says; yarn is compared next
    assert differ <= {"eos_ids", "bos_id", "yarn", "mtp_layers", "family"}
    if hub.yarn is not None and theirs.yarn is not None:
        for field in hub.yarn.__dataclass_fields__:
            assert getattr(theirs.yarn, field) == pytest.approx(getattr(hub.yarn, field), 1e-6)
    else:
        assert hub.yarn is theirs.yarn is None


def test_the_mtp_layer_of_a_gguf_is_kept(tmp_path):
    checkpoint = GgufCheckpoint.open(golden_gguf("glm4_moe"))
    plan = plan_of(checkpoint)
    assert [layer.layer for layer in plan.experts if layer.mtp] == [2]
    assert checkpoint.f32("model.layers.2.eh_proj.weight").shape == (32, 64)
    convert_model(golden_gguf("glm4_moe"), tmp_path / "out", "q4", "q8", silent)
    container = Container.open(tmp_path / "out")
    assert container.layers == (1, 2) and container.has("model.layers.2.enorm.weight")
    facts = golden_facts("glm4_moe")
    drawn = golden_tensors(facts["config"], facts["seed"], True)
    exact = drawn["model.layers.2.mlp.experts.0.up_proj.weight"]
    error = np.abs(container.expert_f32(2, 0)[1] - exact).max() / np.abs(exact).max()
    assert error < 5e-3  # in q8: with fewer bits a draft head is of no use


@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5_moe"])
def test_an_mtp_layer_of_qwen_has_the_names_of_its_own(name):
    checkpoint = GgufCheckpoint.open(golden_gguf(name))
    plan = plan_of(checkpoint)
    checkpoint.verify(plan)
    assert [layer.layer for layer in plan.experts if layer.mtp] == [2]
    dense = {tensor.name for tensor in plan.dense if tensor.mtp}
    assert {"mtp.fc.weight", "mtp.layers.0.self_attn.q_proj.weight"} <= dense


def test_keys_and_values_of_old_files_with_latents_lie_in_one_tensor(tmp_path):
    """As llama.cpp's converter wrote DeepSeek before 2025: sizes of a head under other names, too."""
    facts = golden_facts("deepseek_v2")
    drawn = golden_tensors(facts["config"], facts["seed"], False)
    parts = [(i, f"blk.{i}.attn_kv_b.weight") for i in range(2)]
    path = rewrite(
        golden_gguf("deepseek_v2"),
        tmp_path / "old.gguf",
        without=tuple(f"blk.{i}.attn_{part}_b.weight" for i in range(2) for part in "kv"),
        more={n: drawn[f"model.layers.{i}.self_attn.kv_b_proj.weight"] for i, n in parts},
        entries={
            "deepseek2.attention.key_length_mla": None,
            "deepseek2.attention.value_length_mla": None,
            "deepseek2.attention.key_length": 24,
            "deepseek2.attention.value_length": 16,
        },
    )
    convert_model(path, tmp_path / "out", "f32", "f32", silent)
    assert greedy(tmp_path / "out", facts["prompt"], 8) == facts["greedy"][:8]


@pytest.mark.parametrize(
    ("name", "kind"), [("mixtral", "Q8_0"), ("qwen3_next", "Q8_0"), ("qwen3_5_moe", "Q8_0")]
)
def test_rows_that_changed_their_places_keep_their_blocks(tmp_path, name, kind):
    types = {part: kind for part in ("attn_q.", "attn_k.", "attn_qkv", "attn_gate")}
    path = rewrite(golden_gguf(name), tmp_path / "m.gguf", types=types)
    checkpoint = GgufCheckpoint.open(path)
    convert_model(path, tmp_path / "out", "q8", "q8", silent)
    container = Container.open(tmp_path / "out")
    kept = [t.name for t in plan_of(checkpoint).dense if checkpoint.own_format(t.name) == "q8"]
    assert len(kept) >= 3
    for tensor in kept:
        np.testing.assert_array_equal(container.f32(tensor), checkpoint.f32(tensor))


def test_a_gguf_in_two_files_is_the_same_model(tmp_path):
    first = rewrite(golden_gguf("olmoe"), tmp_path / "m.gguf", shards=2)
    assert first.name == "m-00001-of-00002.gguf"
    second = first.with_name("m-00002-of-00002.gguf")
    convert_model(golden_gguf("olmoe"), tmp_path / "whole", "q4", "q8", silent)
    convert_model(second, tmp_path / "split", "q4", "q8", silent)
    for layer in Container.open(tmp_path / "whole").layers:
        one, other = ((tmp_path / out / experts_name(layer)) for out in ("whole", "split"))
        # the same records; metadata of equal length in front say another source
        assert one.read_bytes()[-8192:] == other.read_bytes()[-8192:]


def quantised(tmp_path: Path, kind: str, name: str = "olmoe") -> Path:
    types = {part: kind for part in ("_exps.weight", "attn_q.", "attn_output", "token_embd")}
    return rewrite(golden_gguf(name), tmp_path / f"{kind}.gguf", types=types)


@pytest.mark.parametrize(
    ("kind", "fmt"), [("Q8_0", "q8"), ("MXFP4", "mxfp4"), ("Q4_0", "q8"), ("BF16", "bf16")]
)
def test_blocks_that_a_format_of_ours_can_say_are_kept_bit_for_bit(tmp_path, kind, fmt):
    path = quantised(tmp_path, kind)
    convert_model(path, tmp_path / "out", fmt, fmt, silent)
    container = Container.open(tmp_path / "out")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}

    def exact(tensor: str) -> np.ndarray:
        return np.asarray(gguf.quants.dequantize(tensors[tensor].data, tensors[tensor].tensor_type))

    parts = [exact(f"blk.1.ffn_{part}_exps.weight") for part in ("gate", "up", "down")]
    for expert in range(4):
        for ours, theirs in zip(container.expert_f32(1, expert), parts, strict=True):
            np.testing.assert_array_equal(ours, theirs[expert])
    for ours, theirs in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.0.self_attn.o_proj.weight", "blk.0.attn_output.weight"),
    ):
        np.testing.assert_array_equal(container.f32(ours), exact(theirs))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_four_bit_codes_are_kept_in_q4_and_steps_are_rounded_only(tmp_path, kind):
    path = quantised(tmp_path, kind)
    checkpoint = GgufCheckpoint.open(path)
    info = next(i for i in checkpoint.files[0].tensors.values() if i.name == "blk.0.attn_q.weight")
    raw = np.fromfile(path, np.uint8, info.nbytes, offset=info.offset)
    exact = wide(raw, kind, 32)
    convert_model(path, tmp_path / "out", "q4", "q4", silent)
    kept = Container.open(tmp_path / "out").f32("model.layers.0.self_attn.q_proj.weight")
    error = np.square(kept - exact).sum() / np.square(exact).sum()
    anew = np.square(dequantise(*quantise(exact, "q4")) - exact).sum() / np.square(exact).sum()
    assert error < 1e-4 and error <= anew


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "BF16", "F16"])
def test_a_quantised_gguf_answers_as_its_weights_in_f32_do(tmp_path, kind):
    facts = golden_facts("qwen3_moe")
    convert_model(quantised(tmp_path, kind, "qwen3_moe"), tmp_path / "out", "f32", "f32", silent)
    with running(tmp_path / "out") as model:
        found = model.forward(facts["prompt"], "all")
    with running(checkpoint_of(tmp_path / "hub", "qwen3_moe")) as model:
        whole = model.forward(facts["prompt"], "all")
    worst = {"BF16": 0.05, "F16": 0.02, "Q8_0": 0.05}.get(kind, 0.8)
    assert 0 < np.abs(found - whole).max() / np.abs(whole).max() < worst


def test_what_becomes_of_each_type_is_said(tmp_path):
    path = rewrite(
        golden_gguf("olmoe"), tmp_path / "m.gguf", types={"_exps": "Q4_0", "attn_q.": "Q5_0"}
    )
    checkpoint = GgufCheckpoint.open(path)
    plan = plan_of(checkpoint)
    assert best_expert_format(checkpoint, plan) == "q4"
    told = describe_types(checkpoint, plan, "q4", "q8")
    assert "Q4_0 13.5 KiB, codes kept, steps rounded to 8 bits" in told
    assert "Q5_0 1.4 KiB, dequantised and quantised once" in told
    assert "Q4_0 13.5 KiB, bit for bit" in describe_types(checkpoint, plan, "q8", "q8")


@pytest.mark.parametrize(("kind", "best"), [("Q8_0", "q8"), ("MXFP4", "mxfp4"), ("F16", "q4")])
def test_experts_get_the_format_that_fits_their_type(tmp_path, kind, best):
    path = quantised(tmp_path, kind)
    convert_model(path, tmp_path / "out", "auto", "q8", silent)
    assert Container.open(tmp_path / "out").expert_format == best


def test_gpt_oss_keeps_its_codes_and_biases(tmp_path):
    path = rewrite(golden_gguf("gpt_oss"), tmp_path / "m.gguf", types={"_exps.weight": "MXFP4"})
    convert_model(path, tmp_path / "out", "auto", "q8", silent)
    container = Container.open(tmp_path / "out")
    assert container.expert_format == "mxfp4" and container.biased
    assert container.config["quantization_config"] == {"quant_method": "mxfp4"}
    facts = golden_facts("gpt_oss")
    tensors = golden_tensors(facts["config"], facts["seed"], False)
    bias = tensors["model.layers.1.mlp.experts.gate_up_proj_bias"][3]
    path, offset, nbytes = container.record(1, 3)
    record = np.fromfile(path, np.uint8, nbytes, offset=offset)
    np.testing.assert_array_equal(container.record_layout.biases(record)[1], bias[1::2])


def test_the_text_side_is_made_from_the_metadata(tmp_path):
    convert_model(golden_gguf("glm4_moe"), tmp_path / "out", "q4", "q8", silent)
    side = TextSide.load(tmp_path / "out", Container.open(tmp_path / "out").config, 264)
    assert side.tokenizer is not None and side.template is not None
    assert (
        side.tokenizer.decode_bytes(side.tokenizer.encode("Hi the naïve"))
        == "Hi the naïve".encode()
    )
    assert side.template.render([{"role": "user", "content": "x"}]) == "<|user|>x"
    texts = {side.tokenizer.special_text[i] for i in side.stop_ids}
    assert texts >= {"<|endoftext|>", "<|user|>", "<|observation|>"}


def test_the_command_line_converts_a_gguf_and_says_what_becomes_of_it(tmp_path, capsys):
    path = quantised(tmp_path, "Q8_0")
    assert main(["convert", str(path), str(tmp_path / "out")]) == 0
    told = capsys.readouterr().err
    assert "gguf      " in told and "bit for bit" in told
    assert main(["convert", str(path), str(tmp_path / "out")]) == 0  # it is done already


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


def test_files_beside_the_tensors_are_in_the_container(tmp_path):
    _, made = open_gguf(golden_gguf("olmoe"))
    convert_model(golden_gguf("olmoe"), tmp_path / "out", "q4", "q8", silent)
    for file, contents in made.items():
        assert (tmp_path / "out" / file).read_bytes() == contents


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
