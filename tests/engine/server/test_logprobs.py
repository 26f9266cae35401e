"""Log-probabilities through the server: of the model's own logits, the same whole and streamed."""

import json
from typing import Any

import httpx
import pytest

from diskmoe.engine.server.desk import Desk

ASK = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0}


def chunks(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    text = client.post(path, json={**body, "stream": True}).text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def test_a_chats_tokens_have_theirs_whole_and_streamed(client: httpx.Client) -> None:
    asked = {**ASK, "logprobs": True, "top_logprobs": 3}
    found = client.post("/v1/chat/completions", json=asked).json()["choices"][0]
    content = found["logprobs"]["content"]
    assert len(content) == 8
    data = b"".join(bytes(each["bytes"]) for each in content)
    assert data.decode("utf-8", "replace") == found["message"]["content"]
    for each in content:
        assert each["token"] == each["top_logprobs"][0]["token"]  # the likeliest is chosen
        values = [top["logprob"] for top in each["top_logprobs"]]
        assert len(values) == 3 and values == sorted(values, reverse=True) and values[0] <= 0
    streamed = [
        each
        for chunk in chunks(client, "/v1/chat/completions", asked)
        for each in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == content


def test_they_are_those_of_the_models_logits(client: httpx.Client, desk: Desk) -> None:
    prompt = desk.model.text.encode_chat(ASK["messages"])
    run = desk.model.generate(prompt, limit=8, logprobs=0)
    list(run)
    reply = client.post("/v1/chat/completions", json={**ASK, "logprobs": True})
    content = reply.json()["choices"][0]["logprobs"]["content"]
    assert [each["logprob"] for each in content] == [each.logprob for each in run.logprobs]
    assert all(each["top_logprobs"] == [] for each in content)


def test_a_completions_are_lists_with_places_in_the_text(client: httpx.Client) -> None:
    asked = {"prompt": "Once", "max_tokens": 6, "temperature": 0, "logprobs": 2}
    found = client.post("/v1/completions", json=asked).json()["choices"][0]["logprobs"]
    assert [len(found[key]) for key in found] == [6] * 4
    assert found["text_offset"][0] == 0 and found["text_offset"] == sorted(found["text_offset"])
    assert all(len(top) <= 2 for top in found["top_logprobs"])
    streamed: dict[str, list[Any]] = {key: [] for key in found}
    for chunk in chunks(client, "/v1/completions", asked):
        for key, values in (chunk["choices"][0]["logprobs"] or {}).items():
            streamed[key] += values
    assert streamed == found


@pytest.mark.parametrize("none", [{}, {"logprobs": False}, {"logprobs": None}])
def test_nobody_gets_them_unasked(client: httpx.Client, none: dict[str, Any]) -> None:
    assert (
        client.post("/v1/chat/completions", json={**ASK, **none}).json()["choices"][0]["logprobs"]
        is None
    )
    asked = {"prompt": "Once", "max_tokens": 2, **none}
    assert client.post("/v1/completions", json=asked).json()["choices"][0]["logprobs"] is None
    assert all(
        c["choices"][0]["logprobs"] is None for c in chunks(client, "/v1/completions", asked)
    )
