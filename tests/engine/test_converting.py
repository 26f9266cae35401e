"""``diskmoe convert`` says what it will do before it does it, and how good it is afterwards."""

import re
from pathlib import Path

import pytest
from tiny_codes import with_fp8, with_int4
from tiny_model import random_tensors, tiny_config, write_checkpoint

from diskmoe.engine.cli import main
from diskmoe.engine.converting import progress_lines, shown_error, shown_seconds


def said(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """{first word: rest} of the lines that a command says."""
    assert main(["convert", *words]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in captured.err.splitlines()}


def test_the_plan_names_types_formats_bytes_memory_and_time(tmp_path, repo_root, capsys):
    lines = said(capsys, str(repo_root / "tests/golden/qwen2_moe"), str(tmp_path / "out"))
    assert list(lines) == ["convert", "source", "target", "needs", "written", "error", "next"]
    assert lines["convert"] == "qwen2_moe, 3 layers, 6 experts of 32 x 48"
    assert lines["source"] == "251 KiB: BF16 251 KiB"
    assert re.fullmatch(
        r"\S+ KiB: experts in q4 \(8\.30 bits a weight\) 84\.0 KiB, dense in q8 \S+ KiB; .* are free",
        lines["target"],
    )
    assert re.fullmatch(
        r"about \S+ [MG]iB of memory and \d+ s with \d thread\(s\)(; the disk: write \S+ [KMG]iB/s)?",
        lines["needs"],
    )


def test_the_errors_of_a_conversion_are_said_by_kind(tmp_path, repo_root, capsys):
    source = str(repo_root / "tests/golden/qwen2_moe")
    lines = said(capsys, source, str(tmp_path / "a"), "--experts", "bf16", "--dense", "q8")
    kinds = re.findall(r"([a-z][a-z' ]+) (exact|[\d.]+ %)", lines["error"])
    errors = dict(kinds)
    assert list(errors) == [
        *("embedding", "head", "attention", "shared experts"),
        *("experts' gate", "experts' up", "experts' down"),
    ]
    assert errors["experts' gate"] == errors["experts' down"] == "exact"
    assert all(0.1 < float(errors[kind].split()[0]) < 1 for kind in list(errors)[:4])


@pytest.mark.parametrize(
    ("coded", "experts", "target", "fate", "error"),
    [
        (with_fp8, "keep", "as they are in fp8 (", "fp8: kept", "exact"),
        (with_fp8, "f32", "in f32 (", "fp8: dequantised exactly", "exact"),
        (with_fp8, "q4", "in q4 (", "fp8: dequantised exactly, then rounded once", "[67].* %"),
        (with_int4, "keep", "as they are in int4 (", "int4: kept bit for bit", "exact"),
        (with_int4, "q4", "as they are in int4 (", "int4: kept bit for bit", "exact"),
        (with_int4, "q8", "in q8 (", "int4: kept exactly where f16 has their scales", "exact"),
        (with_int4, "q4g64", "in q4g64 (", "int4: dequantised exactly, then", "[4-9].* %"),
    ],
)
def test_what_becomes_of_codes_is_said_and_measured(
    tmp_path, capsys, coded, experts, target, fate, error
):
    raw = tiny_config("glm4_moe", hidden_size=160, moe_intermediate_size=160)
    config, stored, _ = coded(raw, random_tensors(raw, 1))
    folder = write_checkpoint(tmp_path / "model", config, stored, "bf16")
    out = str(tmp_path / "out")
    lines = said(capsys, str(folder), out, "--experts", experts, "--dense", "keep")
    assert target in lines["target"] and lines["codes"].startswith(fate)
    found = dict(re.findall(r"([a-z][a-z' ]+) (exact|[\d.]+ %)", lines["error"]))
    assert found["attention"] == found["head"] == "exact"
    assert all(re.fullmatch(error, found[f"experts' {part}"]) for part in ("gate", "up", "down"))


def test_a_budget_that_holds_nothing_is_refused_before_work_starts(tmp_path, repo_root, capsys):
    source, out = str(repo_root / "tests/golden/qwen2_moe"), tmp_path / "out"
    assert main(["convert", source, str(out), "--ram-gb", "0.02"]) == 2
    assert "RAM_GB allows 20.5 MiB" in capsys.readouterr().err
    assert not list(Path(tmp_path).iterdir())


def test_times_and_errors_are_said_in_few_figures():
    assert [shown_seconds(t) for t in (0.2, 99.5, 130, 6000)] == [
        "1 s",
        "100 s",
        "2 min",
        "100 min",
    ]
    assert [shown_error(e) for e in (0, 0.00412, 0.0652)] == ["exact", "0.41 %", "6.5 %"]


def test_the_time_that_is_left_is_reckoned_from_the_first_bytes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Waiting before it, and what an earlier run had done, say nothing of the speed."""
    now, said = [0.0], list[str]()
    monkeypatch.setattr("diskmoe.engine.converting.time.perf_counter", lambda: now[0])
    tell = progress_lines(said.append, "verify")
    for second, done in ((1000, 500), (1001, 550), (1003, 650), (1010, 1000)):
        now[0] = second
        tell(done << 20, 1000 << 20, "a.safetensors")
    assert [line.rpartition("about ")[2] for line in said] == ["7 s left", "0 s left"]


def test_a_disk_that_became_slow_is_what_counts_for_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, said = [0.0], list[str]()
    monkeypatch.setattr("diskmoe.engine.converting.time.perf_counter", lambda: now[0])
    tell, done = progress_lines(said.append, "convert"), 0
    for second in range(101):
        now[0] = second
        done += 10 if second <= 50 else 1
        tell(done << 20, 1000 << 20, "layer 1")
    assert said[20].endswith("430 MiB of 1000 MiB, 10.0 MiB/s, about 57 s left")
    assert said[-1].endswith("560 MiB of 1000 MiB, 1.0 MiB/s, about 7 min left")
