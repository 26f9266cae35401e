"""``bench report``: a page from a directory of results, whatever is in it."""

import re
import types
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints
from xml.etree import ElementTree

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from result_files import EXPERIMENT, run_of, runs, write_results

from diskmoe.bench import report
from diskmoe.bench.comparing import compare
from diskmoe.bench.page import Pictures
from diskmoe.bench.plots import choices, hit_rates, pictures_of, rung_axis, time_parts
from diskmoe.bench.results import (
    VERSION,
    Acceptance,
    Experiment,
    Figures,
    Results,
    Run,
    run_name,
)
from diskmoe.bench.schema import described
from diskmoe.bench.svg import alone
from diskmoe.bench.trace import Forward, Recording
from diskmoe.engine.cli import main
from diskmoe.experts.trace import DECODE, PROMPT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of results with its page."""
    made = tmp_path_factory.mktemp("results")
    write_results(made)
    assert main(["bench", "report", str(made)]) == 0
    return made


def page_of(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_page_has_every_picture_table_and_number(folder: Path) -> None:
    page = page_of(folder)
    drawn = re.findall(r'<svg [^>]*aria-label="([^"]+)"', page)
    assert drawn == [
        "Tokens per second against slots per layer",
        "What a token&#x27;s time goes into",
        "Acceptance of drafts by position",
        "Hit rate by slots and policy",
        "Which experts were chosen, layer by layer",
    ]
    for each in runs():
        assert f"<code>{run_name(each)}</code>" in page
    assert "diskmoe bench ab --a &#x27;&#x27; --b DRAFT=4 --rungs CAP=4,8" in page
    assert "Some CPU" in page and "b is faster" in page
    assert "Say &lt;b&gt;one&lt;/b&gt; | two" in page and "<b>one" not in page


def test_the_page_names_nothing_outside_itself(folder: Path) -> None:
    page = re.sub(r' xmlns(:xlink)?="http://www\.w3\.org/[^"]*"', "", page_of(folder))
    assert "http" not in page and "<script" not in page and "@import" not in page
    assert all(
        ref.startswith(("#", "data:")) for ref in re.findall(r'(?:href|src)="([^"]*)"', page)
    )
    assert all(ref.startswith("#") for ref in re.findall(r"url\(([^)]*)\)", page))


def test_every_number_is_defined_once_in_the_words_of_its_class(folder: Path) -> None:
    text = (folder / "report.md").read_text(encoding="utf-8")
    glossary = text[text.index("## What the numbers mean") :]
    for kind in (Figures, Acceptance):
        for name in described(kind):
            assert len(re.findall(rf"^\| `{name}` \|", glossary, re.MULTILINE)) == 1, name


def test_the_markdown_shows_the_pictures_that_lie_beside_it(folder: Path) -> None:
    text = (folder / "report.md").read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert sorted(pictures) == sorted(path.name for path in folder.glob("*.svg"))
    assert len(pictures) == 5


def test_the_same_directory_gives_the_same_bytes_wherever_it_lies(
    folder: Path, tmp_path: Path
) -> None:
    write_results(tmp_path)
    (tmp_path / "run-a-0-0-5.json").write_text("{", encoding="utf-8")
    out = [tmp_path / "one", tmp_path / "two"]
    assert main(["bench", "report", str(tmp_path), "--out", str(out[0])]) == 0
    moved = tmp_path / "else where"
    moved.mkdir()
    for path in [*tmp_path.glob("*.json"), *tmp_path.glob("*.csv")]:
        path.rename(moved / path.name)
    assert main(["bench", "report", str(moved), "--out", str(out[1])]) == 0
    first, second = ({p.name: p.read_bytes() for p in place.iterdir()} for place in out)
    assert first == second and str(tmp_path).encode() not in first["report.html"]


def test_a_damaged_run_is_named_in_one_line_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_results(tmp_path)
    (tmp_path / "run-a-0-0-1.json").write_text('{"version": 1', encoding="utf-8")
    (tmp_path / "run-b-0-0-1.json").write_text('{"version": 99}', encoding="utf-8")
    (tmp_path / "run-x-0-0-1.json").write_bytes((tmp_path / "run-a-0-0-0.json").read_bytes())
    (tmp_path / "trace.csv").write_text("no trace", encoding="utf-8")
    assert main(["bench", "report", str(tmp_path)]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert len(told) == 4
    for name, line in zip(
        ("run-a-0-0-1", "run-b-0-0-1", "run-x-0-0-1", "trace"), told, strict=True
    ):
        assert name in line
    page = page_of(tmp_path)
    assert page.count("Left out: ") == 4 and "14 of 16 runs are there" in page
    assert not (tmp_path / "hits.svg").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "takes one DIR, and got 0"),
        (["a", "b"], "takes one DIR, and got 2"),
        (["nowhere"], "nowhere: no bench.json there: it is no directory of results"),
        (["x", "--cap", "3"], "--cap has no effect on diskmoe bench report"),
        (["x", "--readm"], "--readm"),
    ],
)
def test_bad_words_are_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "report", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_place_that_cannot_be_written_is_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(["bench", "report", str(folder), "--out", str(tmp_path / "file")]) == 1
    error = capsys.readouterr().err
    assert "file: the page cannot be written there" in error and error.count("\n") == 1


def test_a_readme_gets_tables_verdicts_command_and_machine_and_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_results(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert main(["bench", "report", str(tmp_path), "--readme"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("| rung | arm |")
    assert "    diskmoe bench ab --a '' --b DRAFT=4" in text and "Some CPU" in text
    assert sorted(tmp_path.iterdir()) == before


def test_warnings_stand_on_top(tmp_path: Path) -> None:
    machine = replace(EXPERIMENT.machine, busy=0.7)
    results = Results.create(tmp_path, replace(EXPERIMENT, machine=machine))
    results.add(run_of("a", 0, 0, 0, 0))
    results.add(replace(run_of("b", 0, 0, 0, 1), token_ids=(1, 2, 4)))
    found = report.warnings(results, compare(results), ["x.json: no run"])
    assert found[0].startswith("Busy machine: others kept 70 %")
    assert found[1] == "2 of 16 runs are there: the others are missing."
    assert any("the token ids differ in one" in line for line in found)
    assert found[-1] == "Left out: x.json: no run"


@pytest.mark.parametrize(
    ("rungs", "axis"),
    [
        (("CAP=4", "CAP=16"), ("slots per layer", [4, 16])),
        (("RAM_GB=1.5", "RAM_GB=3"), ("memory budget (RAM_GB), GiB", [1.5, 3])),
        (("THREADS=1", "THREADS=2"), ("THREADS", [1, 2])),
        (("CAP=4",), None),
        (("",), None),
        (("CAP=4", "RAM_GB=3"), None),
        (("MTP=0", "MTP=1"), None),
        (("CAP=4", "CAP=x"), None),
        (("NOTHING=1", "NOTHING=2"), None),
    ],
)
def test_rungs_are_an_axis_where_they_are_numbers_of_one_setting(
    rungs: tuple[str, ...], axis: object
) -> None:
    assert rung_axis(replace(EXPERIMENT, rungs=rungs)) == axis


def test_a_tokens_time_is_the_mean_of_all_tokens_that_say_it() -> None:
    unknown = run_of("a", 0, 0, 2, 2, compute_seconds=None)
    parts = time_parts([run_of("a", 0, 0, 0, 0), run_of("a", 0, 0, 1, 1, tokens=30), unknown])
    assert parts is not None
    assert (parts.read_wait, parts.compute, parts.other) == pytest.approx((0.0125, 0.025, 0.0125))
    assert time_parts([unknown]) is None


def test_hit_rates_of_a_recorded_routing_are_those_of_its_replay() -> None:
    rows = [(0, 1), (0, 2), (0, 1), (0, 3), (0, 1)]
    forwards = [Forward(PROMPT, [(4, 5)]), *(Forward(DECODE, [row]) for row in rows)]
    recording = Recording(Path("t.csv"), 2, {3: forwards}, by_forward=True)
    found = hit_rates(recording, [2, 3])
    assert found["lru"] == [(2, 0.4), (3, 0.6)]
    assert found["belady"][1][1] >= max(rates[1][1] for rates in found.values())
    assert choices(recording, 6).tolist() == [[5, 3, 1, 1, 0, 0]]


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Anything that a file may hold where it has this type."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return values(parts[0])
    if kind is Any:
        return st.one_of(
            st.none(), st.integers(-(1 << 70), 1 << 70), st.text(max_size=5),
            st.dictionaries(st.sampled_from(["experts", "top_k"]), st.integers(-1, 1 << 70)),
        )  # fmt: skip
    if origin in (Union, types.UnionType):
        (one,) = [part for part in parts if part is not type(None)]
        return st.none() | values(one)
    if origin is Literal:
        return st.sampled_from(parts)
    if is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        made = {f.name: values(hints[f.name]) for f in fields(kind)}
        if "version" in made:
            made["version"] = st.just(VERSION)
        if kind is Acceptance:  # of so many drafts, so many were right
            made["by_position"] = st.lists(st.just((7, 3)) | st.just((0, 0)), max_size=3).map(tuple)
            made["judged"] = st.integers(100, 10**290)
            made["accepted"] = st.integers(0, 100)
        return st.builds(kind, **made)
    if origin is tuple:
        return st.lists(values(parts[0]), max_size=3).map(tuple)
    if origin is not None:
        return st.dictionaries(st.text(max_size=6), values(parts[1]), max_size=3)
    return {
        int: st.integers(0, 100) | st.integers(0, 10**290),
        float: st.floats(0, 100) | st.floats(0, 9e299),
        str: st.text(max_size=12),
        bool: st.booleans(),
    }[kind]


@st.composite
def experiments(draw: st.DrawFn) -> Experiment:
    made = draw(values(Experiment))
    names = draw(st.lists(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._]{0,8}", fullmatch=True),
                          min_size=1, max_size=3, unique=True))  # fmt: skip
    arms = tuple(replace(draw(values(type(EXPERIMENT.arms[0]))), name=name) for name in names)
    texts = draw(st.lists(st.text(max_size=8), min_size=1, max_size=2, unique=True))
    prompts = tuple(replace(draw(values(type(EXPERIMENT.prompts[0]))), name=text) for text in texts)
    rungs = draw(
        st.sampled_from([("",), ("CAP=4", "CAP=8"), ("CAP=1", "CAP=1"), ("RAM_GB=0.5", "RAM_GB=9")])
        | st.lists(st.text(max_size=8), min_size=1, max_size=2).map(tuple)
    )
    return replace(made, arms=arms, prompts=prompts, rungs=rungs)


@st.composite
def directories(draw: st.DrawFn) -> tuple[Experiment, list[Run]]:
    experiment = draw(experiments())
    cells = [
        (arm.name, rung, prompt, repeat)
        for arm in experiment.arms
        for rung in range(len(experiment.rungs))
        for prompt in range(len(experiment.prompts))
        for repeat in range(2)
    ]
    chosen = draw(st.lists(st.sampled_from(cells), unique=True, max_size=5))
    found = []
    for order, (arm, rung, prompt, repeat) in enumerate(chosen):
        made = draw(values(Run))
        told = draw(st.dictionaries(st.sampled_from(["slots_per_layer", "model"]), values(Any)))
        found.append(replace(
            made, arm=arm, rung=rung, prompt=prompt, repeat=repeat, order=order, report=told
        ))  # fmt: skip
    return experiment, found


@st.composite
def recordings(draw: st.DrawFn) -> Recording | None:
    top_k = draw(st.integers(1, 3))
    experts = st.lists(st.integers(0, 9), min_size=top_k, max_size=top_k, unique=True).map(tuple)
    forwards = st.builds(
        Forward, st.sampled_from([PROMPT, DECODE]), st.lists(experts, min_size=1, max_size=3)
    )
    layers = draw(
        st.dictionaries(
            st.integers(0, 1 << 20), st.lists(forwards, min_size=1, max_size=4), max_size=3
        )
    )
    return Recording(Path("t"), top_k, dict(sorted(layers.items())), True) if layers else None


def as_opened(folder: Path, made: tuple[Experiment, Sequence[Run]]) -> Results:
    """A directory of these, as it is read again."""
    experiment, found = made
    results = Results.create(folder, experiment)
    for each in found:
        results.add(each)
    return Results.open(folder)


# a smaller example would take minutes to be found
@settings(deadline=None, max_examples=25, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(made=directories())
def test_no_directory_that_can_be_opened_is_one_that_cannot_be_told(
    tmp_path_factory: pytest.TempPathFactory, made: tuple[Experiment, Sequence[Run]]
) -> None:
    results = as_opened(tmp_path_factory.mktemp("any"), made)
    blocks = report.page_blocks(results, Pictures([]), ["x.json: no run"])
    text = report.markdown_of(blocks) + report.markdown_of(report.summary_blocks(results))
    assert (report.html_of("x", blocks) + text).encode()


@settings(deadline=None, max_examples=10, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(made=directories(), recording=recordings())
def test_no_directory_that_can_be_opened_is_one_that_cannot_be_drawn(
    tmp_path_factory: pytest.TempPathFactory,
    made: tuple[Experiment, Sequence[Run]],
    recording: Recording | None,
) -> None:
    results = as_opened(tmp_path_factory.mktemp("any"), made)
    for picture in pictures_of(results, recording):
        ElementTree.fromstring(alone(picture.svg))
