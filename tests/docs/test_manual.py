"""The pages that are made from the source are as it would make them now."""

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from make_manual import PAGES
from manual_api import INNER, MODULES

import diskmoe.engine
from diskmoe.engine.settings import PREFIX, SETTINGS


@pytest.mark.parametrize(("name", "made"), PAGES.items(), ids=list(PAGES))
def test_a_made_page_is_as_the_source_makes_it(
    repo_root: Path, name: str, made: Callable[[], str]
) -> None:
    page = (repo_root / "docs" / name).read_text("utf-8")
    assert page == made(), "run python scripts/make_manual.py"


def test_every_setting_is_on_its_page_once(repo_root: Path) -> None:
    page = (repo_root / "docs" / "settings.md").read_text("utf-8")
    for setting in SETTINGS:
        name = setting.name if setting.bare else PREFIX + setting.name
        assert page.count(f"\n| `{name}` |") == 1, name


def public() -> Iterator[tuple[str, Any]]:
    """Every class, function and method of the API, by name."""
    for module, names in MODULES:
        for name in names:
            thing = getattr(import_module(module), name)
            yield name, thing
            for member, value in vars(thing).items() if inspect.isclass(thing) else ():
                if not member.startswith("_") and f"{name}.{member}" not in INNER:
                    value = getattr(value, "fget", getattr(value, "__func__", value))
                    if inspect.isfunction(value):
                        yield f"{name}.{member}", value


def test_all_that_programs_call_is_told_and_so_is_every_parameter() -> None:
    for name, thing in public():
        told = inspect.getdoc(thing) or ""
        assert told and not told.startswith(f"{name}("), name
        if inspect.isfunction(thing) and "Args:" in told:
            for parameter in inspect.signature(thing).parameters:
                if parameter not in ("self", "cls"):
                    assert re.search(rf"\b{parameter}\b", told), f"{name}: {parameter}"


def test_every_name_of_the_package_is_on_the_page_of_the_api() -> None:
    (names,) = [names for module, names in MODULES if module == "diskmoe.engine"]
    assert set(names) == set(diskmoe.engine._HOMES)
