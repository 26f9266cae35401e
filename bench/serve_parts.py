"""What ``diskmoe bench serve`` measures: each part is pairs of figures that stood side by side in time.

The rule of this file: the two sides of a pair take turns (A B B A), do the same work, and are measured
between the same two moments of an answer.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

from diskmoe.bench.launch import ENGINE, Launcher, RunFailed
from diskmoe.bench.ratios import Ratio, paired_ratio
from diskmoe.bench.served import Answer, Server, served

Say = Callable[[str], None]
Content = str | list[int]  # a prompt: text, or token ids where a model has no tokenizer
Body = Mapping[str, Any]  # of a request
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True)
class Bar:
    """What a ratio must be."""

    ratio: float
    side: Literal["least", "most"]

    def verdict(self, found: Ratio) -> str:
        """`holds` or `misses`, by the ratio; `unsure` where its interval has the bar inside."""
        low, high = found.interval or (0.0, float("inf"))
        holds = found.value >= self.ratio if self.side == "least" else found.value <= self.ratio
        word = "holds" if holds else "misses"
        return f"{word}, unsure" if low < self.ratio < high else word

    def __str__(self) -> str:
        return f"{'>=' if self.side == 'least' else '<='} {self.ratio:g}"


@dataclass
class Part:
    """Two things beside each other. The ratio is of the second to the first."""

    name: str
    what: str
    sides: tuple[str, str]
    unit: str
    bar: Bar | None = None  # None: told, and nothing is asked of it
    pairs: list[tuple[float, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> Ratio:
        return paired_ratio([math.log(after / before) for before, after in self.pairs])

    def medians(self) -> tuple[float, float]:
        first, second = zip(*self.pairs, strict=True)
        return median(first), median(second)

    def as_json(self) -> dict[str, Any]:
        ratio = self.ratio
        return {
            "name": self.name,
            "what": self.what,
            "sides": list(self.sides),
            "unit": self.unit,
            "medians": list(self.medians()),
            "ratio": ratio.value,
            "interval": ratio.interval,
            "bar": None if self.bar is None else str(self.bar),
            "verdict": None if self.bar is None else self.bar.verdict(ratio),
            "pairs": self.pairs,
            "notes": self.notes,
        }


@dataclass(frozen=True)
class Work:
    """What is asked, and of what.

    flags: of the server and the command line alike. prompt, other: two different texts to go on
    from. ids: makes so many token ids, others for each number. chat: the model has a template.
    slots, disk_bps: of the part that reads experts.
    """

    model: Path
    flags: Sequence[str]
    prompt: Content
    other: Content
    ids: Callable[[int, int], list[int]]
    chat: bool
    tokens: int
    pairs: int
    history: int
    slots: int
    disk_bps: int | None

    def body(self, prompt: Content, tokens: int | None = None) -> dict[str, Any]:
        return {"prompt": prompt, "max_tokens": tokens or self.tokens, "temperature": 0}


def overhead(work: Work, launcher: Launcher, say: Say) -> Part:
    """Tokens per second of the command line, and what a client gets of a server: a process each,
    with the same prompt and settings, both with nothing in the hot store."""
    part = Part(
        "overhead",
        "decode, command line -> server, a client reading each piece",
        ("command line", "server"),
        "tok/s",
        Bar(0.97, "least"),
    )
    given = work.prompt
    flags = [f"--ngen={work.tokens}", "--temp=0", "--chat=0", *work.flags]
    if not isinstance(given, str):
        flags.append("--prompt-ids=" + ",".join(map(str, given)))
    own, texts = [], set[str]()
    for turn in _turns(work.pairs):
        found = {}
        for side in turn:
            if side == 0:
                text = given if isinstance(given, str) else ""
                report = launcher.run(ENGINE, flags, text, "the command line").report
                found[side] = _after_first(report)
                texts.add(report["text"] or "")
            else:
                with served(work.flags, _silent) as server:
                    answer = server.stream(COMPLETIONS, work.body(given))
                found[side] = answer.tok_per_s
                own.append(answer.told["tok_per_s"])
                texts.add(answer.text)
        _add(part, found, say)
    part.notes.append(f"the server's own figure is {median(own):.2f} tok/s")
    if len(texts) > 1:
        part.notes.append("the texts DIFFER")
    return part


def prefix(work: Work, say: Say) -> Part:
    """The first token of a turn that goes on from a longer history, and of a prompt of as many new
    tokens alone, on one server."""
    part = Part(
        "prefix",
        "first token, bare prompt of as many new tokens -> turn with a cached history",
        ("bare", "turn"),
        "s",
        Bar(1.2, "most"),
    )
    sizes = []
    with served(work.flags, say) as server:
        for number, turn in enumerate(_turns(work.pairs + 1)):
            following = _history(server, work, number)
            found: dict[int, float] = {}
            new = following.new
            for side in turn:
                if side == 0:
                    body = work.body(work.ids(new, 2 * number + 1), 1)
                    answer = server.stream(COMPLETIONS, body)
                else:
                    answer = server.stream(following.path, following.body)
                    counted = answer.usage
                    reused = counted["prompt_tokens_details"]["cached_tokens"]
                    if counted["prompt_tokens"] - reused != new:
                        raise RunFailed(
                            f"a turn reused {reused} of {counted['prompt_tokens']} tokens; {new} new "
                            "ones were expected"
                        )
                    sizes.append((reused, new))
                found[side] = answer.first_seconds
            if number:  # the first is a warm-up: programs are made for so many rows
                _add(part, found, say)
    part.notes.append(
        f"{median(reused for reused, _ in sizes):.0f} tokens of history, "
        f"{median(new for _, new in sizes):.0f} new"
    )
    return part


@dataclass(frozen=True)
class _Following:
    path: str
    body: Body
    new: int  # tokens that are not of the history


def _history(server: Server, work: Work, number: int) -> _Following:
    """A first turn is answered; the second one, and how many tokens of it are new."""
    # every conversation begins in its own way, so that none goes on from another's
    if work.chat:
        said = f"{number + 1}. {work.prompt} "
        said *= max(1, 4 * work.history // len(said))  # four characters a token, about
        asked = [{"role": "user", "content": said}]
        first = {"messages": asked, "max_tokens": 8, "temperature": 0}
        answer = server.stream(CHAT, first)
        turns = [
            *asked,
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": f"{work.other} {work.other} Go on from there."},
        ]
        body = {"messages": turns, "max_tokens": 1, "temperature": 0}
        # asked once to count: what it leaves is taken back by the first turn, asked again
        usage = server.stream(CHAT, body).usage
        new = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        server.stream(CHAT, first)
        return _Following(CHAT, body, new)
    ids = work.ids(work.history + 64, 2 * number)
    server.stream(COMPLETIONS, work.body(ids[: work.history], 1))
    return _Following(COMPLETIONS, work.body(ids, 1), len(ids) - work.history)


def union(work: Work, say: Say) -> list[Part]:
    """Tokens per second of one client, of two with the same text, of two with texts of their own, on
    a server that reads its experts from a slow disk."""
    flags = [flag for flag in work.flags if not flag.startswith(("--cap=", "--disk-bps="))]
    flags.append(f"--cap={work.slots}")
    if work.disk_bps is not None:
        flags.append(f"--disk-bps={work.disk_bps}")
    one, two = (f"{work.slots} slots a layer, one client", "two")
    equal = Part("union", f"{one} -> {two} with the same text", ("one", "two"), "tok/s")
    equal.bar = Bar(1.3, "least")
    unlike = Part("union", f"{one} -> {two} with texts of their own", ("one", "two"), "tok/s")
    arms = ([work.prompt], [work.prompt] * 2, [work.prompt, work.other])
    costs: dict[int, list[_Cost]] = {0: [], 1: [], 2: []}
    with served(flags, say) as server:
        for number, turn in enumerate(_turns(work.pairs + 1, sides=3)):
            speeds: dict[int, float] = {}
            for side in turn:
                before = server.counted()
                answers = _at_once(server, [work.body(prompt) for prompt in arms[side]])
                if any(answer.text != answers[0].text for answer in answers) and side == 1:
                    equal.notes.append("texts of the same prompt DIFFER")
                speeds[side] = _speed(answers)
                if number:
                    costs[side].append(_Cost.of(before, server.counted(), answers))
            if number:  # the first is a warm-up: the hot store fills
                _add(equal, {0: speeds[0], 1: speeds[1]}, say)
                _add(unlike, {0: speeds[0], 1: speeds[2]}, say)
    for part, side in ((equal, 1), (unlike, 2)):
        part.notes += [
            f"{name}: {_Cost.told(costs[place])}" for name, place in (("one", 0), ("two", side))
        ]
    return [equal, unlike]


@dataclass(frozen=True)
class _Cost:
    """Of some answers at once, by the server's counters: each shared forward once."""

    bytes_per_token: float
    hit_rate: float | None
    waited: float  # of their seconds, in which only the disk worked

    @classmethod
    def of(
        cls, before: Mapping[str, float], after: Mapping[str, float], answers: Sequence[Answer]
    ) -> _Cost:
        def more(name: str) -> float:
            return after[f"{name}_total"] - before[f"{name}_total"]

        asked = more("expert_hits") + more("expert_misses")
        seconds = max(each.ended for each in answers) - min(each.sent for each in answers)
        return cls(
            more("miss_bytes") / sum(each.tokens for each in answers),
            more("expert_hits") / asked if asked else None,
            more("read_wait_seconds") / seconds,
        )

    @staticmethod
    def told(costs: Sequence[_Cost]) -> str:
        rates = [cost.hit_rate for cost in costs if cost.hit_rate is not None]
        return (
            f"{median(cost.bytes_per_token for cost in costs) / 1e6:.2f} MB a token, "
            f"{100 * median(rates or [0.0]):.0f} % hits, "
            f"{100 * median(cost.waited for cost in costs):.0f} % of the time waiting for the disk"
        )


def gap(work: Work, say: Say) -> list[Part]:
    """The longest silence of a stream while another client's long prompt is read, and what that does
    to the prompt's first token."""
    gaps = Part(
        "gap",
        "longest silence of a stream, alone -> while another's prompt is read",
        ("alone", "beside"),
        "s",
    )
    ttft = Part(
        "gap", "first token of that prompt, alone -> beside the stream", ("alone", "beside"), "s"
    )
    most = work.history
    with served(work.flags, say) as server:
        for number, turn in enumerate(_turns(work.pairs + 1)):
            silences: dict[int, float] = {}
            firsts: dict[int, float] = {}
            for side in turn:
                long = work.body(work.ids(most, 100 + 2 * number + side), 1)
                if side == 0:
                    silences[0] = max(server.stream(COMPLETIONS, work.body(work.prompt)).gaps)
                    firsts[0] = server.stream(COMPLETIONS, long).first_seconds
                else:
                    stream, reader = _beside(server, work.body(work.prompt, 4 * work.tokens), long)
                    within = [
                        after - before
                        for before, after in zip(stream.arrived, stream.arrived[1:], strict=False)
                        if after > reader.sent and before < reader.first
                    ]
                    if not within:
                        raise RunFailed("the stream had ended before the prompt was read: --tokens")
                    silences[1], firsts[1] = max(within), reader.first_seconds
            if number:
                _add(gaps, silences, say)
                _add(ttft, firsts, say)
    gaps.notes.append(f"a prompt of {most} tokens")
    return [gaps, ttft]


class _Client(threading.Thread):
    """A client that asks beside others; who is told to end does not wait for its answer."""

    def __init__(self, ask: Callable[[], Answer]) -> None:
        super().__init__(daemon=True)
        self._ask = ask
        self._found: Answer | RunFailed = RunFailed("a client got no answer")
        self.start()

    def run(self) -> None:
        try:
            self._found = self._ask()
        except RunFailed as error:
            self._found = error

    def answer(self) -> Answer:
        """When it is there. Raises RunFailed."""
        self.join()
        if isinstance(self._found, RunFailed):
            raise self._found
        return self._found


def _beside(server: Server, body: Body, long: Body) -> tuple[Answer, Answer]:
    """The answer of a stream, and that of a prompt that is sent when the stream has begun."""
    begun = threading.Event()

    def ask() -> Answer:
        try:
            return server.stream(COMPLETIONS, body, begun.set)
        finally:
            begun.set()  # or it never will

    stream = _Client(ask)
    begun.wait()
    reader = server.stream(COMPLETIONS, long)
    return stream.answer(), reader


def _at_once(server: Server, bodies: Sequence[Body]) -> list[Answer]:
    """The answers of clients that ask at the same moment, each in a thread."""
    barrier = threading.Barrier(len(bodies))

    def ask(body: Body) -> Answer:
        barrier.wait()
        return server.stream(COMPLETIONS, body)

    clients = [_Client(partial(ask, body)) for body in bodies]
    return [client.answer() for client in clients]


def _speed(answers: Sequence[Answer]) -> float:
    """Tokens of all after the first of each / seconds from the first of any to the last."""
    seconds = max(each.last for each in answers) - min(each.first for each in answers)
    return sum(each.tokens - 1 for each in answers) / seconds


def _after_first(report: Mapping[str, Any]) -> float:
    """As `Answer.tok_per_s`, from a run's report."""
    first = report["ttft_seconds"] - report["prefill_seconds"]  # of the seconds of decoding
    return (report["tokens"] - 1) / (report["decode_seconds"] - first)


def _add(part: Part, found: Mapping[int, float], say: Say) -> None:
    part.pairs.append((found[0], found[1]))
    say(
        f"pair      {part.name} {len(part.pairs)}: {part.sides[0]} {found[0]:.4g}, "
        f"{part.sides[1]} {found[1]:.4g} {part.unit}"
    )


def _turns(count: int, sides: int = 2) -> Iterator[Sequence[int]]:
    """The sides in turn, forth and back."""
    for number in range(count):
        yield range(sides) if number % 2 == 0 else range(sides - 1, -1, -1)


def _silent(line: str) -> None:
    """Servers of one answer say nothing."""
