"""How long the model may think, and where a grammar begins, as requests say it."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tiny_server import CONTEXT, serving, write_model

from diskmoe.engine.api import Model, Options, Sampling, ThinkBudget
from diskmoe.engine.server.desk import Desk
from diskmoe.grammar_draft.gbnf import parse

OPENED = "Say it.<think>"
GRAMMAR = 'root ::= "yes" | "no"'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A model that thinks in tags."""
    path = write_model(tmp_path_factory.mktemp("thinking") / "thinker")
    tokenizer = path / "tokenizer.json"
    data = json.loads(tokenizer.read_text(encoding="utf-8"))
    end = data["added_tokens"][-1]
    for number, text in enumerate(("<think>", "</think>"), end["id"] + 1):
        data["added_tokens"].append({**end, "id": number, "content": text})
    tokenizer.write_text(json.dumps(data), encoding="utf-8")
    with Model.load(path, Options(ctx=CONTEXT, cap=4, parallel=2)) as model:
        yield model


@pytest.fixture(scope="module")
def thinker(model: Model) -> Iterator[httpx.Client]:
    desk = Desk(model, most_waiting=2, most_seconds=60, say=pytest.fail)
    with serving(desk) as (_, address), httpx.Client(base_url=address, timeout=60) as client:
        yield client
    desk.close()


def asked(client: httpx.Client, **more: Any) -> dict[str, Any]:
    body = {"prompt": OPENED, "max_tokens": 40, "temperature": 0, **more}
    reply = client.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def alone(model: Model, words: str = OPENED, **how: Any) -> tuple[str, int]:
    prompt = model.text.encode_prompt(words, chat="0")
    run = model.generate(prompt, sampling=Sampling(0), limit=40, **how)
    return "".join(run), len(run.token_ids)


@pytest.mark.parametrize("name", ["thinking_budget_tokens", "thinking_token_budget"])
@pytest.mark.parametrize(("budget", "message"), [(0, ""), (3, ""), (7, "Enough.")])
def test_a_budget_ends_a_block_as_it_does_for_a_run(
    thinker: httpx.Client, model: Model, name: str, budget: int, message: str
) -> None:
    more = {"thinking_budget_message": message} if message else {}
    found = asked(thinker, **{name: budget}, **more)
    wanted, tokens = alone(model, thinking=ThinkBudget(budget, message))
    assert found["choices"][0]["text"].strip("\n") in wanted
    assert found["usage"]["completion_tokens"] == tokens
    free = asked(thinker)
    assert found["choices"][0]["text"] != free["choices"][0]["text"]
    assert asked(thinker, **{name: -1})["choices"] == free["choices"]


def test_a_budget_and_a_grammar_go_together(thinker: httpx.Client) -> None:
    found = asked(thinker, thinking_budget_tokens=4, grammar=GRAMMAR)
    assert found["choices"][0]["text"].endswith(("yes", "no"))
    assert found["choices"][0]["finish_reason"] == "stop"


def test_a_chat_shows_what_was_thought_apart(thinker: httpx.Client) -> None:
    body = {
        "messages": [{"role": "user", "content": OPENED}],
        "max_tokens": 40,
        "thinking_budget_tokens": 5,
        "thinking_budget_message": "Enough.",
        "grammar": GRAMMAR,
    }
    message = thinker.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    assert message["content"] in ("yes", "no") or "reasoning_content" in message


def test_a_grammar_begins_where_its_trigger_comes(thinker: httpx.Client, model: Model) -> None:
    free, _ = alone(model, "Say it.")
    trigger = free[4:6]  # what the model will say
    more = {"prompt": "Say it.", "grammar": GRAMMAR}
    text = asked(thinker, **more, grammar_triggers=[trigger, "<[3]>", "/qqq+/"])["choices"][0][
        "text"
    ]
    before, word, behind = text.partition(trigger)
    assert word and free.startswith(before) and behind in ("yes", "no")
    assert asked(thinker, **more, grammar_triggers=trigger)["choices"][0]["text"] == text
    how = {"grammar": parse(GRAMMAR), "constrain": True, "triggers": (trigger,)}
    assert alone(model, "Say it.", **how)[0] == text


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"thinking_budget_tokens": -2}, "thinking_budget_tokens", "from -1"),
    ({"thinking_budget_tokens": 1.5}, "thinking_budget_tokens", "a whole number"),
    ({"thinking_budget_tokens": "many"}, "thinking_budget_tokens", "a whole number"),
    ({"thinking_token_budget": True}, "thinking_token_budget", "a whole number"),
    (
        {"thinking_budget_tokens": 1, "thinking_token_budget": 1},
        "thinking_token_budget",
        "left out beside thinking_budget_tokens",
    ),
    ({"thinking_budget_message": "x"}, "thinking_budget_message", "beside thinking_budget_tokens"),
    ({"grammar_triggers": ["x"]}, "grammar_triggers", "beside the grammar"),
    ({"grammar_triggers": [""], "grammar": GRAMMAR}, "grammar_triggers", "none empty"),
    ({"grammar_triggers": [5], "grammar": GRAMMAR}, "grammar_triggers", "strings"),
    ({"grammar_triggers": ["x" * 5000], "grammar": GRAMMAR}, "grammar_triggers", "4000 characters"),
]


@pytest.mark.parametrize(("more", "param", "said"), BAD)
def test_what_cannot_be_done_is_refused_before_it_begins(
    thinker: httpx.Client, more: dict[str, Any], param: str, said: str
) -> None:
    reply = thinker.post("/v1/completions", json={"prompt": "x", "stream": True, **more})
    error = reply.json()["error"]
    assert reply.status_code == 400 and error["param"] == param
    assert said in error["message"]


@pytest.mark.parametrize("trigger", ["/(/", "<[99999]>"])
def test_a_trigger_that_is_none_is_refused_before_it_begins(
    thinker: httpx.Client, trigger: str
) -> None:
    body = {"prompt": "x", "stream": True, "grammar": GRAMMAR, "grammar_triggers": [trigger]}
    reply = thinker.post("/v1/completions", json=body)
    assert reply.status_code == 400 and trigger in reply.json()["error"]["message"]


def test_a_model_that_does_not_think_says_so(client: httpx.Client) -> None:
    body = {"prompt": "x", "thinking_budget_tokens": 5}
    error = client.post("/v1/completions", json=body).json()["error"]
    assert "no thinking blocks" in error["message"]
