"""A script that dispatches tools, as users of llama-cpp-python write it, with the import changed."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tiny_server import CONTEXT, write_model
from tool_answers import ARGUMENTS, CASES
from tool_models import TEMPLATES, add_tokens
from tool_talk import says

from diskmoe.engine.llama_compat import Llama, LlamaGrammar

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LOOSE: Any = [
    {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "clock"}},
]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    folder = write_model(tmp_path_factory.mktemp("llama") / "tiny")
    add_tokens(folder, ["<|im_end|>"])
    template = (TEMPLATES / "qwen3_moe.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    with Llama(model_path=str(folder), n_ctx=CONTEXT, n_gpu_layers=0, seed=3) as llm:
        yield llm


def get_weather(city: str, days: int, **other: Any) -> str:
    return f"Rain in {city} for {days} days"


def clock() -> str:
    return "12:00"


AVAILABLE = {"get_weather": get_weather, "clock": clock}


def test_tools_are_dispatched_until_an_answer_comes(
    llm: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You call functions."},
        {"role": "user", "content": "How is the weather in Oslo, and what time is it?"},
    ]
    says(monkeypatch, llm._model, CASES["hermes"].text)
    response: Any = llm.create_chat_completion(
        messages=messages, tools=LOOSE, tool_choice="auto", temperature=0.0
    )
    message = response["choices"][0]["message"]
    assert response["choices"][0]["finish_reason"] == "tool_calls"
    messages.append(message)
    for call in message["tool_calls"]:
        function = AVAILABLE[call["function"]["name"]]
        arguments = json.loads(call["function"]["arguments"])
        messages.append(
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "name": call["function"]["name"],
                "content": function(**arguments),
            }
        )
    assert messages[-2]["content"] == f"Rain in {ARGUMENTS['city']} for 3 days"
    says(monkeypatch, llm._model, "It rains.")
    response = llm.create_chat_completion(messages=messages, tools=LOOSE)
    assert response["choices"][0]["message"] == {"role": "assistant", "content": "It rains."}
    assert response["choices"][0]["finish_reason"] == "stop"


def test_calls_are_streamed_and_put_together(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, llm._model, CASES["hermes"].text)
    text, calls = "", {}
    stream: Any = llm.create_chat_completion(
        messages=[{"role": "user", "content": "Weather?"}], tools=LOOSE, stream=True
    )
    for chunk in stream:
        delta = chunk["choices"][0]["delta"]
        text += delta.get("content") or ""
        for call in delta.get("tool_calls", []):
            known = calls.setdefault(call["index"], {"name": "", "arguments": ""})
            known["name"] += call["function"].get("name", "")
            known["arguments"] += call["function"]["arguments"]
    assert text == "Let me see."
    assert [call["name"] for call in calls.values()] == ["get_weather", "clock"]
    assert json.loads(calls[0]["arguments"]) == ARGUMENTS


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "clock"}}]
)
def test_a_call_that_must_come_comes(llm: Llama, choice: Any) -> None:
    response: Any = llm.create_chat_completion(
        messages=[{"role": "user", "content": "What time is it?"}],
        tools=LOOSE,
        tool_choice=choice,
        parallel_tool_calls=False,
        max_tokens=300,
        temperature=1.0,
        seed=2,
    )
    [call] = response["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] in ("clock", "get_weather"[: 12 * (choice == "required")])


def test_json_is_extracted_by_a_grammar_and_streamed(llm: Llama) -> None:
    grammar = LlamaGrammar.from_string(
        r"""
        root   ::= "{" ws "\"name\":" ws string "," ws "\"age\":" ws number ws "}"
        string ::= "\"" [a-zA-Z ]{1,12} "\""
        number ::= [1-9] [0-9]?
        ws     ::= [ \n]?
        """
    )
    stream: Any = llm.create_completion(
        "Extract name and age as JSON: Ann is 30.\n", grammar=grammar, max_tokens=200, stream=True
    )
    found = json.loads("".join(chunk["choices"][0]["text"] for chunk in stream))
    assert set(found) == {"name", "age"} and 1 <= found["age"] <= 99
