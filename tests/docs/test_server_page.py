"""docs/server.md tells of every field what is done with it, and of every path, key and metric."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from manual_text import ROOT
from starlette.routing import Route
from tiny_server import write_model

from diskmoe.engine.api import Model
from diskmoe.engine.replies import usage
from diskmoe.engine.server.app import Server
from diskmoe.engine.server.asked import chat_asked, completion_asked
from diskmoe.engine.server.desk import Desk
from diskmoe.engine.server.fields import Fields
from diskmoe.engine.server.languages import Languages
from diskmoe.engine.server.metrics import metrics
from diskmoe.engine.server.refusals import Refusal
from diskmoe.engine.server.rules import Rules
from diskmoe.engine.stats import RunStats

PAGE = (ROOT / "docs" / "server.md").read_text("utf-8")
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
COMPLETION = {"prompt": "Hi"}
STRANGE = "a value that asks for something"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    path = write_model(tmp_path_factory.mktemp("server") / "tiny")
    with Model.load(path, ctx=128) as model:
        desk = Desk(model, 1, 10.0, lambda line: None)
        yield desk
        desk.close()


def part(heading: str) -> str:
    found = re.search(rf"^#+ {heading}\n(.*?)(?=^#|\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def fields_of(heading: str, place: str) -> list[str]:
    """The fields of a table that are for chats, or for completions."""
    rows = [row.split("|") for row in part(heading).splitlines() if row.startswith("| `")]
    return [
        name
        for row in rows
        if row[2].strip() in (place, "both")
        for name in re.findall(r"`(\w+)`", row[1])
    ]


def understand(desk: Desk, place: str, **given: Any) -> object:
    model = desk.model
    if place == "chat":
        calling = Server(desk, Rules()).calling
        return chat_asked({**CHAT, **given}, model.text, "tiny", Languages(), calling)
    return completion_asked({**COMPLETION, **given}, model.text, "tiny", Languages())


@pytest.mark.parametrize("place", ["chat", "completions"])
def test_every_field_that_is_known_is_told(
    place: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: set[str] = set()
    take = Fields.take

    def noted(self: Fields, name: str) -> Any:
        if not self._where:
            taken.add(name)
        return take(self, name)

    monkeypatch.setattr(Fields, "take", noted)
    understand(desk, place)
    ignored = re.findall(r"`(\w+)`", part("Ignored").partition("in messages")[0])
    told = [*fields_of("Done", place), *fields_of("Refused", place), *ignored]
    assert sorted(told) == sorted(taken)


@pytest.mark.parametrize("place", ["chat", "completions"])
def test_what_is_refused_is_and_what_is_ignored_is_taken(place: str, desk: Desk) -> None:
    for name in fields_of("Refused", place):
        with pytest.raises(Refusal, match=f"{name} is .*nothing else is supported"):
            understand(desk, place, **{name: STRANGE})
    for name in re.findall(r"`(\w+)`", part("Ignored").partition("in messages")[0]):
        understand(desk, place, **{name: STRANGE})
    for name in fields_of("Done", place):
        if name not in ("messages", "prompt"):
            try:
                understand(desk, place, **{name: STRANGE})
            except Refusal as refusal:
                assert "nothing else is supported" not in str(refusal), name
    with pytest.raises(Refusal, match="unknown parameter temprature; did you mean temperature"):
        understand(desk, place, temprature=1)


def test_every_path_is_told(desk: Desk) -> None:
    told = set(re.findall(r"`(?:GET|POST) (/\S*)`", part("Endpoints")))
    routes = {route.path for route in Server(desk, Rules()).app.routes if isinstance(route, Route)}
    assert told == routes


def test_every_key_of_the_usage_is_told() -> None:
    found = usage(RunStats())
    said = part("Answers")
    rows = [row for row in said.splitlines() if row.startswith("| `")]
    keys = [key for row in rows for key in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(keys) == sorted(found["diskmoe"])
    for key in found:
        assert f"`{key}`" in said


def test_every_metric_is_told(desk: Desk) -> None:
    there = set(re.findall(r"^# TYPE (\w+)", metrics(desk), flags=re.MULTILINE))
    assert set(re.findall(r"`(diskmoe_\w+)`", part("Metrics"))) == there


def test_every_status_that_is_told_has_its_type() -> None:
    for statuses, kind in re.findall(
        r"^\| ([0-9, ]+) \| `(\w+)` \|", part("Errors"), flags=re.MULTILINE
    ):
        for status in statuses.split(", "):
            assert Refusal(int(status), "no").body["error"]["type"] == kind
    source = "".join(path.read_text("utf-8") for path in Path(ROOT / "engine/server").glob("*.py"))
    told = set(re.findall(r"\b[45]\d\d\b", part("Errors")))
    assert set(re.findall(r"Refusal\(\s*(\d{3})", source)) - {"499"} <= told
