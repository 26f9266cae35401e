"""JSON that others wrote, as dataclasses: every value is of the type that its field has.

Types are numbers, texts, booleans, `Any`, literals, tuples of one type, mappings from texts, further
dataclasses, and all of these or None; numbers are neither negative nor endless.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from diskmoe.engine.errors import DiskMoeError
from diskmoe.engine.setting_values import did_you_mean

T = TypeVar("T")
_MOST = 1e300  # of any number


class BadResults(DiskMoeError):
    """A file of results that cannot be used: what is wrong, in which file and where in it."""

    exit_code = 2


def finite(text: str) -> float:
    """A number of JSON that floats can keep; ValueError for any other."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no number that can be kept")
    return number


def checked(kind: type[T], value: Any, where: str) -> T:
    """A value of JSON as its type. where: names the file in errors. Raises BadResults."""
    return _checked(kind, value, where, "")


def _checked(kind: Any, value: Any, where: str, place: str) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _checked(parts[0], value, where, place)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        (kind,) = [part for part in parts if part is not type(None)]
        return None if value is None else _checked(kind, value, where, place)
    if origin is Literal:
        if value not in parts:
            raise _wrong(where, place, value, "one of " + ", ".join(parts))
        return value
    if is_dataclass(kind):
        return _checked_object(kind, value, where, place)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise _wrong(where, place, value, "a list")
        return tuple(_checked(parts[0], v, where, f"{place}[{i}]") for i, v in enumerate(value))
    if origin is not None:
        if not isinstance(value, dict):
            raise _wrong(where, place, value, "an object")
        return {k: _checked(parts[1], v, where, f"{place}.{k[:40]}") for k, v in value.items()}
    if kind is float and type(value) is int and value < _MOST:
        value = float(value)
    if type(value) is not kind:  # a bool is no number
        raise _wrong(where, place, value, _NAMES[kind])
    if kind in (int, float) and not 0 <= value < _MOST:
        raise _wrong(where, place, value, "neither negative nor endless")
    return value


_NAMES: Mapping[Any, str] = types.MappingProxyType(
    {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
)


def _checked_object(kind: Any, value: Any, where: str, place: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(where, place, value, "an object")
    hints = get_type_hints(kind, include_extras=True)
    for name in value:
        if name not in hints:
            hint = did_you_mean(name, list(hints))
            raise BadResults(f"{where}: unknown key {_at(place, name)}{hint}")
    for field in fields(kind):
        if field.name not in value and field.default is MISSING:
            raise BadResults(f"{where}: {_at(place, field.name)} is missing")
    return kind(
        **{name: _checked(hints[name], v, where, _at(place, name)) for name, v in value.items()}
    )


def _at(place: str, name: str) -> str:
    return f"{place}.{name[:40]}".lstrip(".")


def _wrong(where: str, place: str, value: Any, wanted: str) -> BadResults:
    shown = json.dumps(value, default=str)
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    return BadResults(f"{where}: {place or 'the file'} is {shown}; it must be {wanted}")
