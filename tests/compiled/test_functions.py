"""Compiled functions on disk: found again, never stale, and no trouble of the disk stops a start."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from numba import types
from numba.core.event import Event, Listener, install_listener

from diskmoe.compiled import files as kernel_files
from diskmoe.compiled import functions as compiled
from diskmoe.compiled.functions import _KernelCache, address_of, callback, inner, source_digest

SOURCE = """
from diskmoe.compiled.functions import inner, kernel

@inner
def twice(x):
    return x + x

@kernel
def shifted(x):
    return twice(x) + 1

def adder(step):
    @kernel
    def add(x):
        return x + step
    return add
"""


class Heard(Listener):
    """Which functions were compiled, and what was noted about files."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.notes: list[tuple[str, str]] = []

    def on_start(self, event: Event) -> None:
        if event.kind == compiled.NOTES:
            self.notes.append(event.data)  # pyright: ignore[reportArgumentType]
        else:
            self.compiled.append(event.data["dispatcher"].__name__)  # pyright: ignore

    def on_end(self, event: Event) -> None:
        pass


@pytest.fixture
def heard() -> Iterator[Heard]:
    listener = Heard()
    with install_listener("numba:compile", listener), install_listener(compiled.NOTES, listener):
        yield listener


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place for compiled kernels: those of the user are left alone."""
    monkeypatch.setattr(kernel_files, "kernel_folders", lambda: [tmp_path / "kept"])
    return tmp_path / "kept"


def forget_sources() -> None:
    source_digest.cache_clear()
    compiled._source.cache_clear()


def load(path: Path) -> ModuleType:
    """The module at a path with fresh dispatchers, as in a new process."""
    forget_sources()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "kernels_of_this_test.py"
    path.write_text(SOURCE)
    yield path
    sys.modules.pop(path.stem, None)


def test_a_kernel_is_compiled_once_and_read_afterwards(source, folder, heard) -> None:
    assert load(source).shifted(20) == 41
    assert heard.compiled == ["shifted", "twice"]
    assert [path.name.split(".")[1] for path in folder.iterdir()] == ["shifted"]
    assert load(source).shifted(20) == 41
    assert heard.compiled == ["shifted", "twice"] and heard.notes == []


def test_what_a_kernel_is_closed_over_tells_it_from_its_like(source, folder, heard) -> None:
    module = load(source)
    assert (module.adder(1)(5), module.adder(2)(5)) == (6, 7)
    module = load(source)
    assert (module.adder(2)(5), module.adder(1)(5)) == (7, 6)
    assert heard.compiled == ["add", "add"]


@pytest.mark.parametrize("cut", [0, 5, 2000, -1])
def test_a_truncated_file_is_said_and_compiled_again(source, folder, heard, cut) -> None:
    load(source).shifted(1)
    (kept,) = folder.iterdir()
    kept.write_bytes(kept.read_bytes()[:cut])
    assert load(source).shifted(20) == 41
    assert len(heard.notes) == 1 and "damaged" in heard.notes[0][1]
    assert load(source).shifted(20) == 41
    assert len(heard.notes) == 1 and len(heard.compiled) == 4


def test_a_whole_file_that_makes_no_sense_is_compiled_again(source, folder, heard) -> None:
    load(source).shifted(1)
    (kept,) = folder.iterdir()
    kernel_files.write_kernel(kept.name.removesuffix(kernel_files.SUFFIX), b"no pickle")
    assert load(source).shifted(20) == 41
    assert [topic for topic, _ in heard.notes] == ["damaged"]


def test_where_nothing_can_be_written_kernels_live_in_memory(
    source, heard, tmp_path, monkeypatch
) -> None:
    (tmp_path / "file").write_text("no folder can be below this")
    monkeypatch.setattr(kernel_files, "kernel_folders", lambda: [tmp_path / "file" / "kernels"])
    assert not kernel_files.kernels_can_be_kept()
    assert load(source).shifted(20) == 41
    assert heard.notes[0][0] == "memory" and "NUMBA_CACHE_DIR" in heard.notes[0][1]


def test_a_folder_that_takes_nothing_gives_way_to_the_next(
    source, tmp_path, monkeypatch, heard
) -> None:
    (tmp_path / "file").write_text("")
    places = [tmp_path / "file" / "kernels", tmp_path / "second"]
    monkeypatch.setattr(kernel_files, "kernel_folders", lambda: places)
    load(source).shifted(1)
    assert len(list(places[1].iterdir())) == 1
    assert load(source).shifted(20) == 41
    assert heard.compiled == ["shifted", "twice"] and heard.notes == []


def test_without_source_files_nothing_is_kept(source, folder, heard) -> None:
    module = load(source)
    source.unlink()
    forget_sources()
    assert module.shifted(20) == 41
    assert not folder.exists() and "source" in heard.notes[0][1]


def test_the_processor_is_part_of_a_kernels_name() -> None:
    cache = _KernelCache(test_the_processor_is_part_of_a_kernels_name)
    names = set()
    for features in ("+avx2", "+avx2,+avx512f"):
        codegen = SimpleNamespace(magic_tuple=lambda f=features: ("x86_64", "znver3", f))
        key = cache._key((types.int64,), codegen)
        assert key is not None
        names.add(cache._file_name(key))
    assert len(names) == 2


def test_an_address_is_that_of_compiled_code_and_python_is_kept_out(folder) -> None:
    @callback
    def nothing(begin, end):
        pass

    @inner
    def small(x):
        return x

    assert address_of(nothing, "void(int64, int64)") > 0
    for function, arguments in ((nothing, (1, 2)), (small, (1,))):
        with pytest.raises(TypeError, match="not for Python"):
            function(*arguments)


def test_an_edited_callee_in_another_file_is_never_stale(tmp_path) -> None:
    ours, package = tmp_path / "diskmoe" / "compiled", tmp_path / "diskmoe" / "experts"
    ours.mkdir(parents=True)
    package.mkdir()
    for name in ("functions.py", "files.py", "__init__.py"):
        (ours / name).write_bytes((Path(compiled.__file__).parent / name).read_bytes())
    (package / "callee.py").write_text(
        "from diskmoe.compiled.functions import kernel\n\n@kernel\ndef part(x):\n    return x + 1\n"
    )
    (package / "middle.py").write_text("from diskmoe.experts.callee import part\n")
    (package / "caller.py").write_text(
        "from diskmoe.compiled.functions import kernel\nfrom diskmoe.experts import (\n    middle,\n)\n"
        "part = middle.part\n\n@kernel\ndef whole(x):\n    return part(x) * 2\n"
    )

    def results(at_once: int = 1) -> list[str]:
        code = "from diskmoe.experts.caller import whole; print(whole(1))"
        env = {
            **os.environ,
            "PYTHONPATH": str(tmp_path),
            "NUMBA_CACHE_DIR": str(tmp_path / "kept"),
        }
        command = [sys.executable, "-c", code]
        running = [
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
            for _ in range(at_once)
        ]
        return [process.communicate()[0] for process in running]

    assert results(at_once=2) == ["4\n", "4\n"]  # on an empty cache
    text = (package / "callee.py").read_text()
    (package / "callee.py").write_text(text.replace("x + 1", "x + 2"))
    assert results() == ["6\n"]


def test_ctrl_c_while_a_kernel_is_written_leaves_no_file(folder, monkeypatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kernel_files.write_kernel("name", b"body")
    assert list(folder.rglob("*.*")) == []


def test_folders_are_tried_in_order_and_need_no_home(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert kernel_files.kernel_folders() == [tmp_path / "diskmoe"]
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setattr(kernel_files, "cache_home", lambda: tmp_path / "home")
    first, second = kernel_files.kernel_folders()
    assert first == tmp_path / "home" / "kernels" and "__pycache__" in second.parts

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory")

    monkeypatch.setattr(kernel_files, "cache_home", no_home)
    assert kernel_files.kernel_folders() == [second]


def test_circular_and_missing_imports_do_no_harm(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(compiled, "PACKAGES", tmp_path)
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text("from diskmoe.second import x\nfrom diskmoe.gone import y\n")
    second.write_text("import diskmoe.first\n")
    before = source_digest(first)
    second.write_text("import diskmoe.first  # edited\n")
    forget_sources()
    assert source_digest(first) != before


def test_kernels_that_nobody_uses_are_removed(folder) -> None:
    folder.mkdir(parents=True)
    ages = {"old.kernel": 40, "new.kernel": 3, ".left.tmp": 1, "not-ours.txt": 90}
    for name, days in ages.items():
        (folder / name).write_text("x")
        then = (folder / name).stat().st_mtime - days * 86400
        os.utime(folder / name, (then, then))
    assert kernel_files.prune_kernels() == 2
    assert sorted(path.name for path in folder.iterdir()) == ["new.kernel", "not-ours.txt"]


def test_the_oldest_of_too_many_kernels_go_and_fresh_ones_stay(folder, monkeypatch) -> None:
    monkeypatch.setattr(kernel_files, "KEPT_BYTES", 250)
    for number, hours in enumerate((0, 2, 5, 9)):
        kernel_files.write_kernel(f"k{number}", bytes(84))
        path = folder / f"k{number}.kernel"
        then = path.stat().st_mtime - hours * 3600
        os.utime(path, (then, then))
    assert kernel_files.prune_kernels() == 2
    assert sorted(path.name for path in folder.iterdir()) == ["k0.kernel", "k1.kernel"]


def test_a_use_renews_the_time_of_a_file(folder) -> None:
    path = kernel_files.write_kernel("k", b"body")
    assert path is not None
    os.utime(path, (1e9, 1e9))
    assert kernel_files.read_kernel("k") == (b"body", [])
    assert path.stat().st_mtime > 1.6e9
