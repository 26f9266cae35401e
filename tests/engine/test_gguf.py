"""GGUFs of llama.cpp's converter (scripts/make_gguf_golden.py) become models that say the same."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny_gguf import BLOCKS, NAMES, golden_facts, golden_gguf, golden_tensors, rewrite
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
from diskmoe.experts.gguf_in import GgufCheckpoint
from diskmoe.experts.manifest import Manifest

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


@pytest.mark.parametrize("name", BLOCKS)
def test_greedy_tokens_of_four_bit_blocks_equal_those_of_llama_cpp(name, tmp_path):
    """Its kernels and ours multiply the same codes; where activations are rounded they differ a bit,
    and in f32 they are not rounded at all."""
    facts, fmt = golden_facts(name), name.partition("-")[2].lower()
    assert facts["least_margin"] > 0.15 and len(set(facts["greedy"])) >= 8
    for asked in (None, "q4", "f32"):
        out = tmp_path / str(asked)
        convert_model(golden_gguf(name), out, asked, None, silent)
        container = Container.open(out)
        assert container.expert_format == ("f32" if asked == "f32" else fmt)
        assert container.dense_format == fmt
        assert greedy(out, facts["prompt"], len(facts["greedy"])) == facts["greedy"]


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
    # what a family's other name says; yarn is compared next
    assert differ <= {"rope_scaling", "mtp_layers", "mtp_announced", "family"}
    yarn = hub.rope_scaling
    assert type(yarn) is type(theirs.rope_scaling)
    for field in () if yarn is None else yarn.__dataclass_fields__:
        found = getattr(theirs.rope_scaling, field)
        assert found == pytest.approx(getattr(yarn, field), 1e-6)


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
    kept = [
        t.name for t in plan_of(checkpoint).dense if checkpoint.format_for(t.name, None) == "q8"
    ]
    assert len(kept) >= 3
    for tensor in kept:
        np.testing.assert_array_equal(container.f32(tensor), checkpoint.f32(tensor))


def joined(name: str, out: Path) -> Path:
    """The fixture with q, k, v of each layer in one tensor, and gate and up of its experts."""
    read = {t.name: t for t in gguf.GGUFReader(golden_gguf(name)).tensors}

    def parts(names: list[str], axis: int) -> np.ndarray:
        shapes = [[int(n) for n in read[n].shape][::-1] for n in names]
        whole = [read[n].data.reshape(s) for n, s in zip(names, shapes, strict=True)]
        return np.concatenate(whole, axis=axis)

    more, without = {}, []
    for layer in range(2):
        for target, names, axis in (
            ("attn_qkv.weight", [f"attn_{part}.weight" for part in "qkv"], 0),
            ("attn_qkv.bias", [f"attn_{part}.bias" for part in "qkv"], 0),
            ("ffn_gate_up_exps.weight", [f"ffn_{part}_exps.weight" for part in ("gate", "up")], 1),
            ("ffn_gate_up_exps.bias", [f"ffn_{part}_exps.bias" for part in ("gate", "up")], 1),
        ):
            full = [f"blk.{layer}.{n}" for n in names]
            if all(n in read for n in full):
                more[f"blk.{layer}.{target}"] = parts(full, axis)
                without += full
    assert len(more) >= 4
    return rewrite(golden_gguf(name), out, without=tuple(without), more=more)


@pytest.mark.parametrize("name", ["qwen2_moe", "gpt_oss", "mixtral"])
def test_tensors_that_were_joined_are_taken_apart(tmp_path, name):
    path = joined(name, tmp_path / "m.gguf")
    convert_model(path, tmp_path / "joined", "f32", "f32", silent)
    convert_model(golden_gguf(name), tmp_path / "apart", "f32", "f32", silent)
    a, b = Container.open(tmp_path / "joined"), Container.open(tmp_path / "apart")
    for layer in a.layers:
        assert a.record_piece(layer, 3).checksum == b.record_piece(layer, 3).checksum
    for tensor in plan_of(GgufCheckpoint.open(path)).dense:
        np.testing.assert_array_equal(a.f32(tensor.name), b.f32(tensor.name))


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
    ("kind", "asked", "fmt"),
    [
        ("Q8_0", "q8", "q8"),
        ("MXFP4", "q4", "mxfp4"),
        ("Q4_0", "q4", "q4_0"),
        ("Q4_0", None, "q4_0"),
        ("Q4_0", "q8", "q8"),
        ("Q4_1", "q4", "q4_1"),
        ("Q4_1", None, "q4_1"),
        ("Q5_0", "q8", "q8"),
        ("BF16", None, "bf16"),
    ],
)
def test_blocks_that_a_format_of_ours_can_say_are_kept_bit_for_bit(tmp_path, kind, asked, fmt):
    path, told = quantised(tmp_path, kind), []
    convert_model(path, tmp_path / "out", asked, asked, told.append)
    container = Container.open(tmp_path / "out")
    assert container.expert_format == fmt
    layout = container.dense_layout("model.layers.0.self_attn.o_proj.weight")
    assert layout is not None and layout.format == fmt
    said = next(line for line in told if line.startswith("blocks"))
    assert kind == "BF16" or f"{kind} bit for bit in {fmt}" in said
    errors = next(line for line in told if line.startswith("error"))
    assert "experts' gate exact, experts' up exact, experts' down exact" in errors
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


def test_parts_of_experts_in_different_types_have_the_formats_that_hold_them(tmp_path):
    """As llama.cpp makes Q4_0 with an importance matrix: down of the first layers is Q4_1."""
    types = {"blk.0.ffn_down_exps": "Q4_1", "_exps.weight": "Q4_0"}
    path, told = rewrite(golden_gguf("olmoe"), tmp_path / "m.gguf", types=types), []
    convert_model(path, tmp_path / "out", "q4", "q8", told.append)
    container = Container.open(tmp_path / "out")
    assert container.expert_format == "q4_0+q4_1"
    assert any("Q4_0 bit for bit in q4_0 and q4_1; Q4_1 bit for bit in q4_1" in s for s in told)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for layer in range(2):
        for number, part in enumerate(("gate", "up", "down")):
            stored = tensors[f"blk.{layer}.ffn_{part}_exps.weight"]
            exact = np.asarray(gguf.quants.dequantize(stored.data, stored.tensor_type))
            for expert in range(4):
                found = container.expert_f32(layer, expert)[number]
                np.testing.assert_array_equal(found, exact[expert])
    with running(tmp_path / "out", slots=2) as model:
        rows = [model.forward(golden_facts("olmoe")["prompt"][i : i + 3], "all") for i in (0, 3)]
    with running(tmp_path / "out", slots=2) as model:
        whole = model.forward(golden_facts("olmoe")["prompt"][:6], "all")
    assert np.concatenate(rows).tobytes() == whole.tobytes()


def test_gate_and_up_in_blocks_are_kept_beside_another_down(tmp_path):
    types = {"_gate_exps": "Q4_0", "_up_exps": "Q4_0", "_down_exps": "Q5_1"}
    path, told = rewrite(golden_gguf("olmoe"), tmp_path / "m.gguf", types=types), []
    convert_model(path, tmp_path / "out", "auto", "q8", told.append)
    assert Container.open(tmp_path / "out").expert_format == "q4_0+q4"
    said = next(line for line in told if line.startswith("blocks"))
    assert "Q4_0 bit for bit in q4_0; Q5_1 dequantised, then quantised once to q4" in said


def test_eight_bits_stay_eight_beside_four(tmp_path):
    types = {"blk.0.ffn_down_exps": "Q8_0", "_exps.weight": "Q4_0"}
    path, told = rewrite(golden_gguf("olmoe"), tmp_path / "m.gguf", types=types), []
    convert_model(path, tmp_path / "out", "auto", "q8", told.append)
    assert Container.open(tmp_path / "out").expert_format == "q4_0+q8"
    said = next(line for line in told if line.startswith("blocks"))
    assert "Q4_0 bit for bit in q8 and q4_0; Q8_0 bit for bit in q8" in said


def test_what_keeping_takes_is_said_where_no_smaller_format_has_the_numbers(tmp_path):
    told: list[str] = []
    convert_model(quantised(tmp_path, "Q5_1"), tmp_path / "out", None, "q8", told.append)
    assert Container.open(tmp_path / "out").expert_format == "f32"
    note = next(line for line in told if line.startswith("note"))
    assert "every number of Q5_1 takes f32, 5.3 times" in note and "--experts q8" in note
    told.clear()
    convert_model(quantised(tmp_path, "Q4_0"), tmp_path / "small", None, "q8", told.append)
    assert not any(line.startswith("note") for line in told)


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
        golden_gguf("olmoe"), tmp_path / "m.gguf", types={"_exps": "Q4_0", "attn_q.": "Q5_1"}
    )
    checkpoint = GgufCheckpoint.open(path)
    plan = plan_of(checkpoint)
    assert best_expert_format(checkpoint, plan) == "q4"

    def told(experts: str | None, dense: str | None) -> str:
        return describe_types(checkpoint, Manifest(checkpoint, plan, experts, dense))

    kept, anew = "Q4_0 bit for bit in q4_0", "dequantised, then quantised once to"
    assert told("q4", "q8") == f"{kept}; Q5_1 {anew} q8"
    assert told("q8", None) == "Q4_0 bit for bit in q8; Q5_1 widened exactly to f32"
    assert told(None, "q4") == f"{kept}; Q5_1 {anew} q4"
    assert told("q4g64", None) == f"Q4_0 {anew} q4g64; Q5_1 widened exactly to f32"


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
    assert "blocks    Q8_0 bit for bit" in told
    assert main(["convert", str(path), str(tmp_path / "out")]) == 0  # it is done already


def test_files_beside_the_tensors_are_in_the_container(tmp_path):
    _, made = open_gguf(golden_gguf("olmoe"))
    convert_model(golden_gguf("olmoe"), tmp_path / "out", "q4", "q8", silent)
    for file, contents in made.items():
        assert (tmp_path / "out" / file).read_bytes() == contents
