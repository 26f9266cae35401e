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
from threading import Lock
from typing import Any

import numpy as np

from diskmoe.grammar_draft.graph import Graph
from diskmoe.grammar_draft.laid import table_of
from diskmoe.grammar_draft.pushdown import Pushdown
from diskmoe.grammar_draft.pushed import names_tokens, recurring, shared
from diskmoe.grammar_draft.rules import Grammar
from diskmoe.grammar_draft.subsets import Undecided
from diskmoe.grammar_draft.table import ACCEPT, GO, RETURN, SWITCH, Table, completed

KEPT = 64  # tables in memory
MAX_BYTES = 64 << 20  # of a file
_VERSION = "diskmoe table 1"  # another one whenever tables, or how they are made, change
_ARRAYS = {
    "classes": np.uint8,
    "act": np.int32,
    "kind": np.uint8,
    "number": np.int32,
    "at": np.int32,
    "listed": np.int32,
    "found": np.int32,
}
_CHECKSUM_BYTES = 32

Made = tuple[Table | None, str]  # no table: sets of stacks


class Tables:
    """Tables by their grammar, for any number of threads."""

    def __init__(self, folder: Path | None = None, say: Callable[[str], None] | None = None):
        """folder: where tables outlive the process; it is made when the first one is written. say:
        told in one line of each file that cannot be used or written."""
        self._folder = folder
        self._say = say or (lambda _: None)
        self._made: dict[str, Made] = {}  # the latest stands last
        self._lock = Lock()  # texts may be constrained in several threads

    def of(self, grammar: Grammar, graph: Graph) -> Made:
        """The table of a grammar and what it is in words, as `table_for` has it."""
        name = digest(grammar)
        with self._lock:
            made = self._made.pop(name, None) or self._read(name)
            if made is None:
                made = table_for(grammar, graph)
                self._write(name, made)
            self._made[name] = made
            if len(self._made) > KEPT:
                self._made.pop(next(iter(self._made)))
        return made

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


def table_for(grammar: Grammar, graph: Graph) -> tuple[Table | None, str]:
    """The table of a grammar, None where it has none; and in words what it is."""
    count = sum(not grammar.rules[number].made for number in grammar.used)
    rules = f"{count} rule{'s' if count != 1 else ''}"
    if names_tokens(grammar):
        return None, f"{rules}, sets of stacks: it names tokens"
    must = recurring(grammar, graph)
    should = shared(grammar, must)
    why = ""
    # what is called often and large is not copied; then nothing that is called is
    for pushed in (should, set(grammar.used)):
        try:
            made = Pushdown(grammar, graph, pushed)
            table = table_of(made.rows(), made.start)
        except Undecided as error:
            why = why or f": {error}"
            continue
        kind = f"DFA of {table.states} states"
        if not table.regular:
            kind = f"{table.states} states with a stack"
        return table, f"{rules}, {kind}{why}"
    return None, f"{rules}, sets of stacks{why}"


def digest(grammar: Grammar) -> str:
    """Names what a table is made from: the rules that the root leads to."""
    rules = [(n, grammar.rules[n].alternatives, bool(grammar.rules[n].made)) for n in grammar.used]
    text = f"{_VERSION} {grammar.root} {rules!r}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def packed(made: Made, name: str) -> bytes:
    """A table as the content of a file."""
    table, how = made
    arrays = {key: getattr(table, key) for key in _ARRAYS} if table else {}
    head = {
        "version": _VERSION,
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
    if not newline or version != _VERSION or found != name or not isinstance(how, str):
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
    states, actions = len(act), len(kind) - 1
    lists = len(arrays["listed"])
    shapes = {
        "classes": (256,),
        "number": (actions + 1,),
        "at": (actions + 1,),
        "listed": (lists,),
        "found": (lists,),
    }
    for key, shape in shapes.items():
        if arrays[key].shape != shape:
            raise ValueError(f"{key} has the shape {arrays[key].shape} where {shape} is needed")
    number = arrays["number"][:-1]
    kinds = kind[:-1]
    fits = (
        type(start) is int
        and 0 <= start < states
        and (arrays["classes"] < act.shape[1] - 1).all()
        and ((act >= -1 - actions) & (act < states)).all()
        and np.isin(kinds, (GO, RETURN, SWITCH, ACCEPT)).all()
        and (number[kinds == GO] >= 0).all()
        and (number[kinds == GO] < states).all()
        and (number[kinds == SWITCH] == 1).all()
        and at[0] == 0
        and at[-1] == lists
        and (np.diff(at) >= 0).all()
        and ((arrays["listed"] >= 0) & (arrays["listed"] < states)).all()
        and ((arrays["found"] >= -1 - actions) & (arrays["found"] < states)).all()
    )
    if not fits:
        raise ValueError("a number in it leads nowhere")
    return completed(**arrays, start=start)
