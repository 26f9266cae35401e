"""Numba functions that are compiled once per machine and found again at the next start.

The rule of this file: a compiled function is used again only while the source of everything that it
was made from is the same. Numba's own cache looks at the file that defines a function, not at those
whose functions it calls, and keeps an index that two processes can spoil for each other. Here each
compiled function is a file of its own, named after all that it depends on: the text of its source
and of all our sources imported by that, its types, the processor, the compiler's version.

    kernel      called from Python, and from other kernels
    callback    called by its address, see ``address_of``
    inner       called from the three kinds only, and compiled into them: costs a third less
"""

import hashlib
import pickle
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import llvmlite
import numba
from numba import njit
from numba.core import config, event
from numba.core.caching import _Cache  # pyright: ignore[reportPrivateUsage]
from numba.core.compiler import CompileResult
from numba.core.runtime.nrt import rtsys
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature

from diskmoe.compiled.files import kernel_folders, read_kernel, write_kernel

NOTES = "diskmoe:kernel-note"  # events of this kind carry (topic, one line for the user)
PACKAGES = Path(__file__).resolve().parents[1]
_IMPORT = re.compile(
    r"^[ \t]*from[ \t]+diskmoe\.([\w.]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n]*)"
    r"|^[ \t]*import[ \t]+diskmoe\.([\w.]+)",
    re.MULTILINE,
)
# what changes the machine code, beside the sources and the processor
_COMPILER = (
    numba.__version__,
    llvmlite.__version__,
    *(str(getattr(config, name, "")) for name in ("OPT", "BOUNDSCHECK", "DEBUGINFO_DEFAULT")),
)


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`numba.njit` that releases the GIL and is kept on disk; bare or with Numba's options."""
    return _jitted(function, True, {"no_cfunc_wrapper": True, **options})


def callback(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Like `kernel`, for `address_of` alone: no Python code can call it."""
    return _jitted(function, True, {"no_cpython_wrapper": True, **options})


def inner(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Like `kernel`, for compiled callers alone; it is kept as a part of them."""
    only = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return _jitted(function, False, {**only, **options})


def address_of(function: Any, signature: Any) -> int:
    """The address of a `callback`'s C function for one signature, compiled or read from disk.

    signature: Numba's, or its text. An exception in the function is printed and lost: it should
    raise none.
    """
    arguments, _ = normalize_signature(signature)
    function.compile(signature)
    made = function.overloads[tuple(arguments)]
    return made.library.get_pointer_to_function(made.fndesc.llvm_cfunc_wrapper_name)


def _jitted(function: Callable[..., Any] | None, kept: bool, options: dict[str, Any]) -> Any:
    if function is None:
        return lambda f: _jitted(f, kept, options)
    dispatcher: Any = njit(function, nogil=True, **options)
    if kept:
        dispatcher._cache = _KernelCache(function)  # what Numba's enable_caching does
    if options.get("no_cpython_wrapper"):
        # Numba would enter whatever is in its table, and there is nothing to enter
        dispatcher._insert = _insert_nothing
        dispatcher._compile_for_args = _refuse_python
    return dispatcher


def _insert_nothing(*_: Any, **__: Any) -> None:
    """Leaves a function out of the table of those that Python can call."""


def _refuse_python(*_: Any, **__: Any) -> None:
    raise TypeError("this function was compiled for other compiled functions, not for Python")


@cache
def source_digest(file: Path) -> str:
    """Names the text of a source file and of all our files that it imports, in turn.

    OSError where there is no source: in a zip file, or beside compiled Python alone.
    """
    found = {file}
    waiting = [file]
    while waiting:
        new = _source(waiting.pop()).imports - found
        found |= new
        waiting += new
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(found):
        digest.update(f"{path.name} {_source(path).digest}\n".encode())
    return digest.hexdigest()


class _Source(NamedTuple):
    digest: str
    imports: frozenset[Path]  # files of ours


@cache
def _source(path: Path) -> _Source:
    text = path.read_text(encoding="utf-8")
    found: set[Path] = set()
    for module, names, plain in _IMPORT.findall(text):
        base = PACKAGES.joinpath(*(module or plain).split("."))
        # `from package import module` names files too
        places = [base, base / "__init__", *(base / name for name in re.findall(r"\w+", names))]
        found |= {file for p in places if (file := p.with_suffix(".py")).exists()}
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return _Source(digest, frozenset(found))


class _KernelCache(_Cache):
    """What Numba asks for compiled code before it compiles, and gives it to afterwards."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._enabled = True

    @property
    def cache_path(self) -> Any:
        return str(kernel_folders()[0])

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function for a signature, or None."""
        # all that kept code needs of what Numba's `refresh` loads, which takes 0.25 s and 20 MB
        rtsys.initialize(target_context)
        key = self._key(sig, target_context.codegen())
        if key is None:
            return None
        body, damaged = read_kernel(self._file_name(key))
        try:
            kept_key, payload = pickle.loads(body) if body else (None, ())
            if kept_key == key:
                return CompileResult._rebuild(target_context, *payload)
        except Exception as error:  # noqa: BLE001 - whatever it holds, it can be compiled again
            _note("damaged", f"a kept kernel cannot be used ({error}): it is compiled again")
        for path in damaged:
            _note("damaged", f"{path} is damaged: it is compiled again")
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keeps a compiled function, where that is possible."""
        key = self._key(sig, data.codegen)
        if key is None or data.library.has_dynamic_globals:
            return
        if write_kernel(self._file_name(key), dumps((key, data._reduce()))) is None:
            folder = kernel_folders()[0]
            _note(
                "memory",
                f"{folder} cannot be written: kernels are compiled anew at every start; "
                "set NUMBA_CACHE_DIR to a directory that can",
            )

    def _key(self, sig: Any, codegen: Any) -> tuple[Any, ...] | None:
        """All that the machine code of a signature depends on; None where there is no source."""
        if not self._enabled:
            return None
        code = self._function.__code__
        try:
            digest = source_digest(Path(code.co_filename).resolve())
        except OSError:
            _note("memory", "no source files are installed: kernels are compiled at every start")
            return None
        return sig, codegen.magic_tuple(), digest, _frozen(self._function), _COMPILER

    def _file_name(self, key: tuple[Any, ...]) -> str:
        code = self._function.__code__
        digest = hashlib.blake2b(repr(key).encode(), digest_size=12).hexdigest()
        return f"{Path(code.co_filename).stem}.{code.co_name}.{digest}"

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def flush(self) -> None:
        """Nothing to forget: a changed source has another file name."""


def _frozen(value: Any) -> Any:
    """A function's place in its file and what it is closed over, the same in every process."""
    # Numba pickles what it has decorated with a random name: look at the function inside
    inside = getattr(value, "py_func", getattr(value, "_defn", value))
    if isinstance(inside, FunctionType):
        code = inside.__code__
        cells = tuple(_frozen(cell.cell_contents) for cell in inside.__closure__ or ())
        return inside.__module__, inside.__qualname__, code.co_firstlineno, code.co_code, cells
    if isinstance(value, tuple | list):
        return tuple(_frozen(part) for part in value)
    return dumps(value)


def _note(topic: str, line: str) -> None:
    event.broadcast(event.Event(NOTES, event.EventStatus.START, (topic, line)))
