"""``diskmoe inspect`` says what a model is, as a checkpoint and converted, in lines and as JSON."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_codes import with_fp8
from tiny_model import random_tensors, tiny_config, write_checkpoint

from diskmoe.engine.cli import main
from diskmoe.engine.converting import convert_model
from diskmoe.experts.tiles import record_layout


def inspected(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["inspect", *words]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def as_json(capsys: pytest.CaptureFixture[str], folder: Path) -> dict[str, Any]:
    return json.loads(inspected(capsys, str(folder), "--json"))


def test_a_checkpoint_is_told_by_family_shapes_formats_and_bytes(repo_root, capsys):
    found = as_json(capsys, repo_root / "tests/golden/qwen2_moe")
    expert = 3 * 32 * 48
    expected = {
        "kind": "checkpoint",
        "family": "qwen2_moe",
        "layers": 3,
        "moe_layers": 3,
        "hidden": 48,
        "experts": 6,
        "top_k": 2,
        "expert_width": 32,
        "shared_width": 40,
        "quantisation": None,
        "expert_format": "bf16",
        "dense_formats": ["bf16"],
        "expert_bytes": 2 * expert,
        "experts_bytes": 2 * expert * 18,
        "bytes_per_cold_token": 2 * expert * 6,
        "tokenizer": None,
        "template": None,
        "mtp_layers": [],
    }
    assert {key: found[key] for key in expected} == expected
    assert found["types"] == {"BF16": found["total_bytes"]}
    assert found["weights"] == found["total_bytes"] // 2
    assert found["weights"] - found["weights_per_token"] == expert * 3 * 4


def test_a_converted_model_is_told_by_its_records(tmp_path, repo_root, capsys):
    convert_model(
        repo_root / "tests/golden/gpt_oss", tmp_path / "out", "q8", "bf16", lambda line: None
    )
    found = as_json(capsys, tmp_path / "out")
    record = record_layout("q8", 48, 32, True).nbytes
    assert (found["kind"], found["expert_format"], found["types"]) == ("converted", "q8", {})
    assert found["dense_formats"] == ["bf16"]
    assert (found["expert_bytes"], found["experts_bytes"]) == (record, 18 * record)
    assert found["bytes_per_cold_token"] == 3 * 2 * record
    files = (tmp_path / "out").glob("*.safetensors")
    assert found["total_bytes"] == sum(file.stat().st_size for file in files)


def test_a_gguf_is_told_as_the_checkpoint_that_it_stands_for(repo_root, capsys):
    path = repo_root / "tests/golden/gguf/qwen3_moe.gguf"
    found = as_json(capsys, path)
    assert (found["kind"], found["family"], found["tokenizer"]) == (
        "gguf",
        "qwen3_moe",
        "byte-level",
    )
    assert found["total_bytes"] == sum(found["types"].values()) < path.stat().st_size
    assert found["experts_bytes"] == found["expert_bytes"] * found["moe_layers"] * found["experts"]
    assert "qwen3_moe, a GGUF" in inspected(capsys, str(path))


def test_codes_and_an_mtp_layer_are_named(tmp_path, capsys):
    raw = tiny_config("glm4_moe", hidden_size=160, num_nextn_predict_layers=1)
    coded, stored, _ = with_fp8(raw, random_tensors(raw, 1, mtp=True))
    folder = write_checkpoint(tmp_path / "model", coded, stored, "bf16")
    found = as_json(capsys, folder)
    assert (found["quantisation"], found["expert_format"]) == ("fp8", "fp8")
    assert found["dense_formats"] == ["bf16", "fp8"]
    assert set(found["types"]) == {"BF16", "F8_E4M3", "F32"}
    assert (found["mtp_layers"], found["mtp_announced"]) == ([3], 1)
    text = inspected(capsys, str(folder))
    assert "fp8 in its config" in text and "mtp       1 layer(s)" in text


def test_an_mtp_layer_that_is_announced_and_not_there_is_said(tmp_path, capsys):
    raw = tiny_config("glm4_moe", num_nextn_predict_layers=1)
    folder = write_checkpoint(tmp_path / "model", raw, random_tensors(raw, 1))
    assert "none, though the config announces 1" in inspected(capsys, str(folder))


@pytest.mark.parametrize(("changes", "announced"), [({}, 0), ({"mtp_num_hidden_layers": 1}, 1)])
def test_what_a_config_says_nothing_of_is_not_announced(tmp_path, capsys, changes, announced):
    """Whether files of this family have one is seen in them only."""
    raw = tiny_config("qwen3_next", **changes)
    folder = write_checkpoint(tmp_path / "model", raw, random_tensors(raw, 1))
    found = as_json(capsys, folder)
    assert (found["mtp_layers"], found["mtp_announced"]) == ([], announced)
    said = ", though the config announces 1" * announced
    assert f"mtp       none{said}\n" in inspected(capsys, str(folder))


def test_text_files_are_told_by_kind_template_and_stops(tmp_path, repo_root, capsys, monkeypatch):
    folder = tmp_path / "model"
    raw = tiny_config("qwen3_moe", vocab_size=300, eos_token_id=257)
    write_checkpoint(folder, raw, random_tensors(raw, 1))
    write_byte_tokenizer(folder)
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    monkeypatch.setenv("MODEL", str(folder))
    lines = inspected(capsys).splitlines()
    assert "tokenizer byte-level, 258 tokens" in lines
    assert "template  chat_template.jinja" in lines
    assert "stops     <|end|> (config)" in lines


def write_byte_tokenizer(folder: Path) -> None:
    """256 bytes, one merge, one special token."""
    tokenizers = pytest.importorskip("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(alphabet)} | {"ab": 256}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [("a", "b")]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<|end|>"])
    made.save(str(folder / "tokenizer.json"))


def test_what_is_no_model_or_disagrees_with_its_config_is_refused_in_one_line(
    tmp_path, repo_root, capsys
):
    folder = tmp_path / "model"
    shutil.copytree(repo_root / "tests/golden/mixtral", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 40}))
    for words, said in (
        ([str(folder)], "has shape [32, 48], config.json asks for [40, 48]"),
        ([str(tmp_path / "none")], "no such model directory"),
        ([str(folder), str(folder)], "takes one directory, MODEL, and got 2"),
        ([str(folder), "--cap", "3"], "--cap has no effect on diskmoe inspect"),
    ):
        assert main(["inspect", *words]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and said in error and error.count("\n") == 1


def test_layers_with_states_are_counted_and_no_mtp_layer_is_missed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    raw = tiny_config("qwen3_next")
    folder = write_checkpoint(tmp_path / "hybrid", raw, random_tensors(raw, 1))
    told = inspected(capsys, str(folder))
    assert "3 layers, 3 with experts, 2 with states" in told
    assert "mtp       none" in told and "announces" not in told


def test_what_attention_sees_is_told(repo_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = repo_root / "tests/golden"
    assert "latents of 32, 10 keys chosen by 1 of 2 layers" in inspected(
        capsys, str(golden / "glm_moe_dsa")
    )
    assert "the last 4 keys in 2 of 3 layers" in inspected(capsys, str(golden / "gpt_oss"))
    found = as_json(capsys, golden / "glm_moe_dsa")
    assert (found["latent"]["rank"], found["indexer"]["top"]) == (24, 10)


def test_a_model_without_experts_is_told_and_converted(
    tmp_path: Path, repo_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = repo_root / "tests/golden/llama", tmp_path / "out"
    assert main(["convert", str(model), str(out)]) == 0
    said = capsys.readouterr().err
    assert "llama, 3 layers, no experts" in said and "dense in q8" in said
    for folder, formats in ((model, ["bf16"]), (out, ["q8"])):
        assert "experts   none: every layer is dense" in inspected(capsys, str(folder))
        found = as_json(capsys, folder)
        assert found["dense_formats"] == formats
        assert found["expert_bytes"] == found["experts_bytes"] == found["bytes_per_cold_token"] == 0


def test_a_vocabulary_that_is_not_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Kimi-K2 has it on the hub."""
    raw = tiny_config("kimi_k2")
    folder = write_checkpoint(tmp_path / "model", raw, random_tensors(raw, 1))
    (folder / "tiktoken.model").write_text("IQ== 0")
    assert "tokenizer none (tiktoken.model is not read): prompts" in inspected(capsys, str(folder))
    assert main(["--model", str(folder), "--prompt", "Hello"]) == 2
    assert "no tokenizer.json (tiktoken.model is not read): give" in capsys.readouterr().err
