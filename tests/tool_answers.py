"""An answer with calls as each family writes it, and what it is to be read as."""

from typing import Any, NamedTuple

from diskmoe.engine.tools.forms import BARE, FORMS, Form

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "units": {"enum": ["C", "F"]},
                "at": {"type": "object", "properties": {"lat": {"type": "number"}}},
                "note": {"type": ["string", "null"]},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]


class Case(NamedTuple):
    form: Form
    text: str  # an answer: words, a call of the weather and, where there may be two, of the clock
    both: bool = True
    said: str = "Let me see."
    reasoning: str = ""


ARGUMENTS: dict[str, Any] = {
    "city": 'Oslo "<b>" \\ \n é',
    "days": 3,
    "at": {"lat": 59.9, "x": ["]}", "\\"]},
}
_JSON = r'{"city": "Oslo \"<b>\" \\ \n é", "days": 3, "at": {"lat": 59.9, "x": ["]}", "\\"]}}'
_RAW = 'Oslo "<b>" \\ \n é'
_AT = r'{"lat": 59.9, "x": ["]}", "\\"]}'
_BY_NAME = {form.name + form.behind: form for form in FORMS}


def _form(name: str, behind: str | None = None) -> Form:
    return next(f for f in FORMS if f.name == name and behind in (None, f.behind))


CASES = {
    "hermes": Case(
        _form("Hermes"),
        f'Let me see.\n<tool_call>\n{{"name": "get_weather", "arguments": {_JSON}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>',
    ),
    "qwen3 coder": Case(
        _form("Qwen3-Coder"),
        f"Let me see.\n<tool_call>\n<function=get_weather>\n<parameter=city>\n{_RAW}\n</parameter>\n"
        f"<parameter=days>\n3\n</parameter>\n<parameter=at>\n{_AT}\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=clock>\n</function>\n</tool_call>",
    ),
    "glm 4.5": Case(
        _form("GLM-4.5"),
        f"Let me see.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>{_RAW}</arg_value>\n"
        f"<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>at</arg_key>\n<arg_value>{_AT}"
        "</arg_value>\n</tool_call>\n<tool_call>clock\n</tool_call>",
    ),
    "glm 4.7": Case(
        _form("GLM-4.7"),
        f"Let me see.<tool_call>get_weather<arg_key>city</arg_key><arg_value>{_RAW}</arg_value>"
        f"<arg_key>days</arg_key><arg_value>3</arg_value><arg_key>at</arg_key><arg_value>{_AT}"
        "</arg_value></tool_call><tool_call>clock</tool_call>",
    ),
    "minimax": Case(
        _form("MiniMax-M2"),
        'Let me see.\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">'
        f'{_RAW}</parameter>\n<parameter name="days">3</parameter>\n<parameter name="at">{_AT}'
        '</parameter>\n</invoke>\n<invoke name="clock">\n</invoke>\n</minimax:tool_call>',
    ),
    "deepseek 3.2": Case(
        _form("DeepSeek V3.2"),
        'Let me see.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
        f'<｜DSML｜parameter name="city" string="true">{_RAW}</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        f'<｜DSML｜parameter name="at" string="false">{_AT}</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="clock">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
    ),
    "deepseek 3.1": Case(
        _form("DeepSeek V3.1"),
        "Let me see.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        f"{_JSON}<｜tool▁call▁end｜><｜tool▁call▁begin｜>clock<｜tool▁sep｜>{{}}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek 3": Case(
        _form("DeepSeek V3"),
        "Let me see.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        f"```json\n{_JSON}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>clock\n"
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "kimi": Case(
        _form("Kimi-K2"),
        "Let me see.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:4"
        f"<|tool_call_argument_begin|>{_JSON}<|tool_call_end|><|tool_call_begin|>functions.clock:5"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "gpt-oss": Case(
        _form("gpt-oss"),
        "<|channel|>analysis<|message|>They ask.<|end|><|start|>assistant<|channel|>commentary"
        "<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        f"<|constrain|>json<|message|>{_JSON}<|call|>",
        both=False,
        reasoning="They ask.",
    ),
    "gpt-oss, as its template": Case(
        _form("gpt-oss"),
        "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant to=functions.get_weather"
        f"<|channel|>commentary json<|message|>{_JSON}<|call|>",
        both=False,
    ),
    "mistral": Case(
        _form("Mistral", '", "arguments": '),
        f'Let me see.[TOOL_CALLS] [{{"name": "get_weather", "arguments": {_JSON}, "id": "abcdefghi"}}, '
        '{"name": "clock", "arguments": {}}]',
    ),
    "mistral 13": Case(
        _form("Mistral", "[ARGS]"),
        f"Let me see.[TOOL_CALLS]get_weather[ARGS]{_JSON}[TOOL_CALLS]clock[ARGS]{{}}",
    ),
    "mistral 11": Case(
        next(form for form in FORMS if form.marks == ("[CALL_ID]",)),
        f"Let me see.[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{_JSON}"
        "[TOOL_CALLS]clock[CALL_ID]abcdefghj[ARGS]{}",
    ),
    "granite": Case(
        _form("Granite 3"),
        f'Let me see.<|tool_call|>[{{"name": "get_weather", "arguments": {_JSON}}}, '
        '{"name": "clock", "arguments": {}}]',
    ),
    "llama": Case(
        _form("Llama 3.1"), f'{{"name": "get_weather", "parameters": {_JSON}}}', both=False, said=""
    ),
    "bare": Case(BARE, f'{{"name": "get_weather", "arguments": {_JSON}}}', both=False, said=""),
}
