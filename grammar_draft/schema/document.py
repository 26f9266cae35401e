"""A schema document: its places, and what a $ref in one of them means.

A place is a JSON value inside the document with its JSON Pointer; places are made when they are
asked for, once each. Resources (``$id``) and anchors are found when the document is read. Nothing
outside the document can be referred to.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from diskmoe.grammar_draft.errors import BadGrammar

MAX_TEXT = 4 << 20
MAX_VALUES = 400_000
MAX_BITS = 10_000  # of an integer
_LABEL = 100  # characters of a pointer in a message
_DATA = ("const", "enum", "default", "examples", "example")  # no schemas in there
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


class Place:
    """A value of the document. `number` says which; compare with ``is``."""

    __slots__ = ("base", "number", "parent", "step", "value")

    def __init__(self, value: Any, parent: Place | None, step: str | int, number: int, base: str):
        self.value = value
        self.parent = parent
        self.step = step
        self.number = number
        self.base = base

    @property
    def pointer(self) -> str:
        """The JSON Pointer as a fragment, long ones without their middle."""
        steps: list[str] = []
        here: Place | None = self
        size = 0
        while here is not None and here.parent is not None:
            steps.append(str(here.step).replace("~", "~0").replace("/", "~1"))
            size += len(steps[-1]) + 1
            if size > _LABEL:
                steps[-1] = steps[-1][:_LABEL]
                steps.append("...")
                break
            here = here.parent
        return "/".join(["#", *reversed(steps)])


class Document:
    """All places of one schema."""

    def __init__(self, value: Any, name: str):
        self.name = name
        self._made: dict[tuple[int, str | int], Place] = {}
        self._resources: dict[str, Place] = {}
        self._anchors: dict[tuple[str, str], Place] = {}
        self._dynamic: dict[str, int] = {}
        self.root = Place(value, None, "", 0, _identity(value, ""))
        self.count = 1
        self._scan()

    def error(self, place: Place, message: str) -> BadGrammar:
        return BadGrammar(f"at {place.pointer}: {message}", self.name)

    def at(self, place: Place, *steps: str | int) -> Place:
        """A place below another."""
        for step in steps:
            known = self._made.get((place.number, step))
            if known is None:
                value = place.value[step]
                base = _identity(value, place.base)
                known = Place(value, place, step, self.count, base)
                self._made[place.number, step] = known
                self.count += 1
            place = known
        return place

    def target(self, reference: Any, place: Place, dynamic: bool = False) -> Place:
        """The place that a reference means.

        Raises:
            BadGrammar: a reference out of the document, or to nothing.
        """
        if not isinstance(reference, str):
            raise self.error(place, f"$ref is {shown(reference)}, not a text")
        if reference.startswith("#"):  # whatever the scheme of the base is
            address, fragment = place.base, reference[1:]
        else:
            try:
                address, fragment = urldefrag(urljoin(place.base, reference))
            except ValueError:
                raise self.error(place, f"$ref {shown(reference)} is no address") from None
        root = self._resources.get(address)
        if root is None:
            raise self.error(
                place,
                f"$ref {shown(reference)} leads out of the document; only what is in it is read",
            )
        fragment = unquote(fragment)
        if dynamic and self._dynamic.get(fragment, 0) > 1:
            raise self.error(place, f"$dynamicRef {shown(reference)} has several targets")
        if not fragment or fragment.startswith("/"):
            return self._pointed(root, fragment, reference, place)
        found = self._anchors.get((address, fragment))
        if found is None:
            raise self.error(place, f"$ref {shown(reference)} leads nowhere: no such anchor")
        return found

    def _pointed(self, here: Place, fragment: str, reference: str, place: Place) -> Place:
        """Follows a JSON Pointer (RFC 6901)."""
        for step in fragment.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            value = here.value
            if isinstance(value, list) and _is_index(step, value):
                here = self.at(here, int(step))
            elif isinstance(value, dict) and step in value:
                here = self.at(here, step)
            else:
                raise self.error(place, f"$ref {shown(reference)} leads nowhere")
        return here

    def _scan(self) -> None:
        """Looks at every value: is it JSON, how much is it, has it a name?"""
        self._resources[self.root.base] = self._resources[""] = self.root
        seen = 0
        # (value, how it was reached, whether its keys are names, whether it holds no schemas)
        queue: list[tuple[Any, Any, bool, bool]] = [(self.root.value, None, False, False)]
        while queue:
            value, link, names, data = queue.pop()
            seen += 1 + (len(value) if isinstance(value, list) else 0)
            if seen > MAX_VALUES:
                raise BadGrammar(f"the schema has more than {MAX_VALUES} values", self.name)
            if isinstance(value, dict):
                if not data and any(key in value for key in ("$id", "$anchor", "$dynamicAnchor")):
                    self._named(value, link)
                for key, inner in value.items():
                    if not isinstance(key, str):
                        raise BadGrammar(
                            f"the schema has a key {shown(key)} that is no text", self.name
                        )
                    held = data or (not names and key in _DATA)
                    queue.append((inner, (link, key), key in _MAPS and not names, held))
            elif isinstance(value, list):
                queue += [(inner, (link, i), False, data) for i, inner in enumerate(value)]
            elif isinstance(value, int) and value.bit_length() > MAX_BITS:
                raise BadGrammar(f"the schema has a number of over {MAX_BITS} bits", self.name)
            elif not isinstance(value, str | int | float | None) or (
                isinstance(value, float) and not isfinite(value)
            ):
                raise BadGrammar(f"the schema holds {shown(value)}, which is no JSON", self.name)

    def _named(self, value: dict[str, Any], link: Any) -> None:
        steps: list[str | int] = []
        while link is not None:
            link, step = link
            steps.append(step)
        place = self.at(self.root, *reversed(steps))
        address = urldefrag(place.base)[0]
        if isinstance(value.get("$id"), str):
            self._resources[address] = place
            if value["$id"].startswith("#"):  # a name, as before 2019-09
                self._anchors[address, value["$id"][1:]] = place
        for key in ("$anchor", "$dynamicAnchor"):
            anchor = value.get(key)
            if isinstance(anchor, str):
                self._anchors[address, anchor] = place
                self._dynamic[anchor] = self._dynamic.get(anchor, 0) + (key == "$dynamicAnchor")


def read(text: str | bytes, name: str) -> Any:
    """The JSON of a schema's text. Raises BadGrammar."""
    if len(text) > MAX_TEXT:
        raise BadGrammar(f"the schema has {len(text)} bytes; at most {MAX_TEXT} are read", name)
    try:
        return json.loads(text, parse_constant=_refused)
    except RecursionError:
        raise BadGrammar("the schema is nested too deeply", name) from None
    except ValueError as error:
        raise BadGrammar(f"the schema is no JSON: {error}", name) from None


def _is_index(step: str, value: list[Any]) -> bool:
    return step.isdecimal() and len(step) < 9 and int(step) < len(value)


def _refused(word: str) -> float:
    raise ValueError(f"{word} is no JSON")


def _identity(value: Any, base: str) -> str:
    """The base address below a value: its own ``$id`` where it has one."""
    own = value.get("$id") if isinstance(value, dict) else None
    if not isinstance(own, str) or own.startswith("#"):
        return base
    try:
        return urldefrag(urljoin(base, own))[0]
    except ValueError:
        return base


def shown(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        text = "a deep nest"
    return text if len(text) <= 60 else text[:57] + "..."
