"""A request's JSON, field by field, each checked as it is taken and none left over.

fields = Fields(json_object(body))
temperature = fields.number("temperature", 0, 2)
fields.end()                              # refuses what nobody has taken
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from diskmoe.engine.server.refusals import Refusal
from diskmoe.engine.setting_values import did_you_mean


def json_object(body: bytes) -> dict[str, Any]:
    """The object that a request's body is. Refusal when it is none."""
    try:
        found = json.loads(body.decode())
    except UnicodeDecodeError as error:
        raise Refusal(400, f"the body is not UTF-8: byte {error.start} of {len(body)}") from None
    except json.JSONDecodeError as error:
        raise Refusal(
            400, f"the body is not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        ) from None
    except RecursionError:
        raise Refusal(400, "the body's JSON is nested too deeply") from None
    except ValueError as error:  # a number of too many digits
        raise Refusal(400, f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Refusal(400, f"the body is {_kind(found)}; it must be a JSON object")
    return found


class Fields:
    """What a JSON object has, and what of it was not asked for yet."""

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        """where: what names of fields are prefixed with in messages, such as ``messages[0].``."""
        self._values = values
        self._where = where
        self._left = dict.fromkeys(values)
        self._known: list[str] = []

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._values.get(name) is not None

    def take(self, name: str) -> Any:
        """A field as it is; None where it is missing."""
        self._known.append(name)
        self._left.pop(name, None)
        return self._values.get(name)

    def refuse(self, name: str, must: str) -> Refusal:
        """A field's value is not what it must be."""
        shown = json.dumps(self._values.get(name), ensure_ascii=False)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        at = self._where + name
        return Refusal(400, f"{at} is {shown}; it must be {must}", param=at)

    def text(self, name: str, default: str | None = None) -> str | None:
        found = self.take(name)
        if found is None:
            return default
        if not isinstance(found, str):
            raise self.refuse(name, "a string")
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        found = self.take(name)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise self.refuse(name, "true or false")
        return found

    def number(self, name: str, low: float, high: float) -> float | None:
        found = self.take(name)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            raise self.refuse(name, f"a number from {low:g} to {high:g}")
        if not low <= found <= high:  # NaN is not, and no integer is too long to compare
            raise self.refuse(name, f"a number from {low:g} to {high:g}")
        return float(found)

    def whole(self, name: str, low: int, high: int) -> int | None:
        found = self.take(name)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int) or not low <= found <= high:
            raise self.refuse(name, f"a whole number from {low} to {high}")
        return found

    def one_of(self, name: str, allowed: Sequence[str], default: str | None) -> str | None:
        found = self.text(name, default)
        if found is not None and found not in allowed:
            raise self.refuse(name, "one of " + ", ".join(allowed))
        return found

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """A string or a list of at most so many, none empty."""
        found = self.take(name)
        if found is None:
            return ()
        several = [found] if isinstance(found, str) else found
        fits = isinstance(several, list) and len(several) <= most
        if not fits or not all(isinstance(each, str) and each for each in several):
            raise self.refuse(name, f"a string or a list of at most {most} strings, none empty")
        return tuple(several)

    def mapping(self, name: str) -> dict[str, Any]:
        found = self.take(name)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise self.refuse(name, "an object")
        return found

    def only(self, name: str, *neutral: Any) -> None:
        """A field that is understood, but for these values: what else it asks for is not done."""
        found = self.take(name)
        if found is not None and found not in neutral:
            wanted = " or ".join(json.dumps(value) for value in neutral)
            raise self.refuse(name, f"{wanted}: nothing else is supported")

    def ignore(self, *names: str) -> None:
        """Fields that are about the client or its account, not about the text."""
        for name in names:
            self.take(name)

    def end(self) -> None:
        """Refuses a field that nobody has taken."""
        for name in self._left:
            hint = did_you_mean(name, self._known)
            at = self._where + name
            shown = at if len(at) <= 80 else at[:77] + "..."
            raise Refusal(400, f"unknown parameter {shown}{hint}", param=shown)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {list: "a list", str: "a string", bool: "true or false"}
    return kinds.get(type(value), "a number")
