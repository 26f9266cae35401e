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
from diskmoe.engine.tools.forms import BARE, FORMS, PROBE, PROBE_KEY, PROBE_VALUE, Form
from diskmoe.engine.tools.plain import told, without_calls
from diskmoe.engine.tools.reading import Reader
from diskmoe.engine.tools.toolbox import Toolbox

_ID = "diskmoe01"  # nine letters and digits: some templates ask for that
_ARGUMENTS = {PROBE_KEY: PROBE_VALUE}
_PARAMETERS = {"type": "object", "properties": {PROBE_KEY: {"type": "string"}}}
_FUNCTION = {"name": PROBE, "description": "none", "parameters": _PARAMETERS}
_QUESTION = {"role": "user", "content": "question"}


@dataclass(frozen=True)
class Calling:
    """form: None where there is no chat at all. why: what says so. told: the template shows no tools,
    and they are told in the system message. worded: it writes no calls, and they are put into words.
    as_text: it wants arguments of earlier calls as JSON text."""

    form: Form | None
    why: str
    told: bool = False
    worded: bool = False
    as_text: bool = False

    @classmethod
    def of(cls, text: TextSide) -> Calling:
        """Of a model."""
        template, tokenizer = text.template, text.tokenizer
        if template is None or tokenizer is None:
            return cls(None, "the model has no chat template")
        shown = _rendered(text, [_QUESTION])
        called, as_text = _call_of(text, False), False
        if PROBE_VALUE not in called:
            called, as_text = _call_of(text, True), True
        told, worded = PROBE not in shown, PROBE_VALUE not in called
        if told and worded:
            return cls(BARE, f"{template.source} knows of no tools", told, worded)
        as_text = as_text and not worded
        whole = shown + called
        form = next(
            (f for f in FORMS if all(mark in whole for mark in (f.opening, *f.marks))), None
        )
        if form is not None:
            return cls(form, template.source, told, worded, as_text)
        form = next((f for f in FORMS if tokenizer.token_id(f.opening) is not None), None)
        if form is not None:
            return cls(form, f"by the token {form.opening}", told, worded, as_text)
        why = template.source
        if BARE.before + PROBE + BARE.behind not in called:
            why += " writes them in no form that is known"
        return cls(BARE, why, told, worded, as_text)

    @property
    def line(self) -> str:
        """For people, once."""
        if self.form is None:
            return f"tools     none can be called: {self.why}"
        told = "are told in the system message and " if self.told else ""
        shown = " ".join(self.form.example.split())
        return f"tools     {told}are called in the form of {self.form.name}, {shown} ({self.why})"

    def need(self) -> Form:
        """The form. BadRequest: there is none."""
        if self.form is None:
            raise BadRequest(f"tools are given, and {self.why}: leave them out")
        return self.form

    def reader(self, toolbox: Toolbox | None) -> Reader | None:
        """Of an answer; None where all of it is text."""
        return Reader(self.need(), toolbox) if self._reads(toolbox) else None

    def shown_tokens(self, text: TextSide, toolbox: Toolbox | None) -> frozenset[int]:
        """The tokens that a reader must see as they are written."""
        if self.form is None or text.tokenizer is None or not self._reads(toolbox):
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
        form = self.form if toolbox is None else self.need()
        given = [self._as_wanted(message) for message in messages]
        if self.worded and form is not None:
            given = without_calls(given, form)
        if toolbox is not None and form is not None:
            if self.told:
                given = told(given, toolbox, form)
            else:
                options["tools"] = [tool.given for tool in toolbox.tools]
        return text.encode_chat(given, **options)

    def _reads(self, toolbox: Toolbox | None) -> bool:
        """Whether an answer is more than its text."""
        return toolbox is not None or (self.form is not None and self.form.channels)

    def _as_wanted(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message as the template takes it: all take "" beside calls, and not all take nothing."""
        calls = message.get("tool_calls")
        if not calls:
            return dict(message)
        calls = [_call(call, self.as_text) for call in calls]
        return {**message, "content": message.get("content") or "", "tool_calls": calls}


CALLS_NOTHING = Calling(None, "no tools are looked for")


def _call(call: Mapping[str, Any], as_text: bool) -> dict[str, Any]:
    """An earlier call with its arguments as text, or as what the text means."""
    function = call["function"]
    arguments = function.get("arguments")
    if as_text:
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
    else:
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                arguments = None
        if not isinstance(arguments, Mapping):
            name = str(function.get("name"))[:60]
            raise BadRequest(f"the arguments of an earlier call of {name!r} are no JSON object")
    return {**call, "function": {**function, "arguments": arguments}}


def _call_of(text: TextSide, as_text: bool) -> str:
    """What the template writes of a call; "" where it refuses."""
    arguments: Any = json.dumps(_ARGUMENTS) if as_text else _ARGUMENTS
    call = {"id": _ID, "type": "function", "function": {"name": PROBE, "arguments": arguments}}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": _ID, "name": PROBE, "content": "result"}
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
