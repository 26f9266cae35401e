"""Scripts written for llama-cpp-python, with the import changed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_server import CONTEXT, write_model

from diskmoe.engine.api import Model, Options, Sampling
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.llama_compat import Llama, LlamaGrammar
from diskmoe.grammar_draft.errors import BadGrammar

HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("llama") / "tiny")


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[Llama]:
    with Llama(path, n_ctx=CONTEXT, n_gpu_layers=0, verbose=False, seed=3) as llm:
        yield llm


def done(found: Any) -> dict[str, Any]:
    assert isinstance(found, dict)
    return found


def test_a_completion_has_their_shape_and_our_text(llm: Llama, path: Path) -> None:
    found = done(llm("Once upon", max_tokens=9, temperature=0.0, echo=True))
    assert set(found) == {"id", "object", "created", "model", "choices", "usage"}
    assert found["object"] == "text_completion"
    assert found["choices"][0]["finish_reason"] == "length"
    with Model.load(path, Options(ctx=CONTEXT)) as model:
        prompt = model.text.encode_prompt("Once upon", chat="0")
        text = "".join(model.generate(prompt, limit=9))
    assert found["choices"][0]["text"] == "Once upon" + text


def test_their_defaults_are_used_for_sampling(llm: Llama, path: Path) -> None:
    found = done(llm.create_chat_completion(HELLO, max_tokens=9))
    with Model.load(path, Options(ctx=CONTEXT)) as model:
        prompt = model.text.encode_chat(HELLO)
        text = "".join(model.generate(prompt, limit=9, sampling=Sampling(0.2, 40, 0.95, 0.05, 3)))
    assert found["choices"][0]["message"] == {"role": "assistant", "content": text}


def test_streams_are_the_same_text_in_pieces(llm: Llama) -> None:
    whole = done(llm.create_chat_completion(HELLO, max_tokens=12))
    pieces: Any = llm.create_chat_completion(HELLO, max_tokens=12, stream=True)
    deltas = [piece["choices"][0]["delta"] for piece in pieces]
    assert deltas[0]["role"] == "assistant"
    text = "".join(delta.get("content", "") for delta in deltas)
    assert text == whole["choices"][0]["message"]["content"]
    pieces = llm("Hi", max_tokens=7, stream=True)
    text = "".join(piece["choices"][0]["text"] for piece in pieces)
    assert text == done(llm("Hi", max_tokens=7))["choices"][0]["text"]


def test_grammars_are_enforced(llm: Llama) -> None:
    answer = llm("Is it?", max_tokens=30, grammar=LlamaGrammar.from_string('root ::= "yes" | "no"'))
    assert done(answer)["choices"][0]["text"] in ("yes", "no")
    grammar = LlamaGrammar.from_json_schema(json.dumps(SCHEMA))
    answer = done(llm.create_chat_completion(HELLO, max_tokens=300, grammar=grammar))
    assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"city", "days"}
    kind = {"type": "json_object", "schema": SCHEMA}
    answer = done(llm.create_chat_completion(HELLO, max_tokens=300, response_format=kind))
    assert json.loads(answer["choices"][0]["message"]["content"])["days"] <= 9
    with pytest.raises(BadGrammar):
        LlamaGrammar.from_string("root ::= x")
    with pytest.raises(BadGrammar):
        LlamaGrammar.from_json_schema('{"type": "nothing"}')


def test_a_tool_chosen_by_name_is_called_by_its_schema(llm: Llama) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    found = done(
        llm.create_chat_completion(HELLO, tools=[TOOL], tool_choice=choice, max_tokens=300)
    )
    call = found["choices"][0]["message"]["tool_calls"][0]
    assert found["choices"][0]["finish_reason"] == "tool_calls"
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"])["city"] in ("Rome", "Oslo")
    pieces: Any = llm.create_chat_completion(
        HELLO, tools=[TOOL], tool_choice=choice, max_tokens=300, stream=True
    )
    chunks = [piece["choices"][0] for piece in pieces]
    told = [each for chunk in chunks for each in chunk["delta"].get("tool_calls", [])]
    assert told[0]["function"]["name"] == "weather" and told[0]["id"]
    streamed = "".join(each["function"]["arguments"] for each in told)
    assert streamed == call["function"]["arguments"]
    assert chunks[-1]["finish_reason"] == "tool_calls"
    for wrong in ("sometimes", {"type": "function", "function": {"name": "x"}}):
        with pytest.raises(BadRequest):
            llm.create_chat_completion(HELLO, tools=[TOOL], tool_choice=wrong)


def test_logprobs_are_those_of_the_models_logits(llm: Llama) -> None:
    found = done(
        llm.create_chat_completion(
            HELLO, max_tokens=5, temperature=0.0, logprobs=True, top_logprobs=3
        )
    )
    content = found["choices"][0]["logprobs"]["content"]
    assert len(content) == 5
    for entry in content:
        assert len(entry["top_logprobs"]) == 3 and entry["logprob"] <= 0
        assert entry["token"] == entry["top_logprobs"][0]["token"]  # greedy
        values = [each["logprob"] for each in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)
    found = done(llm("Once", max_tokens=4, logprobs=2, echo=False))["choices"][0]["logprobs"]
    assert [len(found[key]) for key in ("tokens", "token_logprobs", "top_logprobs")] == [4, 4, 4]
    every = done(llm.create_chat_completion(HELLO, max_tokens=1, logprobs=True, top_logprobs=272))
    [entry] = every["choices"][0]["logprobs"]["content"]
    total = sum(np.exp(each["logprob"]) for each in entry["top_logprobs"])
    assert abs(total - 1) < 1e-9


def test_processors_and_biases_change_what_is_chosen(llm: Llama) -> None:
    [letter] = llm.tokenize(b"q", add_bos=False)
    found = done(llm("Once", max_tokens=4, logit_bias={letter: 1e4}))
    assert found["choices"][0]["text"] == "qqqq"
    seen = []

    def only(tokens: Any, logits: Any) -> Any:
        seen.append(list(tokens))
        changed = np.full_like(logits, -1e9)
        changed[letter] = 0
        return changed

    found = done(llm("Once", max_tokens=3, logits_processor=[only]))
    assert found["choices"][0]["text"] == "qqq"
    prompt = llm.tokenize(b"Once")
    assert seen == [prompt, [*prompt, letter], [*prompt, letter, letter]]
    with pytest.raises(BadRequest, match="outside"):
        llm("Once", max_tokens=1, logit_bias={10**6: 1.0})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_minus_infinity_forbids_a_token(llm: Llama, temperature: float) -> None:
    [token] = llm.tokenize(b"a", add_bos=False)
    ban = {each: -np.inf for each in range(llm.n_vocab()) if each != token}
    found = done(llm("Once", max_tokens=5, temperature=temperature, logit_bias=ban))
    assert found["choices"][0]["text"] == "aaaaa"


@pytest.mark.parametrize(
    ("processor", "said"),
    [
        (lambda tokens, logits: logits * np.nan, "makes nan of token 0's logit"),
        (lambda tokens, logits: logits + np.inf, "makes inf of token 0's logit"),
        (lambda tokens, logits: logits - np.inf, "forbid every token"),
        (lambda tokens, logits: logits[:5], "gives shape"),
        (lambda tokens, logits: None, "gives shape"),
    ],
)
def test_a_processor_is_to_blame_for_what_it_makes(llm: Llama, processor: Any, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        llm("Once", max_tokens=3, logits_processor=processor)


def test_two_things_that_an_answer_must_follow_are_refused(llm: Llama) -> None:
    grammar = LlamaGrammar.from_string('root ::= "yes"')
    schema = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    named = {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}}
    for two in (
        {"response_format": schema, "grammar": grammar},
        {**named, "grammar": grammar},
        {**named, "response_format": {"type": "json_object"}},
    ):
        with pytest.raises(BadRequest, match="both say what the answer must follow"):
            llm.create_chat_completion(HELLO, **two)
    with pytest.raises(BadRequest, match="must have a type"):
        llm.create_chat_completion(HELLO, response_format="json_object")  # pyright: ignore
    with pytest.raises(BadGrammar, match="nothing can satisfy"):
        llm.create_chat_completion(HELLO, response_format={"type": "json_object", "schema": False})


def test_text_and_tokens_turn_into_each_other(llm: Llama) -> None:
    text = "Grüße, the end".encode()
    assert llm.detokenize(llm.tokenize(text)) == text
    end = llm.tokenize(b"<|end|>", special=True)
    assert len(end) == 1 and llm.detokenize(end) == b""
    assert llm.detokenize(end, special=True) == b"<|end|>"
    with pytest.raises(BadRequest, match="special=True"):
        llm.tokenize(b"<|end|>")
    assert llm.n_vocab() == 272 and llm.n_ctx() == CONTEXT


def test_reset_forgets_what_was_read(llm: Llama) -> None:
    first = done(llm("The same long prompt", max_tokens=2))
    again = done(llm("The same long prompt", max_tokens=2))
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    llm.reset()
    fresh = done(llm("The same long prompt", max_tokens=2))
    assert fresh["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert fresh["choices"][0]["text"] == first["choices"][0]["text"]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"repeat_penalty": 1.1}, "repeat_penalty=1.1 is not supported"),
        ({"mirostat_mode": 2}, "mirostat_mode=2 is not supported"),
        ({"temprature": 1}, "has no argument temprature"),
        ({"suffix": "x"}, "suffix='x' is not supported"),
    ],
)
def test_what_is_not_built_raises(llm: Llama, how: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        llm("Once", **how)


@pytest.mark.parametrize("how", [{"n_gpu_layers": -1}, {"lora_path": "x"}, {"n_cpu": 3}])
def test_what_a_cpu_has_not_raises_before_anything_is_read(how: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=next(iter(how))):
        Llama("/no/such/model", **how)


def test_ids_that_the_model_has_not_and_bytes_for_a_prompt_are_refused(llm: Llama) -> None:
    for token in (-1, llm.n_vocab()):
        with pytest.raises(BadRequest, match=f"token {token} is none of the model: ids are from 0"):
            llm.detokenize([token])
    with pytest.raises(BadRequest, match="the prompt is bytes"):
        llm(b"Hello")  # pyright: ignore[reportArgumentType]
