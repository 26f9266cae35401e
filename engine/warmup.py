"""All kernels compiled, or read from disk, before the first token.

The rule of this file: the kernels are a list of items, and whoever claims an item compiles it. When
something really is to be compiled, a second process is started that claims items from the same list;
what one of the two has compiled the other finds on disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
from numba.core.event import Event, Listener, install_listener

from diskmoe.compiled.files import (
    kept_kernels,
    kernel_folders,
    kernels_can_be_kept,
    prune_kernels,
)
from diskmoe.compiled.functions import NOTES
from diskmoe.engine.cores import usable_cores
from diskmoe.engine.interrupts import interrupts_kept
from diskmoe.engine.kernels.warm import BLOCKS, WarmItem, kernel_items
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.union import union_of
from diskmoe.engine.sampling import warm_sampler
from diskmoe.engine.warm_grammars import warm_grammars
from diskmoe.experts.budget import shown_bytes
from diskmoe.experts.errors import WriteFailed
from diskmoe.experts.warm import compile_packers

Say = Callable[[str], None]
COMPILE = "numba:compile"
GRAMMARS = "grammars that constrain"
HELPER_SECONDS = 300  # after that this process compiles what the helper had claimed


@dataclass
class Readiness:
    """What it took until the kernels were ready. `compiled`: in this process, inner ones too."""

    items: int
    compiled: int = 0
    seconds: float = 0.0
    notes: dict[str, str] = field(default_factory=dict)  # by topic


def warm_items(
    formats: Sequence[str], packing: bool, blocks: Sequence[str] = tuple(BLOCKS)
) -> list[WarmItem]:
    """Everything that a model with these weight formats calls, the costliest items first.

    blocks: those of `kernels.warm.BLOCKS` that it has; and GRAMMARS, where texts may be constrained.

    packing: also what packs weights, for checkpoints that are quantised as they are read.
    """
    items = [
        *kernel_items(formats, [block for block in blocks if block != GRAMMARS]),
        WarmItem("union of experts", _union),
        WarmItem("choice of a token", warm_sampler),
    ]
    if GRAMMARS in blocks:
        items.append(WarmItem(GRAMMARS, warm_grammars))
    if packing:
        items += [WarmItem(f"packing {fmt}", partial(compile_packers, [fmt])) for fmt in formats]
    return items


def blocks_of(config: ModelConfig) -> tuple[str, ...]:
    """The blocks of a model that others do not have."""
    has = {
        "latents": config.latent is not None,
        "chosen keys": config.indexer is not None,
        "delta": config.delta is not None,
        "gates": config.q_gate or config.shared_gated,
    }
    return tuple(name for name in BLOCKS if has[name])


def _union() -> None:
    ids = np.zeros((1, 1), np.int32)
    union_of(ids, 1).selections(ids[0])


def ready_kernels(
    formats: Sequence[str], packing: bool, say: Say, blocks: Sequence[str] = tuple(BLOCKS)
) -> Readiness:
    """Compiles the kernels that these formats and blocks need, or loads them from disk.

    Says one line when it really compiles, and at most one per thing that is wrong with the disk.
    """
    started = time.perf_counter()
    items = warm_items(formats, packing, blocks)
    with ExitStack() as stack:
        check = stack.enter_context(interrupts_kept())
        helper = stack.enter_context(_Helper(formats, packing, blocks))
        listener = _CompileListener(Readiness(len(items)), helper.start, say)
        stack.enter_context(install_listener(COMPILE, listener))
        stack.enter_context(install_listener(NOTES, listener))
        left = []
        for number, item in enumerate(items):
            if not _run_claimed(item, number, helper):
                left.append(item)
            check()
        helper.wait(check)
        for item in left:  # found on disk, unless the helper came to harm
            item.run()
            check()
    made = listener.made
    made.seconds = time.perf_counter() - started
    if made.compiled:
        prune_kernels()
    return made


def warm_up(formats: Sequence[str], say: Say) -> None:
    """Compiles everything that any model with these formats can call, and keeps it.

    Raises WriteFailed where no folder takes the compiled kernels.
    """
    if not kernels_can_be_kept():  # said before minutes of work, not behind them
        places = " nor ".join(str(folder) for folder in kernel_folders())
        raise WriteFailed(
            f"{places} cannot be written, or the disk is full: no kernel could be kept; free some "
            "megabytes, or set NUMBA_CACHE_DIR to a directory that can be written"
        )
    formats = list(dict.fromkeys([*formats, "f32", "bf16"]))  # the router, and dense weights
    before = kept_kernels()
    made = ready_kernels(formats, True, say, (*BLOCKS, GRAMMARS))
    after = kept_kernels()
    if "memory" in made.notes or not after:
        raise WriteFailed(
            f"not all kernels were kept: {made.notes.get('memory', 'no folder for kernels')}"
        )
    new = len(after.items() - before.items())  # a damaged one had another size
    did = f"{new} kernels compiled" if new else "all kernels were there"
    say(
        f"done      {did} ({', '.join(formats)}; {made.seconds:.1f} s); {len(after)} files, "
        f"{shown_bytes(sum(after.values()))}, are kept in {next(iter(after)).parent}"
    )


def help_compiling(
    formats: Sequence[str], packing: bool, blocks: Sequence[str], claims: Path, parent: int
) -> None:
    """What the second process does: items nobody has claimed, for as long as there is a parent."""
    for number, item in enumerate(warm_items(formats, packing, blocks)):
        if os.getppid() != parent:  # it was ended without a chance to tidy up
            shutil.rmtree(claims, ignore_errors=True)
            return
        if _claim(claims, number):
            item.run()


def _run_claimed(item: WarmItem, number: int, helper: _Helper) -> bool:
    """Runs an item, unless the helper has claimed it."""
    if helper.claims is not None and not _claim(helper.claims, number):
        return False
    helper.at = number
    item.run()
    return True


def _claim(claims: Path, number: int) -> bool:
    try:
        os.close(os.open(claims / str(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    except OSError:  # the folder is gone: compiling twice is better than not at all
        return True
    return True


class _CompileListener(Listener):
    """Counts what is compiled; says and starts what belongs to the first time."""

    def __init__(self, made: Readiness, first: Callable[[], None], say: Say) -> None:
        self.made = made
        self._first = first
        self._say = say

    def on_start(self, event: Event) -> None:
        if event.kind == NOTES:
            topic, line = cast("tuple[str, str]", event.data)
            if topic not in self.made.notes:
                self.made.notes[topic] = line
                self._say(f"note      {line}")
            return
        self.made.compiled += 1
        if self.made.compiled == 1:
            self._say(
                "kernels   being compiled for this processor, once; this takes up to half a minute"
            )
            self._first()

    def on_end(self, event: Event) -> None:
        """Nothing to say."""


class _Helper:
    """The second process, from the first compilation on; ended with the block."""

    def __init__(self, formats: Sequence[str], packing: bool, blocks: Sequence[str]) -> None:
        self._arguments = f"{list(formats)!r}, {packing!r}, {list(blocks)!r}"
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.claims: Path | None = None
        self.at = 0  # the item that this process is at

    def start(self) -> None:
        """Starts it where it can help: a second core, a place where both find what was made."""
        if usable_cores()[0] < 2 or not sys.executable or not kernels_can_be_kept():
            return
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="diskmoe-kernels-")
            claims = Path(self._folder.name)
            for number in range(self.at + 1):
                _claim(claims, number)
            # our own sys.path and not the one that -c begins with the working directory
            code = (
                f"import sys; sys.path[:] = {sys.path!r}; import pathlib;"
                "from diskmoe.engine.warmup import help_compiling;"
                f"help_compiling({self._arguments}, pathlib.Path({str(claims)!r}), {os.getpid()})"
            )
            quiet = subprocess.DEVNULL
            self._process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=quiet, stdout=quiet, stderr=quiet
            )
        except OSError:
            return
        self.claims = claims

    def wait(self, check: Callable[[], None]) -> None:
        """Until it has nothing left to do; `check` is called now and then."""
        if self._process is None:
            return
        deadline = time.monotonic() + HELPER_SECONDS
        while time.monotonic() < deadline:
            try:
                self._process.wait(0.1)
                return
            except subprocess.TimeoutExpired:
                check()
        self._process.kill()

    def __enter__(self) -> _Helper:  # noqa: PYI034 - Self is newer than Python 3.10
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._folder is not None:
            self._folder.cleanup()
