"""``diskmoe bench serve``: what the server costs beside the command line, and what it gains by texts
that share forwards; three ratios, each with a bar, and two figures more."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from diskmoe.bench.words import Words, understood
from diskmoe.engine.errors import BadModel, BadRequest
from diskmoe.engine.places import as_path

if TYPE_CHECKING:
    from diskmoe.bench.serve_parts import Part, Work
    from diskmoe.engine.text.side import TextSide

Say = Callable[[str], None]

USAGE = """\
usage: diskmoe bench serve [MODEL] [options]      without MODEL: the demo model

Starts servers of a model, asks them over loopback as clients do, streamed, and says three ratios, each
with its interval at 99 % and with the bar that it must hold:

  overhead   tokens per second of a client / of the command line, a fresh process each, greedy, with
             no drafts unless --ngram or --mtp say so: at least 0.97
  prefix     first token of a turn whose history is cached / of a bare prompt of as many new tokens:
             at most 1.2
  union      tokens per second of two clients with the same text / of one, where experts come from a
             slow disk: at least 1.3; beside it two clients with texts of their own
  gap        the longest silence of a stream while another client's long prompt is read

The two sides of each take turns (A B B A) in one run. The page cache is warm, the hot store as the
server's earlier answers left it, but in overhead: there both sides begin with an empty one.

  --parts LIST       of overhead, prefix, union, gap (default: all)
  --tokens N         of an answer (default 96)
  --pairs N          of each part (default 6)
  --history N        tokens of the history, and of the long prompt, about (default 512)
  --slots N          hot-store slots per layer in union (default: the experts of a token)
  --disk BPS         bytes a second of the disk in union, 0 for as fast as it is (default 100M)
  --json             one JSON object, with every pair

Settings of a run that apply to all servers: --threads, --cap, --ctx, --ram-gb, --policy, ...
"""
FLAGS = {
    "--parts": True,
    "--tokens": True,
    "--pairs": True,
    "--history": True,
    "--slots": True,
    "--disk": True,
}
_RUN = (
    "CTX",
    "KV",
    "RAM_GB",
    "CAP",
    "POLICY",
    "THREADS",
    "IO_THREADS",
    "DIRECT",
    "DISK_BPS",
    "VERIFY",
    "PREFILL_CHUNK",
    "PREFETCH",
    "EXPERT_BITS",
    "DENSE_BITS",
    "MTP",
    "NGRAM",
    "DRAFT",
    "GUARD",
    "CACHE_DIR",
)
SETTINGS = ("MODEL", *_RUN, "JSON", "DEBUG", "VERBOSE")
PARTS = ("overhead", "prefix", "union", "gap")
_PROMPT = "The history of the lighthouse begins with a fire on a hill, and"
_OTHER = "A loaf of bread wants four things and a night of patience:"
_TEXT = Path(__file__).parent / "texts" / "answers.txt"
_SPARE = 256  # positions beyond what the longest text needs, about


def command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """Runs ``bench serve``; returns the exit code: 0 whatever the ratios, 1 where texts differ."""
    line = understood("serve", words, env, FLAGS, SETTINGS)
    parts = line.several("--parts", PARTS, PARTS)
    work = _work(line, say)
    from diskmoe.bench.machine import machine_line, machine_of
    from diskmoe.bench.served import ended_in_order

    machine = machine_line(machine_of(work.model))
    say(f"machine   {machine}")
    with ended_in_order():
        found = _measured(work, parts, say)
    if line.values["JSON"].value:
        told: dict[str, Any] = {
            "model": work.model.name,
            "machine": machine,
            "flags": list(work.flags),
            "tokens": work.tokens,
            "parts": [part.as_json() for part in found],
        }
        print(json.dumps(told, allow_nan=False))
    else:
        print("\n".join(_table(found)))
    return 1 if any("DIFFER" in note for part in found for note in part.notes) else 0


def _work(line: Words, say: Say) -> Work:
    from diskmoe.bench.serve_parts import Work
    from diskmoe.engine.model.config import read_config
    from diskmoe.engine.opening import model_path
    from diskmoe.engine.settings import BY_NAME
    from diskmoe.engine.text.files import read_json_object
    from diskmoe.engine.text.side import TextSide

    if len(line.places) > 1:
        raise BadRequest("bench serve takes one MODEL; see diskmoe bench serve --help")
    path = as_path(line.places[0]) if line.places else model_path(line.values, say)
    raw = read_json_object(path / "config.json")
    if raw is None:
        raise BadModel(f"{path}: no such model directory (looked for config.json in it)")
    config = read_config(raw, str(path))
    text = TextSide.load(path, raw, config.vocab)
    tokens, history = line.whole("--tokens", 8, 4096, 96), line.whole("--history", 16, 100_000, 512)
    given = {
        name: line.values[name] for name in _RUN if line.values[name].source.startswith("flag")
    }
    flags = {name: _as_text(setting.value) for name, setting in given.items()}
    context = min(2 * history + 4 * tokens + _SPARE, config.context)
    flags = {"MODEL": str(path), "CTX": str(context), "MTP": "0", "NGRAM": "0", **flags}
    try:
        disk = BY_NAME["DISK_BPS"].parse(line.flags.get("--disk", "100M"))
    except ValueError as error:
        raise BadRequest(f"--disk is {line.flags['--disk'][:60]!r}; it must be {error}") from None
    ids = _ids(text, raw, config.vocab)
    known = text.tokenizer is not None
    return Work(
        model=path,
        flags=[f"{BY_NAME[name].flag}={value}" for name, value in flags.items()],
        prompt=_PROMPT if known else ids(16, 1),
        other=_OTHER if known else ids(16, 2),
        ids=ids,
        chat=text.template is not None,
        tokens=tokens,
        pairs=line.whole("--pairs", 1, 1000, 6),
        history=history,
        slots=line.whole("--slots", 1, 100_000, max(1, config.top_k)),
        disk_bps=disk,
    )


def _ids(text: TextSide, raw: Mapping[str, Any], vocab: int) -> Callable[[int, int], list[int]]:
    """Makes so many token ids: of a text where there is a tokenizer, else of the benchmark's own. The
    first tells the number, so that no prompt goes on from another's."""
    from diskmoe.bench.decode import token_ids

    def ids(count: int, number: int) -> list[int]:
        if text.tokenizer is None:
            return token_ids(raw, vocab, 977 * number, count)
        known = text.encode_prompt(_TEXT.read_text(encoding="utf-8"), chat="0").ids
        begin = 97 * number % len(known)
        turned = [*known[begin:], *known[:begin]] * (1 + count // len(known))
        return [(1000 + number) % vocab, *turned[: count - 1]]

    return ids


def _as_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _measured(work: Work, parts: Sequence[str], say: Say) -> Sequence[Part]:
    from diskmoe.bench import serve_parts
    from diskmoe.bench.laptop import limits
    from diskmoe.bench.launch import Launcher
    from diskmoe.bench.model_files import weight_files

    found: list[Part] = []
    if "overhead" in parts:
        with (
            limits(None, None, work.model) as box,
            TemporaryDirectory(prefix="diskmoe-bench-") as empty,
        ):
            launcher = Launcher(box, Path(empty) / "usage", weight_files(work.model), "warm")
            found.append(serve_parts.overhead(work, launcher, say))
    if "prefix" in parts:
        found.append(serve_parts.prefix(work, say))
    if "union" in parts:
        found += serve_parts.union(work, say)
    if "gap" in parts and not isinstance(work.prompt, str):
        say("note      gap is left out: without a tokenizer a stream has no pieces")
    elif "gap" in parts:
        found += serve_parts.gap(work, say)
    return found


def _table(parts: Sequence[Part]) -> list[str]:
    lines = [["part", "what", "first", "second", "ratio", "99 % interval", "bar", "outcome"]]
    lines.append(["---"] * len(lines[0]))
    for part in parts:
        first, second = part.medians()
        ratio = part.ratio
        span = ratio.interval
        lines.append(
            [
                part.name,
                part.what,
                f"{first:.3g} {part.unit}",
                f"{second:.3g} {part.unit}",
                f"{ratio.value:.3f}",
                "-" if span is None else f"{span[0]:.3f} to {span[1]:.3f}",
                "-" if part.bar is None else str(part.bar),
                "-" if part.bar is None else part.bar.verdict(ratio),
            ]
        )
    table = ["| " + " | ".join(fields) + " |" for fields in lines]
    return [*table, *(f"{part.name}: {note}" for part in parts for note in part.notes)]
