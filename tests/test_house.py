"""The house is as docs/DESIGN.md draws it: packages stand on each other, and no files in a circle."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

# what each package may import, beside itself
BELOW = {
    "bench": {"engine", "mtp", "experts", "grammar_draft", "compiled"},
    "engine": {"mtp", "experts", "grammar_draft", "compiled"},
    "mtp": {"grammar_draft", "compiled"},
    "experts": {"compiled"},
    "grammar_draft": {"compiled"},
    "compiled": set[str](),
}
INSIDE = "diskmoe."


def imports_of(file: Path) -> Iterator[str]:
    """The modules of ours that a file imports anywhere, in functions and for types too, and the names
    that it takes from each."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(INSIDE):
            module = str(node.module)[len(INSIDE) :]
            yield module
            yield from (f"{module}.{name.name}" for name in node.names)


@pytest.fixture(scope="module")
def files(repo_root: Path) -> dict[str, Path]:
    """Every file of the packages by its module's name."""
    return {
        ".".join(path.relative_to(repo_root).with_suffix("").parts): path
        for package in BELOW
        for path in (repo_root / package).rglob("*.py")
    }


def test_packages_import_only_those_that_stand_below_them(files: dict[str, Path]) -> None:
    up = {
        (module, wanted)
        for module, path in files.items()
        for wanted in imports_of(path)
        if (above := module.split(".")[0]) != (other := wanted.split(".")[0])
        and other not in BELOW[above]
    }
    assert not up


def test_no_files_import_each_other_in_a_circle(files: dict[str, Path]) -> None:
    left = {
        module: {wanted for wanted in imports_of(path) if wanted in files}
        for module, path in files.items()
    }
    while free := {module for module, wanted in left.items() if not wanted}:
        left = {module: wanted - free for module, wanted in left.items() if module not in free}
    assert not left, "these wait for each other"
