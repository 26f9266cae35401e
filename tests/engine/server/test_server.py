"""The server, as clients see it: answers, streams, refusals, many at once, and those who leave."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from tiny_server import CONTEXT, connected, posted, serving, until

from diskmoe.engine.api import Model, Options, Sampling
from diskmoe.engine.server.app import Server
from diskmoe.engine.server.desk import Desk
from diskmoe.engine.server.rules import Rules

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12}


def ask(client: httpx.Client, **more: Any) -> httpx.Response:
    return client.post("/v1/chat/completions", json={**ASK, **more})


def alone(path: Path, messages: list[dict[str, str]], limit: int, **sampling: Any) -> str:
    with Model.load(path, Options(ctx=CONTEXT)) as model:
        prompt = model.text.encode_chat(messages)
        return "".join(model.generate(prompt, sampling=Sampling(**sampling), limit=limit))


def content(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]["content"]


def test_an_answer_is_what_the_model_says_alone(client: httpx.Client, model_path: Path) -> None:
    assert content(ask(client)) == alone(model_path, ASK["messages"], 12)
    chosen = {"temperature": 1.3, "top_k": 40, "seed": 7}
    assert content(ask(client, **chosen)) == alone(model_path, ASK["messages"], 12, **chosen)


def test_usage_counts_tokens_and_what_was_known(client: httpx.Client) -> None:
    ask(client)
    usage = ask(client).json()["usage"]
    assert usage["completion_tokens"] == 12
    assert usage["total_tokens"] == usage["prompt_tokens"] + 12
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
    assert usage["diskmoe"]["stop_reason"] == "limit"
    assert 0 <= usage["diskmoe"]["hit_rate"] <= 1


def test_a_stream_is_the_same_text_in_pieces(client: httpx.Client) -> None:
    whole = content(ask(client))
    lines = []
    options = {"include_usage": True}
    with client.stream(
        "POST", "/v1/chat/completions", json={**ASK, "stream": True, "stream_options": options}
    ) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in reply.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line[6:]) for line in lines[:-1]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == whole
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 12
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_completions_go_on_with_a_text_or_with_ids(client: httpx.Client, desk: Desk) -> None:
    text = "Once upon a time"
    found = client.post("/v1/completions", json={"prompt": text, "max_tokens": 9}).json()
    ids = list(desk.model.text.encode_prompt(text, chat="0").ids)
    again = client.post("/v1/completions", json={"prompt": ids, "max_tokens": 9}).json()
    assert found["choices"][0]["text"] == again["choices"][0]["text"]
    assert found["object"] == "text_completion"


def test_a_stop_string_ends_the_text_before_it(client: httpx.Client) -> None:
    whole = content(ask(client, max_tokens=40))
    stop = whole[10:12]
    reply = ask(client, max_tokens=40, stop=[stop])
    assert content(reply) == whole[: whole.index(stop)]
    assert reply.json()["choices"][0]["finish_reason"] == "stop"


SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Bob"]}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_follows_the_schema_that_is_asked_for(client: httpx.Client, seed: int) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA, "strict": True}}
    reply = ask(client, response_format=wanted, max_tokens=400, temperature=1, seed=seed)
    found = json.loads(content(reply))
    assert found["name"] in ("Ada", "Bob") and isinstance(found["age"], int)
    assert reply.json()["choices"][0]["finish_reason"] == "stop"


def test_a_grammar_and_any_json_object(client: httpx.Client) -> None:
    assert content(ask(client, grammar='root ::= "yes" | "no"')) in ("yes", "no")
    reply = ask(client, response_format={"type": "json_object"}, max_tokens=5)
    assert content(reply).startswith("{")
    assert content(ask(client, response_format={"type": "text"})) == content(ask(client))


def test_models_health_and_metrics(client: httpx.Client) -> None:
    assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert client.get("/v1/models/tiny").json()["context"] == CONTEXT
    assert client.get("/health").json()["status"] == "ok"
    ask(client)
    lines = client.get("/metrics").text.splitlines()
    assert any(line.startswith("diskmoe_tokens_total ") for line in lines)
    names = [line.split()[0] for line in lines if not line.startswith("#")]
    assert len(set(names)) == len(names)


BAD: list[tuple[Any, int, str | None, str]] = [
    (b"{", 400, None, "not JSON"),
    (b"[" * 15_000, 400, None, "nested too deeply"),
    (b"\xff\xfe", 400, None, "not UTF-8"),
    ({**ASK, "\ud800": 1}, 400, "\\ud800", "unknown parameter \\ud800"),
    ({**ASK, "temperature": "\ud800"}, 400, "temperature", '"\\ud800"; it must be a number'),
    ({**ASK, "temperature": 10**400}, 400, "temperature", "it must be a number from 0 to 100"),
    ({**ASK, "top_p": -(10**400)}, 400, "top_p", "it must be a number from 0 to 1"),
    (b"[]", 400, None, "must be a JSON object"),
    (b"null", 400, None, "must be a JSON object"),
    (b"x" * 30_000, 413, None, "longer than 20000 bytes"),
    ({"messages": []}, 400, "messages", "at least one message"),
    ({"messages": "hi"}, 400, "messages", "a list of at least one message"),
    ({"messages": [{"role": "king", "content": "x"}]}, 400, "messages[0].role", "one of system"),
    ({"messages": [{"role": "user"}]}, 400, "messages[0].content", "a string"),
    ({"messages": [{"content": "x"}]}, 400, "messages[0].role", "one of"),
    ({"messages": [3]}, 400, "messages[0]", "an object"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        400,
        "messages[0].content",
        "text parts",
    ),
    ({**ASK, "temperature": "hot"}, 400, "temperature", "a number from 0"),
    ({**ASK, "temperature": True}, 400, "temperature", "a number from 0"),
    ({**ASK, "temperature": -1}, 400, "temperature", "a number from 0"),
    ({**ASK, "top_p": 0}, 400, "top_p", "above 0"),
    ({**ASK, "max_tokens": 0}, 400, "max_tokens", "from 1"),
    ({**ASK, "max_tokens": 1.5}, 400, "max_tokens", "a whole number"),
    ({**ASK, "n": 2}, 400, "n", "nothing else is supported"),
    ({**ASK, "stop": [""]}, 400, "stop", "none empty"),
    ({**ASK, "stop": ["a"] * 17}, 400, "stop", "at most 16"),
    ({**ASK, "stream": "yes"}, 400, "stream", "true or false"),
    ({**ASK, "stream_options": {"include_usage": True}}, 400, "stream_options", "left out"),
    ({**ASK, "frequency_penalty": 0.5}, 400, "frequency_penalty", "nothing else is supported"),
    ({**ASK, "logit_bias": {"5": 1}}, 400, "logit_bias", "nothing else is supported"),
    ({**ASK, "logprobs": 3}, 400, "logprobs", "true or false"),
    ({**ASK, "top_logprobs": 3}, 400, "top_logprobs", "beside logprobs"),
    ({**ASK, "logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", "from 0 to 20"),
    ({**ASK, "grammar": "root ::= x"}, 400, "grammar", "x"),
    ({**ASK, "response_format": {"type": "xml"}}, 400, "response_format.type", "one of text"),
    ({**ASK, "response_format": {}}, 400, "response_format.type", "one of text"),
    (
        {**ASK, "response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
        400,
        "response_format.json_schema.schema",
        "a JSON Schema",
    ),
    (
        {**ASK, "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}},
        400,
        "response_format",
        "type",
    ),
    (
        {**ASK, "grammar": 'root ::= "a"', "response_format": {"type": "json_object"}},
        400,
        "grammar",
        "left out beside",
    ),
    ({**ASK, "temprature": 1}, 400, "temprature", "did you mean temperature?"),
    ({**ASK, "model": "gpt-9"}, 404, "model", "there is 'tiny'"),
    ({**ASK, "messages": [{"role": "user", "content": "x" * 1500}]}, 400, None, "CTX is 1024"),
    ({**ASK, "chat_template_kwargs": {"messages": []}}, 400, None, "set by the request"),
]


@pytest.mark.parametrize(("body", "status", "param", "said"), BAD)
def test_what_is_wrong_is_said_in_the_form_of_openais_errors(
    client: httpx.Client, body: Any, status: int, param: str | None, said: str
) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = client.post("/v1/chat/completions", content=data)
    error = reply.json()["error"]
    assert reply.status_code == status, error
    assert set(error) == {"message", "type", "param", "code"}
    assert said in error["message"] and "\n" not in error["message"]
    assert error["param"] == param


@pytest.mark.parametrize("prompt", [None, [], "", [[]], ["a", "b"], [1, "a"], 5, [99999], [-1]])
def test_a_prompt_that_is_none_is_refused(client: httpx.Client, prompt: Any) -> None:
    reply = client.post("/v1/completions", json={"prompt": prompt})
    assert reply.status_code == 400 and "error" in reply.json()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/etc/passwd", 404),
        ("GET", "/v1/models/../../etc/passwd", 404),
        ("GET", "/v1/models/%2e%2e%2fetc%2fpasswd", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
    ],
)
def test_other_paths_lead_nowhere(client: httpx.Client, method: str, path: str, status: int):
    reply = client.request(method, path)
    assert reply.status_code == status
    assert reply.json()["error"]["message"]


def test_a_page_of_another_site_is_refused(client: httpx.Client) -> None:
    assert client.get("/v1/models", headers={"host": "evil.example"}).status_code == 403
    reply = client.get("/v1/models", headers={"origin": "http://evil.example"})
    assert "access-control-allow-origin" not in reply.headers


def test_clients_at_once_get_what_they_get_alone(client: httpx.Client, address: str) -> None:
    asked = [
        {
            "messages": [{"role": "user", "content": f"Question {i}"}],
            "max_tokens": 20,
            "temperature": 0.9 * (i % 2),
            "seed": i,
        }
        for i in range(4)
    ]
    wanted = [content(client.post("/v1/chat/completions", json=each)) for each in asked]
    found: dict[int, str] = {}

    def one(number: int) -> None:
        with httpx.Client(base_url=address, timeout=60) as own:
            found[number] = content(own.post("/v1/chat/completions", json=asked[number]))

    for _ in range(3):
        threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [found[number] for number in range(4)] == wanted


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_place(
    client: httpx.Client, address: str, desk: Desk, stream: bool
) -> None:
    wanted = content(ask(client))
    before = desk.totals.cancelled
    connection = connected(address, posted({**ASK, "max_tokens": 900, "stream": stream}, CHAT))
    until(lambda: desk.running == 1)
    connection.close()
    until(lambda: desk.running == 0 and desk.waiting == 0)
    assert desk.totals.cancelled == before + 1
    assert content(ask(client)) == wanted


def test_a_client_that_leaves_within_its_request_is_no_error_of_ours(desk: Desk) -> None:
    head = [(b"host", b"127.0.0.1"), (b"content-length", b"100")]
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": head}
    coming = [
        {"type": "http.request", "body": b'{"messages"', "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return coming.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    app = Server(desk, Rules()).app  # its desk fails the test when it has an error to say
    asyncio.run(app({**scope, "query_string": b""}, receive, send))
    assert sent[0]["status"] == 499


def test_more_than_may_wait_are_sent_away(client: httpx.Client, address: str, desk: Desk) -> None:
    body = {**ASK, "max_tokens": 900, "stream": True}
    connections = []
    try:
        for number in range(4):  # two run, two wait
            connections.append(connected(address, posted(body, CHAT)))
            until(lambda n=number: desk.running + desk.waiting == n + 1)
        reply = ask(client)
        assert reply.status_code == 429 and reply.headers["retry-after"]
        assert reply.json()["error"]["code"] == "queue_full"
    finally:
        for connection in connections:
            connection.close()
    until(lambda: desk.running == 0 and desk.waiting == 0)


def test_time_is_limited(model_path: Path) -> None:
    with Model.load(model_path, Options(ctx=CONTEXT, cap=1, disk_bps=200_000)) as model:
        desk = Desk(model, most_waiting=2, most_seconds=1, say=pytest.fail)
        with serving(desk) as (_, address), httpx.Client(base_url=address, timeout=30) as client:
            reply = ask(client, max_tokens=900).json()
            assert reply["usage"]["diskmoe"]["stop_reason"] == "time limit"
            assert reply["choices"][0]["finish_reason"] == "length"
        desk.close()


def test_the_official_client_is_served(address: str, client: httpx.Client) -> None:
    openai = pytest.importorskip("openai")
    theirs = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    reply = theirs.chat.completions.create(model="tiny", messages=ASK["messages"], max_tokens=12)
    assert reply.choices[0].message.content == content(ask(client))
    pieces = theirs.chat.completions.create(
        model="tiny",
        messages=ASK["messages"],
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(pieces)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == reply.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 12
    done = theirs.completions.create(model="tiny", prompt="Once", max_tokens=4)
    assert done.usage.completion_tokens == 4
    assert [model.id for model in theirs.models.list()] == ["tiny"]
    with pytest.raises(openai.BadRequestError, match="temperature"):
        theirs.chat.completions.create(model="tiny", messages=ASK["messages"], temperature=-1)
    theirs.close()
