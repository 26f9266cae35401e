"""Prompts: small suites of ours, and files of the user's.

A suite is ``suites/NAME.jsonl``: the first line says what it is and what its densities count, each
further line is a prompt. A user's file is the same without the first line (``.jsonl`` or
``.ndjson``: objects with ``prompt``, and if wanted ``name`` and ``density``), or any other text
file: a prompt a line.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from diskmoe.bench.results import Prompt
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.setting_values import did_you_mean

FOLDER = Path(__file__).with_name("suites")
SUITES = ("ndjson", "chat", "code", "prose")
MOST_BYTES = 16 << 20
MOST_PROMPTS = 1000
_KEYS = ("name", "prompt", "density", "expected")


def suite(name: str) -> tuple[list[Prompt], dict[str, str]]:
    """(the prompts of one of our suites, settings that they are made for)."""
    head, *lines = (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines()
    prompts = [_from_json(line, f"{name}.jsonl, line {i}", i) for i, line in enumerate(lines, 2)]
    return prompts, json.loads(head)["settings"]


def prompts_in(path: Path) -> list[Prompt]:
    """The prompts of a user's file. BadRequest with file and line for what is none."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadRequest(f"--prompts {path}: {path.stat().st_size} bytes, at most {MOST_BYTES}")
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise BadRequest(f"--prompts {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise BadRequest(f"--prompts {path} is not UTF-8 text: byte {error.start}") from None
    as_json = path.suffix in (".jsonl", ".ndjson")
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"--prompts {path}, line {number}"
        found.append(
            _from_json(line, where, len(found) + 1)
            if as_json
            else Prompt(str(len(found) + 1), line, None)
        )
    if not found:
        raise BadRequest(f"--prompts {path} holds no prompt: a line each, or JSONL")
    if len(found) > MOST_PROMPTS:
        raise BadRequest(f"--prompts {path} holds {len(found)} prompts, at most {MOST_PROMPTS}")
    names = [prompt.name for prompt in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadRequest(f"--prompts {path}: two prompts have the name {twice!r}")
    return found


def _from_json(line: str, where: str, number: int) -> Prompt:
    try:
        content: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{where} is no JSON: {str(error)[:100]}") from None
    if not isinstance(content, dict) or not isinstance(content.get("prompt"), str):
        raise BadRequest(f'{where} must be an object like {{"name": "...", "prompt": "..."}}')
    for key in content:
        if key not in _KEYS:
            hint = did_you_mean(key, _KEYS)
            raise BadRequest(f"{where}: unknown key {key[:40]!r}{hint}")
    if not content["prompt"].strip():
        raise BadRequest(f"{where}: the prompt is empty")
    if not content["prompt"].isascii() and re.search("[\ud800-\udfff]", content["prompt"]):
        raise BadRequest(f"{where}: half of a pair of \\u escapes stands alone: it is no character")
    name, density = content.get("name", str(number)), content.get("density")
    if not isinstance(name, str) or not 0 < len(name) <= 40:
        raise BadRequest(f"{where}: name must be a text of 1 to 40 characters")
    is_number = isinstance(density, (int, float)) and not isinstance(density, bool)
    if density is not None and not (is_number and 0 <= density <= 1):
        raise BadRequest(f"{where}: density must be a number from 0 to 1")
    return Prompt(name, content["prompt"], None if density is None else float(density))
