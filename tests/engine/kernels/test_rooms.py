"""Working arrays that compiled functions make for themselves live as long as their addresses are used."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from diskmoe.engine import kernels

FILES = sorted(Path(kernels.__file__).parent.glob("*.py"))
MAKERS = {"empty", "zeros", "ones", "full", "empty_like", "zeros_like"}


def freed_too_early(source: str) -> list[str]:
    """Lines that take an array's address where nothing names the array afterwards: Numba frees it
    behind the last line that names it, and other threads are given its memory."""
    functions = (f for f in ast.walk(ast.parse(source)) if isinstance(f, ast.FunctionDef))
    return [line for function in functions for line in _of_function(function)]


def _of_function(function: ast.FunctionDef) -> Iterator[str]:
    made = {
        node.targets[0].id: node.lineno
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr in MAKERS
    }
    loops = [node for node in ast.walk(function) if isinstance(node, ast.For | ast.While)]
    for call in ast.walk(function):
        if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "address"):
            continue
        name = ast.unparse(call.args[0])
        around = (loop for loop in loops if call in ast.walk(loop))
        if name in made and not any(made[name] < loop.lineno for loop in around):
            yield f"{function.name}: {name}, line {call.lineno}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_addresses_of_own_arrays_are_taken_inside_the_loop_that_uses_them(file: Path) -> None:
    assert freed_too_early(file.read_text(encoding="utf-8")) == []


def test_an_address_taken_before_the_loop_is_found() -> None:
    lines = [
        "def f(n):",
        "    a = np.empty(n)",
        "    b = address(a)",
        "    for i in range(n): g(b)",
    ]
    assert freed_too_early("\n".join(lines)) == ["f: a, line 3"]
    lines[2:] = ["    for i in range(n):", "        g(address(a))"]
    assert freed_too_early("\n".join(lines)) == []
