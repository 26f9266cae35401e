"""Which one setting would make a model faster here, and by how much: arithmetic on what was measured.

What a token waited for reads is taken to shrink as the time that its misses take to read, and what it
computed by as much as the weights' part of it, at the speed that kernels had; the rest (attention,
sampling, Python) stays as it is. Hits with another number of slots come from a replay of the routing
of the measured run.

The rule of this file: a knob that changes the text is the answer only where no other is worth turning,
and one that needs what the machine has not is never the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from diskmoe.engine.predict import Speeds, TokenWork

WORTH = 1.05  # times as fast, or it is not worth turning
NEARLY_ALL = 0.95  # of what most memory would give: more than that much is not asked for
ROWS = 4  # of a forward with drafts


@dataclass(frozen=True)
class Reading:
    """A way to read experts. threads: reads at a time; speed: bytes per second."""

    direct: bool
    threads: int
    speed: float


@dataclass(frozen=True)
class Situation:
    """What was measured in a run, and what could be had instead."""

    work: TokenWork  # dense bytes include the KV cache's
    speeds: Speeds  # of kernels and of the run's own way to read
    tok_per_s: float
    wait_seconds: float  # of a token, for reads
    hit_rate: float  # 1.0 where there are no experts
    slots: int
    replayed: Mapping[int, float]  # hit rate by slots per layer; `slots` among them
    budget_bytes: int
    fixed_bytes: int
    set_bytes: int  # a slot in every layer
    most_bytes: int  # the largest budget that the machine would give
    threads: int
    cores: int
    speeds_on_cores: Speeds | None = None  # where fewer or more threads than cores were set
    readings: tuple[Reading, ...] = ()  # (): reads are answered from memory, or slowed down
    reading: Reading | None = None  # the run's own
    smaller: tuple[str, int] | None = None  # a format with smaller records, and their bytes
    unique: float = 0.0  # experts per layer of a forward of `ROWS` rows that follow each other
    fewer_misses: float = 1.0  # misses per row of these, of those of one row at a time

    def expected(
        self,
        work: TokenWork | None = None,
        speeds: Speeds | None = None,
        hit_rate: float | None = None,
    ) -> float:
        """Tokens per second, were one of these other than it is."""
        work, speeds = work or self.work, speeds or self.speeds
        misses = 1 - (self.hit_rate if hit_rate is None else hit_rate)
        return self._expected(_weight_seconds(work, speeds), _miss_seconds(work, speeds, misses))

    def expected_in_one_forward(self, rows: int) -> float:
        """Tokens per second, were so many rows right in every forward, with `unique` and
        `fewer_misses`."""
        forward = replace(self.work, top_k=1)
        experts = _weight_seconds(replace(forward, dense_bytes=0), self.speeds) * self.unique
        dense = self.work.dense_bytes / self.speeds.dense
        misses = self.fewer_misses * (1 - self.hit_rate)
        return self._expected(
            (dense + experts) / rows, _miss_seconds(self.work, self.speeds, misses)
        )

    def _expected(self, weights: float, misses: float) -> float:
        """Tokens per second, were a token's weights and its misses to take so long."""
        before = _miss_seconds(self.work, self.speeds, 1 - self.hit_rate)
        wait = self.wait_seconds * misses / before if before else 0.0
        computed, now = (
            1 / self.tok_per_s - self.wait_seconds,
            _weight_seconds(self.work, self.speeds),
        )
        # where kernels were faster than when they were measured alone, all of it is theirs
        rest = max(0.0, computed - now)
        return 1 / (wait + rest + weights * min(1.0, computed / now))

    def hit_rate_with(self, slots: float) -> float:
        """By replay, as a share of the misses that there were: the run's store was warm."""
        at = max((n for n in self.replayed if n <= slots), default=self.slots)
        before = 1 - self.replayed[self.slots]
        left = (1 - self.replayed[at]) / before if before > 0 else 0.0
        return 1 - (1 - self.hit_rate) * min(left, 1.0)


def _weight_seconds(work: TokenWork, speeds: Speeds) -> float:
    experts = work.moe_layers * work.top_k * work.expert_bytes
    return work.dense_bytes / speeds.dense + experts / speeds.expert


def _miss_seconds(work: TokenWork, speeds: Speeds, misses: float) -> float:
    """How long the disk is busy with the misses of a token; misses: their share."""
    return misses * work.moe_layers * work.top_k * work.read_bytes / (speeds.disk or 1.0)


@dataclass(frozen=True)
class Knob:
    """A setting to change. value: what to give it; tok_per_s: what that would come to."""

    setting: str
    value: str
    tok_per_s: float
    reason: str
    same_text: bool = True
    within: bool = True  # the machine has what it needs
    certain: bool = True  # False: it depends on the text

    def line(self) -> str:
        between = " " if " " in self.setting else "="
        given = f"{self.setting}{between}{self.value}" if self.value else self.setting
        return f"{given}: {self.reason}: {self.tok_per_s:.3g} tok/s expected"


def knobs(now: Situation) -> list[Knob]:
    """Everything that is worth turning, in the order in which to try it."""
    found = [
        knob
        for make in (_slots, _reading, _threads, _format, _drafts)
        for knob in make(now)
        if knob.tok_per_s >= WORTH * now.tok_per_s
    ]
    key = lambda knob: (not knob.within, not knob.same_text, not knob.certain, -knob.tok_per_s)
    return sorted(found, key=key)


def _slots(now: Situation) -> Iterator[Knob]:
    """More of the experts in memory: with CAP where the budget has room, else RAM_GB."""
    speeds = {
        slots: now.expected(hit_rate=now.hit_rate_with(slots))
        for slots in sorted(now.replayed)
        if slots > now.slots
    }
    for setting, most in (("CAP", now.budget_bytes), ("RAM_GB", now.most_bytes), ("RAM_GB", None)):
        room = [s for s in speeds if most is None or _needed(now, s) <= most]
        if not room:
            continue
        best = max(speeds[slots] for slots in room)
        slots = next(slots for slots in room if speeds[slots] >= NEARLY_ALL * best)
        gb = f"{-(-10 * _needed(now, slots) // (1 << 30)) / 10:.1f}"  # rounded up
        budget = f"{now.budget_bytes / 2**30:.1f} GiB"
        has = f"{now.most_bytes / 2**30:.1f} GiB"
        yield Knob(
            setting,
            str(slots) if setting == "CAP" else gb,
            speeds[slots],
            f"{slots} slots a layer instead of {now.slots} would hit "
            f"{100 * now.hit_rate_with(slots):.0f} % instead of {100 * now.hit_rate:.0f} %, by a "
            "replay of this run's routing; "
            + (
                f"the budget of {budget} has room for them"
                if setting == "CAP"
                else f"the budget is {budget}"
                if most is not None
                else f"this machine would give {has}"
            ),
            within=most is not None,
        )
        return


def _needed(now: Situation, slots: int) -> int:
    return now.fixed_bytes + slots * now.set_bytes


def _reading(now: Situation) -> Iterator[Knob]:
    """Past the page cache or through it, and with how many threads."""
    if now.reading is None or not now.readings:
        return
    best = max(now.readings, key=lambda reading: reading.speed)
    ways = f"{best.speed / 1e9:.2f} GB/s instead of {now.reading.speed / 1e9:.2f}"
    speed = now.expected(speeds=replace(now.speeds, disk=best.speed))
    if best.direct != now.reading.direct:
        way = "past the page cache" if best.direct else "through the page cache"
        yield Knob("DIRECT", str(int(best.direct)), speed, f"reads {way} give {ways}")
    elif best.threads != now.reading.threads:
        reason = f"{best.threads} reads at a time give {ways}"
        yield Knob("IO_THREADS", str(best.threads), speed, reason)


def _threads(now: Situation) -> Iterator[Knob]:
    if now.speeds_on_cores is None:
        return
    ways = f"{now.speeds_on_cores.dense / 1e9:.1f} GB/s instead of {now.speeds.dense / 1e9:.1f}"
    yield Knob(
        "THREADS",
        str(now.cores),
        now.expected(speeds=replace(now.speeds_on_cores, disk=now.speeds.disk)),
        f"dense weights go through {now.cores} instead of {now.threads} threads with {ways}",
    )


def _format(now: Situation) -> Iterator[Knob]:
    """Experts in fewer bits: less to read, and more of them in memory."""
    if now.smaller is None:
        return
    name, nbytes = now.smaller
    share = nbytes / now.work.expert_bytes
    slots = now.slots / share
    work = replace(now.work, expert_bytes=nbytes, read_bytes=round(now.work.read_bytes * share))
    rate = now.hit_rate_with(slots)
    yield Knob(
        "convert --experts",
        name,
        now.expected(work=work, hit_rate=rate),
        f"a record has {100 * share:.0f} % of the bytes, and {slots:.0f} slots a layer instead of "
        f"{now.slots} would hit {100 * rate:.0f} % instead of {100 * now.hit_rate:.0f} %; the text "
        "changes, see bench ppl",
        same_text=False,
    )


def _drafts(now: Situation) -> Iterator[Knob]:
    """Several right rows in a forward, where the text can be foreseen."""
    yield Knob(
        "GRAMMAR, MTP or NGRAM",
        "",
        now.expected_in_one_forward(ROWS),
        f"where the text can be foreseen, {ROWS} right rows a forward read dense weights once for all "
        f"and {100 * (1 - now.fewer_misses):.0f} % fewer experts each",
        certain=False,
    )
