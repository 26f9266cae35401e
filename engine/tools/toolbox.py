"""The tools of a request, and what it wants of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diskmoe.engine.errors import BadRequest

MOST_TOOLS = 512
KINDS = frozenset(["null", "boolean", "integer", "number", "string", "array", "object"])
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_SCHEMAS = 200  # that are looked at for a parameter's types
_CHOICES = '"none", "auto", "required" or {"type": "function", "function": {"name": ...}}'


@dataclass(frozen=True)
class Tool:
    """A function that may be called. parameters: the schema of its arguments; None: any object."""

    name: str
    parameters: Mapping[str, Any] | None
    strict: bool
    given: Mapping[str, Any]  # as templates get it

    def kinds(self, key: str) -> frozenset[str]:
        """The types of JSON that a parameter may be of."""
        properties = (self.parameters or {}).get("properties")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        return _kinds(schema, self.parameters, [_SCHEMAS])


@dataclass(frozen=True)
class Toolbox:
    """tools: that are shown to the model. only: those that it may call. must: it has to call one;
    several: or more than one."""

    tools: tuple[Tool, ...]
    only: tuple[Tool, ...]
    must: bool
    several: bool

    @property
    def strict(self) -> bool:
        """Whether some call's arguments are to be enforced."""
        return any(tool.strict for tool in self.only)

    def tool(self, name: str) -> Tool | None:
        return next((tool for tool in self.only if tool.name == name), None)

    @classmethod
    def of(cls, tools: Any, choice: Any = None, several: bool = True) -> Toolbox | None:
        """From OpenAI's ``tools``, ``tool_choice`` and ``parallel_tool_calls``; None where the model
        is to know of none. BadRequest: they are none, or contradict each other."""
        if tools is None or tools == []:
            if choice in (None, "none", "auto"):
                return None
            raise BadRequest(f"tool_choice is {_shown(choice)} and there are no tools")
        found = _tools(tools)
        if choice in (None, "auto"):
            return cls(found, found, False, several)
        if choice == "none":
            return None
        if choice == "required":
            return cls(found, found, True, several)
        name = choice.get("function") if isinstance(choice, Mapping) else None
        name = name.get("name") if isinstance(name, Mapping) else None
        if not isinstance(name, str) or choice.get("type", "function") != "function":
            raise BadRequest(f"tool_choice is {_shown(choice)}; it must be {_CHOICES}")
        only = tuple(tool for tool in found if tool.name == name)
        if not only:
            raise BadRequest(f"tool_choice names {name[:60]!r}, which is none of the tools")
        return cls(found, only, True, False)


def _tools(given: Any) -> tuple[Tool, ...]:
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) > MOST_TOOLS:
        raise BadRequest(f"tools must be a list of at most {MOST_TOOLS} functions")
    found: dict[str, Tool] = {}
    for place, each in enumerate(given):
        tool = _tool(each, f"tools[{place}]")
        if tool.name in found:
            raise BadRequest(f"tools[{place}].function.name is {tool.name!r}, as of one before it")
        found[tool.name] = tool
    return tuple(found.values())


def _tool(given: Any, at: str) -> Tool:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or given.get("type", "function") != "function":
        raise BadRequest(f'{at} must be {{"type": "function", "function": {{"name": ...}}}}')
    name, schema = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadRequest(
            f"{at}.function.name is {_shown(name)}; it must be 1 to 128 letters, digits, _ . or -"
        )
    if not isinstance(schema, Mapping | None):
        raise BadRequest(f"{at}.function.parameters is {_shown(schema)}; it must be a JSON Schema")
    kind = (schema or {}).get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise BadRequest(f'{at}.function.parameters.type is {_shown(kind)}; it must be "object"')
    if not isinstance(function.get("description"), str | None):
        raise BadRequest(f"{at}.function.description must be a string")
    strict = function.get("strict")
    if not isinstance(strict, bool | None):
        raise BadRequest(f"{at}.function.strict is {_shown(strict)}; it must be true or false")
    shown = {"description": "", "parameters": {"type": "object", "properties": {}}}
    shown |= {key: value for key, value in function.items() if value is not None}
    shown.pop("strict", None)  # is for us
    return Tool(name, schema, bool(strict), {"type": "function", "function": shown})


def _shown(value: Any) -> str:
    return f"{value!r:.60}"


def _kinds(schema: Any, root: Any, left: list[int]) -> frozenset[str]:
    """The types that a schema lets pass, as far as they are easily told; too many rather than few.
    left: how many more schemas are looked at."""
    left[0] -= 1
    if not isinstance(schema, Mapping) or left[0] < 0:
        return KINDS
    found = KINDS
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        found &= _kinds(_pointed(root, reference), root, left)
    named = schema.get("type")
    if isinstance(named, str | list):
        found &= frozenset([named] if isinstance(named, str) else map(str, named))
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(listed, list):
        found &= frozenset().union(*map(kinds_of, listed))
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            found &= frozenset().union(*(_kinds(each, root, left) for each in schema[key]))
    for each in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
        found &= _kinds(each, root, left)
    return found


def kinds_of(value: Any) -> frozenset[str]:
    """The types of JSON that a value is of: a number without a fraction is of two."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return frozenset(["number", "integer"] if value == value // 1 else ["number"])
    kinds = {str: "string", bool: "boolean", list: "array", dict: "object"}
    return frozenset([kinds.get(type(value), "null")])


def _pointed(root: Any, reference: str) -> Any:
    for step in reference.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        root = root.get(step) if isinstance(root, Mapping) else None
    return root
