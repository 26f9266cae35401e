"""How one model is shown tools and calls them, told by what its chat template writes.

A made-up tool, and a call of it, are put through the template. What comes out says whether tools are
shown at all, which form calls have, and whether arguments are wanted as an object or as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diskmoe.engine.errors import BadModel, BadRequest
from diskmoe.engine.text.side import Prompt, TextSide
from diskmoe.engine.tools.forms import BARE, FORMS, PROBE_KEY, Form
from diskmoe.engine.tools.plain import told
from diskmoe.engine.tools.reading import Reader
from diskmoe.engine.tools.toolbox import Toolbox

_TOOL = "diskmoe_tool"
_ID = "diskmoe01"  # nine letters and digits: some templates ask for that
_ARGUMENTS = {PROBE_KEY: "diskmoe_value"}
_PARAMETERS = {"type": "object", "properties": {PROBE_KEY: {"type": "string"}}}
_FUNCTION = {"name": _TOOL, "description": "none", "parameters": _PARAMETERS}
_QUESTION = {"role": "user", "content": "question"}


@dataclass(frozen=True)
class Calling:
    """form: None where there is no chat at all. as_text: arguments of earlier calls are handed to the
    template as JSON text. told: the template knows of no tools, and they are told in a message. why:
    what says so."""

    form: Form | None
    as_text: bool
    told: bool
    why: str

    @classmethod
    def of(cls, text: TextSide) -> Calling:
        """Of a model."""
        template = text.template
        if template is None or text.tokenizer is None:
            return cls(None, False, False, "the model has no chat template")
        shown = _rendered(text, [_QUESTION])
        if _TOOL not in shown:
            return cls(BARE, False, True, f"{template.source} knows of no tools")
        called, as_text = _call_of(text, False), False
        if PROBE_KEY not in called:
            called, as_text = _call_of(text, True), True
        whole = shown + called
        form = next((f for f in FORMS if all(mark in whole for mark in f.marks)), None)
        if form is not None:
            return cls(form, as_text, False, template.source)
        form = next((f for f in FORMS if text.tokenizer.token_id(f.opening) is not None), None)
        if form is not None:
            return cls(form, as_text, False, f"by the token {form.opening}")
        return cls(BARE, as_text, False, f"{template.source} does not say how")

    @property
    def line(self) -> str:
        """For people, once."""
        if self.form is None:
            return f"tools     none can be called: {self.why}"
        told = "are told in a system message, and " if self.told else ""
        return f"tools     {told}are called in the form of {self.form.name}: {self.form.shown} ({self.why})"

    def need(self) -> Form:
        """The form. BadRequest: there is none."""
        if self.form is None:
            raise BadRequest(f"tools are given, and {self.why}: leave them out")
        return self.form

    def reader(self, toolbox: Toolbox | None) -> Reader | None:
        """Of an answer; None where all of it is text."""
        if toolbox is None and not (self.form and self.form.channels):
            return None
        return Reader(self.need(), toolbox)

    def shown_tokens(self, text: TextSide, toolbox: Toolbox | None) -> frozenset[int]:
        """The tokens that a reader must see as they are written."""
        if self.form is None or text.tokenizer is None or self.reader(toolbox) is None:
            return frozenset()
        texts = self.form.texts
        special = text.tokenizer.special_text.items()
        return frozenset(token for token, name in special if any(name in each for each in texts))

    def encode(
        self,
        text: TextSide,
        messages: Sequence[Mapping[str, Any]],
        toolbox: Toolbox | None,
        **options: Any,
    ) -> Prompt:
        """A conversation's token ids; see ``TextSide.encode_chat``. BadRequest: tools where there is no
        chat, an earlier call whose arguments are not JSON."""
        given = [self._as_wanted(message) for message in messages]
        if self.told:
            return text.encode_chat(told(given, toolbox), **options)
        if toolbox is not None:
            self.need()
            options["tools"] = [tool.given for tool in toolbox.tools]
        return text.encode_chat(given, **options)

    def _as_wanted(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message as the template takes it: all take "" beside calls, and not all take nothing."""
        calls = message.get("tool_calls")
        if not calls:
            return dict(message)
        calls = [_call(call, self.as_text) for call in calls]
        return {**message, "content": message.get("content") or "", "tool_calls": calls}


CALLS_NOTHING = Calling(None, False, False, "no tools are looked for")


def _call(call: Mapping[str, Any], as_text: bool) -> dict[str, Any]:
    """An earlier call with its arguments as text, or as what the text means."""
    function = call["function"]
    arguments = function.get("arguments")
    if as_text and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    elif not as_text and isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            name = str(function.get("name"))[:60]
            raise BadRequest(f"the arguments of an earlier call of {name} are not JSON") from None
    return {**call, "function": {**function, "arguments": arguments}}


def _call_of(text: TextSide, as_text: bool) -> str:
    """What the template writes of a call; "" where it refuses."""
    arguments: Any = json.dumps(_ARGUMENTS) if as_text else _ARGUMENTS
    call = {"id": _ID, "type": "function", "function": {"name": _TOOL, "arguments": arguments}}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": _ID, "name": _TOOL, "content": "result"}
    for talk in ([_QUESTION, answer, result], [_QUESTION, answer]):
        found = _rendered(text, talk)
        if found:
            return found
    return ""


def _rendered(text: TextSide, messages: Sequence[Mapping[str, Any]]) -> str:
    assert text.template is not None
    try:
        return text.template.render(messages, tools=[{"type": "function", "function": _FUNCTION}])
    except (BadRequest, BadModel):
        return ""
