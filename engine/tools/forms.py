"""How the families write a call of a tool, one row each, as their chat templates do.

A call is ``before`` NAME ``behind`` ARGUMENTS ``closing``, in a ``section`` where the family has one
around all calls of an answer, else with ``between`` between them. The arguments are one JSON object,
or, where there are ``parameters``, one after the other with texts as they are and the rest in JSON.

Facts: the chat templates of Qwen3, Qwen3-Coder, GLM-4.5 to 4.7, DeepSeek-V3 to V3.2, Kimi-K2,
MiniMax-M2, gpt-oss, Mistral, Granite 3 and Llama 3.1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from diskmoe.grammar_draft.schema.parameters import Parameters

NUMBER, ID = "\x00", "\x01"  # within a form's texts: digits, nine letters or digits
# of the call that a template is asked to show, see `calling`
PROBE, PROBE_KEY, PROBE_VALUE = "diskmoe_tool", "diskmoe_key", "diskmoe_value"


@dataclass(frozen=True)
class Form:
    """One family's way.

    marks: what a template's text has, all of them, when it is this way. opening: what the calls
    begin with; it begins ``section[0]``, or ``before`` where that is empty. object_key: of the
    arguments, where a call is one JSON object with its name. ids: of calls, how they are made: OpenAI's
    way, nine letters and digits, or they are the model's own.
    """

    name: str
    marks: tuple[str, ...]
    opening: str
    before: str
    behind: str
    closing: str
    section: tuple[str, str] = ("", "")
    between: str = ""
    object_key: str = ""
    parameters: Parameters | None = None
    ids: Literal["openai", "nine", "own"] = "openai"
    channels: bool = False  # an answer is messages in channels, a call is one of them

    @property
    def example(self) -> str:
        """A call, with words in capitals for what is to be put in."""
        return self.written([("FUNCTION", {"PARAMETER": "VALUE"})])

    def written(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Calls, by names and arguments, as the family writes them."""
        texts = [
            self.before + name + self.behind + self._inside(v) + self.closing for name, v in calls
        ]
        whole = self.section[0] + self.between.join(texts) + self.section[1]
        return whole.replace(NUMBER, "0").replace(ID, "abcdefghi")

    def _inside(self, arguments: Mapping[str, Any]) -> str:
        one = self.parameters
        if one is None:
            return json.dumps(arguments, ensure_ascii=False)
        found = ""
        for key, value in arguments.items():
            as_text = isinstance(value, str)
            behind = one.behind if as_text or not one.behind_json else one.behind_json
            text = value if as_text else json.dumps(value, ensure_ascii=False)
            found += one.before + key + behind + text + one.closing
        return found

    @property
    def texts(self) -> tuple[str, ...]:
        """All that is written out of it, in which special tokens may stand."""
        own = (*self.section, self.opening, self.before, self.behind, self.closing)
        one = self.parameters
        more = () if one is None else (one.before, one.behind, one.behind_json, one.closing)
        return (*own, self.between, *more, *(_CHANNELS if self.channels else ()))


_CHANNELS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>")
_DSML = Parameters(
    '<｜DSML｜parameter name="',
    '" string="true">',
    "</｜DSML｜parameter>\n",
    '" string="false">',
)
_TAGGED = Parameters('<parameter name="', '">', "</parameter>\n")

FORMS: tuple[Form, ...] = (
    Form(
        "DeepSeek V3.2",
        ("<｜DSML｜function_calls>",),
        "<｜DSML｜function_calls>",
        '<｜DSML｜invoke name="',
        '">\n',
        "</｜DSML｜invoke>\n",
        section=("<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>"),
        parameters=_DSML,
    ),
    Form(
        "DeepSeek V4",
        ("<｜DSML｜tool_calls>",),
        "<｜DSML｜tool_calls>",
        '<｜DSML｜invoke name="',
        '">\n',
        "</｜DSML｜invoke>\n",
        section=("<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>"),
        parameters=_DSML,
    ),
    Form(
        "Qwen3-Coder",
        ("<function=", "<parameter="),
        "<tool_call>",
        "<tool_call>\n<function=",
        ">\n",
        "</function>\n</tool_call>",
        between="\n",
        parameters=Parameters("<parameter=", ">\n", "\n</parameter>\n", lines=True),
    ),
    Form(
        "GLM-4.7",
        ("</arg_key><arg_value>",),
        "<tool_call>",
        "<tool_call>",
        "",
        "</tool_call>",
        parameters=Parameters("<arg_key>", "</arg_key><arg_value>", "</arg_value>"),
    ),
    Form(
        "GLM-4.5",
        ("<arg_key>", "<arg_value>"),
        "<tool_call>",
        "<tool_call>",
        "\n",
        "</tool_call>",
        between="\n",
        parameters=Parameters("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
    ),
    Form(
        "MiniMax-M2",
        ('<invoke name="',),
        "<minimax:tool_call>",
        '<invoke name="',
        '">\n',
        "</invoke>\n",
        section=("<minimax:tool_call>\n", "</minimax:tool_call>"),
        parameters=_TAGGED,
    ),
    Form(
        "Kimi-K2",
        ("<|tool_call_begin|>",),
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>functions.",
        f":{NUMBER}<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        ids="own",
    ),
    Form(
        "DeepSeek V3",
        ("<｜tool▁sep｜>", "```json"),
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        "\n```json\n",
        "\n```<｜tool▁call▁end｜>",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        between="\n",
    ),
    Form(
        "DeepSeek V3.1",
        ("<｜tool▁sep｜>",),
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    Form(
        "gpt-oss",
        ("<|channel|>", "<|message|>"),
        "to=functions.",
        "to=functions.",
        " <|constrain|>json<|message|>",
        "<|call|>",
        channels=True,
    ),
    Form(
        "Mistral",
        ("[CALL_ID]",),
        "[TOOL_CALLS]",
        "[TOOL_CALLS]",
        f"[CALL_ID]{ID}[ARGS]",
        "",
        ids="nine",
    ),
    Form("Mistral", ("[ARGS]",), "[TOOL_CALLS]", "[TOOL_CALLS]", "[ARGS]", "", ids="nine"),
    Form(
        "Mistral",
        ("[TOOL_CALLS][",),
        "[TOOL_CALLS]",
        '{"name": "',
        '", "arguments": ',
        "}",
        section=("[TOOL_CALLS][", "]"),
        between=", ",
        object_key="arguments",
        ids="nine",
    ),
    Form(
        "Mistral",
        ("[TOOL_CALLS]",),
        "[TOOL_CALLS]",
        '{"name": "',
        '", "arguments": ',
        "}",
        section=("[TOOL_CALLS] [", "]"),
        between=", ",
        object_key="arguments",
        ids="nine",
    ),
    Form(
        "Granite 3",
        ("<|tool_call|>",),
        "<|tool_call|>",
        '{"name": "',
        '", "arguments": ',
        "}",
        section=("<|tool_call|>[", "]"),
        between=", ",
        object_key="arguments",
    ),
    Form(
        "Hermes",
        ("<tool_call>", '"arguments"'),
        "<tool_call>",
        '<tool_call>\n{"name": "',
        '", "arguments": ',
        "}\n</tool_call>",
        between="\n",
        object_key="arguments",
    ),
    Form(
        "Llama 3.1",
        (f'{{"name": "{PROBE}", "parameters": {{"{PROBE_KEY}"',),
        '{"name": "',
        '{"name": "',
        '", "parameters": ',
        "}",
        object_key="parameters",
    ),
)
# of templates that show tools, and no way to call them that is known
BARE = Form(
    "bare JSON",
    (),
    '{"name": "',
    '{"name": "',
    '", "arguments": ',
    "}",
    object_key="arguments",
)
