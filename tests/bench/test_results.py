"""The schema of results: what is written is read again, and what is wrong is named."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tiny_results import example, experiment, figures, run

from diskmoe.bench import results, schema
from diskmoe.bench.results import Acceptance, Arm, BadResults, Experiment, Prompt, Results, Run


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("kind", [Experiment, Run])
def test_every_field_is_read_as_it_was_written_and_fits_the_documented_schema(
    kind: type, full: bool
) -> None:
    thing = example(kind, full)
    content = json.loads(results.encoded(thing))
    jsonschema.validate(content, json.loads(schema.SCHEMA_FILE.read_text("utf-8")))
    assert set(content) == {field.name for field in fields(kind)}
    assert results.decoded(kind, content, "file") == thing


def test_the_schema_file_and_the_page_are_what_the_classes_say(repo_root: Path) -> None:
    assert schema.SCHEMA_FILE.read_text("utf-8") == schema.schema_text()
    page = (repo_root / "docs" / "bench-results.md").read_text("utf-8")
    assert page == schema.with_tables(page)


def test_the_schema_refuses_what_the_reader_refuses() -> None:
    validator = jsonschema.Draft202012Validator(schema.json_schema())
    for change in ({"extra": 1}, {"seconds": "1"}, {"figures": None}, {"token_ids": [1.5]}):
        content = json.loads(results.encoded(run())) | change
        assert not validator.is_valid(content)
        with pytest.raises(BadResults):
            results.decoded(Run, content, "file")


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [
        (("seconds",), "fast", 'file: seconds is "fast"; it must be a number'),
        (("seconds",), True, "file: seconds is true; it must be a number"),
        (("repeat",), 1.5, "file: repeat is 1.5; it must be a whole number"),
        (("program",), "vim", 'file: program is "vim"; it must be one of diskmoe, llama.cpp'),
        (("token_ids",), [1, "x"], 'file: token_ids[1] is "x"; it must be a whole number'),
        (("figures", "hit_rate"), [], "file: figures.hit_rate is []; it must be a number"),
        (("figures",), 3, "file: figures is 3; it must be an object"),
        (("figures", "hitrate"), 1, "file: unknown key figures.hitrate; did you mean hit_rate?"),
        (("settings", "CAP"), {"value": 1}, "file: settings.CAP.source is missing"),
        (("seconds",), -1, "file: seconds is -1.0; it must be neither negative nor endless"),
        (
            ("seconds",),
            float("inf"),
            "file: seconds is Infinity; it must be neither negative nor endless",
        ),
        (("order",), 10**400, "file: order is 1000"),
        (("version",), 2, "file: version 2 of the schema, and this diskmoe reads version 1"),
        (("version",), None, "file: version is null; it must be a whole number"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(place: tuple[str, ...], value: Any, why: str) -> None:
    content = json.loads(results.encoded(run()))
    part = content
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    with pytest.raises(BadResults, match=r"^file: ") as caught:
        results.decoded(Run, content, "file")
    assert str(caught.value).startswith(why)


def test_a_directory_has_its_runs_in_the_order_they_were_made(tmp_path: Path) -> None:
    made = Results.create(tmp_path / "new" / "out", experiment())
    made.add(run(arm="b", order=1))
    made.add(run(arm="a", order=0))
    found = Results.open(tmp_path / "new" / "out")
    assert found.experiment == experiment()
    assert [(r.arm, r.order) for r in found.runs] == [("a", 0), ("b", 1)]
    assert found.runs[0] == run(arm="a", order=0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"arm": "c"}, "arm 'c' is none of bench.json's"),
        ({"rung": 2}, "rung 2 of 2 in bench.json"),
        ({"prompt": 2}, "prompt 2 of 2 in bench.json"),
        ({"repeat": 1}, "the run in it belongs into run-a-0-0-1.json"),
        (
            {"figures": figures(acceptance={"mtp": Acceptance(3, 4, ())})},
            "figures.acceptance.mtp: 4 of 3 accepted",
        ),
        (
            {"figures": figures(acceptance={"mtp": Acceptance(3, 2, ((3, 2), (3,)))})},
            "figures.acceptance.mtp.by_position: each must be [judged, accepted]",
        ),
    ],
)
def test_a_run_that_is_none_of_the_experiments_is_refused(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    Results.create(tmp_path, experiment())
    (tmp_path / "run-a-0-0-0.json").write_bytes(results.encoded(run(**change)))
    with pytest.raises(BadResults) as caught:
        Results.open(tmp_path)
    assert str(caught.value) == f"{tmp_path / 'run-a-0-0-0.json'}: {why}"


@pytest.mark.parametrize(
    "content", [b"", b"[1", b"\xff", b"NaN", b"1e999", b"[" * 100_000, b"3", b"null"]
)
def test_a_file_that_is_no_result_is_one_line(tmp_path: Path, content: bytes) -> None:
    Results.create(tmp_path, experiment())
    path = tmp_path / "run-a-0-0-0.json"
    path.write_bytes(content)
    with pytest.raises(BadResults, match="^" + str(path)):
        Results.open(tmp_path)
    said: list[str] = []
    assert Results.open(tmp_path, said.append).runs == [] and len(said) == 1


def test_a_directory_without_an_experiment_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadResults, match=r"no bench\.json there"):
        Results.open(tmp_path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"arms": ()}, "arms is empty"),
        ({"rungs": ()}, "rungs is empty"),
        ({"prompts": ()}, "prompts is empty"),
        ({"arms": (Arm("a", "diskmoe", ""),) * 2}, "arms have names of their own"),
        ({"arms": (Arm("../b", "diskmoe", ""),)}, "arms have names of their own"),
        ({"arms": (Arm("", "diskmoe", ""),)}, "arms have names of their own"),
        ({"prompts": (Prompt("one", "1", None),) * 2}, "two prompts have the same name"),
    ],
)
def test_an_experiment_in_which_nothing_can_have_run_is_refused(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    Results.create(tmp_path, experiment(**change))
    with pytest.raises(BadResults, match=rf"bench\.json: {why}"):
        Results.open(tmp_path)
