"""Tools through the server: what a model's family writes comes as calls, whole and streamed, and what is
strict or required is enforced."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tiny_server import CONTEXT, listen, write_model
from tool_answers import ARGUMENTS, CASES, CLOCK, WEATHER
from tool_models import FAMILIES, TEMPLATES, add_tokens
from tool_talk import says

from diskmoe.engine.api import Model, Options
from diskmoe.engine.server.app import Server
from diskmoe.engine.server.desk import Desk
from diskmoe.engine.server.rules import Rules

HELLO = [{"role": "user", "content": "How is the weather in Oslo?"}]
TOOLS = [WEATHER, CLOCK]
LOOSE = [{**WEATHER, "function": {**WEATHER["function"], "strict": False}}, CLOCK]


def served(folder: Path, template: str, said: list[str]) -> Iterator[tuple[str, Model]]:
    """A tiny model with a golden template and its special tokens."""
    write_model(folder)
    add_tokens(folder, [*FAMILIES[template][1], "<think>", "</think>"][: 272 - 261])
    path = TEMPLATES / f"{template}.jinja"
    (folder / "chat_template.jinja").write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    with Model.load(folder, Options(ctx=CONTEXT, cap=4, parallel=2)) as model:
        desk = Desk(model, most_waiting=2, most_seconds=120, say=said.append)
        server, address, thread = listen(Server(desk, Rules()).app)
        yield address, model
        server.should_exit = True
        thread.join(10)
        desk.close()


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """What the server tells its user."""
    return []


@pytest.fixture(scope="module")
def hermes(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> Iterator[tuple[str, Model]]:
    yield from served(tmp_path_factory.mktemp("tools") / "tiny", "qwen3_moe", lines)


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> Iterator[tuple[str, Model]]:
    yield from served(tmp_path_factory.mktemp("tools") / "tiny", "kimi_k2", lines)


@pytest.fixture(scope="module")
def oss(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> Iterator[tuple[str, Model]]:
    yield from served(tmp_path_factory.mktemp("tools") / "tiny", "gpt_oss", lines)


def ask(address: str, **more: Any) -> httpx.Response:
    body = {"messages": HELLO, "max_tokens": 400, "temperature": 1, "seed": 4, **more}
    return httpx.post(f"{address}/v1/chat/completions", json=body, timeout=100)


def choice(reply: httpx.Response) -> dict[str, Any]:
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]


def check_weather(arguments: str) -> None:
    found = json.loads(arguments)
    assert isinstance(found["city"], str) and 1 <= found["days"] <= 9
    assert set(found) <= set(WEATHER["function"]["parameters"]["properties"])


@pytest.mark.parametrize("family", ["hermes", "kimi"])
def test_a_models_own_calls_come_as_calls_whole_and_streamed(
    family: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kimi's markers are special tokens, which print nothing."""
    address, model = request.getfixturevalue(family)
    says(monkeypatch, model, CASES[family].text)
    found = choice(ask(address, tools=LOOSE))
    assert found["finish_reason"] == "tool_calls"
    message = found["message"]
    assert message["content"] == "Let me see."
    names = [call["function"]["name"] for call in message["tool_calls"]]
    assert names == ["get_weather", "clock"]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == ARGUMENTS
    said, calls, reason = stream(ask(address, tools=LOOSE, stream=True))
    assert (said, reason) == ("Let me see.", "tool_calls")
    assert [call["function"] for call in calls] == [
        call["function"] for call in message["tool_calls"]
    ]
    assert len({call["id"] for call in calls}) == 2
    only = choice(ask(address, tools=LOOSE, parallel_tool_calls=False))
    assert [call["function"]["name"] for call in only["message"]["tool_calls"]] == ["get_weather"]
    assert only["finish_reason"] == "tool_calls"


def stream(reply: httpx.Response) -> tuple[str, list[dict[str, Any]], str]:
    """A stream's content, calls put together as clients do, and why it ended."""
    said, calls, reason = "", [], ""
    for line in reply.text.splitlines():
        if not line.startswith("data: {"):
            continue
        [found] = json.loads(line[6:])["choices"]
        said += found["delta"].get("content") or ""
        reason = found["finish_reason"] or reason
        for piece in found["delta"].get("tool_calls", []):
            if piece["index"] == len(calls):
                assert piece["type"] == "function" and piece["id"] and piece["function"]["name"]
                calls.append({"id": piece["id"], "function": dict(piece["function"])})
            else:
                assert set(piece) == {"index", "function"}
                more = piece["function"]["arguments"]
                calls[piece["index"]]["function"]["arguments"] += more
    return said, calls, reason


def test_gpt_oss_answers_in_channels_with_tools_and_without(
    oss: tuple[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, model = oss
    says(monkeypatch, model, CASES["gpt-oss"].text, ends=False)  # its last token ends it
    found = choice(ask(address, tools=LOOSE))
    assert found["message"]["reasoning_content"] == "They ask."
    assert found["message"]["content"] == "Let me see." and found["finish_reason"] == "tool_calls"
    [call] = found["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == ARGUMENTS
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    )
    says(monkeypatch, model, text + "<|return|>", ends=False)
    message = choice(ask(address))["message"]
    assert message == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    monkeypatch.undo()
    named = {"type": "function", "function": {"name": "clock"}}
    [call] = choice(ask(address, tools=LOOSE, tool_choice=named))["message"]["tool_calls"]
    assert call["function"]["name"] == "clock"


def test_arguments_are_streamed_as_they_come(
    hermes: tuple[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, model = hermes
    says(monkeypatch, model, CASES["hermes"].text)
    lines = ask(address, tools=LOOSE, stream=True).text.splitlines()
    assert sum('"arguments"' in line for line in lines) > 30


def test_what_is_no_call_is_content_with_a_line(
    hermes: tuple[str, Model], monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    address, model = hermes
    text = 'So:\n<tool_call>\n{"name": "clock", "arguments": [1]}\n</tool_call>'
    says(monkeypatch, model, text)
    found = choice(ask(address, tools=LOOSE))
    assert found["message"]["content"] == text and found["finish_reason"] == "stop"
    assert "tool_calls" not in found["message"]
    assert "given as text: its arguments begin with '['" in lines[-1]
    assert stream(ask(address, tools=LOOSE, stream=True)) == (text, [], "stop")


def test_without_tools_all_is_text(
    hermes: tuple[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, model = hermes
    says(monkeypatch, model, CASES["hermes"].text)
    for none in ({}, {"tools": []}, {"tools": LOOSE, "tool_choice": "none"}):
        found = choice(ask(address, **none))
        assert found["message"]["content"] == CASES["hermes"].text


@pytest.mark.parametrize("family", ["hermes", "kimi"])
@pytest.mark.parametrize("wanted", ["required", "named"])
def test_a_call_that_must_come_comes_and_fits(
    family: str, wanted: str, request: pytest.FixtureRequest
) -> None:
    address, _ = request.getfixturevalue(family)
    named = {"type": "function", "function": {"name": "get_weather"}}
    choose = named if wanted == "named" else "required"
    for seed in (1, 2):
        more = {"tools": TOOLS, "tool_choice": choose, "seed": seed, "parallel_tool_calls": False}
        found = choice(ask(address, **more))
        [call] = found["message"]["tool_calls"]
        assert found["message"]["content"] is None
        if found["finish_reason"] == "tool_calls" and call["function"]["name"] == "get_weather":
            check_weather(call["function"]["arguments"])
        assert wanted == "required" or call["function"]["name"] == "get_weather"
        said, [streamed], reason = stream(ask(address, stream=True, **more))
        assert (said, reason) == ("", found["finish_reason"])
        assert streamed["function"] == call["function"]


def test_a_call_that_must_come_comes_behind_the_reasoning(
    hermes: tuple[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, model = hermes
    says(monkeypatch, model, "<think>They ask.</think>", ends=False)
    found = choice(ask(address, tools=TOOLS, tool_choice="required"))
    assert found["message"]["reasoning_content"] == "They ask."
    assert found["message"]["tool_calls"][0]["function"]["name"] in ("get_weather", "clock")
    off = {
        "chat_template_kwargs": {"enable_thinking": False}
    }  # the prompt says that all is thought
    found = choice(ask(address, tools=TOOLS, tool_choice="required", **off))
    assert found["finish_reason"] != "stop" and "reasoning_content" not in found["message"]


@pytest.mark.parametrize("family", ["hermes", "kimi"])
def test_strict_arguments_are_enforced_from_the_marker_on(
    family: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, model = request.getfixturevalue(family)
    case = CASES[family]
    says(
        monkeypatch,
        model,
        case.text[: case.text.index(case.form.opening) + len(case.form.opening)],
        False,
    )
    fitting = 0
    for seed in range(3):
        found = choice(ask(address, tools=[WEATHER], seed=seed, parallel_tool_calls=False))
        assert found["message"]["content"] == "Let me see."
        [call] = found["message"]["tool_calls"]
        assert call["function"]["name"] == "get_weather"
        if found["finish_reason"] == "tool_calls":
            check_weather(call["function"]["arguments"])
            fitting += 1
    assert fitting


def test_a_format_beside_tools_is_for_answers_that_call_none(hermes: tuple[str, Model]) -> None:
    address, _ = hermes
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    kinds = set()
    for seed in range(3):
        found = choice(ask(address, tools=[CLOCK], response_format=wanted, seed=seed))
        if "tool_calls" in found["message"]:
            kinds.add("call")
            assert found["message"]["tool_calls"][0]["function"]["name"] == "clock"
        else:
            kinds.add("document")
            assert json.loads(found["message"]["content"])["a"] in (1, 2)
    assert kinds


def test_calls_and_results_go_back_through_the_template(hermes: tuple[str, Model]) -> None:
    address, model = hermes
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Oslo", "days": 2}'},
    }
    talk = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain"},
    ]
    reply = ask(address, messages=talk, tools=LOOSE, max_tokens=3)
    assert reply.status_code == 200, reply.text
    asked = {**call, "function": {**call["function"], "arguments": {"city": "Oslo", "days": 2}}}
    messages = [talk[0], {**talk[1], "content": "", "tool_calls": [asked]}, talk[2]]
    shown = [{"type": "function", "function": {k: v for k, v in t["function"].items() if k != "strict"}}
             for t in LOOSE]  # fmt: skip
    shown[1]["function"] |= {"description": "", "parameters": {"type": "object", "properties": {}}}
    prompt = model.text.encode_chat(messages, tools=shown)
    assert reply.json()["usage"]["prompt_tokens"] == len(prompt.ids)


BAD = [
    ({"tools": 3}, "tools", "a list of at most"),
    ({"tools": [3]}, "tools[0]", "must be {"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]", "must be {"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "letters"),
    ({"tools": [CLOCK, CLOCK]}, "tools[1].function.name", "one before"),
    ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice", '"required" or'),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "none of"),
    ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
    ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls", "true or false"),
    ({"tools": TOOLS, "grammar_triggers": ["x"], "grammar": 'root ::= "a"'}, "grammar_triggers", "beside tools"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"minimum": "x"}}}]},
        "tools",
        "minimum",
    ),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
     "tools[0].function.parameters.type", 'must be "object"'),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "said"), BAD)
def test_what_is_wrong_with_tools_is_said(
    hermes: tuple[str, Model], fields: dict[str, Any], param: str, said: str
) -> None:
    reply = ask(hermes[0], **fields)
    error = reply.json()["error"]
    assert reply.status_code == 400, error
    assert error["param"] == param and said in error["message"] and "\n" not in error["message"]


def test_the_official_client_calls_tools(
    hermes: tuple[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    openai = pytest.importorskip("openai")
    address, model = hermes
    theirs = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    named = {"type": "function", "function": {"name": "get_weather"}}
    how: dict[str, Any] = {"model": "tiny", "messages": HELLO, "tools": TOOLS, "max_tokens": 400}
    for choose in ("required", named):
        reply = theirs.chat.completions.create(tool_choice=choose, **how)
        call = reply.choices[0].message.tool_calls[0]
        assert call.type == "function" and call.function.name in ("get_weather", "clock")
    says(monkeypatch, model, CASES["hermes"].text)
    reply = theirs.chat.completions.create(**{**how, "tools": LOOSE})
    assert json.loads(reply.choices[0].message.tool_calls[0].function.arguments) == ARGUMENTS
    with theirs.chat.completions.stream(**{**how, "tools": LOOSE}) as events:
        final = events.get_final_completion()
    [first, second] = final.choices[0].message.tool_calls
    assert json.loads(first.function.arguments) == ARGUMENTS and second.function.name == "clock"
    theirs.close()
