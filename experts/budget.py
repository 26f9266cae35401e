"""How much memory may be used, and what fits in it.

The rule of this file: every part is counted before work starts, and each number that was chosen
comes with its reason in words. The budget is for the whole process, not for the cache on top of it.

    plan = plan_memory(None, base_bytes=..., dense_bytes=..., wanted_cap=None)
    print("\\n".join(plan.lines()))
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from diskmoe.experts.cgroups import control_groups, read_number
from diskmoe.experts.errors import OutOfBudget

LEFT_SHARE = 0.15  # of what is available, for the page cache and for others
LEFT_BYTES = 1 << 30  # and at least this, or half of what there is
GROUP_LEFT_SHARE = 0.1  # in a cgroup there are no others, and what we read past the page cache
GROUP_LEFT_BYTES = 128 << 20  # needs none of it
MTP_WHOLE_SHARE = 0.05  # of the budget: an MTP layer whose experts take less keeps all of them
_UNLIMITED = 1 << 60  # cgroup v1 says "no limit" with a number near 2**63
_MEMORY_FILES = {  # of a cgroup of either version: limit, use, what can be dropped of it
    1: (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
    2: ("memory.max", "memory.current", ("inactive_file", "active_file")),
}


@dataclass(frozen=True)
class Available:
    """What can be had: `nbytes` of the `limit` that a cgroup sets, or that the system has.

    swap_bytes: what is free beside it before the system must end a process.
    """

    nbytes: int
    where: str
    limit: int
    in_group: bool = False
    swap_bytes: int = 0

    @property
    def critical_bytes(self) -> int:
        """With less than this left, the next page may be the one that a process is ended for."""
        return min(max(self.limit // 50, 32 << 20), 256 << 20)

    @property
    def most_bytes(self) -> int:
        """What a budget can be at most: beyond it the system would end the process."""
        return max(self.nbytes + self.swap_bytes - 2 * self.critical_bytes, 0)


def available_memory(root: Path = Path("/")) -> Available:
    """What can be taken without swapping.

    The least of what the system has available and what each cgroup above this process (v1 or v2)
    still allows; file pages that the kernel can drop count as allowed.
    """
    system = psutil.virtual_memory()
    swap = psutil.swap_memory().free if sys.platform == "linux" else system.total  # it grows there
    least = Available(system.available, "available in the system", system.total, swap_bytes=swap)
    for directory, version in control_groups("memory", root):
        limit_name, usage_name, droppable = _MEMORY_FILES[version]
        limit = read_number(directory / limit_name)
        usage = read_number(directory / usage_name)
        if limit is None or usage is None or not 0 <= limit < _UNLIMITED:
            continue  # -1 is an old way to say that there is none
        left = limit - usage + _stat(directory / "memory.stat", droppable)
        left = min(max(left, 0), limit)
        if left < least.nbytes:
            where = f"left of the cgroup's {shown_bytes(limit)}"
            least = Available(left, where, limit, in_group=True)
    return least


def _stat(path: Path, keys: tuple[str, ...]) -> int:
    """The sum of these entries of a memory.stat; those that cannot be read count nothing."""
    total = 0
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in keys:
                total += int(value)
    except (OSError, ValueError):
        pass
    return total


def shown_bytes(nbytes: float) -> str:
    """1536 -> "1.5 KiB"."""
    size, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" or abs(size) >= 100 else f"{size:.1f} {unit}"


@dataclass(frozen=True)
class MemoryRequest:
    """What a run needs. Bytes; `wanted_cap` is the slots per layer the user asked for."""

    base_bytes: int  # interpreter, libraries, compiled kernels, as measured
    dense_bytes: int
    kv_bytes: int
    scratch_bytes: int
    loader_bytes: int  # beside the dense weights while they are read, before there is a hot store
    slot_bytes: int  # one expert record
    n_moe_layers: int
    n_experts: int
    wave_slots: int = 0  # slots that a prompt's experts pass through
    wanted_cap: int | None = None
    context: int | None = None  # positions that `kv_bytes` is for, to be told
    prompt_rows: int | None = None  # of a prompt, that go through the model at once; in the scratch
    mtp_bytes: int = 0  # weights and KV cache of the MTP layer
    mtp_slot_bytes: int = 0  # one of its expert records; 0: there is no such layer
    mtp_whole: bool = (
        False  # whether it keeps all of its experts; else it has slots as other layers
    )
    grammar_bytes: int = 0  # compiled grammars that are kept, and the making of one

    @property
    def wave_bytes(self) -> int:
        return self.wave_slots * self.slot_bytes

    @property
    def mtp_fixed_bytes(self) -> int:
        """The MTP layer, without slots that the budget decides on. Where all experts stay, the slot
        that none of them passes through is there all the same."""
        slots = self.n_experts + 1 if self.mtp_whole else self.wave_slots
        return self.mtp_bytes + slots * self.mtp_slot_bytes

    @property
    def fixed_bytes(self) -> int:
        """Everything but the hot store, while the model runs."""
        dense_and_base = self.base_bytes + self.dense_bytes
        working = self.kv_bytes + self.scratch_bytes + self.wave_bytes
        return dense_and_base + working + self.mtp_fixed_bytes + self.grammar_bytes

    @property
    def loading_bytes(self) -> int:
        """What is held while the dense weights are read."""
        return self.base_bytes + self.dense_bytes + self.mtp_bytes + self.loader_bytes

    @property
    def set_bytes(self) -> int:
        """One slot in every layer."""
        mtp = 0 if self.mtp_whole else self.mtp_slot_bytes
        return self.slot_bytes * self.n_moe_layers + mtp


@dataclass(frozen=True)
class MemoryPlan:
    """A budget and how it is spent."""

    budget_bytes: int
    reason: str
    request: MemoryRequest
    slots_per_layer: int
    cap_reason: str
    extra_slots: int = 0  # what is left of the budget: so many layers have one slot more

    @property
    def arena_bytes(self) -> int:
        request = self.request
        return request.set_bytes * self.slots_per_layer + request.slot_bytes * self.extra_slots

    def slots_of(self, layers: Sequence[int]) -> dict[int, int]:
        """The slots of each layer with experts; those with one more are spread evenly."""
        extra, count = self.extra_slots, max(len(layers), 1)
        return {
            layer: self.slots_per_layer + ((i + 1) * extra // count - i * extra // count)
            for i, layer in enumerate(layers)
        }

    @property
    def mtp_slots(self) -> int:
        """Slots of the MTP layer; 0 where there is none."""
        if not self.request.mtp_slot_bytes:
            return 0
        return self.request.n_experts if self.request.mtp_whole else self.slots_per_layer

    @property
    def total_bytes(self) -> int:
        """The most that the process is expected to hold."""
        return max(self.request.fixed_bytes + self.arena_bytes, self.request.loading_bytes)

    def lines(self) -> list[str]:
        """The plan in sentences, for stderr."""
        request = self.request
        return [
            f"memory budget {shown_bytes(self.budget_bytes)}: {self.reason}",
            f"fixed {shown_bytes(request.fixed_bytes)}: {_parts(request)}",
            self._hot_store(),
            *([self._mtp_layer()] if self.mtp_slots else []),
        ]

    def _mtp_layer(self) -> str:
        request = self.request
        how = "all of its experts" if request.mtp_whole else "as many as other layers"
        return (
            f"MTP layer: weights and KV cache {shown_bytes(request.mtp_bytes)}, {self.mtp_slots} "
            f"slots of {shown_bytes(request.mtp_slot_bytes)}, {how}"
        )

    def _hot_store(self) -> str:
        request, share = self.request, 100 * self.arena_bytes / max(self.budget_bytes, 1)
        more = f" (one more in {self.extra_slots})" if self.extra_slots else ""
        return (
            f"hot store {shown_bytes(self.arena_bytes)}: {share:.0f} % of the "
            f"{shown_bytes(self.budget_bytes)} budget, {self.slots_per_layer} slots/layer of "
            f"{shown_bytes(request.slot_bytes)} x {request.n_moe_layers} layers{more}; "
            f"{self.cap_reason}"
        )

    def as_json(self) -> dict[str, Any]:
        """The plan as plain numbers and strings."""
        numbers = {key: value for key, value in asdict(self.request).items() if value is not None}
        return {
            "budget_bytes": self.budget_bytes,
            "budget_reason": self.reason,
            **numbers,
            "wave_bytes": self.request.wave_bytes,
            "fixed_bytes": self.request.fixed_bytes,
            "slots_per_layer": self.slots_per_layer,
            "extra_slots": self.extra_slots,
            "slots_reason": self.cap_reason,
            "mtp_slots": self.mtp_slots,
            "arena_bytes": self.arena_bytes,
            "total_bytes": self.total_bytes,
        }


def _parts(request: MemoryRequest) -> str:
    positions = "" if request.context is None else f" for {request.context} positions"
    waves = f", {request.wave_slots} slots for prompts {shown_bytes(request.wave_bytes)}"
    rows = f" for {request.prompt_rows} prompt rows at a time" if request.prompt_rows else ""
    mtp = f", MTP layer {shown_bytes(request.mtp_fixed_bytes)}" if request.mtp_slot_bytes else ""
    grammars = f", grammars {shown_bytes(request.grammar_bytes)}" if request.grammar_bytes else ""
    return (
        f"interpreter and kernels {shown_bytes(request.base_bytes)}, "
        f"dense weights {shown_bytes(request.dense_bytes)}, "
        f"KV cache {shown_bytes(request.kv_bytes)}{positions}, "
        f"scratch {shown_bytes(request.scratch_bytes)}{rows}{waves if request.wave_slots else ''}{mtp}"
        f"{grammars}"
    )


def auto_budget(available: Available) -> tuple[int, str]:
    """(budget, reason) when the user gave none: what is available less what is left to others.

    At least 15 % and 1 GiB are left, of a cgroup 10 % and 128 MiB; at most half.
    """
    share, least = LEFT_SHARE, LEFT_BYTES
    if available.in_group:
        share, least = GROUP_LEFT_SHARE, GROUP_LEFT_BYTES
    nbytes = available.nbytes
    left = max(int(nbytes * share), min(least, nbytes // 2))
    budget = nbytes - left
    others = "" if available.in_group else " and others"
    return budget, (
        f"{100 * budget / max(nbytes, 1):.0f} % of the {shown_bytes(nbytes)} {available.where}; "
        f"{shown_bytes(left)} are left for the page cache{others}"
    )


def given_budget(wanted_bytes: int, available: Available | None) -> tuple[int, str]:
    """(budget, reason) when the user gave one: what was given, or less where that cannot be had."""
    if available is None or wanted_bytes <= available.most_bytes:
        return wanted_bytes, "as given (RAM_GB)"
    return available.most_bytes, (
        f"lowered from RAM_GB={wanted_bytes / 2**30:g}, which is more than the "
        f"{shown_bytes(available.nbytes)} {available.where}"
    )


def plan_memory(
    budget_bytes: int | None,
    *,
    base_bytes: int,
    dense_bytes: int,
    kv_bytes: int,
    scratch_bytes: int,
    loader_bytes: int,
    slot_bytes: int,
    n_moe_layers: int,
    n_experts: int,
    wave_slots: int = 0,
    wanted_cap: int | None = None,
    context: int | None = None,
    prompt_rows: int | None = None,
    mtp_bytes: int = 0,
    mtp_slot_bytes: int = 0,
    grammar_bytes: int = 0,
    available: Available | None = None,
) -> MemoryPlan:
    """Fit what a run needs (see `MemoryRequest`) in the budget: `budget_bytes`, or, when None, a
    share of what is `available` (measured when not given).

    A wanted CAP that does not fit is lowered, and the plan says so. Raises OutOfBudget, with all
    numbers, when not even one slot per layer fits.
    """
    if budget_bytes is None:
        budget, reason = auto_budget(available or available_memory())
    else:
        budget, reason = given_budget(budget_bytes, available)
    request = MemoryRequest(
        base_bytes,
        dense_bytes,
        kv_bytes,
        scratch_bytes,
        loader_bytes,
        slot_bytes,
        n_moe_layers,
        n_experts,
        wave_slots,
        wanted_cap,
        context,
        prompt_rows,
        mtp_bytes,
        mtp_slot_bytes,
        mtp_whole=0 < mtp_slot_bytes * n_experts <= MTP_WHOLE_SHARE * budget,
        grammar_bytes=grammar_bytes,
    )
    if request.loading_bytes > budget:
        raise OutOfBudget(
            f"memory budget {shown_bytes(budget)} ({reason}) is too small to load the model: "
            f"interpreter and kernels {shown_bytes(request.base_bytes)}, dense weights "
            f"{shown_bytes(request.dense_bytes)}, loader {shown_bytes(request.loader_bytes)}; set "
            f"RAM_GB={_gb(request.loading_bytes)} or more, or use fewer DENSE_BITS"
        )
    needed = request.fixed_bytes + request.set_bytes
    if needed > budget:
        less_context = "a smaller CTX, " if request.kv_bytes else ""
        raise OutOfBudget(
            f"memory budget {shown_bytes(budget)} ({reason}) is too small: {_parts(request)}, one "
            f"expert slot in each of {request.n_moe_layers} layers "
            f"{shown_bytes(request.set_bytes)}, together {shown_bytes(needed)}; "
            f"{shown_bytes(needed - budget)} are missing: set RAM_GB={_gb(needed)} or more, or use "
            f"{less_context}fewer DENSE_BITS or EXPERT_BITS"
        )
    if not request.set_bytes:
        return MemoryPlan(budget, reason, request, 0, "the model has no experts")
    free = budget - request.fixed_bytes
    fits, extra = free // request.set_bytes, 0
    most = request.n_experts
    if request.wanted_cap is not None:
        most = min(max(request.wanted_cap, 1), request.n_experts)
        if fits < most:
            why = f"lowered from CAP={request.wanted_cap}, which does not fit"
        elif request.wanted_cap != most:
            why = f"CAP={request.wanted_cap}, a layer has {request.n_experts} experts"
        else:
            why = f"as given (CAP={request.wanted_cap})"
    elif fits >= most:
        why = f"all {request.n_experts} experts of each layer fit"
    else:
        why = f"what fits of {request.n_experts} experts per layer"
        extra = min(free % request.set_bytes // request.slot_bytes, request.n_moe_layers)
    return MemoryPlan(budget, reason, request, min(fits, most), why, extra)


def _gb(nbytes: int) -> str:
    """Gigabytes (2**30), rounded up to two places: what RAM_GB takes."""
    return f"{-(-nbytes * 100 // (1 << 30)) / 100:g}"
