"""``diskmoe serve`` as a program: it serves, says where, and ends at once when told to."""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from diskmoe.engine.cli import main


@contextmanager
def serving(path: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """The program, its address, and what it said until it had one."""
    words = [sys.executable, "-m", "diskmoe.engine", "serve", str(path), "--port", "0", *flags]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, text=True, stdout=pipe, stderr=pipe) as process:
        try:
            said: list[str] = []
            for line in process.stderr or ():
                said.append(line)
                found = re.match(r"serving   (http://\S+)/v1, 3 texts at once", line)
                if found:
                    yield process, found[1], said
                    return
            raise AssertionError("".join(said))
        finally:
            process.kill()


def test_it_serves_and_ends_at_ctrl_c_in_the_middle_of_a_stream(model_path: Path) -> None:
    flags = ["--parallel", "3", "--disk-bps", "300k", "--cap", "1"]
    with serving(model_path, *flags) as (process, address, _):
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 900, "stream": True}
        with httpx.stream("POST", f"{address}/v1/chat/completions", json=body, timeout=30) as reply:
            pieces = reply.iter_bytes()
            next(pieces)
            process.send_signal(signal.SIGINT)
            list(pieces)
        out, err = process.communicate(timeout=10)
    assert process.returncode == 130 and not out and "Traceback" not in err


def test_it_says_where_its_page_is(model_path: Path) -> None:
    with serving(model_path, "--parallel", "3") as (process, address, _):
        assert process.stderr is not None
        assert process.stderr.readline() == f"page      {address}/ to chat and to watch\n"
        assert "<title>diskmoe</title>" in httpx.get(address, timeout=30).text


def test_an_address_that_is_taken_or_none_is_one_line(model_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for flags, said in (
            (["--port", str(port)], f"127.0.0.1:{port} cannot be listened at"),
            (["--host", "no.such.host.invalid"], "is no address"),
        ):
            done = subprocess.run(
                [sys.executable, "-m", "diskmoe.engine", "serve", str(model_path), *flags],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 2 and not done.stdout
            assert said in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("flag", ["--temp", "--ngen"])
def test_settings_of_requests_are_named_as_without_effect(model_path: Path, flag: str) -> None:
    with serving(model_path, "--parallel", "3", flag, "5") as (_, _, said):
        assert any(flag[2:].upper() in line and "each request says it" in line for line in said)


def test_a_key_that_is_empty_is_refused_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", "/no/such/model", "--api-key", " "]) == 2
    assert capsys.readouterr().err.startswith("error: API_KEY is empty")
