"""What a request asks for, understood and checked: a prompt, how to choose, when to stop.

The rule of this file: a field that changes the text is done or refused; nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from diskmoe.engine.constraining import ThinkBudget, Wanted
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.sampling import Sampling
from diskmoe.engine.server.fields import Fields
from diskmoe.engine.server.languages import Languages, triggers_asked
from diskmoe.engine.server.messages import messages_asked
from diskmoe.engine.server.refusals import Refusal
from diskmoe.engine.server.thoughts import thinking_asked
from diskmoe.engine.text.side import Prompt, TextSide
from diskmoe.engine.tools.calling import CALLS_NOTHING, Calling
from diskmoe.engine.tools.enforcing import Enforcing
from diskmoe.engine.tools.toolbox import Toolbox
from diskmoe.grammar_draft.rules import Grammar

MOST_STOPS = 16
MOST_LOGPROBS = 20  # likeliest tokens beside each
MOST_TOKENS = 10_000_000
_CLIENTS = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")


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
    logprobs: int | None = None  # so many of the likeliest tokens beside each; None: of none
    calling: Calling = CALLS_NOTHING
    toolbox: Toolbox | None = None  # tools that the answer may call

    @property
    def wanted(self) -> Wanted:
        """What is to constrain the answer."""
        mode = "0" if self.grammar is None else "1"
        return Wanted(self.grammar, mode, self.triggers, self.thinking)


def chat_asked(
    values: Mapping[str, Any], text: TextSide, model: str, languages: Languages, calling: Calling
) -> Asked:
    """``/v1/chat/completions``. Refusal: a field that is no good, or that asks for what is not done."""
    fields = Fields(values)
    _check_model(fields, model)
    messages = messages_asked(fields)
    options = fields.mapping("chat_template_kwargs")
    effort = fields.text("reasoning_effort")
    if effort is not None:
        options = {**options, "reasoning_effort": effort}
    for name in ("messages", "tools", "add_generation_prompt"):
        if name in options:
            raise Refusal(400, f"chat_template_kwargs.{name} is set by the request itself")
    fields.only("functions", [])
    fields.only("function_call", "none", "auto")
    fields.only("modalities", ["text"])
    toolbox = _toolbox(fields)
    limit = _limit(fields, "max_completion_tokens", "max_tokens")
    noted = fields.flag("logprobs")
    top = fields.whole("top_logprobs", 0, MOST_LOGPROBS)
    if top and not noted:
        raise fields.refuse("top_logprobs", "left out, or beside logprobs: true")
    asked = _asked(
        fields,
        text,
        lambda: calling.encode(text, messages, toolbox, **options),
        limit,
        languages.asked(fields, text),
        chat=True,
    )
    asked = replace(asked, logprobs=(top or 0) if noted else None, calling=calling)
    return asked if toolbox is None else _with_tools(asked, toolbox, text, languages)


def _toolbox(fields: Fields) -> Toolbox | None:
    """Tools, and what is wanted of them."""
    several = fields.flag("parallel_tool_calls", True)
    try:
        return Toolbox.of(fields.take("tools"), fields.take("tool_choice"), several)
    except BadRequest as error:
        raise Refusal(400, str(error), param=str(error).split(" ")[0]) from None


def _with_tools(asked: Asked, toolbox: Toolbox, text: TextSide, languages: Languages) -> Asked:
    """What is asked for, its calls enforced as far as they are to be."""
    asked = replace(asked, toolbox=toolbox)
    enforcing = Enforcing(asked.calling.need(), toolbox, asked.grammar)
    if not enforcing.needed:
        return asked
    if asked.triggers:
        raise Refusal(400, "grammar_triggers must be left out beside tools", "grammar_triggers")
    return replace(
        asked,
        grammar=languages.of_calls(enforcing, text),
        triggers=enforcing.triggers,
        thinking=asked.thinking or enforcing.thinking(text, asked.prompt),
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
    top = None
    if fields.take("logprobs") is not False:  # what some clients write for none
        top = fields.whole("logprobs", 0, MOST_LOGPROBS)
    fields.only("top_logprobs", 0)

    def prompt() -> Prompt:
        if isinstance(given, str):
            return text.encode_prompt(given, chat="0")
        whole = isinstance(given, list) and given and all(type(each) is int for each in given)
        if not whole:
            raise fields.refuse("prompt", "one string, or one list of token ids")
        return Prompt(tuple(given), "given as token ids", in_chat=False)

    grammar = languages.asked(fields, text)
    limit = 16 if limit is None else limit
    return replace(_asked(fields, text, prompt, limit, grammar, chat=False), logprobs=top)


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
