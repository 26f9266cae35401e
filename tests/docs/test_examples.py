"""Every example in Python that the manual has runs, in the page's order, on a tiny model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from manual_text import ROOT, blocks_of, pages
from tiny_server import CONTEXT, listen, write_model

from diskmoe.engine import Model
from diskmoe.engine.server.app import Rules, Server
from diskmoe.engine.server.desk import Desk

NAMES = [str(path.relative_to(ROOT)) for path in pages()]
SERVED = "http://127.0.0.1:8080"


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manual")
    (folder / "models").mkdir()
    # like the demo model it has no thinking blocks
    return write_model(folder / "models" / "qwen3-q4")


@pytest.fixture(scope="module")
def address(model_path: Path) -> Iterator[str]:
    """Of a server as the manual starts it."""
    with Model.load(model_path, ctx=CONTEXT, parallel=2) as model:
        desk = Desk(model, 4, 60.0, lambda line: None)
        server, address, thread = listen(Server(desk, Rules()).app)
        yield address
        server.should_exit = True
        thread.join()
        desk.close()


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(
    name: str,
    model_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(model_path.parents[1])
    names: dict[str, Any] = {"__name__": "manual"}
    for block in blocks_of((ROOT / name).read_text("utf-8")):
        if block.language != "python":
            continue
        text = block.text
        if SERVED in text:
            text = text.replace(SERVED, request.getfixturevalue("address"))
        lines = "\n" * (block.line - 1)  # so that a traceback names the page's line
        exec(compile(lines + text, name, "exec"), names)  # noqa: S102


def test_no_python_hides_in_blocks_of_another_kind() -> None:
    for path in pages():
        for block in blocks_of(path.read_text("utf-8")):
            assert block.language in ("python", "sh", "text", "json", "gbnf"), (path, block.line)
            if block.language != "python":
                assert "import " not in block.text, (path, block.line)
