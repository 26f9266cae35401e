"""Can `diskmoe bench ab` be believed on this machine? The same arm twice, and planted differences.

    python scripts/ab_bars.py OUT [--model DIR] [--same 20] [--slower 10] [--repeat 5] [--tokens 96]

Four bars, each with its figure on stdout; exit code 1 where one fails:
  same     an arm beside itself: "no difference" in 19 of 20 experiments
  slower   an arm that makes 10 % less tokens a second (scripts/slowed_run.py): found in 9 of 10
  outputs  an arm that samples: "outputs differ"
  resumes  an experiment that is killed goes on with the runs it has
Everything is kept in OUT, and the same command goes on where it was ended. An experiment is 5 prompts
x `--repeat` pairs of runs, 2 to 4 s each on two cores: with the default numbers nearly two hours.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from diskmoe.bench import suites
from diskmoe.bench.comparing import Comparison, compare
from diskmoe.bench.results import Results
from diskmoe.bench.session import Plan, Session
from diskmoe.bench.tables import verdict_lines
from diskmoe.engine.places import demo_dir

SLOWED = Path(__file__).with_name("slowed_run.py")
SHARE = 0.1
_COMMON = {"SEED": "1", "CHAT": "0", "NGRAM": "0", "MTP": "0"}  # plain decoding: nothing is planned


def quiet(line: str) -> None:
    """Progress of single runs is not wanted here."""


def experiment(
    folder: Path,
    given: argparse.Namespace,
    b: Mapping[str, str],
    programs: Mapping[str, Sequence[str]],
    repeat: int,
) -> Comparison:
    """Arm a with the common settings beside arm b; goes on where it was ended."""
    prompts, _ = suites.suite("prose")
    plan = Plan(
        model=given.model,
        suite="prose",
        prompts=prompts,
        arms={"a": {}, "b": b},
        rungs=[{}],
        common={**_COMMON, "NGEN": str(given.tokens), "MODEL": str(given.model)},
        repeat=repeat,
        cache="warm",
        programs=programs,
    )
    with ExitStack() as stack:
        session = Session.begin(plan, folder, stack, quiet, strict=False)
        session.finish(quiet)
        (found,) = compare(session.results)
    print(f"{folder.name}  {verdict_lines(found)[0]}", flush=True)
    return found


def counted(
    name: str,
    times: int,
    wanted: str,
    given: argparse.Namespace,
    programs: Mapping[str, Sequence[str]],
) -> int:
    """In how many of the experiments the verdict is the one that is wanted."""
    verdicts = [
        experiment(given.out / f"{name}{i:02}", given, {}, programs, given.repeat).verdict
        for i in range(times)
    ]
    return verdicts.count(wanted)


def resumes(given: argparse.Namespace) -> bool:
    """Kills a benchmark after its third run, and starts it again."""
    out = given.out / "killed"
    command = [sys.executable, "-m", "diskmoe.engine", "bench", "ab", "--model", str(given.model)]
    command += ["--suite", "chat", "--a", "", "--b", "NGRAM=0", "--repeat", "1", "--ngen", "8"]
    command += ["--out", str(out)]
    first = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert first.stderr is not None
    for line in first.stderr:
        if line.startswith("run       3 of"):
            os.kill(first.pid, signal.SIGKILL)
    first.wait()
    kept = {path: path.stat().st_mtime_ns for path in out.glob("run-*.json")}
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    same = all(path.stat().st_mtime_ns == at for path, at in kept.items())
    runs = len(Results.open(out).runs)
    print(f"killed after {len(kept)} runs; then {runs} of 12, the first ones as they were: {same}")
    return again.returncode == 0 and same and len(kept) >= 3 and runs == 12


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--same", type=int, default=20)
    parser.add_argument("--slower", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    given = parser.parse_args()
    given.model = given.model or demo_dir()
    slowed = {"b": (sys.executable, str(SLOWED), str(SHARE))}
    bars: list[tuple[str, bool]] = []
    sampled = experiment(given.out / "outputs", given, {"TEMP": "1.5"}, {}, 1).verdict
    bars.append((f"outputs: {sampled}", sampled == "outputs differ"))
    bars.append(("resumes", resumes(given)))
    same = counted("same", given.same, "no difference", given, {})
    bars.append((f"same: no difference in {same} of {given.same}", same >= 0.95 * given.same))
    slower = counted("slower", given.slower, "a faster", given, slowed)
    bars.append((f"slower: found in {slower} of {given.slower}", slower >= 0.9 * given.slower))
    for told, stands in bars:
        print(f"{'stands' if stands else 'FAILS '}  {told}")
    return 0 if all(stands for _, stands in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
