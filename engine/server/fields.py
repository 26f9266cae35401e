"""A request's JSON, field by field, each checked as it is taken and none left over.

fields = Fields(json_object(body))
temperature = fields.number("temperature", 0, 2)
fields.end()                              # refuses what nobody has taken
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from diskmoe.engine.server.refusals import Refusal
from diskmoe.engine.setting_values import did_you_mean

MOST_CHARACTERS = 4000  # of texts that each token is compared with
MOST_PARTS = 300_000  # of a body's JSON: each takes memory, however short it is
_PARTS = (b",", b"[", b"{")


def json_object(body: bytes) -> dict[str, Any]:
    """The object that a request's body is. Refusal when it is none, or can be read in two ways."""
    if not body.strip():
        raise Refusal(400, "the body is empty: send a JSON object")
    if max(map(body.count, _PARTS)) > MOST_PARTS:
        raise Refusal(400, f"the body's JSON has more than {MOST_PARTS} parts: send less")
    try:
        found = json.loads(
            body.decode(), object_pairs_hook=_object, parse_float=_finite, parse_constant=_finite
        )
    except UnicodeDecodeError as error:
        raise Refusal(400, f"the body is not UTF-8: byte {error.start} of {len(body)}") from None
    except json.JSONDecodeError as error:
        raise Refusal(
            400, f"the body is not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        ) from None
    except RecursionError:
        raise Refusal(400, "the body's JSON is nested too deeply") from None
    except ValueError:
        raise Refusal(400, "the body has a number of too many digits") from None
    if not isinstance(found, dict):
        raise Refusal(400, f"the body is {_kind(found)}; it must be a JSON object")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise Refusal(400, f"the body says {_cut(json.dumps(twice))} twice: say it once")
    return found


def _finite(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        raise Refusal(400, f"the body has the number {_cut(word)}: numbers are finite")
    return value


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
        shown = _cut(json.dumps(self._values.get(name), ensure_ascii=False))
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
        """A string or a list of at most so many, none empty, of bounded length together."""
        found = self.take(name)
        if found is None:
            return ()
        several = [found] if isinstance(found, str) else found
        fits = isinstance(several, list) and len(several) <= most
        fits = fits and all(isinstance(each, str) and each for each in several)
        if not fits or sum(map(len, several)) > MOST_CHARACTERS:
            raise self.refuse(
                name,
                f"a string or a list of at most {most} strings, none empty, of at most "
                f"{MOST_CHARACTERS} characters together",
            )
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
        if found is not None and not any(_is(found, value) for value in neutral):
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
            shown = _cut(self._where + name, 80)
            raise Refusal(400, f"unknown parameter {shown}{hint}", param=shown)


def _is(found: Any, value: Any) -> bool:
    """Equal, where true is not 1."""
    return found == value and isinstance(found, bool) == isinstance(value, bool)


def _cut(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {list: "a list", str: "a string", bool: "true or false"}
    return kinds.get(type(value), "a number")
