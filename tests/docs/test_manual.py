"""The pages that are made from the source are as it would make them now."""

from collections.abc import Callable
from pathlib import Path

import pytest
from make_manual import PAGES

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
