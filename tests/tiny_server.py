"""A tiny model that can chat, a server for it in a thread, and clients that are only a socket.

with serving(desk) as (server, address), connected(address, posted({"prompt": "Hi"})) as line: ...
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import uvicorn
from tiny_model import random_tensors, tiny_config, write_checkpoint
from tiny_text import VOCAB, write_tokenizer

from diskmoe.engine.server.app import Server
from diskmoe.engine.server.connection import Connection
from diskmoe.engine.server.desk import Desk
from diskmoe.engine.server.rules import Rules

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
CONTEXT = 1024


def write_model(folder: Path, family: str = "qwen3_moe") -> Path:
    """A model whose text ends at its limit only, with a tokenizer and a template."""
    config = tiny_config(family, vocab_size=VOCAB, eos_token_id=None)
    config["max_position_embeddings"] = CONTEXT
    write_checkpoint(folder, config, random_tensors(config, seed=21), dtype="bf16")
    write_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def listen(
    app: Any,
    connection: type[Connection] = Connection,
    most: int | None = None,
    buffer_bytes: int | None = None,
) -> tuple[uvicorn.Server, str, threading.Thread]:
    """most: connections; buffer_bytes: of the system, for what is sent on each."""
    listener = socket.create_server(("127.0.0.1", 0))
    if buffer_bytes is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    config = uvicorn.Config(
        app,
        http=connection,
        limit_concurrency=most,
        ws="none",
        log_level="critical",
        lifespan="off",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    return server, f"http://127.0.0.1:{listener.getsockname()[1]}", thread


@contextmanager
def serving(
    desk: Desk, rules: Rules | None = None, **how: Any
) -> Iterator[tuple[uvicorn.Server, str]]:
    """A desk's server and its address; how: as for ``listen``."""
    server, address, thread = listen(Server(desk, rules or Rules()).app, **how)
    try:
        yield server, address
    finally:
        server.should_exit = True
        thread.join(10)


def posted(body: dict[str, Any], path: str = "/v1/completions") -> bytes:
    """A request as bytes."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def connected(address: str, data: bytes = b"", buffer_bytes: int | None = None) -> socket.socket:
    """A client that has said this; buffer_bytes: of the system, for what it does not read."""
    where = urlparse(address)
    line = socket.socket()
    if buffer_bytes is not None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    line.settimeout(20)
    line.connect((where.hostname, where.port))
    line.sendall(data)
    return line


def until(what: Callable[[], bool]) -> None:
    """Waits for it; fails where it does not come."""
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)
