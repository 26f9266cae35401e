"""Memory plans in numbers, and limits read from cgroups of both kinds."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from diskmoe.experts.budget import Available, available_memory, plan_memory, shown_bytes
from diskmoe.experts.errors import OutOfBudget

MIB, GIB = 1 << 20, 1 << 30
# OLMoE: 16 layers of 64 experts, q4 records of 3.4 MiB
REQUEST: dict[str, Any] = {
    "base_bytes": 200 * MIB,
    "dense_bytes": 400 * MIB,
    "kv_bytes": 100 * MIB,
    "scratch_bytes": 50 * MIB,
    "loader_bytes": 50 * MIB,
    "slot_bytes": 3 * MIB,
    "n_moe_layers": 16,
    "n_experts": 64,
}


def plan(budget: int | None = None, **changes: Any) -> Any:
    return plan_memory(budget, **(REQUEST | changes))


def test_the_hot_store_gets_what_is_left_in_whole_slots_per_layer() -> None:
    made = plan(2 * GIB)
    assert made.slots_per_layer == (2048 - 750) // 48 == 27
    assert made.arena_bytes == 27 * 48 * MIB
    assert made.total_bytes == 750 * MIB + made.arena_bytes <= 2 * GIB


def test_what_is_left_of_the_budget_gives_some_layers_a_slot_more() -> None:
    made = plan((750 + 27 * 48 + 3 * 5 + 2) * MIB)
    assert (made.slots_per_layer, made.extra_slots) == (27, 5)
    assert made.arena_bytes == (27 * 48 + 15) * MIB
    assert made.total_bytes == made.budget_bytes - 2 * MIB
    assert "27 slots/layer of 3.0 MiB x 16 layers (one more in 5); what fits" in made.lines()[2]
    slots = made.slots_of(range(4, 20))
    assert list(slots) == list(range(4, 20))
    assert sorted(slots.values()) == [27] * 11 + [28] * 5
    assert [layer for layer, count in slots.items() if count > 27] == [7, 10, 13, 16, 19]


def test_an_mtp_layer_keeps_all_of_its_experts_where_they_take_little() -> None:
    made = plan(16 * GIB, mtp_bytes=30 * MIB, mtp_slot_bytes=6 * MIB)
    assert made.mtp_slots == 64
    assert made.request.mtp_fixed_bytes == (30 + 65 * 6) * MIB  # and one that they pass through
    assert made.total_bytes == (750 + 30 + 65 * 6) * MIB + 64 * 48 * MIB
    assert made.lines()[3] == (
        "MTP layer: weights and KV cache 30.0 MiB, 64 slots of 6.0 MiB, all of its experts"
    )
    assert "MTP layer 420 MiB" in made.lines()[1]


def test_an_mtp_layer_has_as_many_slots_as_others_where_its_experts_take_much() -> None:
    made = plan(2 * GIB, mtp_bytes=30 * MIB, mtp_slot_bytes=6 * MIB, wave_slots=4)
    fixed = 750 + 4 * 3 + 30 + 4 * 6
    assert made.slots_per_layer == made.mtp_slots == (2048 - fixed) // (48 + 6)
    assert made.total_bytes <= 2 * GIB
    assert made.lines()[3].endswith("6.0 MiB, as many as other layers")
    without = plan(2 * GIB, wave_slots=4)
    assert without.mtp_slots == 0 and len(without.lines()) == 3


def test_what_an_mtp_layer_leaves_over_is_at_most_a_slot_for_each_layer() -> None:
    made = plan((750 + 30 + 10 * 348 + 347) * MIB, mtp_bytes=30 * MIB, mtp_slot_bytes=300 * MIB)
    assert (made.slots_per_layer, made.extra_slots) == (10, 16)
    assert set(made.slots_of(range(16)).values()) == {11}


@pytest.mark.parametrize("changes", [{"wanted_cap": 8}, {"wanted_cap": 60}, {"n_experts": 20}])
def test_slots_that_were_asked_for_or_hold_all_are_the_same_in_each_layer(changes) -> None:
    made = plan((750 + 27 * 48 + 15) * MIB, **changes)
    assert made.extra_slots == 0
    assert set(made.slots_of(range(16)).values()) == {made.slots_per_layer}


def test_what_loading_takes_is_gone_before_the_hot_store_fills() -> None:
    assert plan(2 * GIB, loader_bytes=900 * MIB).slots_per_layer == 27
    assert plan(1 * GIB, loader_bytes=424 * MIB).total_bytes == GIB
    with pytest.raises(
        OutOfBudget, match=r"too small to load the model.*loader 425 MiB.*RAM_GB=1.01 "
    ):
        plan(1 * GIB, loader_bytes=425 * MIB)


def test_slots_for_prompts_are_paid_for_before_the_hot_store() -> None:
    made = plan(2 * GIB, wave_slots=8)
    assert made.slots_per_layer == (2048 - 750 - 24) // 48
    assert made.total_bytes == (750 + 24) * MIB + made.arena_bytes
    assert "8 slots for prompts 24.0 MiB" in made.lines()[1]


def test_the_plan_is_told_in_sentences_with_numbers() -> None:
    lines = plan(2 * GIB, context=4096).lines()
    budget, fixed, store = lines
    assert budget == "memory budget 2.0 GiB: as given (RAM_GB)"
    assert fixed == (
        "fixed 750 MiB: interpreter and kernels 200 MiB, dense weights 400 MiB, "
        "KV cache 100 MiB for 4096 positions, scratch 50.0 MiB"
    )
    assert store == (
        "hot store 1.3 GiB: 63 % of the 2.0 GiB budget, 27 slots/layer of 3.0 MiB x 16 layers; "
        "what fits of 64 experts per layer"
    )


def test_the_hot_store_ends_at_all_experts() -> None:
    made = plan(64 * GIB)
    assert made.slots_per_layer == 64
    assert "all 64 experts of each layer fit" in made.lines()[2]


def test_a_cap_that_fits_is_kept() -> None:
    made = plan(2 * GIB, wanted_cap=8)
    assert made.slots_per_layer == 8
    assert "as given (CAP=8)" in made.lines()[2]


def test_a_cap_that_does_not_fit_is_lowered_and_said() -> None:
    made = plan(2 * GIB, wanted_cap=40)
    assert made.slots_per_layer == 27
    assert "lowered from CAP=40, which does not fit" in made.lines()[2]


def test_a_cap_beyond_the_experts_is_all_of_them() -> None:
    made = plan(64 * GIB, wanted_cap=1000)
    assert made.slots_per_layer == 64
    assert "CAP=1000, a layer has 64 experts" in made.lines()[2]


def test_too_small_a_budget_is_refused_with_every_number_and_what_to_do() -> None:
    plan(798 * MIB)  # exactly one slot per layer
    with pytest.raises(OutOfBudget) as caught:
        plan(797 * MIB)
    message = str(caught.value)
    assert "\n" not in message
    for part in ("797 MiB", "200 MiB", "400 MiB", "100 MiB", "50.0 MiB", "48.0 MiB", "798 MiB"):
        assert part in message, message
    assert "1.0 MiB are missing" in message
    assert "RAM_GB=0.78 " in message
    assert plan(int(0.78 * GIB)).slots_per_layer == 1
    assert "CTX" in message


def test_without_a_budget_a_stated_share_of_what_is_available_is_taken() -> None:
    made = plan(available=Available(20 * GIB, "available in the system", 24 * GIB))
    assert made.budget_bytes == 17 * GIB
    assert made.lines()[0] == (
        "memory budget 17.0 GiB: 85 % of the 20.0 GiB available in the system; "
        "3.0 GiB are left for the page cache and others"
    )
    assert plan(available=Available(4 * GIB, "x", 24 * GIB)).budget_bytes == 3 * GIB
    assert plan(available=Available(1900 * MIB, "x", 24 * GIB)).budget_bytes == 950 * MIB


def test_in_a_cgroup_nothing_is_left_to_others() -> None:
    def budget(nbytes: int) -> str:
        group = Available(nbytes, "left of the cgroup's 8.0 GiB", 8 * GIB, in_group=True)
        return plan(available=group).lines()[0]

    assert budget(5 * GIB) == (
        "memory budget 4.5 GiB: 90 % of the 5.0 GiB left of the cgroup's 8.0 GiB; "
        "512 MiB are left for the page cache"
    )
    assert budget(1024 * MIB).startswith("memory budget 896 MiB: 88 % ")


def test_a_budget_that_cannot_be_had_is_lowered_and_said() -> None:
    group = Available(3 * GIB, "left of the cgroup's 4.0 GiB", 4 * GIB, in_group=True)
    reserve = 2 * group.critical_bytes
    made = plan(6 * GIB, available=group)
    assert made.budget_bytes == 3 * GIB - reserve
    assert "lowered from RAM_GB=6, which is more than the 3.0 GiB left of" in made.reason
    assert plan(3 * GIB - reserve, available=group).reason == "as given (RAM_GB)"


def test_free_swap_lets_a_given_budget_stand() -> None:
    system = Available(3 * GIB, "available in the system", 4 * GIB, swap_bytes=8 * GIB)
    assert plan(6 * GIB, available=system).budget_bytes == 6 * GIB


def test_a_model_without_experts_has_no_hot_store() -> None:
    made = plan(GIB, n_moe_layers=0)
    assert (made.slots_per_layer, made.arena_bytes) == (0, 0)


def test_the_plan_as_json_has_the_parts() -> None:
    found = plan(2 * GIB, wanted_cap=8).as_json()
    assert REQUEST.items() <= found.items()
    assert found["budget_bytes"] == 2 * GIB
    assert found["slots_per_layer"] == 8
    assert "context" not in found


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 10 GiB available, and no cgroups yet."""
    system = SimpleNamespace(available=10 * GIB, total=16 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: system)
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(free=0))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("")
    return tmp_path


def write_all(directory: Path, **files: object) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(f"{text}\n")


def test_without_limits_the_systems_number_counts(root: Path) -> None:
    found = available_memory(root)
    assert (found.nbytes, found.limit, found.in_group) == (10 * GIB, 16 * GIB, False)
    assert found.where == "available in the system"
    (root / "proc/self/cgroup").unlink()
    assert available_memory(root).nbytes == 10 * GIB


def test_a_cgroup_v2_limit_counts_with_droppable_pages_given_back(root: Path) -> None:
    (root / "proc/self/cgroup").write_text("0::/user/app\n")
    group = root / "sys/fs/cgroup/user/app"
    write_all(
        group,
        memory__max=4 * GIB,
        memory__current=3 * GIB,
        memory__stat="inactive_file 5\nactive_file 2\nanon 9",
    )
    where = "left of the cgroup's 4.0 GiB"
    assert available_memory(root) == Available(GIB + 7, where, 4 * GIB, in_group=True)


def test_the_tightest_parent_counts(root: Path) -> None:
    (root / "proc/self/cgroup").write_text("0::/user/app\n")
    write_all(root / "sys/fs/cgroup/user/app", memory__max="max", memory__current=GIB)
    write_all(root / "sys/fs/cgroup/user", memory__max=2 * GIB, memory__current=GIB)
    assert available_memory(root).nbytes == GIB


def test_a_cgroup_v1_limit_counts_and_its_number_for_none_does_not(root: Path) -> None:
    (root / "proc/self/cgroup").write_text("5:cpu:/a\n4:memory:/laptop\n")
    top = root / "sys/fs/cgroup/memory"
    write_all(
        top / "laptop",
        memory__limit_in_bytes=GIB,
        memory__usage_in_bytes=GIB // 2,
        memory__stat="cache 7\ntotal_inactive_file 100",
    )
    write_all(top, memory__limit_in_bytes=2**63 - 4096, memory__usage_in_bytes=GIB)
    where = "left of the cgroup's 1.0 GiB"
    assert available_memory(root) == Available(GIB // 2 + 100, where, GIB, in_group=True)


def test_in_a_container_the_mounts_own_limit_counts(root: Path) -> None:
    (root / "proc/self/cgroup").write_text("0::/../../docker/abc\n")
    write_all(root / "sys/fs/cgroup", memory__max=GIB, memory__current=0)
    assert available_memory(root).nbytes == GIB


def test_a_group_over_its_limit_has_nothing_left(root: Path) -> None:
    (root / "proc/self/cgroup").write_text("0::/a\n")
    write_all(root / "sys/fs/cgroup/a", memory__max=GIB, memory__current=2 * GIB)
    assert available_memory(root).nbytes == 0


@pytest.mark.parametrize(("limit", "usage"), [("lots", "?"), ("-1", "5"), ("", ""), ("5", "")])
def test_nonsense_in_cgroup_files_is_passed_over(root: Path, limit: str, usage: str) -> None:
    (root / "proc/self/cgroup").write_text("nonsense\n0::/a\n1:memory\n")
    write_all(root / "sys/fs/cgroup/a", memory__max=limit, memory__current=usage)
    assert available_memory(root).nbytes == 10 * GIB


@pytest.mark.skipif(not os.path.exists("/proc/self/cgroup"), reason="not Linux")
def test_this_machine_has_some_memory() -> None:
    available = available_memory()
    assert 0 < available.nbytes <= available.limit
    assert available.where


def test_sizes_are_shown_with_three_figures_at_most() -> None:
    shown = [shown_bytes(n) for n in (0, 1023, 1536, 200 * MIB, 3.2 * GIB, 5 << 40)]
    assert shown == ["0 B", "1023 B", "1.5 KiB", "200 MiB", "3.2 GiB", "5.0 TiB"]
