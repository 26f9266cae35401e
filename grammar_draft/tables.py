"""Compiled grammars that are kept: the latest in memory, and in a folder if one is given.

A table depends on the rules alone, so that one file serves every tokenizer. A file is written whole
and begins with a checksum; what is read from one is believed only after every number in it was found
to lie where compiled functions may look. A file of another user, or that others can write, is not
read: it could hold another grammar under this one's name.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock
from typing import Any

import numpy as np

from diskmoe.grammar_draft.compiled_table import VERSION, Made, digest, table_for
from diskmoe.grammar_draft.patience import breathe
from diskmoe.grammar_draft.rules import Grammar
from diskmoe.grammar_draft.table import (
    ACCEPT,
    COUNT,
    GO,
    LOAD,
    NO_ACTION,
    RETURN,
    STATE,
    SWITCH,
    Table,
    completed,
)

KEPT_BYTES = 8 << 20  # of tables in memory
MAX_BYTES = 64 << 20  # of a file
_LEAST_BYTES = 4096  # that a grammar takes that is kept
_LOOKS_SECONDS = 0.05  # between questions whether who waits is still there
_ARRAYS = {
    "classes": np.uint8,
    "act": np.int32,
    "kind": np.uint8,
    "number": np.int32,
    "at": np.int32,
    "listed": np.int32,
    "found": np.int32,
    "live": np.uint8,
}
_CHECKSUM_BYTES = 32


class Tables:
    """Tables by their grammar, for any number of threads."""

    def __init__(self, folder: Path | None = None, say: Callable[[str], None] | None = None):
        """folder: where tables outlive the process; it is made when the first one is written. say:
        told in one line of each file that cannot be used or written."""
        self._folder = folder
        self._say = say or (lambda _: None)
        self._made: dict[str, Made] = {}  # the latest stands last
        self._making: dict[str, Event] = {}  # by who came first; others wait for it
        self._lock = Lock()  # of these two, for moments only

    def of(self, grammar: Grammar) -> Made:
        """The table of a grammar and what it is in words, as `table_for` has it.

        It is made once, by the first of all threads that want it; other grammars wait for nothing.
        Where a thread is told to stop (`patience`), one of those that wait makes it instead.
        """
        name = digest(grammar)
        while True:
            with self._lock:
                made = self._made.pop(name, None)
                if made is not None:
                    self._made[name] = made
                    return made
                other = self._making.get(name)
                if other is None:
                    done = self._making[name] = Event()
                    break
            while not other.wait(_LOOKS_SECONDS):
                breathe()
        try:
            made = self._read(name)
            if made is None:
                made = table_for(grammar)
                self._write(name, made)
            self._keep(name, made)
            return made
        finally:
            with self._lock:
                del self._making[name]
            done.set()

    def _keep(self, name: str, made: Made) -> None:
        with self._lock:
            self._made[name] = made
            size = sum(_size(other) for other in self._made.values())
            while size > KEPT_BYTES and len(self._made) > 1:
                size -= _size(self._made.pop(next(iter(self._made))))

    def _path(self, name: str) -> Path | None:
        return self._folder / f"{name}.table" if self._folder else None

    def _read(self, name: str) -> Made | None:
        path = self._path(name)
        if path is None:
            return None
        try:
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                if hasattr(os, "getuid") and found.st_uid != os.getuid():
                    raise ValueError("it belongs to another user")
                if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and os.name != "nt":
                    raise ValueError("others may write it")
                data = file.read(MAX_BYTES + 1)
            return unpacked(data, name)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._say(f"{path} is not used ({error}): the grammar is compiled again")
            return None

    def _write(self, name: str, made: Made) -> None:
        path = self._path(name)
        if path is None:
            return
        unfinished = path.with_name(f".{name}.{secrets.token_hex(4)}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(packed(made, name))
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except OSError as error:
            self._say(f"{path} cannot be written ({error.strerror}): the grammar is not kept")
        finally:
            with suppress(OSError):
                unfinished.unlink()


def _size(made: Made) -> int:
    """The bytes that a table takes, about."""
    table, _ = made
    return _LEAST_BYTES + (0 if table is None else table.nbytes)


def packed(made: Made, name: str) -> bytes:
    """A table as the content of a file."""
    table, how = made
    arrays = {key: getattr(table, key) for key in _ARRAYS} if table else {}
    head = {
        "version": VERSION,
        "name": name,
        "how": how,
        "start": table.start if table else 0,
        "shapes": {key: array.shape for key, array in arrays.items()},
    }
    body = json.dumps(head).encode() + b"\n" + b"".join(a.tobytes() for a in arrays.values())
    return hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest() + body


def unpacked(data: bytes, name: str) -> Made:
    """The table in the content of a file. Raises ValueError, saying why, where there is none."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    body = data[_CHECKSUM_BYTES:]
    if data[:_CHECKSUM_BYTES] != hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest():
        raise ValueError("it is damaged")
    line, newline, rest = body.partition(b"\n")
    try:
        head = json.loads(line)
        version, found, how = head["version"], head["name"], head["how"]
        start, shapes = head["start"], head["shapes"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("it has no head") from None
    if not newline or version != VERSION or found != name or not isinstance(how, str):
        raise ValueError("it is of another version or grammar")
    if shapes == {} and not rest:
        return None, how
    table = _checked(_arrays(shapes, rest), start)
    return table, how


def _arrays(shapes: Any, rest: bytes) -> dict[str, Any]:
    """The arrays that stand one behind another."""
    if not isinstance(shapes, dict) or list(shapes) != list(_ARRAYS):
        raise ValueError("it lacks arrays")
    arrays: dict[str, Any] = {}
    at = 0
    for key, kind in _ARRAYS.items():
        shape = shapes[key]
        if not isinstance(shape, list) or not 1 <= len(shape) <= 2:
            raise ValueError(f"{key} has no shape")
        if not all(type(n) is int and 0 <= n <= MAX_BYTES for n in shape):
            raise ValueError(f"{key} has no size")
        size = int(np.prod(shape, dtype=object)) * np.dtype(kind).itemsize
        if at + size > len(rest):
            raise ValueError(f"{key} is cut short")
        arrays[key] = np.frombuffer(rest, kind, size // np.dtype(kind).itemsize, at).reshape(shape)
        at += size
    if at != len(rest):
        raise ValueError(f"{len(rest) - at} bytes are left over")
    return arrays


def _checked(arrays: dict[str, Any], start: Any) -> Table:
    """A table in which every number leads somewhere. Raises ValueError."""
    act, kind, at = arrays["act"], arrays["kind"], arrays["at"]
    if act.ndim != 2 or act.shape[0] < 2 or act.shape[1] < 2 or kind.ndim != 1 or at.ndim != 1:
        raise ValueError("it has no states")
    if not len(kind) or kind[-1] != NO_ACTION:
        raise ValueError("it has no end of its actions")
    states, actions = len(act), len(kind) - 1
    lists = len(arrays["listed"])
    shapes = {
        "classes": (256,),
        "number": (actions + 1,),
        "at": (actions + 1,),
        "listed": (lists,),
        "found": (lists,),
        "live": (states,),
    }
    for key, shape in shapes.items():
        if arrays[key].shape != shape:
            raise ValueError(f"{key} has the shape {arrays[key].shape} where {shape} is needed")
    number = arrays["number"][:-1]
    kinds = kind[:-1]
    nexts = np.diff(at)
    fits = (
        type(start) is int
        and 0 <= start < states
        and (arrays["classes"] < act.shape[1] - 1).all()
        and ((act >= -1 - actions) & (act < states)).all()
        and states <= STATE + 1
        and np.isin(kinds, (GO, RETURN, SWITCH, ACCEPT, COUNT, LOAD)).all()
        and (number[kinds == GO] >= 0).all()
        and ((number[kinds == GO] & STATE) < states).all()
        and (nexts[kinds == COUNT] == 2).all()
        and (nexts[kinds == LOAD] == 1).all()
        and (number[kinds == SWITCH] == 1).all()
        and at[0] == 0
        and at[-1] == lists
        and (np.diff(at) >= 0).all()
        and (arrays["listed"] >= 0).all()
        and ((arrays["listed"] & STATE) < states).all()
        and ((arrays["found"] >= -1 - actions) & (arrays["found"] < states)).all()
    )
    if not fits:
        raise ValueError("a number in it leads nowhere")
    for counting, nexts_fit in ((COUNT, (GO,)), (LOAD, (GO, RETURN, SWITCH, ACCEPT, COUNT))):
        begins = at[:-1][kinds == counting]
        codes = arrays["found"][np.concatenate([begins, begins + (counting == COUNT)])]
        if not np.isin(kinds[-2 - codes[codes < -1]], nexts_fit).all():
            raise ValueError("what counts in it leads in a circle")
    return completed(**arrays, start=start)
