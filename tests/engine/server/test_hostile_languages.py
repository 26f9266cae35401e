"""Languages that are hostile: refused with a reason, or followed; the server goes on."""

import json
from typing import Any

import hostile
import httpx
import pytest

SCHEMAS, GRAMMARS = hostile.schemas(), hostile.grammars()


def answered(client: httpx.Client, **fields: Any) -> httpx.Response:
    messages = [{"role": "user", "content": "a"}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 12, **fields}
    headers = {"content-type": "application/json"}
    return client.post("/v1/chat/completions", content=json.dumps(body), headers=headers)


@pytest.mark.parametrize(
    "name",
    [
        "minItems of a billion",
        "lengths that count in one another",
        "references in a circle",
        "references that double",
        "not in not, 500 deep",
        "a tree of everything",
        "pattern: counts in counts",
        "pattern: a count of 10^40",
        "pattern: a byte that is none",
    ],
)
def test_a_hostile_schema(client: httpx.Client, name: str) -> None:
    wanted = {"name": "n", "schema": SCHEMAS[name]}
    reply = answered(client, response_format={"type": "json_schema", "json_schema": wanted})
    _is_fine(reply, "response_format")
    assert client.get("/health").json()["status"] == "ok"


@pytest.mark.parametrize(
    "name",
    [
        "a hole",
        "rules that double",
        "everything ambiguous",
        "counts in counts",
        "counts that differ at one place",
        "no way out",
        "left recursion of 300 rules",
    ],
)
def test_a_hostile_grammar(client: httpx.Client, name: str) -> None:
    _is_fine(answered(client, grammar=GRAMMARS[name]), "grammar")


def _is_fine(reply: httpx.Response, param: str) -> None:
    if reply.status_code == 200:
        assert reply.json()["choices"][0]["finish_reason"] in ("stop", "length")
        return
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] in (param, None) and 10 < len(error["message"]) < 700
