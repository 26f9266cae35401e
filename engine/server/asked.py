"""What a request asks for, understood and checked: a prompt, how to choose, when to stop.

The rule of this file: a field that changes the text is done or refused; nothing is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diskmoe.engine.constraining import ThinkBudget, Wanted
from diskmoe.engine.sampling import Sampling
from diskmoe.engine.server.fields import Fields
from diskmoe.engine.server.languages import Languages, triggers_asked
from diskmoe.engine.server.refusals import Refusal
from diskmoe.engine.server.thoughts import thinking_asked
from diskmoe.engine.text.side import Prompt, TextSide
from diskmoe.grammar_draft.rules import Grammar

MOST_STOPS = 16
MOST_TOKENS = 10_000_000
_CLIENTS = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class Asked:
    """A text that is wanted."""

    prompt: Prompt
    sampling: Sampling
    limit: int | None  # tokens; None: as many as fit
    stop: tuple[str, ...]
    stream: bool
    usage_at_end: bool  # of a stream
    chat: bool
    grammar: Grammar | None  # that the answer must follow
    triggers: tuple[str, ...] = ()  # of which the first begins the grammar; none: the answer does
    thinking: ThinkBudget | None = None

    @property
    def wanted(self) -> Wanted:
        """What is to constrain the answer."""
        mode = "0" if self.grammar is None else "1"
        return Wanted(self.grammar, mode, self.triggers, self.thinking)


def chat_asked(
    values: Mapping[str, Any], text: TextSide, model: str, languages: Languages
) -> Asked:
    """``/v1/chat/completions``. Refusal: a field that is no good, or that asks for what is not done."""
    fields = Fields(values)
    _check_model(fields, model)
    messages = _messages(fields)
    options = fields.mapping("chat_template_kwargs")
    effort = fields.text("reasoning_effort")
    if effort is not None:
        options = {**options, "reasoning_effort": effort}
    for name in ("messages", "tools", "add_generation_prompt"):
        if name in options:
            raise Refusal(400, f"chat_template_kwargs.{name} is set by the request itself")
    for name in ("tools", "functions"):
        fields.only(name, [])
    for name in ("tool_choice", "function_call"):
        fields.only(name, "none", "auto")
    fields.only("modalities", ["text"])
    fields.ignore("parallel_tool_calls")
    limit = _limit(fields, "max_completion_tokens", "max_tokens")
    grammar = languages.asked(fields, text)
    return _asked(
        fields, text, lambda: text.encode_chat(messages, **options), limit, grammar, chat=True
    )


def completion_asked(
    values: Mapping[str, Any], text: TextSide, model: str, languages: Languages
) -> Asked:
    """``/v1/completions``."""
    fields = Fields(values)
    _check_model(fields, model)
    given = fields.take("prompt")
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], (str, list)):
        given = given[0]
    for name, neutral in (("echo", False), ("best_of", 1), ("suffix", None), ("suffix", "")):
        fields.only(name, neutral)
    limit = _limit(fields, "max_tokens")

    def prompt() -> Prompt:
        if isinstance(given, str):
            return text.encode_prompt(given, chat="0")
        whole = isinstance(given, list) and given and all(type(each) is int for each in given)
        if not whole:
            raise fields.refuse("prompt", "one string, or one list of token ids")
        return Prompt(tuple(given), "given as token ids", in_chat=False)

    grammar = languages.asked(fields, text)
    return _asked(fields, text, prompt, 16 if limit is None else limit, grammar, chat=False)


def _asked(
    fields: Fields,
    text: TextSide,
    prompt: Callable[[], Prompt],
    limit: int | None,
    grammar: Grammar | None,
    chat: bool,
) -> Asked:
    sampling = _sampling(fields, text.sampling_defaults)
    stop = fields.texts("stop", MOST_STOPS)
    stream = fields.flag("stream")
    options = fields.mapping("stream_options")
    if options and not stream:
        raise fields.refuse("stream_options", "left out where stream is false")
    inner = Fields(options, "stream_options.")
    usage_at_end = inner.flag("include_usage")
    inner.ignore("include_obfuscation")
    inner.end()
    fields.only("n", 1)
    fields.only("logprobs", False, 0)
    fields.only("top_logprobs", 0)
    fields.only("logit_bias", {})
    for name in ("frequency_penalty", "presence_penalty"):
        fields.only(name, 0)
    fields.only("repetition_penalty", 1)
    triggers = triggers_asked(fields, grammar)
    thinking = thinking_asked(fields, text)
    fields.ignore(*_CLIENTS)
    fields.end()
    return Asked(
        prompt(), sampling, limit, stop, stream, usage_at_end, chat, grammar, triggers, thinking
    )


def _check_model(fields: Fields, model: str) -> None:
    """A name is asked for by all clients; any is right but one of a path."""
    name = fields.text("model")
    if name not in (None, "", model, "default"):
        raise Refusal(
            404,
            f"the model {name[:60]!r} is not here; there is {model!r}",
            param="model",
            code="model_not_found",
        )


def _limit(fields: Fields, *names: str) -> int | None:
    found = [fields.whole(name, 1, MOST_TOKENS) for name in names]
    return next((each for each in found if each is not None), None)


def _sampling(fields: Fields, defaults: Mapping[str, Any]) -> Sampling:
    """The model's own defaults, and over them what the request says."""
    given = {
        "temperature": fields.number("temperature", 0, 100),
        "top_p": fields.number("top_p", 0, 1),
        "top_k": fields.whole("top_k", 0, MOST_TOKENS),
        "min_p": fields.number("min_p", 0, 1),
    }
    if given["top_p"] == 0:
        raise fields.refuse("top_p", "above 0")
    seed = fields.whole("seed", -(2**63), 2**63 - 1)
    chosen = {**defaults, **{name: value for name, value in given.items() if value is not None}}
    return Sampling(**chosen, seed=None if seed is None else seed % 2**63)


def _messages(fields: Fields) -> list[dict[str, Any]]:
    found = fields.take("messages")
    if not isinstance(found, list) or not found:
        raise fields.refuse("messages", "a list of at least one message")
    return [_message(each, number) for number, each in enumerate(found)]


def _message(given: Any, number: int) -> dict[str, Any]:
    at = f"messages[{number}]"
    if not isinstance(given, dict):
        raise Refusal(400, f"{at} must be an object with role and content", param=at)
    fields = Fields(given, f"{at}.")
    role = fields.one_of("role", _ROLES, None)
    if role is None:
        raise fields.refuse("role", "one of " + ", ".join(_ROLES))
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    message["content"] = _content(fields)
    for name in ("reasoning_content", "tool_call_id", "name"):
        value = fields.text(name)
        if value is not None:
            message[name] = value
    calls = fields.take("tool_calls")
    if calls:
        message["tool_calls"] = _calls(calls, at)
    elif message["content"] is None:
        raise fields.refuse("content", "a string, or a list of text parts")
    fields.ignore("refusal", "annotations", "audio", "function_call")
    fields.end()
    return message


def _content(fields: Fields) -> str | None:
    found = fields.take("content")
    if found is None or isinstance(found, str):
        return found
    if not isinstance(found, list):
        raise fields.refuse("content", "a string, or a list of text parts")
    parts: list[str] = []
    for part in found:
        if not isinstance(part, dict) or part.get("type") not in ("text", "refusal"):
            raise fields.refuse("content", "of text parts: nothing else is understood")
        text = part.get(part["type"])
        if not isinstance(text, str):
            raise fields.refuse("content", "of parts that have a text")
        parts.append(text)
    return "".join(parts)


def _calls(given: Any, at: str) -> Sequence[dict[str, Any]]:
    """Calls of an earlier answer, with arguments as objects: what templates render."""
    calls: list[dict[str, Any]] = []
    for given_call in given if isinstance(given, list) else [None]:
        call: dict[str, Any] = given_call if isinstance(given_call, dict) else {}
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Refusal(400, f"{at}.tool_calls must be a list of function calls", param=at)
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                raise Refusal(
                    400, f"{at}.tool_calls: the arguments of {function['name'][:60]} are not JSON"
                ) from None
        inner = {"name": function["name"], "arguments": arguments}
        calls.append({"id": call.get("id"), "type": "function", "function": inner})
    return calls
