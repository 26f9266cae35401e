"""``diskmoe bench ab``: settings beside each other, in turns, each run a process of its own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from diskmoe.bench import suites
from diskmoe.bench.arms import FREE, arm_settings, laptop_of, refuse_twice, rungs_of
from diskmoe.bench.comparing import as_json, compare
from diskmoe.bench.model_files import weight_files
from diskmoe.bench.results import Cache, Prompt, Results
from diskmoe.bench.session import Plan, Session
from diskmoe.bench.tables import markdown, show
from diskmoe.bench.words import Words, understood
from diskmoe.engine.arguments import split_words
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.places import as_path, state_dir
from diskmoe.engine.setting_sources import Value

Say = Callable[[str], None]

USAGE = """\
usage: diskmoe bench ab --suite NAME|--prompts FILE --a "" --b "GRAMMAR=fit.gbnf" [options]

Runs a model with each arm's settings, in turns (A B B A ...), each run a process of its own, and
says whether one of the arms is faster, and how sure that is. The runs of a pair stand next to each
other, so what disturbs the machine disturbs both. Token ids are compared: arms that differ in them
are told so, and no speed makes up for it.

  --suite NAME       prompts of ours: ndjson, chat, code or prose
  --prompts FILE     prompts of yours: a text file with one a line, or JSONL with "prompt" (and
                     "name", "density")
  --a SETTINGS       the first arm: "NAME=value NAME=value", or "" for the common settings alone
  --b SETTINGS       what is compared with it; --b2 to --b9: further arms
  --rungs SETTING    a setting to be tried with several values, all arms at each: CAP=4,8,16
  --repeat N         pairs of runs of each prompt (default 5)
  --cache WORD       page cache before each run: drop (emptied of the model's files; the default),
                     warm (filled with them) or leave
  --laptop RAM,DISK  a smaller machine for all arms, GiB and bytes a second: 8,500M
  --out DIR          keeps every run there; the same command again goes on where it ended
  --strict           refuses a busy machine (exit code 2)
  --json             one JSON object: arms, ratio, interval, same_ids, verdict, ...
  --markdown         the table as Markdown

Any other setting of a run (see diskmoe --help) holds for all arms: --model DIR (without: the demo
model), --ngen (here 64 if not given), --cap, --ram-gb, --temp, ... Memory is decided once, by the
first run, and is the same for all. A run learns nothing: each has a copy of the usage history as it
was at the beginning.
"""
MOST_ARMS = 9
FLAGS = {
    "--suite": True,
    "--prompts": True,
    "--a": True,
    "--b": True,
    **{f"--b{number}": True for number in range(2, MOST_ARMS + 1)},
    "--rungs": True,
    "--repeat": True,
    "--cache": True,
    "--laptop": True,
    "--out": True,
    "--strict": False,
    "--markdown": False,
}
SETTINGS = (*FREE, "JSON", "STATE_DIR", "DEBUG", "VERBOSE")
_CACHES: Mapping[str, Cache] = {"drop": "dropped", "warm": "warm", "leave": "as found"}
_DEFAULTS = {"NGEN": "64", "SEED": "1"}


def command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """Runs ``bench ab``; returns the exit code: 0 whatever the verdict, 130 after Ctrl-C."""
    line = understood("ab", words, env, FLAGS, SETTINGS)
    folder = line.flags.get("--out")
    if folder == "":
        raise BadRequest("--out is empty; it must be a directory, an old or a new one")
    plan = _plan(line, words, env, say)
    with ExitStack() as stack:
        if folder is None:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="diskmoe-ab-")))
        else:
            place = as_path(folder)
        session = Session.begin(plan, place, stack, say, "--strict" in line.flags)
        try:
            session.finish(say)
        except KeyboardInterrupt:
            kept = f"kept in {place}: the same command goes on" if folder else "told, none is kept"
            say(f"ab        interrupted: {session.progress} runs are {kept}")
            if any(comparison.pairs for comparison in compare(session.results)):
                _tell(session.results, line)
            return 130
        _tell(session.results, line)
    return 0


def _tell(results: Results, line: Words) -> None:
    comparisons = compare(results)
    if line.values["JSON"].value:
        print(json.dumps(as_json(comparisons), allow_nan=False), flush=True)
    elif "--markdown" in line.flags:
        print(markdown(results, comparisons), flush=True)
    else:
        show(results, comparisons)


def _plan(line: Words, words: Sequence[str], env: Mapping[str, str], say: Say) -> Plan:
    """What the command line asks for. BadRequest, in one line, for what cannot be."""
    from diskmoe.engine.opening import model_path

    if line.places:
        raise BadRequest(
            f"bench ab takes no argument, and got {line.places[0][:60]!r}; the model stands behind "
            "--model, see diskmoe bench ab --help"
        )
    prompts, suite, made_for = _prompts(line)
    arms = {
        flag[2:]: arm_settings(line.flags[flag], flag)
        for flag in ("--a", "--b", *(f"--b{n}" for n in range(2, MOST_ARMS + 1)))
        if flag in line.flags
    }
    for name in ("a", "b"):
        if name not in arms:
            raise BadRequest(f'bench ab needs --{name}: settings, or "" for none')
    common = _given(words, env, line.values)
    laptop = laptop_of(line.flags["--laptop"]) if "--laptop" in line.flags else None
    rungs = rungs_of(line.flags.get("--rungs", ""))
    refuse_twice(arms, rungs, common, laptop)
    model = model_path(line.values, say)
    if not weight_files(model):
        raise BadRequest(f"{model}: no model there")
    return Plan(
        model=model,
        suite=suite,
        prompts=prompts,
        arms=arms,
        rungs=rungs,
        common={**_DEFAULTS, **made_for, **common, "MODEL": str(model)},
        repeat=line.whole("--repeat", 1, 1000, 5),
        cache=_CACHES[line.one_of("--cache", tuple(_CACHES), "drop")],
        laptop=laptop,
        usage=_usage(line),
        words=("bench", "ab", *words),
    )


def _usage(line: Words) -> Path | None:
    """Where the user's runs are learned from; None for a user without such a place."""
    try:
        return state_dir(line.values["STATE_DIR"].value) / "usage"
    except BadRequest:
        return None


def _prompts(line: Words) -> tuple[list[Prompt], str, dict[str, str]]:
    """(prompts, the name of where they are from, settings that they are made for)."""
    path, name = line.flags.get("--prompts"), line.flags.get("--suite")
    if (path is None) == (name is None):
        raise BadRequest(
            f"bench ab needs --suite ({', '.join(suites.SUITES)}) or --prompts FILE, and one only"
        )
    if name is not None:
        name = line.one_of("--suite", suites.SUITES, "")
        prompts, settings = suites.suite(name)
        return prompts, name, settings
    place = as_path(path or "")
    return suites.prompts_in(place), place.name, {}


def _given(
    words: Sequence[str], env: Mapping[str, str], values: Mapping[str, Value]
) -> dict[str, str]:
    """The settings of a run that the command line and the environment give, as text."""
    texts, _, _ = split_words(words, FLAGS)
    found = {}
    for name in FREE:
        kind, _, rest = values[name].source.partition(" ")
        if kind in ("flag", "env"):
            found[name] = texts[name] if kind == "flag" else env[rest]
    return found
