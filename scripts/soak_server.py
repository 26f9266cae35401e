"""Does `diskmoe serve` stay right and whole under clients that do everything wrong?

    python scripts/soak_server.py [--minutes 30] [--clients 8] [--model DIR] [--ram-gb 0.45] [--cap 3]

Starts the server with little memory, so that experts stream, and writes down what it answers to one
client. Then all clients at once mix the same questions with streams, conversations, aborts at any
moment, slow readers, half-open connections, bad JSON, wrong fields, schemas that are none, grammars
that are hard, prompts and bodies that are too long, and bytes that are no HTTP. Now and then all pause,
and memory, threads and files of the idle server are counted. At the end it is told to stop, in the
middle of answers: once by SIGTERM, and a second one by SIGINT.

One line per bar with its figure; exit code 1 where one fails. Needs jsonschema and Linux' /proc.
"""

from __future__ import annotations

import argparse
import atexit
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from soak_asks import known_asks
from soak_clients import SECONDS, Client, Known, Tally

MOST_BYTES = 300_000  # of a body
ALIVE_SECONDS = 6  # an idle connection is closed within it
END_SECONDS = 5.0
WARM_SHARE = 0.25  # of the time, before what is counted is held against what is counted later
RISE_BYTES = 16 << 20  # of memory, from the warm server to the end: more is a leak


@dataclass(frozen=True)
class Count:
    """What an idle server holds."""

    seconds: float
    rss: int
    threads: int
    files: int


class Served:
    """A server, its address, and what it says."""

    def __init__(self, words: Sequence[str]) -> None:
        command = [sys.executable, "-m", "diskmoe.engine", "serve", *words]
        self.process = subprocess.Popen(command, text=True, stderr=subprocess.PIPE)
        self.said: list[str] = []
        self.address = ""
        self._ready = threading.Event()
        atexit.register(self.process.kill)
        threading.Thread(target=self._listen, daemon=True).start()
        if not self._ready.wait(120) or not self.address:
            raise SystemExit("the server does not start: " + "".join(self.said[-3:]))

    def _listen(self) -> None:
        for line in self.process.stderr or ():
            self.said.append(line)
            found = re.match(r"serving   (http://\S+)/v1", line)
            if found:
                self.address = found[1]
                self._ready.set()
        self._ready.set()

    @property
    def _proc(self) -> Path:
        return Path(f"/proc/{self.process.pid}")

    def count(self, began: float) -> Count:
        status = dict(
            line.split(":", 1) for line in (self._proc / "status").read_text().splitlines()
        )
        return Count(
            time.monotonic() - began,
            int(status["VmRSS"].split()[0]) << 10,
            int(status["Threads"]),
            len(list((self._proc / "fd").iterdir())),
        )

    def end(self, number: signal.Signals) -> tuple[int | None, float]:
        """(exit code, seconds it took); None: it had to be killed."""
        began = time.monotonic()
        self.process.send_signal(number)
        try:
            code = self.process.wait(END_SECONDS * 4)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = None
        return code, time.monotonic() - began


class Soak:
    """Clients that go on until they are told to stop, and what their server holds meanwhile."""

    def __init__(self, server: Served, known: Known, clients: int, seed: int) -> None:
        self.server = server
        self.tally = Tally()
        self.counts: list[Count] = []
        self.peak = 0
        self._began = time.monotonic()
        self._may_act, self._over = threading.Event(), threading.Event()
        self._may_act.set()
        self._clients = [
            Client(
                server.address, known, self.tally, seed + n, MOST_BYTES, self._may_act, self._over
            )
            for n in range(clients)
        ]
        for client in self._clients:
            client.start()

    def go_on(self, seconds: float, between: float) -> None:
        """Lets them act, and counts while all pause, every so many seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.server.process.poll() is None:
            pause = min(end, time.monotonic() + between)
            while time.monotonic() < pause:
                time.sleep(0.25)
                self.peak = max(self.peak, self.server.count(self._began).rss)
            self._count_idle()

    def _count_idle(self) -> None:
        self._may_act.clear()
        for client in self._clients:
            client.idle.wait(SECONDS)
        with httpx.Client(base_url=self.server.address, timeout=SECONDS) as http:
            limit = time.monotonic() + SECONDS
            while any(http.get("/health").json()[key] for key in ("running", "waiting")):
                if time.monotonic() > limit:
                    self.tally.fault("lost", "the server does not become idle")
                    break
                time.sleep(0.2)
        time.sleep(ALIVE_SECONDS)
        found = self.server.count(self._began)
        self.counts.append(found)
        done = sum(self.tally.done.values())
        print(
            f"# {found.seconds:5.0f} s: {found.rss / 2**20:.1f} MiB, {found.threads} threads, "
            f"{found.files} files, {done} done, {sum(self.tally.wrong.values())} faults",
            flush=True,
        )
        self._may_act.set()

    def stop(self, number: signal.Signals) -> tuple[int | None, float]:
        """Ends the server under its clients, then these."""
        self._over.set()
        ended = self.server.end(number)
        for client in self._clients:
            client.join(10)
        return ended


def verdicts(soak: Soak, budget: int) -> list[tuple[str, str, bool]]:
    """(bar, figure, held?) of a soak."""
    wrong, done = soak.tally.wrong, soak.tally.done
    warm = [found for found in soak.counts if found.seconds >= WARM_SHARE * soak.counts[-1].seconds]
    half = max(1, len(warm) // 2)
    early, late = (min(c.rss for c in part) for part in (warm[:half], warm[-half:]))
    threads, files = {c.threads for c in warm}, {c.files for c in warm}
    said = "".join(soak.server.said)
    traces = len(re.findall(r"Traceback|^\s+File \"|error: ", said, re.MULTILINE))
    peak = max(soak.peak, *(found.rss for found in soak.counts))
    mib = 2**20
    zero = (
        ("answer", "answers that differ from a single client's", f" of {done['answers']}"),
        ("schema", "answers that break their schema", ""),
        ("500", "internal errors (500)", ""),
        ("form", "refusals in another form", f" of {done['refusals']}"),
        ("accepted", "bad requests that were accepted", f" of {done['refused']}"),
        ("lost", "answers that were lost", ""),
    )
    bars = [(name, f"{wrong[kind]}{of}", not wrong[kind]) for kind, name, of in zero]
    bars.append(("lines of errors on stderr", f"{traces}", not traces))
    figure = f"{peak / mib:.1f} of {budget / mib:.1f} MiB"
    bars.append(("memory at its peak, of the budget", figure, peak <= budget))
    span = warm[-1].seconds - warm[0].seconds
    figure = f"{(late - early) / mib:+.1f} MiB in {span:.0f} s"
    bars.append(("rise of memory, idle", figure, late - early <= RISE_BYTES))
    bars.append(("threads, idle", f"{sorted(threads)}", len(threads) == 1))
    bars.append(("files, idle", f"{sorted(files)}", len(files) == 1))
    return bars


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--model", help="a model's directory; else the demo model")
    parser.add_argument("--ram-gb", default="0.45")
    parser.add_argument("--cap", default="3", help="experts of a layer in memory")
    parser.add_argument("--ctx", default="1024")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    words = [args.model] if args.model else []
    words += ["--ram-gb", args.ram_gb, "--cap", args.cap, "--ctx", args.ctx, "--parallel", "2"]
    words += ["--queue", "4", "--port", "0", "--body-bytes", str(MOST_BYTES)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before its time"))
    server = Served(words)
    known = Known(known_asks())
    with httpx.Client(base_url=server.address, timeout=SECONDS) as http:
        known.record(http)
        budget = int(
            float(
                re.findall(r"^diskmoe_budget_bytes (\S+)", http.get("/metrics").text, re.MULTILINE)[
                    0
                ]
            )
        )
    print(f"# {len(known.answers)} answers to one client are known", flush=True)
    soak = Soak(server, known, args.clients, args.seed * 1000)
    seconds = 60 * args.minutes
    soak.go_on(seconds, max(10.0, min(60.0, seconds / 12)))
    terminated = soak.stop(signal.SIGTERM)
    second = Soak(Served(words), known, args.clients, args.seed * 2000)
    time.sleep(5)
    interrupted = second.stop(signal.SIGINT)
    bars = verdicts(soak, budget)
    for name, (code, took), wanted in (
        ("end at SIGTERM", terminated, 0),
        ("end at SIGINT", interrupted, 130),
    ):
        held = code == wanted and took <= END_SECONDS
        bars.append((name, f"code {code} after {took:.2f} s", held))
    print(f"# done: {dict(sorted(soak.tally.done.items()))}")
    for name, figure, held in bars:
        print(f"{'ok  ' if held else 'FAIL'} {name}: {figure}")
    return 0 if all(held for *_, held in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
