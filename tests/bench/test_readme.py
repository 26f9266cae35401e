"""README's results: made from kept files, and no others."""

from pathlib import Path

import pytest

from diskmoe.bench.readme import BEGIN, END, KEPT, ROOT, main, section, with_section
from diskmoe.bench.results import EXPERIMENT_FILE, Results

MOST_BYTES = 200_000


def test_readme_says_what_the_kept_files_say() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert with_section(readme) == readme, "run python -m diskmoe.bench.readme"
    assert main(["--check"]) == 0


def test_every_experiment_is_there_with_its_command() -> None:
    told = section()
    kept = sorted(path.parent for path in KEPT.glob(f"*/{EXPERIMENT_FILE}"))
    assert kept
    for folder in kept:
        experiment = Results.open(folder).experiment
        assert " ".join(experiment.command[:2]) in told
        assert (folder / "about.md").read_text("utf-8").strip() in told


def test_kept_files_are_small_and_name_no_place_of_the_machine() -> None:
    for path in (path for path in KEPT.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert len(content) < MOST_BYTES, path
        assert b"/root/" not in content and b"/home/" not in content, path


def test_a_changed_number_is_found(tmp_path: Path) -> None:
    readme = f"before{BEGIN}\n12.0 tok/s\n{END}after"
    found = with_section(readme)
    assert found.startswith(f"before{BEGIN}\n") and found.endswith(f"{END}after")
    assert "12.0 tok/s\n" not in found and with_section(found) == found
    with pytest.raises(ValueError, match="README.md has no"):
        with_section("no marks")
    assert section(tmp_path).strip() == ""
