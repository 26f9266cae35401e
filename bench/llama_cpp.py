"""llama.cpp's programs from outside: which one a file is, how it is asked, what its timings say.

The rule of this file: a program is known by what it prints, never by its name, and a number that it does
not print is None.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from diskmoe.engine.errors import BadRequest, DiskMoeError
from diskmoe.engine.places import as_path
from diskmoe.engine.text.files import one_line

Kind = Literal["bench", "text"]
_ASKING_SECONDS = 30.0  # for --help and --version, on a busy machine
_TAIL = 300  # characters of what a program said, in an error

# llama_perf_context_print, common_perf_print, llama_print_timings: one form since 2023
_PART = re.compile(
    r"(?P<prompt>prompt )?eval time\s*=\s*(?P<ms>\d+(?:\.\d+)?) ms\s*/\s*(?P<count>\d+) (?:tokens|runs)"
)
_LOAD = re.compile(r"load time\s*=\s*(\d+(?:\.\d+)?) ms")
_BRACKET = re.compile(r"\[ Prompt: (\d+(?:\.\d+)?) t/s \| Generation: (\d+(?:\.\d+)?) t/s \]")
_VERSION = re.compile(r"version:\s*(.+)")


class PeerFailed(DiskMoeError):
    """The peer's program failed, hung, or said something that is no result."""

    exit_code = 1


@dataclass(frozen=True)
class Timings:
    """What a run of llama.cpp said about itself."""

    tok_per_s: float | None = None
    tokens: int | None = None  # as counted for tok_per_s
    decode_seconds: float | None = None
    prompt_tok_per_s: float | None = None
    prompt_tokens: int | None = None
    prompt_seconds: float | None = None
    load_seconds: float | None = None


@dataclass(frozen=True)
class Peer:
    """A program of llama.cpp's. kind: "bench" feeds ids of its own, "text" goes on from a prompt."""

    binary: str  # as it is started
    kind: Kind
    version: str
    options: frozenset[str]  # the words that its --help begins with a dash

    @staticmethod
    def of(given: str) -> Peer:
        """Asks a program, by its path or by its name in PATH, what it is.

        Raises:
            BadRequest: it cannot be run, or is none of llama-bench, llama-cli, llama-completion.
        """
        here, binary = as_path(given), given
        if here.is_file():
            binary = str(here if os.sep in str(here) else here.absolute())
        elif os.sep in given or shutil.which(given) is None:
            raise BadRequest(f"--binary {given}: there is no such program")
        said = _asked(binary, "--help")
        options = frozenset(re.findall(r"(?<![\w-])--?[a-z][\w-]*", said))
        if "--n-gen" in options:
            kind: Kind = "bench"
        elif options >= {"--model", "--threads"} and options & {"--predict", "--n-predict"}:
            kind = "text"
        else:
            raise BadRequest(
                f"--binary {binary} is none of llama-bench, llama-cli and llama-completion: its --help "
                f"has neither --n-gen nor --predict, it says: {tail(said) or 'nothing'}"
            )
        found = _VERSION.search(_asked(binary, "--version"))
        return Peer(binary, kind, one_line(found[1], 80) if found else "unknown", options)

    @property
    def name(self) -> str:
        return Path(self.binary).name

    def command(
        self,
        gguf: Path,
        tokens: int,
        prompt: str | int,  # a text, or for "bench" how many tokens
        threads: int,
        context: int,
        more: Sequence[str] = (),
    ) -> list[str]:
        """The words that run it once; `more` are the user's own and come last."""
        words = [self.binary, "-m", str(gguf), "-t", str(threads), "-n", str(tokens)]
        if self.kind == "bench":
            return [*words, "-p", str(prompt), "-r", "1", "-o", "json", *more]
        words += ["-p", str(prompt), "-c", str(context), "--temp", "0", "--ignore-eos"]
        # the text as it is, once; programs of some years have some of these
        words += [each for each in ("--no-display-prompt", "--simple-io") if each in self.options]
        if "-no-cnv" in self.options:
            words.append("-no-cnv")
        elif "--single-turn" in self.options:
            words.append("--single-turn")
        return [*words, *more]

    def timings(self, stdout: str, stderr: str) -> Timings:
        """What a run printed. Raises PeerFailed where no speed of decoding is in it."""
        found = _bench_timings(stdout) if self.kind == "bench" else _text_timings(stdout + stderr)
        if found.tok_per_s is None:
            raise PeerFailed(
                f"{self.name} printed no speed of decoding; the end of what it said: "
                f"{tail(stderr) or tail(stdout) or 'nothing'}"
            )
        return found


def tail(text: str) -> str:
    """The end of a program's output, in one line."""
    line = one_line(text[-4 * _TAIL :], 4 * _TAIL)
    return line if len(line) <= _TAIL else "..." + line[3 - _TAIL :]


def _asked(binary: str, word: str) -> str:
    try:
        done = subprocess.run(
            [binary, word],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASKING_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BadRequest(
            f"--binary {binary}: {word} was not answered in {_ASKING_SECONDS:.0f} s"
        ) from None
    except OSError as error:
        raise BadRequest(f"--binary {binary} cannot be run: {error.strerror or error}") from None
    return (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace")


def _bench_timings(stdout: str) -> Timings:
    """Of llama-bench -o json: one object for the prompt, one for decoding."""
    try:
        tests = json.loads(stdout)
    except (ValueError, RecursionError):
        return Timings()
    found: dict[str, Any] = {}
    for test in tests if isinstance(tests, list) else []:
        speed, seconds = _number(test, "avg_ts", 1), _number(test, "avg_ns", 1e-9)
        prompt, tokens = _number(test, "n_prompt", 1), _number(test, "n_gen", 1)
        if speed is None or seconds is None:
            continue
        if prompt and not tokens:
            found |= {"prompt_tok_per_s": speed, "prompt_tokens": int(prompt)}
            found["prompt_seconds"] = seconds
        elif tokens and not prompt:
            found |= {"tok_per_s": speed, "tokens": int(tokens), "decode_seconds": seconds}
    return Timings(**found)


def _number(test: Any, key: str, factor: float) -> float | None:
    value = test.get(key) if isinstance(test, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return None
    return value * factor


def _text_timings(said: str) -> Timings:
    """Of llama-completion and llama-cli, of any age; the last of each line counts."""
    found: dict[str, Any] = {}
    for part in _PART.finditer(said):
        seconds, count = float(part["ms"]) / 1000, int(part["count"])
        if not seconds or not count:
            continue
        names = ("tok_per_s", "tokens", "decode_seconds")
        if part["prompt"]:
            names = ("prompt_tok_per_s", "prompt_tokens", "prompt_seconds")
        found |= dict(zip(names, (count / seconds, count, seconds), strict=True))
    if load := _LOAD.search(said):
        found["load_seconds"] = float(load[1]) / 1000
    if "tok_per_s" not in found and (bracket := _BRACKET.search(said)):
        found |= {"prompt_tok_per_s": float(bracket[1]), "tok_per_s": float(bracket[2])}
    return Timings(**found)
