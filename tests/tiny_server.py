"""A tiny model that can chat, and a server for it in a thread.

server, address, thread = listen(Server(desk, Rules()).app)
"""

import socket
import threading
import time
from pathlib import Path
from typing import Any

import uvicorn
from tiny_model import random_tensors, tiny_config, write_checkpoint
from tiny_text import VOCAB, write_tokenizer

from diskmoe.engine.server.connection import Connection

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
