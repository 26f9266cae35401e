"""A server in a thread, on a tiny model, and clients for it."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tiny_server import CONTEXT, listen, write_model

from diskmoe.engine.api import Model, Options
from diskmoe.engine.server.app import Server
from diskmoe.engine.server.desk import Desk
from diskmoe.engine.server.rules import Rules


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "tiny"
    return write_model(folder)


@pytest.fixture(scope="module")
def desk(model_path: Path) -> Iterator[Desk]:
    with Model.load(model_path, Options(ctx=CONTEXT, cap=4, parallel=2)) as model:
        desk = Desk(model, most_waiting=2, most_seconds=60, say=pytest.fail)
        yield desk
        desk.close()


@pytest.fixture(scope="module")
def address(desk: Desk) -> Iterator[str]:
    server, address, thread = listen(Server(desk, Rules(most_bytes=20_000)).app)
    yield address
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=60) as client:
        yield client
