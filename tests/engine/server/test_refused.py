"""Whatever a request is, it is answered, or refused in OpenAI's form and one line; never with a 500."""

import json
from contextlib import suppress
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_server import CONTEXT, connected, until

from diskmoe.engine.server.desk import Desk
from diskmoe.engine.server.fields import MOST_PARTS, json_object
from diskmoe.engine.server.refusals import Refusal

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASKS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    TEXT: {"prompt": "Hi", "max_tokens": 2},
}
FIELDS = """
model messages prompt temperature top_p top_k min_p seed stop stream stream_options n logprobs
top_logprobs logit_bias frequency_penalty presence_penalty repetition_penalty max_tokens
max_completion_tokens response_format grammar grammar_triggers thinking_budget_tokens
thinking_token_budget thinking_budget_message tools tool_choice parallel_tool_calls functions
function_call reasoning_effort chat_template_kwargs modalities echo best_of suffix user metadata
no_such_field
"""
KEYWORDS = """
type enum const anyOf allOf not items properties required maximum minLength maxLength pattern format
$ref $defs additionalProperties minItems multipleOf if
"""
JSON = {"content-type": "application/json"}


def check(reply: httpx.Response, body: object = None) -> None:
    """The form of OpenAI's errors, in one line."""
    assert reply.status_code != 500, (body, reply.text)
    if reply.status_code < 400:
        return
    found = reply.json()
    assert set(found) == {"error"} and set(found["error"]) == {"message", "type", "param", "code"}
    error = found["error"]
    assert error["message"].isprintable() and 0 < len(error["message"]) <= 600
    assert isinstance(error["type"], str)
    assert error["param"] is None or error["param"].isprintable()
    assert error["code"] is None or isinstance(error["code"], str)


texts = st.text(st.characters(), max_size=8)  # lone surrogates among them
numbers = st.one_of(
    st.integers(-5, 5),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([0, 1, -1, 2**31, 2**63, -(2**63), 10**400, 5e-324, 1.7e308]),
)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
messages = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "system", "tool", "developer", "x"]) | values,
        "content": texts | values | st.just([{"type": "text", "text": "\ud800"}]),
        "name": values,
        "tool_calls": values
        | st.just([{"id": 1, "function": {"name": "f", "arguments": '{"a": NaN}'}}]),
        "reasoning_content": values,
    },
)
schemas = st.recursive(
    st.booleans() | st.just({}) | st.fixed_dictionaries({"type": values}),
    lambda inner: st.dictionaries(
        st.sampled_from(KEYWORDS.split()),
        inner | values | st.lists(inner, max_size=2),
        max_size=3,
    ),
    max_leaves=5,
)
likely = {
    "messages": st.lists(messages, max_size=3),
    "prompt": texts | st.lists(st.integers(-1, 300), max_size=5),
    "stream_options": st.fixed_dictionaries({}, optional={"include_usage": values, "x": values}),
    "response_format": st.fixed_dictionaries(
        {"type": st.sampled_from(["json_schema", "json_object", "text"]) | values},
        optional={
            "json_schema": st.fixed_dictionaries({"name": values, "schema": schemas}) | values,
            "schema": schemas,
        },
    ),
    "grammar": st.builds(
        "root ::= {}".format,
        st.text('"abc[]-^(){}|*+?,0123456789 \n:=root\\\ud800é', max_size=20),
    ),
    "grammar_triggers": st.lists(texts | st.sampled_from(["/(/", "/a|b/", "<[1]>", "<[99999]>"])),
    "chat_template_kwargs": st.dictionaries(
        st.sampled_from(["raise_exception", "bos_token", "documents", "strftime_now", "namespace"])
        | texts,
        values,
        max_size=3,
    ),
    "tools": st.lists(
        st.fixed_dictionaries(
            {"type": st.just("function")},
            optional={
                "function": st.fixed_dictionaries({"name": texts}, optional={"parameters": schemas})
            },
        ),
        max_size=2,
    ),
    "stop": st.lists(texts, max_size=3) | texts,
}
bodies = st.lists(
    st.sampled_from(FIELDS.split()).flatmap(
        lambda name: st.tuples(st.just(name), likely[name] | values if name in likely else values)
    ),
    min_size=1,
    max_size=3,
).map(dict)


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(path=st.sampled_from([CHAT, TEXT]), more=bodies)
def test_any_fields_are_answered_or_refused_in_form(
    client: httpx.Client, path: str, more: dict[str, Any]
) -> None:
    body = {**ASKS[path], **more}
    reply = client.post(path, content=json.dumps(body).encode(), headers=JSON)
    check(reply, body)
    if reply.status_code == 200 and "text/event-stream" in reply.headers["content-type"]:
        for line in reply.text.splitlines():
            if line.startswith("data: {"):
                assert json.loads(line[6:]).get("error", {}).get("type") != "server_error", body


@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    body=st.binary(max_size=60) | st.text('{}[]",:0123eE+-.ntf \\u"', max_size=30).map(str.encode)
)
def test_any_bytes_are_refused_in_form(client: httpx.Client, body: bytes) -> None:
    reply = client.post(CHAT, content=body, headers=JSON)
    assert 400 <= reply.status_code < 500
    check(reply, body)


WRONG: list[tuple[bytes, str]] = [
    (b"", "the body is empty"),
    (b'{"temperature": NaN}', "the number NaN"),
    (b'{"temperature": -Infinity}', "the number -Infinity"),
    (b'{"temperature": 1e999}', "the number 1e999"),
    (b'{"temperature": ' + b"9" * 5000 + b"}", "a number of too many digits"),
    (b'{"temperature": 1, "temperature": 2}', 'says "temperature" twice'),
    (b'{"messages": [{"role": "user", "role": "tool"}]}', 'says "role" twice'),
    (b'{"a": ' * 2500 + b"1" + b"}" * 2500, "nested too deeply"),
    (b'{"max_tokens": [' + b"1," * 6000 + b"1]}", ""),
    (b'\xef\xbb\xbf{"prompt": "x"}', "BOM"),
    ('{"prompt": "x"}'.encode("utf-16"), "UTF-8"),
    (b'{"prompt": "x"} {"prompt": "y"}', "Extra data"),
    (b'"\\ud800"', "it must be a JSON object"),
    (b'{"no\\u2028such\\n field": 1, "messages": [], "prompt": []}', ""),
]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(("body", "said"), WRONG)
def test_what_is_no_json_or_two_things_at_once_is_said(
    client: httpx.Client, path: str, body: bytes, said: str
) -> None:
    reply = client.post(path, content=body, headers=JSON)
    assert reply.status_code == 400
    check(reply, body)
    assert said in reply.json()["error"]["message"]


def test_a_body_of_too_many_parts_takes_no_memory() -> None:
    with pytest.raises(Refusal, match="more than"):
        json_object(b"[" + b"{}," * (MOST_PARTS + 1) + b"{}]")


@pytest.mark.parametrize(
    ("head", "status", "said"),
    [
        ({"content-type": "text/plain"}, 415, "application/json"),
        ({"content-type": "multipart/form-data; boundary=x"}, 415, "application/json"),
        ({"content-type": "application/json; charset=utf-16"}, 415, "in UTF-8"),
        ({"content-type": "application/json", "content-encoding": "gzip"}, 415, "packed"),
        ({"content-type": "application/json; charset=UTF-8"}, 200, ""),
        ({"content-type": "application/vnd.api+json"}, 200, ""),
        ({"content-type": "application/json", "origin": "http://evil.example"}, 403, "pages of"),
        ({"content-type": "application/json", "origin": "null"}, 403, "pages of"),
        ({"content-type": "application/json", "host": "evil.example"}, 403, "not called"),
        ({"content-type": "application/json", "host": "LOCALHOST:1"}, 200, ""),
        ({"content-type": "application/json", "host": "[::1]:8080"}, 200, ""),
        ({"content-type": "application/json", "host": "[::1]"}, 200, ""),
        ({"content-type": "application/json", "host": "127.0.0.1.evil.example"}, 403, "not called"),
        ({"host": "localhost:1", "origin": "http://localhost:1"}, 200, ""),
        ({"host": "localhost:1", "origin": "http://localhost:2"}, 403, "pages of"),
    ],
)
def test_headers_that_say_something_else_are_refused(
    client: httpx.Client, head: dict[str, str], status: int, said: str
) -> None:
    reply = client.post(TEXT, content=json.dumps(ASKS[TEXT]).encode(), headers=head)
    assert reply.status_code == status, reply.text
    check(reply)
    assert said in reply.text


@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/models", "/v1/models/tiny", "/metrics"])
@pytest.mark.parametrize(
    "way", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"]
)
def test_every_way_to_every_place_is_answered_or_refused_in_form(
    client: httpx.Client, path: str, way: str
) -> None:
    reply = client.request(way, path)
    if way != "HEAD":
        check(reply)
    fits = way in ("GET", "HEAD") if path not in ASKS else False
    wanted = 200 if fits else (400 if way == "POST" and path in ASKS else 405)
    assert reply.status_code == wanted
    if wanted == 405:
        assert reply.headers["allow"]


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/models/", "/v1/models//", "/%0a%00", "/%ff", "/v1/x?y=z"]
)
def test_places_that_are_not_there_are_404_and_lead_nowhere(
    client: httpx.Client, path: str
) -> None:
    reply = client.get(path, follow_redirects=False)
    assert reply.status_code == 404
    check(reply)


def talk(address: str, data: bytes) -> bytes:
    """What comes back for these bytes until the server closes, or nothing more comes."""
    found = b""
    with connected(address, data) as line, suppress(TimeoutError, ConnectionResetError):
        while piece := line.recv(65536):
            found += piece
            line.settimeout(1)
    return found


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
MODELS = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n" * 3, 400),  # TLS
        (b"PRI * HTTP/2.0\r\nHost: 127.0.0.1\r\n\r\n", 404),
        (b"GET /x HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n", 404),
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n", 431),
        (HEAD + b"Content-Length: -5\r\n\r\n", 400),
        (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", 501),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 400),
        (HEAD + b"Content-Length: 999999999999\r\n\r\n", 413),
        (HEAD + b"Content-Length: 999999999999\r\nExpect: 100-continue\r\n\r\n", 413),
        (b"CONNECT evil.example:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 404),
        (b"GET http://evil.example/v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 404),
        (b"GET /v1/models HTTP/1.0\r\n\r\n", 403),  # no Host, which HTTP/1.0 allows
        (MODELS + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\n\r\n", 200),
    ],
)  # fmt: skip
def test_what_is_no_http_is_refused_in_form_too(address: str, data: bytes, status: int) -> None:
    found = talk(address, data)
    head, _, body = found.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), found
    assert b"application/json" in head
    check(httpx.Response(status, content=body), data)


def test_a_body_is_asked_for_before_it_is_sent(address: str) -> None:
    body = json.dumps(ASKS[TEXT]).encode()
    head = HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
    found = talk(address, head + body)
    assert found.startswith(b"HTTP/1.1 100 ") and b"HTTP/1.1 200 " in found


def test_chunks_are_a_body_too(address: str) -> None:
    body = json.dumps(ASKS[TEXT]).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    found = talk(address, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    assert found.startswith(b"HTTP/1.1 200 ")


def test_requests_in_one_go_are_answered_in_turn_and_noise_behind_them_is_refused(
    address: str,
) -> None:
    found = talk(address, HEALTH * 3 + b"\x00\x01noise\r\n\r\n")
    assert found.count(b"HTTP/1.1 200 ") == 3
    assert found.count(b"HTTP/1.1 400 ") == 1 and b'"error"' in found


def test_noise_within_a_body_that_was_refused_already_ends_the_connection(address: str) -> None:
    data = b"POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connected(address, data) as line:
        found = b""
        while not found.endswith(b"}}"):
            found += line.recv(65536)
        assert found.startswith(b"HTTP/1.1 404 ")
        line.sendall(b"noise\r\n\r\n")
        assert line.recv(65536) == b""


def test_a_body_that_is_too_long_is_read_past_so_that_its_client_hears_why(
    client: httpx.Client,
) -> None:
    for chunks in (b"x" * 3_000_000, iter([b"x" * 100_000] * 30)):
        reply = client.post(TEXT, content=chunks, headers=JSON)
        assert reply.status_code == 413
        check(reply)
        assert reply.json()["error"]["code"] == "body_too_long"
    assert client.get("/health").status_code == 200


def test_stop_strings_that_each_token_would_be_compared_with_for_long_are_refused(
    client: httpx.Client,
) -> None:
    for stop in ("a" * 5000, ["a" * 2001, "b" * 2000]):
        reply = client.post(TEXT, json={**ASKS[TEXT], "stop": stop})
        assert reply.status_code == 400 and "4000 characters" in reply.text


def test_a_prompt_that_is_far_too_long_is_told_its_context(client: httpx.Client) -> None:
    for words in ("a b " * 4000, "x" * 15_000):
        error = client.post(TEXT, json={"prompt": words}).json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert f"CTX is {CONTEXT}" in error["message"]


def test_the_server_is_well_after_all_that(client: httpx.Client, desk: Desk) -> None:
    until(lambda: not (desk.running or desk.waiting))
    assert client.post(TEXT, json=ASKS[TEXT]).status_code == 200
