"""Kernels are ready before the first token: shared with a helper, said once, complete."""

import os
import subprocess
import sys
import tempfile
from io import BytesIO
from pathlib import Path

import pytest
from numba.core import event
from tiny_model import random_tensors, tiny_config, write_checkpoint
from tiny_text import VOCAB, write_tokenizer

from diskmoe.compiled.functions import NOTES
from diskmoe.engine import warmup
from diskmoe.engine.kernels.warm import WarmItem
from diskmoe.engine.warmup import help_compiling, ready_kernels


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Four items that only write down that they ran, in place of kernels; and no helper."""
    ran: list[int] = []
    items = [WarmItem(str(n), lambda n=n: ran.append(n)) for n in range(4)]
    monkeypatch.setattr(warmup, "warm_items", lambda *_: list(items))
    monkeypatch.setattr(warmup, "usable_cores", lambda: (1, "one"))
    monkeypatch.setattr(warmup, "prune_kernels", lambda: 0)
    return ran


def broadcast(kind: str, data: object) -> None:
    event.broadcast(event.Event(kind, event.EventStatus.START, data))


def compiles_at(monkeypatch: pytest.MonkeyPatch, ran: list[int], item: int) -> None:
    """Makes an item look as if it was compiled and not found on disk."""
    items = warmup.warm_items([], False)

    def run() -> None:
        broadcast("numba:compile", {})
        ran.append(item)

    items[item] = WarmItem("compiled", run)
    monkeypatch.setattr(warmup, "warm_items", lambda *_: items)


def test_everything_on_disk_is_read_in_silence(ran) -> None:
    said: list[str] = []
    assert ready_kernels(["q8"], False, said.append).compiled == 0
    assert ran == [0, 1, 2, 3] and said == []


def test_compiling_is_said_once(ran, monkeypatch) -> None:
    for item in (1, 3):
        compiles_at(monkeypatch, ran, item)
    said: list[str] = []
    assert ready_kernels(["q8"], False, said.append).compiled == 2
    assert len(said) == 1 and said[0].startswith("kernels   being compiled") and "once" in said[0]


def test_a_trouble_with_the_disk_is_said_once(ran, monkeypatch) -> None:
    items = warmup.warm_items([], False)
    for number in range(3):
        line = f"line {number}"
        items[number] = WarmItem("x", lambda line=line: broadcast(NOTES, ("memory", line)))
    monkeypatch.setattr(warmup, "warm_items", lambda *_: items)
    said: list[str] = []
    made = ready_kernels(["q8"], False, said.append)
    assert said == ["note      line 0"] and made.notes == {"memory": "line 0"}


class FakeProcess:
    """A helper that claims and does nothing: it came to harm."""

    command: list[str]

    def __init__(self, command: list[str], **_: object) -> None:
        FakeProcess.command = command
        claims = Path(command[-1].split("Path('")[1].split("')")[0])
        for number in (1, 3):
            (claims / str(number)).touch(exist_ok=False)

    def wait(self, seconds: float | None = None) -> int:
        if seconds is not None:
            raise subprocess.TimeoutExpired("helper", seconds)
        return 0

    def kill(self) -> None:
        pass


def test_what_a_lost_helper_had_claimed_is_done_at_the_end(ran, monkeypatch) -> None:
    compiles_at(monkeypatch, ran, 0)
    monkeypatch.setattr(warmup, "usable_cores", lambda: (2, "two"))
    monkeypatch.setattr(warmup, "kernels_can_be_kept", lambda: True)
    monkeypatch.setattr(warmup.subprocess, "Popen", FakeProcess)
    monkeypatch.setattr(warmup, "HELPER_SECONDS", 0)
    ready_kernels(["q8"], True, lambda line: None)
    assert ran == [0, 2, 1, 3]
    assert "sys.path[:] = " in FakeProcess.command[-1]  # never the working directory's modules


@pytest.mark.parametrize(("cores", "kept"), [(1, True), (2, False)])
def test_no_helper_without_a_core_or_a_folder_for_it(ran, monkeypatch, cores, kept) -> None:
    compiles_at(monkeypatch, ran, 0)
    monkeypatch.setattr(warmup, "usable_cores", lambda: (cores, ""))
    monkeypatch.setattr(warmup, "kernels_can_be_kept", lambda: kept)
    monkeypatch.setattr(warmup.subprocess, "Popen", None)  # a call would fail
    ready_kernels(["q8"], True, lambda line: None)
    assert ran == [0, 1, 2, 3]


def test_a_helper_takes_what_is_free_and_ends_with_its_parent(ran, tmp_path) -> None:
    (tmp_path / "1").touch()
    help_compiling(["q8"], True, ["latents"], tmp_path, os.getppid())
    assert ran == [0, 2, 3]
    help_compiling(["q8"], True, ["latents"], tmp_path, os.getppid() + 1)
    assert ran == [0, 2, 3]


def run_apart(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    paths = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **variables}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )


WHOLE_RUN = """
from numba.core import event
from diskmoe.engine.api import Model, Options, Sampling, prepare

path, expert_bits, dense_bits = ARGUMENTS
bits = {"expert_bits": int(expert_bits) or None, "dense_bits": int(dense_bits) or None}
prepared = prepare(path, Options(ctx=64, cap=3, prefill_chunk=8, threads=2, **bits))
prepared.plan()
with event.install_recorder("numba:compile") as recorder, Model.finish(prepared) as model:
    for sampling in (
        Sampling(0), Sampling(1, seed=1), Sampling(1, top_k=9, min_p=0.1), Sampling(0.5, top_p=0.9)
    ):
        run = model.generate(list(range(3, 22)), sampling=sampling, limit=6)
        list(run)
        assert len(run.token_ids) == 6
compiled = [record.data["dispatcher"].__name__ for _, record in recorder.buffer]
assert not compiled, compiled
"""


@pytest.mark.parametrize(
    ("family", "dtype", "expert_bits", "dense_bits"),
    [
        ("qwen3_moe", "bf16", 0, 0),
        ("olmoe", "f32", 0, 0),
        ("glm4_moe", "bf16", 4, 8),
        ("qwen3_moe", "f16", 8, 4),
        ("olmoe", "bf16", 16, 32),
        ("glm4_moe", "f32", 32, 16),
        ("glm_moe_dsa", "bf16", 4, 8),
        ("qwen3_next", "bf16", 8, 8),
    ],
)
def test_no_kernel_is_compiled_in_the_middle_of_an_answer(
    tmp_path: Path, family: str, dtype: str, expert_bits: int, dense_bits: int
) -> None:
    config = tiny_config(family, eos_token_id=None)
    write_checkpoint(tmp_path, config, random_tensors(config, seed=3), dtype=dtype)
    arguments = [str(tmp_path), str(expert_bits), str(dense_bits)]
    done = run_apart(WHOLE_RUN.replace("ARGUMENTS", repr(arguments)))
    assert done.returncode == 0, done.stderr


CONSTRAINED_RUN = """
from numba.core import event
from diskmoe.engine.api import Model, Options, Sampling, prepare
from diskmoe.grammar_draft.languages import from_gbnf, from_schema

prepared = prepare(ARGUMENTS, Options(ctx=64, cap=3, threads=2, constrain="1"))
prepared.plan()
schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}, "b": {"$ref": "#"}}}
ambiguous = 'root ::= root root | "a" | "ab" | [0-9]{1,20}'
nested = 'root ::= "(" root ")" | [^()]+'
with event.install_recorder("numba:compile") as recorder, Model.finish(prepared) as model:
    for grammar in (from_schema(schema), from_gbnf(ambiguous), from_gbnf(nested)):
        for way in ("1", "mask", "check"):
            for sampling in (Sampling(0), Sampling(1, seed=1), Sampling(1, top_k=9, top_p=0.9)):
                run = model.generate(
                    "x", grammar=grammar, constrain=way, sampling=sampling, limit=12
                )
                assert "".join(run)
compiled = [record.data["dispatcher"].__name__ for _, record in recorder.buffer]
assert not compiled, compiled
"""


def test_no_kernel_is_compiled_in_the_middle_of_a_constrained_answer(tmp_path: Path) -> None:
    config = tiny_config("qwen3_moe", vocab_size=VOCAB, eos_token_id=260)
    write_checkpoint(tmp_path, config, random_tensors(config, seed=3), dtype="bf16")
    write_tokenizer(tmp_path)
    done = run_apart(CONSTRAINED_RUN.replace("ARGUMENTS", repr(str(tmp_path))))
    assert done.returncode == 0, done.stderr


def test_warmup_compiles_once_and_says_where(tmp_path: Path) -> None:
    code = "from diskmoe.engine.cli import main; exit(main(['warmup', '--formats', 'f32']))"
    first = run_apart(code, NUMBA_CACHE_DIR=str(tmp_path))
    assert first.returncode == 0 and first.stdout == ""
    progress, said = first.stderr.splitlines()
    assert progress.startswith("kernels   being compiled") and "once" in progress
    assert "kernels compiled" in said and str(tmp_path / "diskmoe") in said
    second = run_apart(code, NUMBA_CACHE_DIR=str(tmp_path))
    (said,) = second.stderr.splitlines()
    assert "all kernels were there" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--formats", "bf61"], "did you mean bf16"),
        (["--formats", ","], "names none"),
        (["q8"], "takes no argument"),
        (["--ngen", "5"], "no effect on diskmoe warmup"),
    ],
)
def test_slips_of_the_command_are_one_line(words: list[str], message: str, capsys) -> None:
    from diskmoe.engine.cli import main

    assert main(["warmup", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("trouble", ["no folder", "no room"])
def test_a_warmup_that_could_keep_nothing_compiles_nothing(
    ran, tmp_path, monkeypatch, capsys, trouble
) -> None:
    from diskmoe.engine.cli import main

    class Full(BytesIO):
        def write(self, data) -> int:
            return super().write(data[:1000])

    if trouble == "no folder":
        (tmp_path / "diskmoe").write_text("in the way")
    else:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **options: Full())
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert main(["warmup", "--formats", "q8"]) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path / 'diskmoe'} cannot be written, or the disk is full" in said
    assert "set NUMBA_CACHE_DIR" in said and said.count("\n") == 1
    assert ran == []


def test_a_damaged_kernel_counts_as_compiled(ran, monkeypatch) -> None:
    a, b = Path("kept/a"), Path("kept/b")
    found = iter([{a: 10, b: 0}, {a: 10, b: 10}])
    monkeypatch.setattr(warmup, "kept_kernels", lambda: next(found))
    said: list[str] = []
    warmup.warm_up(["q8"], said.append)
    assert said[0].startswith("done      1 kernels compiled")


def test_a_warmup_that_cannot_keep_anything_fails(ran, monkeypatch) -> None:
    from diskmoe.experts.errors import WriteFailed

    items = [WarmItem("x", lambda: broadcast(NOTES, ("memory", "all is read-only")))]
    monkeypatch.setattr(warmup, "warm_items", lambda *_: items)
    with pytest.raises(WriteFailed, match="all is read-only"):
        warmup.warm_up(["q8"], lambda line: None)
