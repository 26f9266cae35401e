"""``diskmoe bench peer llama.cpp``: another program on the same weights, in one table with ours.

The rule of this file: the two take turns under the same limits, and what the peer does not tell is
absent, never zero.
"""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from diskmoe.bench.arms import FREE, Laptop, laptop_of, rungs_of, shown_settings
from diskmoe.bench.comparing import as_json, compare
from diskmoe.bench.laptop import limits
from diskmoe.bench.llama_cpp import Peer
from diskmoe.bench.machine import machine_line, machine_of
from diskmoe.bench.match import OURS, THEIRS, Match, carry_out, kept_by
from diskmoe.bench.model_files import model_id
from diskmoe.bench.results import (
    EXPERIMENT_FILE,
    VERSION,
    Arm,
    Cache,
    Experiment,
    Limits,
    Prompt,
    Results,
)
from diskmoe.bench.session import refuse_another
from diskmoe.bench.words import Words, understood
from diskmoe.engine.cores import usable_cores
from diskmoe.engine.errors import BadModel, BadRequest
from diskmoe.engine.model.config import read_config
from diskmoe.engine.places import as_path
from diskmoe.engine.text.files import read_json_object
from diskmoe.experts.gguf_in import GgufCheckpoint

Say = Callable[[str], None]

USAGE = """\
usage: diskmoe bench peer llama.cpp --binary PATH --gguf FILE --model MODEL [options]

Runs a program of llama.cpp's and this one in turns (A B B A ...), each in a process of its own, on the
same weights with as many tokens and threads, and puts both into one table. What PATH is is seen from its
--help. llama-bench is fed token ids of its own choice, and so is 'diskmoe bench decode', which it is
compared with: use a synthetic model of uniform routing. llama-completion and llama-cli go on from a
text, greedily, and so does an ordinary run of ours.

  --binary PATH      llama-bench, llama-completion or llama-cli, or its name in PATH
  --gguf FILE        the weights as a GGUF; --model MODEL: the same, converted
  --tokens N         to decode (default 64)
  --prompt TEXT      what to go on from; for llama-bench a number of tokens (default 128)
  --repeat N         runs of each (default 3)
  --cache WORD       page cache before each run: drop (emptied of the files; the default), warm
                     (filled with them) or leave
  --laptop RAM,DISK  keep both to so many GiB, page cache included, and bytes a second of the disk,
                     like 2.5,500M: by a control group, or systemd; where neither can be had, only our
                     own settings keep to it, and that is said
  --rungs RAM_GB=N,N as --laptop, with these GiB in turn
  --peer-args WORDS  more words for the peer, like "--repack 0"
  --timeout SECONDS  for a run of either (default 600)
  --out DIR          keep the runs there, and go on with what is missing the next time
  --json             one JSON object, as of bench ab
  --markdown         the table as Markdown

Settings of a run are those of our arm: --cap, --ram-gb, --draft, ... (see diskmoe --help).
"""
FLAGS = {
    "--binary": True,
    "--gguf": True,
    "--tokens": True,
    "--prompt": True,
    "--repeat": True,
    "--cache": True,
    "--laptop": True,
    "--rungs": True,
    "--peer-args": True,
    "--timeout": True,
    "--out": True,
    "--markdown": False,
}
_SAME = ("layers", "hidden", "vocab", "experts", "top_k", "expert_width")
_TEXT = "The history of the lighthouse begins with"
_DECIDED = ("MODEL", "THREADS", "CTX", "NGEN", "TEMP", "CHAT", "IGNORE_EOS")  # for both alike
SETTINGS = (*FREE, "JSON", "DEBUG", "VERBOSE")
_CACHES: Mapping[str, Cache] = {"drop": "dropped", "warm": "warm", "leave": "as found"}
_SPARE = 64  # positions of both caches beyond the tokens, and at least


def command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """Runs ``bench peer``; returns the exit code."""
    line = understood("peer", words, env, FLAGS, SETTINGS)
    match = _match(line)
    rungs = _rungs(line)
    with ExitStack() as stack:
        if "--out" in line.flags:
            place = as_path(line.flags["--out"])
        else:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="diskmoe-peer-")))
        results = _results(line, match, words, rungs, place)
        say(f"machine   {machine_line(results.experiment.machine)}")
        say(f"peer      {match.peer.name} {match.peer.version}: {shlex.join(match.theirs())}")
        carry_out(match, list(rungs.values()), results, say)
    return _told(results, line, say)


def _rungs(line: Words) -> dict[str, Laptop]:
    """The limits of each rung, by its name; one of no name where none are asked for."""
    laptop = laptop_of(line.flags["--laptop"]) if "--laptop" in line.flags else Laptop(None, None)
    if "--rungs" not in line.flags:
        return {"": laptop}
    if laptop.ram_bytes:
        raise BadRequest("memory is in --rungs and in --laptop: say --laptop 0,DISK")
    found = {}
    for rung in rungs_of(line.flags["--rungs"]):
        if set(rung) != {"RAM_GB"}:
            raise BadRequest("--rungs of bench peer are of memory for both programs: RAM_GB=1,2,4")
        sized = laptop_of(f"{rung['RAM_GB']},0")
        found[shown_settings(rung)] = replace(laptop, ram_bytes=sized.ram_bytes)
    return found


def _match(line: Words) -> Match:
    if list(line.places) != [THEIRS]:
        raise BadRequest(
            f"bench peer takes the word {THEIRS}, the one peer it knows; see diskmoe bench peer -h"
        )
    for flag in ("--binary", "--gguf"):
        if flag not in line.flags:
            raise BadRequest(f"bench peer needs {flag}; see diskmoe bench peer --help")
    if not line.values["MODEL"].value:
        raise BadRequest(
            "bench peer needs --model, the weights of --gguf converted for this program"
        )
    gguf, model = as_path(line.flags["--gguf"]), as_path(line.values["MODEL"].value)
    _refuse_other_model(gguf, model)
    given = {
        name: setting
        for name, setting in line.values.items()
        if setting.source.startswith("flag") and name in FREE and name != "MODEL"
    }
    for name in ("TEMP", "CHAT", "IGNORE_EOS", "NGEN"):
        if name in given:
            instead = "use --tokens" if name == "NGEN" else "both programs are greedy, on raw text"
            raise BadRequest(f"bench peer decides {name} for both: {instead}")
    try:
        more = tuple(shlex.split(line.flags.get("--peer-args", "")))
    except ValueError as error:
        raise BadRequest(f"--peer-args: {error}") from None
    seconds = line.number("--timeout", 1, 1e6, 600)
    peer = Peer.of(line.flags["--binary"])
    tokens, prompt = line.whole("--tokens", 2, 1_000_000, 64), line.flags.get("--prompt", _TEXT)
    if peer.kind == "bench":
        prompt = line.whole("--prompt", 0, 1_000_000, 128)
        needed = prompt + tokens
    else:
        needed = len(prompt.encode()) + tokens  # a token is a byte or more
    context = line.values["CTX"].value or max(256, needed + _SPARE)
    return Match(
        peer,
        gguf,
        model,
        tokens,
        prompt,
        line.values["THREADS"].value or usable_cores()[0],
        context,
        {name: _as_text(setting.value) for name, setting in given.items() if name not in _DECIDED},
        more,
        seconds,
    )


def _as_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _refuse_other_model(gguf: Path, model: Path) -> None:
    """BadRequest where the sizes in the two headers disagree. Raises BadModel for no model."""
    ours = read_config(_config_json(model), str(model))
    theirs = read_config(GgufCheckpoint.open(gguf).config, str(gguf))
    for name in _SAME:
        here, there = getattr(ours, name), getattr(theirs, name)
        if here != there:
            raise BadRequest(
                f"{gguf} has {there} {name}, {model} has {here}: they are not the same weights; "
                "convert the one from the other"
            )


def _config_json(model: Path) -> dict[str, Any]:
    found = read_json_object(model / "config.json")
    if found is None:
        raise BadModel(f"{model}: no such model directory (looked for config.json in it)")
    return found


def _results(
    line: Words, match: Match, words: Sequence[str], rungs: Mapping[str, Laptop], place: Path
) -> Results:
    """The directory of results, new or that of the same command before."""
    peer = match.peer
    what = f"{peer.name} {' '.join(match.peer_args)}".strip()
    cache = _CACHES[line.one_of("--cache", tuple(_CACHES), "drop")]
    told = str(match.prompt) if peer.kind == "text" else f"{match.prompt} given token ids"
    smallest, limited = next(iter(rungs.values())), None
    if smallest != Laptop(None, None):
        with limits(smallest.ram_bytes, smallest.disk_bps, match.gguf) as box:
            ram_bytes = None if len(rungs) > 1 else smallest.ram_bytes
            how = kept_by(smallest, box) + ("; so at each rung" if len(rungs) > 1 else "")
            limited = Limits(ram_bytes, smallest.disk_bps, how)
    machine = machine_of(match.model)
    experiment = Experiment(
        version=VERSION,
        kind="peer",
        made=_now(),
        command=("bench", "peer", *words),
        model=match.model.resolve().name,
        model_id=model_id(match.model),
        suite="a text" if peer.kind == "text" else "given token ids",
        prompts=(Prompt("prompt", told, None),),
        arms=(Arm(OURS, OURS, shown_settings(match.settings)), Arm(THEIRS, THEIRS, what)),
        settings={"THREADS": str(match.threads), "tokens": str(match.tokens)},
        decided={},
        rungs=tuple(rungs),
        repeat=line.whole("--repeat", 1, 1000, 3),
        cache=cache,
        limits=limited,
        machine=replace(machine, versions={**machine.versions, THEIRS: peer.version}),
    )
    if not (place / EXPERIMENT_FILE).exists():
        return Results.create(place, experiment)
    found = Results.open(place)
    refuse_another(place, found.experiment, experiment)
    found.update(replace(found.experiment, repeat=experiment.repeat, command=experiment.command))
    return found


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _told(results: Results, line: Words, say: Say) -> int:
    texts = {run.arm: run.text for run in results.runs}
    ours, theirs = texts[OURS], texts[THEIRS]
    if ours is not None and theirs is not None:
        same = len(os.path.commonprefix([ours.strip(), theirs]))
        say(f"text      the first {same} of {len(theirs)} characters are the same")
    comparisons = compare(results)
    if line.values["JSON"].value:
        print(json.dumps(as_json(comparisons), ensure_ascii=False, allow_nan=False))
        return 0
    from diskmoe.bench.tables import markdown, show

    if "--markdown" in line.flags:
        print(markdown(results, comparisons))
    else:
        show(results, comparisons)
    return 0
