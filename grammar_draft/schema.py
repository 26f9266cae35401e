"""A JSON Schema as rules, for drafts.

What a schema asks beyond the shape of a text (patterns, bounds on numbers, ``not``, ``if``) may be
ignored, since drafts are verified: it costs speed at most, and one line says what it was. Members
of an object come in the schema's order, optional ones may be missing; the size of the rules is
linear in the schema. Every sub-schema is a rule that waits in a queue for its turn, so that neither
depth nor ``$ref`` circles recurse. Keywords as in JSON Schema 2020-12 (and ``definitions``,
``nullable`` of its elders).

    grammar = convert(json.loads(text), "file.json")
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from diskmoe.grammar_draft.checks import check
from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.json_rules import FORMATS, JsonRules, word
from diskmoe.grammar_draft.rules import Alternative, Grammar, Ref

MAX_TEXT = 1 << 20
MAX_SIZE = 256  # of arrays and strings whose bounds are kept
_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_USED = {
    *("$ref", "$defs", "definitions", "const", "enum", "anyOf", "oneOf", "allOf", "type"),
    *("nullable", "properties", "required", "additionalProperties", "items", "prefixItems"),
    *("minItems", "maxItems", "minLength", "maxLength", "format"),
}
_REMARKS = {
    *("$schema", "$id", "$comment", "$anchor", "title", "description", "default", "examples"),
    *("deprecated", "readOnly", "writeOnly", "example", "discriminator", "strict"),
}
_OF_TYPE = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "format", "pattern"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}


def read_schema(text: str | bytes, name: str, blanks: bool = True) -> Grammar:
    """A schema's text as rules; see `convert`."""
    if len(text) > MAX_TEXT:
        raise BadGrammar(f"the schema has {len(text)} bytes; at most {MAX_TEXT} are read", name)
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadGrammar(f"the schema is no JSON: {error}", name) from None
    return convert(schema, name, blanks)


def convert(schema: Any, name: str = "schema", blanks: bool = True) -> Grammar:
    """A schema as rules. blanks: whether blanks may stand between the parts of the JSON.

    Raises:
        BadGrammar: what is no schema, a reference to nothing, or a schema no text can satisfy.
    """
    return _Converter(schema, name, blanks).convert()


class _Converter:
    def __init__(self, schema: Any, name: str, blanks: bool):
        self.document = schema
        self.name = name
        self.made = JsonRules(name, blanks)
        self.known: dict[int, Ref] = {}  # by id() of the sub-schema, which the document keeps alive
        self.queue: list[tuple[Any, str, Ref]] = []
        self.ignored: Counter[str] = Counter()

    def convert(self) -> Grammar:
        root = self.rule(self.document, "#")
        while self.queue:
            schema, pointer, ref = self.queue.pop()
            self.made.define(ref, list(self.alternatives(schema, pointer)))
        grammar = self.made.grammar
        grammar.root = root.rule
        if self.ignored:
            kinds = ", ".join(f"{key} ({n})" for key, n in sorted(self.ignored.items()))
            grammar.notes.append(f"schema keywords that drafts ignore: {kinds}")
        check(grammar, strict=False)
        return grammar

    def rule(self, schema: Any, pointer: str) -> Ref:
        """The rule of a sub-schema, which is worked out later."""
        if schema is True or schema == {}:
            return self.made.shared("value")
        known = self.known.get(id(schema))
        if known is None:
            if not isinstance(schema, dict | bool):
                raise self.error(pointer, f"a schema is an object, this is {_shown(schema)}")
            known = self.made.rule(pointer)
            self.known[id(schema)] = known
            self.queue.append((schema, pointer, known))
        return known

    def alternatives(self, schema: Any, pointer: str) -> Iterator[Alternative]:
        """What a sub-schema can be."""
        if schema is False:
            return
        for key in schema:
            if key not in _USED and key not in _REMARKS:
                self.ignored[key] += 1
        if schema.get("nullable") is True:
            yield (self.made.shared("null"),)
        if "$ref" in schema:
            yield (self.target(schema["$ref"], pointer),)
        elif "const" in schema:
            yield self.made.constant(schema["const"])
        elif "enum" in schema:
            values = self.listed(schema, "enum", pointer)
            yield from (self.made.constant(value) for value in values)
        elif "allOf" in schema:
            yield from self.alternatives(self.merged(schema, pointer), pointer)
        elif ("anyOf" in schema or "oneOf" in schema) and "properties" not in schema:
            key = "anyOf" if "anyOf" in schema else "oneOf"
            for i, choice in enumerate(self.listed(schema, key, pointer)):
                yield (self.rule(choice, f"{pointer}/{key}/{i}"),)
        else:
            for kind in self.kinds(schema, pointer):
                yield self.typed(kind, schema, pointer)

    def kinds(self, schema: dict[str, Any], pointer: str) -> list[str]:
        """The types of a schema, guessed from its keywords where it names none."""
        named = schema.get("type")
        if named is None:
            for kind, keys in _OF_TYPE.items():
                if any(key in schema for key in keys):
                    return [kind]
            return ["value"]
        kinds = named if isinstance(named, list) else [named]
        for kind in kinds:
            if kind not in _TYPES:
                raise self.error(pointer, f"type is {_shown(kind)}; types are {', '.join(_TYPES)}")
        return ["number" if kind == "integer" and "number" in kinds else kind for kind in kinds]

    def typed(self, kind: str, schema: dict[str, Any], pointer: str) -> Alternative:
        if kind == "object":
            return self.an_object(schema, pointer)
        if kind == "array":
            return self.an_array(schema, pointer)
        if kind == "string":
            if schema.get("format") in FORMATS:
                return (self.made.shared(schema["format"]),)
            if "format" in schema:
                self.ignored["format"] += 1
            low, high = self.bounds(schema, "Length", pointer)
            if low or high is not None:
                return self.made.sized_string(low, high)
        return (self.made.shared(kind),)

    def an_object(self, schema: dict[str, Any], pointer: str) -> Alternative:
        """``{`` members in order ``}``: two rules a member, one for when it is the first."""
        made = self.made
        properties = schema.get("properties", {})
        if not isinstance(properties, dict):
            raise self.error(pointer, f"properties is {_shown(properties)}, not an object")
        required = self.listed(schema, "required", pointer) if "required" in schema else []
        more = schema.get("additionalProperties", not properties)
        other: Alternative = ()
        if more is not False:
            value = self.rule(more, f"{pointer}/additionalProperties")
            other = (made.shared("string"), *made.ws(), word(":"), *made.ws(), value)
        if not properties:
            return made.members("{", other, "}", high=0 if not other else None)
        comma = (*made.ws(), word(","), *made.ws())
        rest = first = made.rule(f"{pointer}/end", [()])
        if other:
            rest = made.rule(f"{pointer}/more")
            made.define(rest, [(), (*comma, *other, rest)])
            first = made.rule(f"{pointer}/others", [(), (*other, rest)])
        for key in reversed(properties):
            value = self.rule(properties[key], f"{pointer}/properties/{_step(key)}")
            member = (*made.constant(key), *made.ws(), word(":"), *made.ws(), value)
            needed = key in required
            skip_first = [] if needed else [(first,)]
            skip_rest = [] if needed else [(rest,)]
            label = f"{pointer}/{_step(key)}"
            first = made.rule(f"{label}/first", [(*member, rest), *skip_first])
            rest = made.rule(f"{label}/next", [(*comma, *member, rest), *skip_rest])
        return (word("{"), *made.ws(), first, *made.ws(), word("}"))

    def an_array(self, schema: dict[str, Any], pointer: str) -> Alternative:
        made = self.made
        low, high = self.bounds(schema, "Items", pointer)
        fixed = schema.get("prefixItems")
        if fixed is None and isinstance(schema.get("items"), list):
            fixed = schema["items"]  # as before 2020-12
        if isinstance(fixed, list):
            symbols: list[Any] = [word("["), *made.ws()]
            for i, item in enumerate(fixed):
                comma = (*made.ws(), word(","), *made.ws()) if i else ()
                symbols += [*comma, self.rule(item, f"{pointer}/prefixItems/{i}")]
            return (*symbols, *made.ws(), word("]"))
        if fixed is not None:
            self.ignored["prefixItems"] += 1
        item = (self.rule(schema.get("items", True), f"{pointer}/items"),)
        return made.members("[", item, "]", low, high)

    def bounds(self, schema: dict[str, Any], what: str, pointer: str) -> tuple[int, int | None]:
        """min and max of Items or Length; large ones are ignored."""
        found: list[int | None] = []
        for key in (f"min{what}", f"max{what}"):
            value = schema.get(key)
            if value is not None and (type(value) is not int or value < 0):
                raise self.error(pointer, f"{key} is {_shown(value)}, not a whole number")
            if value is not None and value > MAX_SIZE:
                self.ignored[key] += 1
                value = None
            found.append(value)
        low, high = found[0] or 0, found[1]
        if high is not None and high < low:
            raise self.error(pointer, f"min{what} is {low} and max{what} {high}: nothing fits")
        return low, high

    def merged(self, schema: dict[str, Any], pointer: str) -> dict[str, Any]:
        """allOf as one schema: members put together, of other keywords the last one kept."""
        parts = self.listed(schema, "allOf", pointer)
        whole: dict[str, Any] = {}
        for part in [{k: v for k, v in schema.items() if k != "allOf"}, *parts]:
            seen: list[int] = []
            while isinstance(part, dict) and "$ref" in part and id(part) not in seen:
                seen.append(id(part))
                part = self.pointed(part["$ref"], pointer)
            if not isinstance(part, dict):
                continue
            for key, value in part.items():
                if key == "properties" and isinstance(value, dict):
                    whole[key] = {**whole.get(key, {}), **value}
                elif key == "required" and isinstance(value, list):
                    whole[key] = [*whole.get(key, []), *value]
                elif key != "allOf":
                    whole[key] = value
                else:
                    self.ignored["allOf in allOf"] += 1
        return whole

    def target(self, reference: Any, pointer: str) -> Ref:
        """The rule that a $ref means."""
        return self.rule(self.pointed(reference, pointer), str(reference))

    def pointed(self, reference: Any, pointer: str) -> Any:
        """What a JSON Pointer (RFC 6901) inside this document points to."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise self.error(pointer, f"$ref is {_shown(reference)}; only #/... can be followed")
        here = self.document
        for step in reference.split("/")[1:]:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(here, list) and step.isdecimal() and int(step) < len(here):
                here = here[int(step)]
            elif isinstance(here, dict) and step in here:
                here = here[step]
            else:
                raise self.error(pointer, f"$ref {_shown(reference)} leads nowhere")
        return here

    def listed(self, schema: dict[str, Any], key: str, pointer: str) -> list[Any]:
        value = schema[key]
        if not isinstance(value, list) or (not value and key != "required"):
            raise self.error(pointer, f"{key} is {_shown(value)}, not a list of something")
        return value

    def error(self, pointer: str, message: str) -> BadGrammar:
        return BadGrammar(f"at {pointer[:120]}: {message}", self.name)


def _step(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
