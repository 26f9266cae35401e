"""Who holds a directory, who may take it over, and what is left."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from diskmoe.experts.errors import BadOutput
from diskmoe.experts.lockfile import LOCK_NAME, locked


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / LOCK_NAME


def began(pid: int) -> float:
    return psutil.Process(pid).create_time()


def test_the_lock_is_there_while_it_is_held_and_gone_afterwards(tmp_path: Path, lock: Path) -> None:
    with locked(tmp_path, tmp_path):
        assert lock.read_text().startswith(f"{os.getpid()} ")
    assert os.listdir(tmp_path) == []
    with pytest.raises(KeyError), locked(tmp_path, tmp_path):
        raise KeyError
    assert os.listdir(tmp_path) == []


def test_the_lock_is_given_back_where_the_directory_was_moved(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    with locked(before, after):
        before.rename(after)
    assert os.listdir(after) == []


def test_a_running_holder_is_named_and_its_lock_left_alone(tmp_path: Path, lock: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as holder:
        lock.write_text(f"{holder.pid} {began(holder.pid):.2f}")
        text = lock.read_text()
        with pytest.raises(BadOutput, match=f"process {holder.pid} is at work in it"):
            locked(tmp_path, tmp_path).__enter__()
        assert os.listdir(tmp_path) == [LOCK_NAME]
        assert lock.read_text() == text
        holder.kill()


def test_the_lock_of_a_process_that_is_gone_is_taken_over(tmp_path: Path, lock: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as holder:
        pass
    lock.write_text(f"{holder.pid} {time.time():.2f}")
    with locked(tmp_path, tmp_path):
        assert lock.read_text().startswith(f"{os.getpid()} ")
    assert os.listdir(tmp_path) == []


def test_a_number_that_another_process_has_by_now_holds_nothing(tmp_path: Path, lock: Path) -> None:
    lock.write_text(f"{os.getpid()} {began(os.getpid()) - 30:.2f}")  # as in a restarted container
    with locked(tmp_path, tmp_path):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("text", ["", "12", "x y", "-5 1.0", "9" * 90 + " 1.0", "1 nan"])
def test_a_lock_without_a_process_is_held_while_it_is_young(
    tmp_path: Path, lock: Path, text: str
) -> None:
    lock.write_text(text)
    if text in ("", "12", "x y"):  # it may be being written
        with pytest.raises(BadOutput, match="another process is at work in it"):
            locked(tmp_path, tmp_path).__enter__()
    os.utime(lock, (0, 0))
    with locked(tmp_path, tmp_path):
        pass
    assert os.listdir(tmp_path) == []


def test_only_one_may_take_over(tmp_path: Path, lock: Path) -> None:
    lock.write_text("1 0.0")
    guard = tmp_path / (LOCK_NAME + ".tmp")
    guard.write_text("")
    with pytest.raises(BadOutput, match="just beginning there"):
        locked(tmp_path, tmp_path).__enter__()
    assert guard.exists()
    os.utime(guard, (0, 0))  # whoever made it was killed
    with pytest.raises(BadOutput, match="try again"):
        locked(tmp_path, tmp_path).__enter__()
    with locked(tmp_path, tmp_path):
        pass
    assert os.listdir(tmp_path) == []
