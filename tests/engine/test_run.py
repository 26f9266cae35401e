"""The bare command on a tiny model: what goes where, what a knob may change, how a run ends."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_codes import with_codes
from tiny_model import random_tensors, tiny_config, write_checkpoint
from tiny_text import VOCAB, write_tokenizer

from diskmoe.engine import run as run_module
from diskmoe.engine.cli import main
from diskmoe.engine.memory import policy_for
from diskmoe.engine.options import Options
from diskmoe.engine.report import REPORT_KEYS
from diskmoe.experts.policy import AUTO, POLICIES

PROMPT_IDS = "5,17,33,8,61,2,90,44,3"


@pytest.fixture(scope="module")
def converted(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("converted") / "q4"
    assert main(["convert", str(tiny), str(out)]) == 0
    return out


def report(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    capsys.readouterr()
    code = main([*words, "--json", "--prompt-ids", PROMPT_IDS, "--ctx", "64", "--temp", "0"])
    out = capsys.readouterr().out
    assert code == 0 and out.count("\n") == 1
    return json.loads(out)


def test_json_has_exactly_the_keys_of_the_contract(tiny, capsys) -> None:
    got = report(capsys, "--model", str(tiny), "--ngen", "6", "--ngram", "0")
    assert tuple(got) == REPORT_KEYS
    assert got["text"] is None and len(got["token_ids"]) == got["tokens"] == 6
    assert got["forwards"] == 6 and got["tokens_per_forward"] == 1.0
    assert got["prompt_tokens"] == 9 and got["stop_reason"] == "limit"
    assert got["settings"]["NGEN"] == {"value": 6, "source": "flag --ngen"}
    assert got["model"]["family"] == "qwen3_moe" and got["model"]["expert_format"] == "bf16"


def test_experts_in_mxfp4_run_as_they_are_and_converted(tmp_path, capsys) -> None:
    raw = tiny_config("gpt_oss", eos_token_id=None, intermediate_size=96)
    config, stored, _ = with_codes(raw, random_tensors(raw, 1))
    source = write_checkpoint(tmp_path / "source", config, stored, "bf16")
    assert main(["convert", str(source), str(tmp_path / "out"), "--dense", "keep"]) == 0
    as_it_is = report(capsys, "--model", str(source), "--ngen", "12", "--cap", "3")
    converted = report(capsys, "--model", str(tmp_path / "out"), "--ngen", "12", "--cap", "5")
    assert as_it_is["token_ids"] == converted["token_ids"]
    codes, biases = 3 * 64 * 96 * 17 // 32, 2 * (2 * 96 + 64)
    assert as_it_is["miss_bytes"] == as_it_is["misses"] * (codes + biases)
    for got in (as_it_is, converted):
        assert got["model"]["expert_format"] == "mxfp4"


def test_more_threads_than_cores_are_used_and_said(tiny, capsys) -> None:
    words = ["--model", str(tiny), "--ngen", "2", "--ctx", "64", "--prompt-ids", PROMPT_IDS]
    assert main([*words, "--threads", "33"]) == 0
    assert "note      THREADS=33 where " in capsys.readouterr().err
    assert main([*words, "--threads", "1"]) == 0
    assert "THREADS=1 where" not in capsys.readouterr().err


def test_the_accounts_add_up(tiny, capsys) -> None:
    got = report(capsys, "--model", str(tiny), "--ngen", "12", "--cap", "2", "--ngram", "0")
    layers, top_k = got["model"]["layers"], got["model"]["top_k"]
    assert got["selections"] == 12 * layers * top_k
    assert got["hits"] + got["misses"] == got["selections"]  # one row: all experts are unique
    assert got["hit_rate"] == pytest.approx(got["hits"] / (got["hits"] + got["misses"]))
    assert got["miss_bytes"] == got["misses"] * 3 * 48 * 64 * 2
    assert got["bytes_per_token"] == pytest.approx(got["miss_bytes"] / 12)
    assert got["slots_per_layer"] == 2


def test_knobs_of_speed_never_change_an_id(tiny, converted, capsys) -> None:
    for model in (tiny, converted):
        plain = report(capsys, "--model", str(model), "--ngen", "24")["token_ids"]
        for knobs in (
            ["--cap", "1"],
            ["--cap", "3", "--threads", "1"],
            ["--threads", "2", "--io-threads", "1"],
            ["--prefill-chunk", "1"],
            ["--prefill-chunk", "3", "--cap", "2", "--direct", "0"],
            ["--direct", "1", "--cap", "5"],
            ["--prefetch", "1", "--cap", "2"],
            ["--prefetch", "count", "--cap", "4", "--disk-bps", "5M"],
            ["--verify", "1", "--cap", "3", "--policy", "lfu"],
            ["--ngram", "1", "--cap", "3"],
            *(["--policy", policy, "--cap", "2"] for policy in POLICIES),
        ):
            got = report(capsys, "--model", str(model), "--ngen", "24", *knobs)
            assert got["token_ids"] == plain, knobs


def test_small_experts_are_given_up_by_age_alone(tiny, capsys) -> None:
    assert policy_for(Options(), 100 << 10)[0] == "lru"
    assert policy_for(Options(), 2 << 20)[0] == AUTO
    assert policy_for(Options(policy="slru"), 100 << 10)[0] == "slru"
    main(["--model", str(tiny), "--cap", "2", "--prompt-ids", PROMPT_IDS, "--ngen", "2"])
    assert "policy    lru: experts of " in capsys.readouterr().err


def test_the_kv_cache_is_as_asked_for_and_planned_for(tiny, capsys) -> None:
    plain = report(capsys, "--model", str(tiny), "--ngen", "4")
    assert plain["settings"]["KV"] == {"value": "f32", "source": "default"}
    planned = {}
    for kv in ("f32", "f16", "q8"):
        got = report(capsys, "--model", str(tiny), "--ngen", "4", "--kv", kv)
        assert len(got["token_ids"]) == 4 and got["settings"]["KV"]["value"] == kv
        assert main(["plan", str(tiny), "--json", "--kv", kv]) == 0
        planned[kv] = json.loads(capsys.readouterr().out)["memory"]["kv_bytes"]
    assert planned["f32"] == 2 * planned["f16"] and planned["q8"] < planned["f16"]


def test_bits_on_the_way_in_give_the_converted_models_ids(tiny, converted, capsys) -> None:
    on_the_way = report(
        capsys, "--model", str(tiny), "--expert-bits", "4", "--dense-bits", "8", "--ngen", "24"
    )
    assert on_the_way["model"]["expert_format"] == "q4"
    stored = report(capsys, "--model", str(converted), "--ngen", "24")
    assert on_the_way["token_ids"] == stored["token_ids"]


def test_a_converted_models_own_format_wins_and_is_said(converted, capsys) -> None:
    capsys.readouterr()
    words = ["4", "8", "8", "--model", str(converted), "--prompt-ids", "1,2", "--ngen", "1"]
    assert main(words) == 0
    said = capsys.readouterr().err
    assert "EXPERT_BITS=8 has no effect: the converted model is q4" in said
    assert "DENSE_BITS" not in [
        line.split("=")[0] for line in said.splitlines() if "no effect" in line
    ]


def test_settings_in_the_report_are_those_that_were_used(tiny, capsys) -> None:
    capsys.readouterr()
    words = ["--model", str(tiny), "--prompt-ids", "1,2,3", "--ngen", "8", "--json", "--temp", "1"]
    assert main(words) == 0
    first = json.loads(capsys.readouterr().out)
    used = first["settings"]
    assert used["CTX"] == {"value": 11, "source": "auto"}  # prompt and NGEN
    assert used["CAP"]["value"] == first["slots_per_layer"] == 8
    assert used["SEED"]["source"] == "auto" and used["THREADS"]["value"] >= 1
    assert main([*words, "--seed", str(used["SEED"]["value"])]) == 0
    assert json.loads(capsys.readouterr().out)["token_ids"] == first["token_ids"]


def test_a_new_run_ends_the_one_before_it(tiny) -> None:
    from diskmoe.engine.api import Model, Options
    from diskmoe.engine.errors import BadRequest

    with Model.load(tiny, Options(ctx=64)) as model:
        alone = model.generate([4, 5, 6], limit=8)
        list(alone)
        first, second = model.generate([1, 2], limit=8), model.generate([4, 5, 6], limit=8)
        with pytest.raises(BadRequest, match="newer"):
            list(first)
        list(second)
        assert second.token_ids == alone.token_ids


@pytest.mark.parametrize(
    "wrong",
    [{"expert_bits": 5}, {"threads": 0}, {"prefill_chunk": 0}, {"ram_gb": float("nan")},
     {"direct": "yes"}, {"ctx": 1}, {"cap": True}, {"kv": "f8"}],
)  # fmt: skip
def test_options_out_of_range_are_refused_by_name(wrong) -> None:
    from diskmoe.engine.api import Options
    from diskmoe.engine.errors import BadRequest

    with pytest.raises(BadRequest, match=next(iter(wrong))):
        Options(**wrong)


def test_seeded_sampling_repeats(tiny, capsys) -> None:
    words = ["--model", str(tiny), "--ngen", "20", "--json", "--prompt-ids", PROMPT_IDS]
    texts = []
    for seed in ("7", "7", "8"):
        capsys.readouterr()
        assert main([*words, "--temp", "1", "--seed", seed]) == 0
        texts.append(json.loads(capsys.readouterr().out)["token_ids"])
    assert texts[0] == texts[1] != texts[2]


def test_stdout_has_the_ids_and_stderr_the_rest(tiny, capsys) -> None:
    capsys.readouterr()
    assert main(["--model", str(tiny), "--prompt-ids", "1,2,3", "--ngen", "3"]) == 0
    out, err = capsys.readouterr()
    assert len(out.strip().split(",")) == 3
    for word in ("settings", "memory", "prefill", "report", "hit rate"):
        assert word in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt-ids", "1,96"], "96 is outside the model's vocabulary of 96"),
        (["--prompt-ids", "1," * 70 + "1", "--ctx", "64"], "71 tokens and CTX is 64"),
        (["Hello"], "has no tokenizer.json"),
        (["--prompt-ids", "1", "--ram-gb", "0.02"], "RAM_GB="),
        (["--prompt-ids", "1", "--stop", "x"], "needs a tokenizer"),
    ],
)
def test_what_cannot_run_is_refused_with_both_numbers(tiny, capsys, words, message) -> None:
    capsys.readouterr()
    assert main(["--model", str(tiny), *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err.splitlines()[-1] and "Traceback" not in err


def test_an_unsupported_family_lists_the_supported(tmp_path, capsys) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert main(["--model", str(tmp_path), "--prompt-ids", "1"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "mamba" in last and "qwen3_moe" in last and "glm4_moe" in last


def test_prompt_from_stdin(tiny, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe")))
    assert main(["--model", str(tiny)]) == 2
    assert "not UTF-8" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs /proc/self/io")
def test_nothing_is_written_to_disk_while_generating(converted) -> None:
    from diskmoe.engine.api import Model, Options

    with Model.load(converted, Options(ctx=64, cap=2)) as model:
        list(model.generate([1, 2, 3], limit=2))
        before = _written()
        list(model.generate([4, 5, 6, 7], limit=40))
        assert _written() == before


def _written() -> int:
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("write_bytes"):
            return int(line.split()[1])
    raise AssertionError("no write_bytes in /proc/self/io")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_answers_at_once_and_keeps_what_was_made(tmp_path: Path) -> None:
    config = tiny_config(
        "qwen3_moe", vocab_size=VOCAB, eos_token_id=None, max_position_embeddings=200_000
    )
    write_checkpoint(tmp_path, config, random_tensors(config, seed=3), dtype="bf16")
    write_tokenizer(tmp_path)
    words = ["--raw", "x", "--ngen", "100000", "--ctx", "150000"]
    with subprocess.Popen(
        [sys.executable, "-m", "diskmoe.engine", "--model", str(tmp_path), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        begun = process.stdout.read(8)
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    said = err.decode()
    assert process.returncode == 130, said
    assert "stop: interrupted" in said and "Traceback" not in said
    assert (begun + out).decode() and "no token was generated" not in said


def test_packages_refuse_their_bare_folder_names(repo_root: Path) -> None:
    for name in ("compiled", "engine", "experts", "engine.kernels", "grammar_draft", "mtp"):
        done = subprocess.run(
            [sys.executable, "-c", f"import {name}"],
            cwd=repo_root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1 and "import diskmoe." in done.stderr.splitlines()[-1]


def test_closed_stderr_never_sends_notes_to_stdout(tiny: Path) -> None:
    command = f'exec "{sys.executable}" -m diskmoe.engine --model "{tiny}" --ngen 2'
    for prompt in ("--prompt-ids 1,2", "--prompt-ids 1,96"):
        done = subprocess.run(
            ["sh", "-c", f"{command} {prompt} 2>&-"], stdout=subprocess.PIPE, text=True, check=False
        )
        wrong = "96" in prompt
        assert done.returncode == (2 if wrong else 0)
        assert done.stdout.count(",") == (0 if wrong else 1)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX pipes")
@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json"])
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(tmp_path, capsys, name) -> None:
    config = tiny_config("olmoe")
    write_checkpoint(tmp_path, config, random_tensors(config, seed=1), dtype="bf16")
    os.mkfifo(tmp_path / name)
    assert main(["--model", str(tmp_path), "--prompt-ids", "1"]) == 2
    assert "not a regular file" in capsys.readouterr().err


def test_weights_of_more_layers_than_the_config_says_are_refused(tmp_path, capsys) -> None:
    config = tiny_config("olmoe")
    write_checkpoint(tmp_path, config, random_tensors(config, seed=1), dtype="bf16")
    config["num_hidden_layers"] -= 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["--model", str(tmp_path), "--prompt-ids", "1"]) == 2
    assert "another model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"do_sample": True, "temperature": "0.7"}, "temperature is '0.7'"),
        ({"do_sample": True, "top_p": 1.5}, "top_p is 1.5"),
        ({"do_sample": "yes"}, "do_sample is 'yes'"),
    ],
)
def test_a_bad_generation_config_is_named_with_its_value(
    tmp_path, capsys, generation, message
) -> None:
    config = tiny_config("olmoe")
    write_checkpoint(tmp_path, config, random_tensors(config, seed=1), dtype="bf16")
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert main(["--model", str(tmp_path), "--prompt-ids", "1"]) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert message in err and "generation_config.json" in err


def test_the_models_own_sampling_is_the_default_and_is_said(tmp_path, capsys) -> None:
    config = tiny_config("olmoe", eos_token_id=None)
    write_checkpoint(tmp_path, config, random_tensors(config, seed=1), dtype="bf16")
    asked = {"do_sample": True, "temperature": 0.6, "top_k": 20.0, "repetition_penalty": 1.1}
    (tmp_path / "generation_config.json").write_text(json.dumps(asked))
    assert main(["--model", str(tmp_path), "--prompt-ids", "1", "--ngen", "2"]) == 0
    err = capsys.readouterr().err
    assert "TEMP=0.6 (generation_config.json), TOP_K=20 (generation_config.json)" in err
    assert "repetition_penalty=1.1: not applied" in err


def test_a_context_far_beyond_the_model_is_refused(tiny, capsys) -> None:
    assert main(["--model", str(tiny), "--prompt-ids", "1", "--ctx", "10000000"]) == 2
    assert "10000000" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.skipif(sys.platform != "linux", reason="needs posix_fadvise and mincore")
def test_cold_and_warm_are_told_apart(tmp_path: Path, capsys) -> None:
    from diskmoe.experts.pagecache import cached_share

    config = tiny_config("qwen3_moe", eos_token_id=None, moe_intermediate_size=1024)
    write_checkpoint(tmp_path, config, random_tensors(config, seed=1), dtype="bf16")
    weights = tmp_path / "model.safetensors"
    assert report(capsys, "--model", str(tmp_path), "--ngen", "1")["cache_state"] == "warm"
    with weights.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    share = cached_share([weights])
    if share is None or share > 0.05:
        pytest.skip("this file system keeps its pages whatever it is advised")
    assert report(capsys, "--model", str(tmp_path), "--ngen", "1")["cache_state"] == "cold"


def test_a_run_takes_memory_for_its_own_positions_only(converted, capsys) -> None:
    got = {}
    for words in (["--ngen", "6"], ["--ngen", "6", "--ctx", "200"], ["--ngen", "9000"]):
        capsys.readouterr()
        assert main(["--model", str(converted), "--prompt-ids", PROMPT_IDS, "--json", *words]) == 0
        got[tuple(words)] = json.loads(capsys.readouterr().out)
    contexts = [report["settings"]["CTX"]["value"] for report in got.values()]
    assert contexts == [9 + 6, 200, 256]  # 256 is all the model has
    short, long, _ = got.values()
    assert short["token_ids"] == long["token_ids"] and short["stop_reason"] == "limit"


def test_a_prompt_without_an_end_is_refused(tiny, capsys, monkeypatch) -> None:
    monkeypatch.setattr(run_module, "MOST_TEXT", 100)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x" * 200)))
    assert main(["--model", str(tiny)]) == 2
    assert "stdin has more than 100 bytes" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is full")
def test_a_full_disk_behind_stdout_is_named(tiny: Path) -> None:
    words = [sys.executable, "-m", "diskmoe.engine", "--model", str(tiny), "--prompt-ids", "1,2"]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "error: No space left on device: stdout"
