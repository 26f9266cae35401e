"""What the clients of scripts/soak_server.py ask for: answers that are known, and what is to be refused."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"

WORDS = (
    "Tell a story about a small red boat.",
    "What is a disk, and what is it good for?",
    "Write one line about the sea.",
    "Name three colours and three animals.",
    "Once upon a time there was a king",
    "The quick brown fox",
)

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["cat", "dog", "bird"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
LIST = {
    "type": "array",
    "items": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
    "minItems": 1,
    "maxItems": 3,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks for a word.",
        "parameters": {
            "type": "object",
            "properties": {
                "word": {"type": "string", "maxLength": 9},
                "often": {"type": "integer"},
            },
            "required": ["word"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
CHOICE = {"anyOf": [{"const": "yes"}, {"type": "number"}, {"type": "null"}]}


@dataclass(frozen=True)
class Ask:
    """A request whose answer is always the same."""

    name: str
    path: str
    body: dict[str, Any]
    schema: dict[str, Any] | None = None

    @property
    def streamed(self) -> dict[str, Any]:
        return {**self.body, "stream": True, "stream_options": {"include_usage": True}}

    def breaks_schema(self, text: str, finished: bool) -> bool:
        """Whether an answer that has come to its end is not what its schema says."""
        if self.schema is None or not finished:
            return False
        try:
            return not Draft202012Validator(self.schema).is_valid(json.loads(text))
        except ValueError:
            return True


def known_asks() -> list[Ask]:
    """Chats and completions, greedy and drawn, short and long, free and constrained."""
    asks = [
        Ask(f"{kind} {number} {way}", path, {**ask, **how, "max_tokens": 6 + 7 * number})
        for number, words in enumerate(WORDS)
        for kind, path, ask in (("chat", CHAT, _chat(words)), ("text", TEXT, {"prompt": words}))
        for way, how in (
            ("greedy", {"temperature": 0}),
            ("drawn", {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "seed": 11 + number}),
        )
    ]
    long = " ".join(f"{n}. {WORDS[n % len(WORDS)]}" for n in range(60))
    asks.append(Ask("long", TEXT, {"prompt": long, "temperature": 0, "max_tokens": 12}))
    asks.append(Ask("ids", TEXT, {"prompt": list(range(20, 90)), "temperature": 0}))
    asks.append(Ask("stop", CHAT, {**_chat(WORDS[0]), "stop": ["e", "zz"], "max_tokens": 40}))
    for name, schema in (("person", PERSON), ("list", LIST), ("choice", CHOICE)):
        form = {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}
        for seed in (0, 1):
            body = {**_chat(WORDS[seed]), "response_format": form, "max_tokens": 120}
            body |= {"temperature": 0.8 * seed, "seed": seed}
            asks.append(Ask(f"schema {name} {seed}", CHAT, body, schema))
    grammar = 'root ::= "yes" | "no" | [0-9]{1,4} "."'
    asks.append(Ask("grammar", CHAT, {**_chat(WORDS[1]), "grammar": grammar, "temperature": 0}))
    for choice in ("auto", "required"):
        body = {**_chat(WORDS[3]), "tools": [TOOL], "tool_choice": choice, "max_tokens": 60}
        asks.append(Ask(f"tool {choice}", CHAT, {**body, "temperature": 0.7, "seed": 4}))
    probable = {"logprobs": True, "top_logprobs": 3, "max_tokens": 12, "temperature": 0}
    asks.append(Ask("logprobs", CHAT, {**_chat(WORDS[4]), **probable}))
    return asks


def conversation(turns: list[tuple[str, str]], question: str) -> dict[str, Any]:
    """A chat that goes on from questions and their answers."""
    messages: list[dict[str, str]] = []
    for asked, answered in turns:
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    messages.append({"role": "user", "content": question})
    return {"messages": messages, "temperature": 0, "max_tokens": 10}


def refused_asks(most_bytes: int) -> list[tuple[str, bytes]]:
    """(path, body): each is to be refused with a status from 400 to 499."""
    chat = _chat("Hello")
    deep = b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}"
    schema = {"type": "json_schema", "json_schema": {"schema": {"type": "king"}}}
    bodies: list[Any] = [
        b"",
        b"{",
        b"\xff\xfe{}",
        b'{"messages": [}',
        deep,
        b'{"temperature": NaN}',
        b'{"temperature": 1e999}',
        b'{"max_tokens": ' + b"9" * 5000 + b"}",
        b'{"stream": true, "stream": false}',
        [],
        "text",
        {**chat, "messages": []},
        {**chat, "messages": [{"role": "king", "content": "x"}]},
        {**chat, "messages": "\ud800"},
        {**chat, "temperature": "hot"},
        {**chat, "max_tokens": -1},
        {**chat, "top_p": 2},
        {**chat, "seed": 2**70},
        {**chat, "stop": [""]},
        {**chat, "nonsense\n": 1},
        {**chat, "model": "gpt-9"},
        {**chat, "response_format": schema},
        {**chat, "response_format": {"type": "json_schema"}},
        {**chat, "response_format": {"type": "json_schema", "json_schema": {"schema": False}}},
        {**chat, "grammar": "root ::= root"},
        {**chat, "grammar": "root ::= ("},
        {**chat, "grammar": 'root ::= "a" b'},
        {**chat, "grammar": "x" * 20_000},
        {**chat, "grammar_triggers": ["x"]},
        {**chat, "messages": [{"role": "user", "content": "word " * 20_000}]},
        b'{"prompt": "' + b"a" * most_bytes + b'"}',
    ]
    return [
        (path, body if isinstance(body, bytes) else json.dumps(body).encode())
        for body in bodies
        for path in (CHAT, TEXT)
    ]


def hostile_grammar(chance: random.Random) -> dict[str, Any]:
    """A request that is hard to follow, and is answered or refused."""
    depth = chance.randrange(5, 200)
    grammars = (
        'root ::= ("a" | "a")* ("a" | "a" "a")* [a-z]*',
        f'root ::= ("x" | "xy"){{0,{chance.randrange(10, 5000)}}} "z"?',
        "root ::= a a a\na ::= b b b b\nb ::= c? c? c? c?\nc ::= [a-z]{0,30}",
        'root ::= s\ns ::= s s | "(" s ")" | [a-c]',
        "root ::= " + "(" * depth + '"a"' + ")*" * depth,
        f'root ::= [^"]{{{chance.randrange(1, 300)}}} "end"',
    )
    schema: dict[str, Any] = {"type": "string", "maxLength": chance.randrange(1, 4000)}
    for _ in range(chance.randrange(8)):
        schema = {"type": "array", "items": schema, "maxItems": chance.randrange(1, 40)}
    patterned = {"type": "string", "pattern": f"^(a|ab|b)*.{{{chance.randrange(1, 20)}}}$"}
    many = {"properties": {f"key{n}": {"type": "string"} for n in range(chance.randrange(80))}}
    hard = chance.choice([*grammars, schema, patterned, many])
    body = {**_chat("Say it."), "max_tokens": 12, "temperature": 1, "seed": chance.randrange(9)}
    if isinstance(hard, str):
        return {**body, "grammar": hard}
    form = {"type": "json_schema", "json_schema": {"name": "hard", "schema": hard}}
    return {**body, "response_format": form}


def _chat(words: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": words}]}
