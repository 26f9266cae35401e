"""Past the page cache by each system's own way, or not at all, and why."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from diskmoe.experts import direct as module
from diskmoe.experts.direct import direct_way, open_file, probe_direct
from diskmoe.experts.errors import BadModel


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(bytes(range(256)) * 64)
    return path


def on_a_mac(monkeypatch: pytest.MonkeyPatch, refuses: bool = False) -> list[tuple[int, int]]:
    """Makes this system look like macOS; the fcntl calls that are made, as (command, argument)."""
    calls: list[tuple[int, int]] = []

    def fcntl(fd: int, command: int, argument: int) -> None:
        assert os.fstat(fd)
        calls.append((command, argument))
        if refuses:
            raise OSError(25, "Inappropriate ioctl for device")

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "O_DIRECT", raising=False)
    monkeypatch.setitem(sys.modules, "fcntl", SimpleNamespace(fcntl=fcntl))
    return calls


def test_direct_reads_can_be_switched_off(file: Path) -> None:
    assert probe_direct(file, "off") == (False, "switched off")


def test_a_probe_has_a_reason_either_way(file: Path) -> None:
    used, reason = probe_direct(file)
    assert reason and "\n" not in reason
    fd = open_file(file, direct=used)
    assert os.fstat(fd).st_size == 256 * 64
    os.close(fd)


def test_direct_reads_that_are_demanded_but_impossible_are_an_error(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_why_not_direct", lambda path: "no such thing")
    assert probe_direct(file, "auto") == (False, "no such thing")
    with pytest.raises(BadModel, match="no such thing; use DIRECT=auto"):
        probe_direct(file, "on")


def test_a_mac_keeps_pages_out_of_its_cache(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = on_a_mac(monkeypatch)
    assert direct_way() == "F_NOCACHE"
    fd = open_file(file, direct=True)
    assert calls == [(48, 1)] and os.read(fd, 3) == b"\0\1\2"
    os.close(fd)
    os.close(open_file(file))
    assert len(calls) == 1


@pytest.mark.skipif(not hasattr(os, "readv"), reason="no readv here")
def test_a_macs_file_system_may_refuse(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_mac(monkeypatch)
    assert probe_direct(file) == (True, "a trial read of data works")
    on_a_mac(monkeypatch, refuses=True)
    used, reason = probe_direct(file)
    assert not used and reason.startswith("opening with F_NOCACHE: Inappropriate")


def test_a_system_without_either_reads_plainly(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.delattr(os, "O_DIRECT", raising=False)
    assert direct_way() is None
    assert probe_direct(file) == (False, "this system has no O_DIRECT")
    os.close(open_file(file, direct=True))
