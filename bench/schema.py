"""The schema of results in two more forms, both made from the classes: JSON Schema and Markdown.

``python -m diskmoe.bench.schema`` writes ``results.schema.json`` beside this file and the tables
into docs/bench-results.md; a test says when they are not what this makes.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from diskmoe.bench import results

SCHEMA_FILE = Path(__file__).with_name("results.schema.json")
BEGIN, END = "<!-- tables -->\n", "<!-- end of tables -->"
_FILES = ((results.Experiment, "`bench.json`"), (results.Run, "`run-ARM-RUNG-PROMPT-REPEAT.json`"))
_PARTS = (
    results.Figures,
    results.Acceptance,
    results.Setting,
    results.Arm,
    results.Prompt,
    results.Limits,
    results.Machine,
)
_PLAIN: Mapping[Any, str] = types.MappingProxyType(
    {int: "integer", float: "number", str: "string", bool: "boolean"}
)


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12: a file of results is one of the two."""
    kinds = [kind for kind, _ in _FILES] + list(_PARTS)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Results of diskmoe bench, version {results.VERSION}",
        "oneOf": [{"$ref": f"#/$defs/{kind.__name__}"} for kind, _ in _FILES],
        "$defs": {kind.__name__: _object(kind) for kind in kinds},
    }


def _object(kind: type) -> dict[str, Any]:
    hints = described(kind)
    properties = {
        name: {**_form(part), "description": says} for name, (part, says) in hints.items()
    }
    if "version" in properties:
        properties["version"]["const"] = results.VERSION
    return {
        "type": "object",
        "description": _first_line(kind),
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _form(kind: Any) -> dict[str, Any]:
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return {}
    if origin in (Union, types.UnionType):
        (one,) = [part for part in parts if part is not type(None)]
        return {"anyOf": [_form(one), {"type": "null"}]}
    if origin is Literal:
        return {"enum": list(parts)}
    if is_dataclass(kind):
        return {"$ref": f"#/$defs/{kind.__name__}"}  # pyright: ignore[reportAttributeAccessIssue]
    if origin is tuple:
        return {"type": "array", "items": _form(parts[0])}
    if origin is not None:
        return {"type": "object", "additionalProperties": _form(parts[1])}
    least = {"minimum": 0} if kind in (int, float) else {}
    return {"type": _PLAIN[kind], **least}


def tables() -> str:
    """A Markdown table for each class: key, type, meaning."""
    parts = [(kind, kind.__name__) for kind in _PARTS]
    return "\n".join(_table(kind, title) for kind, title in (*_FILES, *parts))


def _table(kind: type, title: str) -> str:
    lines = [f"### {title}", "", _first_line(kind), "", "| key | type | meaning |", "|---|---|---|"]
    for name, (part, says) in described(kind).items():
        lines.append(f"| `{name}` | {_told(part)} | {says} |")
    return "\n".join([*lines, ""])


def _told(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return "anything"
    if origin in (Union, types.UnionType):
        (one,) = [part for part in parts if part is not type(None)]
        return f"{_told(one)} or null"
    if origin is Literal:
        return " or ".join(f'`"{part}"`' for part in parts)
    if is_dataclass(kind):
        return kind.__name__  # pyright: ignore[reportAttributeAccessIssue]
    if origin is tuple:
        return f"list of {_told(parts[0])}"
    if origin is not None:
        return f"object of {_told(parts[1])}"
    return _PLAIN[kind]


def described(kind: type) -> dict[str, tuple[Any, str]]:
    """(type, what it means) of each field of a class of results."""
    found = {}
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):  # pyright: ignore[reportArgumentType]
        assert get_origin(hints[field.name]) is Annotated, f"{kind.__name__}.{field.name}"
        part, says = get_args(hints[field.name])
        found[field.name] = (part, says)
    return found


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().partition("\n")[0]


def schema_text() -> str:
    """What ``results.schema.json`` holds."""
    return json.dumps(json_schema(), indent=1) + "\n"


def with_tables(page: str) -> str:
    """A page of documentation with the tables between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + tables() + "\n" + END + after


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
    page = SCHEMA_FILE.parents[1] / "docs" / "bench-results.md"
    page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
