"""A Python type as a JSON Schema: what the JSON of its values looks like.

>>> schema_of(list[int])
{'type': 'array', 'items': {'type': 'integer'}}
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import types
import typing
import uuid
from collections import abc
from typing import Any, Union

from diskmoe.grammar_draft.errors import BadGrammar

_DEPTH = 100  # of type arguments
_PLAIN: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    type(None): {"type": "null"},
    None: {"type": "null"},
    Any: {},
    object: {},
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.date: {"type": "string", "format": "date"},
    datetime.time: {"type": "string", "format": "time"},
    uuid.UUID: {"type": "string", "format": "uuid"},
}
_LISTS = (list, abc.Sequence, abc.Iterable, abc.Collection, abc.MutableSequence)
_SETS = (set, frozenset, abc.Set, abc.MutableSet)
_MAPS = (dict, abc.Mapping, abc.MutableMapping)
_PARTS = {"Required": True, "NotRequired": False}


def schema_of(kind: Any) -> dict[str, Any]:
    """The schema of a type.

    Raises:
        BadGrammar: a type whose JSON is not known.
    """
    made = _Maker()
    schema = made.schema(kind, 0)
    return {**schema, "$defs": made.named} if made.named else schema


class _Maker:
    def __init__(self) -> None:
        self.named: dict[str, Any] = {}
        self.names: dict[Any, str] = {}

    def schema(self, kind: Any, depth: int) -> dict[str, Any]:
        if depth > _DEPTH:
            raise BadGrammar(f"the type is nested more than {_DEPTH} deep", "type")
        try:
            if kind in _PLAIN:
                return dict(_PLAIN[kind])
        except TypeError:  # not hashable, so none of them
            pass
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)

        def below(inner: Any) -> dict[str, Any]:
            return self.schema(inner, depth + 1)

        if origin is typing.Annotated:
            return below(arguments[0])
        if hasattr(kind, "__supertype__"):
            return below(kind.__supertype__)
        if hasattr(kind, "__value__"):  # type X = ...
            return below(kind.__value__)
        if origin is typing.Literal:
            return {"enum": [a.value if isinstance(a, enum.Enum) else a for a in arguments]}
        if origin in (Union, types.UnionType):
            return {"anyOf": [below(argument) for argument in arguments]}
        if kind is tuple or origin is tuple:
            if len(arguments) == 2 and arguments[1] is ...:
                return {"type": "array", "items": below(arguments[0])}
            if not arguments:
                return {"type": "array"}
            count = len(arguments)
            places = {"prefixItems": [below(a) for a in arguments], "items": False}
            return {"type": "array", **places, "minItems": count, "maxItems": count}
        if (origin or kind) in (*_LISTS, *_SETS):
            items = {"items": below(arguments[0])} if arguments else {}
            unique = {"uniqueItems": True} if (origin or kind) in _SETS else {}
            return {"type": "array", **items, **unique}
        if (origin or kind) in _MAPS:
            if arguments and arguments[0] is not str:
                raise BadGrammar(f"{kind!r:.80}: the keys of JSON are texts", "type")
            return {
                "type": "object",
                "additionalProperties": below(arguments[1]) if arguments else True,
            }
        if isinstance(kind, type):
            return self.a_class(kind, depth)
        raise BadGrammar(f"{kind!r:.80} is no type whose JSON is known", "type")

    def a_class(self, kind: type, depth: int) -> dict[str, Any]:
        if issubclass(kind, enum.Enum):
            return {"enum": [member.value for member in kind]}
        known = self.names.get(kind)
        if known is None:
            known = self.names[kind] = f"{kind.__name__}-{len(self.names)}"
            self.named[known] = {}
            self.named[known] = self.members(kind, depth, known)
        return {"$ref": f"#/$defs/{known}"}

    def members(self, kind: type, depth: int, name: str) -> dict[str, Any]:
        model = getattr(kind, "model_json_schema", None)
        if model is not None:  # pydantic; its references are its own
            return {**model(), "$id": f"urn:diskmoe:{name}"}
        hints = typing.get_type_hints(kind, include_extras=True)
        if dataclasses.is_dataclass(kind):
            fields = {field.name: field for field in dataclasses.fields(kind)}
            missing = dataclasses.MISSING
            required = [
                name
                for name, field in fields.items()
                if field.default is missing and field.default_factory is missing
            ]
            shown = {name: hints[name] for name in fields}
        elif typing.is_typeddict(kind):
            shown, required = {}, []
            for key, hint in hints.items():
                wanted = key in kind.__required_keys__  # type: ignore[attr-defined]
                while getattr(typing.get_origin(hint), "_name", None) in _PARTS:
                    hint = typing.get_args(hint)[0]
                shown[key] = hint
                required += [key] if wanted else []
        else:
            raise BadGrammar(f"{kind!r:.80} is no type whose JSON is known", "type")
        return {
            "type": "object",
            "properties": {key: self.schema(hint, depth + 1) for key, hint in shown.items()},
            "required": required,
            "additionalProperties": False,
        }
