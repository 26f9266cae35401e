"""The arguments of a function one after the other, as families write them that use no JSON for that.

A parameter is what stands before its key, the key, what stands behind it, the value, and what closes
it. A value that is a text stands there as it is, whatever it holds but what closes it (where its length
is bounded, without the first character of that); all others are JSON. A value that may be something else
than a text is read as that where it looks like it, so a text does not look like it then. Parameters come in
the order of the schema, those that are not required may be missing. Keys that the schema does not name
come only where it names none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from diskmoe.grammar_draft.json_rules import JsonRules
from diskmoe.grammar_draft.regex.charsets import UNIVERSE, difference
from diskmoe.grammar_draft.regex.dfa import ANYTHING, Dfa, TooLarge, without
from diskmoe.grammar_draft.regex.emit import joined, write
from diskmoe.grammar_draft.regex.pattern import from_pattern
from diskmoe.grammar_draft.rules import Alternative, Chars, Grammar, Ref, Repeat, normal
from diskmoe.grammar_draft.schema.compile import Compiler
from diskmoe.grammar_draft.schema.document import Document
from diskmoe.grammar_draft.schema.expand import kinds
from diskmoe.grammar_draft.schema.facts import ALL, BIT, NEVER, Facts, Node, both
from diskmoe.grammar_draft.schema.profiles import profile_of
from diskmoe.grammar_draft.schema.strings import automaton_of, union
from diskmoe.grammar_draft.tries import trie

Spell = Callable[[str], Alternative]
MOST_KEY = 64  # characters of a key that has no name in the schema
_KEY = Chars(normal([(45, 46), (48, 57), (65, 90), (95, 95), (97, 122)]))
# what is read as JSON where a value may be something else than a text
_LIKE_JSON = (
    r"^[ \t\r\n]*(?:[[{]|(?:-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null|True|False|None)"
    r"[ \t\r\n]*$)"
)
_SPECIAL = re.compile(r"[\\^$.*+?()[\]{}|/]")


@dataclass(frozen=True)
class Parameters:
    """A parameter is ``before`` KEY ``behind`` VALUE ``closing``. behind_json: where it is another
    for values that are no texts. lines: a value stands on lines of its own."""

    before: str
    behind: str
    closing: str
    behind_json: str = ""
    lines: bool = False


def compile_parameters(
    schema: Any,
    form: Parameters,
    spell: Spell,
    only_text: Callable[[str], bool],
    name: str,
    whitespace: str,
    lax: bool,
) -> Grammar:
    """The arguments that fit a schema of an object. spell: a form's text as symbols. only_text: whether
    the value of a key is read as a text whatever it looks like.

    Raises:
        BadGrammar: what is no schema, what cannot be expressed, a schema that nothing satisfies.
    """
    profile = profile_of("json-schema")
    blanks = None if whitespace == "compact" else profile.blanks
    made = JsonRules(name, blanks, profile.digits)
    compiler = Compiler(Document(schema, name), profile, made, lax)
    try:
        root = _Writer(compiler, form, spell, only_text).root()
    except TooLarge as error:
        place = compiler.document.root
        raise compiler.document.error(place, f"this schema is too large: {error}") from None
    return compiler.finish(root)


class _Writer:
    """The rules of one function's arguments."""

    def __init__(
        self,
        compiler: Compiler,
        form: Parameters,
        spell: Spell,
        only_text: Callable[[str], bool],
    ) -> None:
        self._compiler = compiler
        self._made = compiler.made
        self._form = form
        self._spell = spell
        self._only_text = only_text
        end = form.closing.strip()
        self._end = end
        self._with_end = from_pattern(_SPECIAL.sub(r"\\\g<0>", end))

    def root(self) -> Ref:
        node = self._compiler.keywords.node(self._compiler.document.root)
        found: list[Alternative] = []
        for facts in self._compiler.ways(node):
            if facts.types & BIT["object"] and facts.values is None:
                found += self._object(facts)
        return self._made.rule("parameters", found)

    def _object(self, facts: Facts) -> list[Alternative]:
        compiler, made = self._compiler, self._made
        for kind in ("members", "names", "some"):
            if getattr(facts, kind) not in ((0, None), []):
                compiler.refuse(facts, kind, "parameters of a call cannot be counted or matched")
        names = dict.fromkeys(name for keys in facts.keys for name in keys.names)
        names.update(facts.required)
        nodes = {name: both(keys.node(name) for keys in facts.keys) for name in names}
        named = [(name, node) for name, node in nodes.items() if not compiler.hopeless(node)]
        if not all(name in dict(named) for name in facts.required):
            return []
        if not named and any(keys.patterns for keys in facts.keys):
            return [()]
        if not named:
            return self._free(both(keys.rest for keys in facts.keys))
        rules = [made.rule("parameters") for _ in range(len(named) + 1)]
        made.define(rules[-1], [()])
        for here in range(len(named)):
            keys: list[tuple[bytes, Alternative]] = []
            may_end = True
            for there in range(here, len(named)):
                name, node = named[there]
                self._check(facts, name)
                value = made.rule(name, self._values(node, rules[there + 1], name))
                keys.append((name.encode(), (value,)))
                if name in facts.required:
                    may_end = False
                    break
            key = made.rule("key", trie(made, keys, "key"))
            made.define(
                rules[here], [(*self._spell(self._form.before), key), *([()] if may_end else [])]
            )
        return [(rules[0],)]

    def _check(self, facts: Facts, name: str) -> None:
        if not name or any(character in '<>"\n' for character in name):
            place = facts.places.get("keys", self._compiler.document.root)
            raise self._compiler.document.error(place, f"the key {name[:40]!r} cannot be written")

    def _free(self, node: Node) -> list[Alternative]:
        """Any keys."""
        if node == NEVER or self._compiler.hopeless(node):
            return [()]
        made = self._made
        again = made.rule("parameters")
        value = made.rule("value", self._values(node, again, "value"))
        made.define(
            again, [(*self._spell(self._form.before), Repeat(_KEY, 1, MOST_KEY), value), ()]
        )
        return [(again,)]

    def _values(self, node: Node, after: Ref, label: str) -> list[Alternative]:
        """What stands behind a key: its value, what closes it, and what comes after that."""
        compiler, made, form = self._compiler, self._made, self._form
        closing = (*self._spell(form.closing), after)
        sure = bool(form.behind_json) or self._only_text(label)
        texts: list[Dfa] = []
        lengths: list[Repeat] = []
        words: dict[str, None] = {}
        others: dict[Alternative, None] = {}
        for facts in compiler.ways(node):
            if facts.values is not None:
                if any(isinstance(value, str) for value in facts.values):
                    texts.append(self._texts(facts, sure))
                values = [value for value in facts.values if not isinstance(value, str)]
                others.update(dict.fromkeys(map(made.constant, values)))
                continue
            anything = facts.types == ALL and not any(map(facts.rest_of, kinds(facts)))
            if facts.types & BIT["string"]:
                bounded = facts.length != (0, None) and sure
                if bounded and not (facts.patterns or facts.formats or facts.excluded):
                    ranges = difference(UNIVERSE, ((ord(self._end[0]), ord(self._end[0])),))
                    lengths.append(Repeat(Chars(ranges), *facts.length))
                else:
                    texts.append(self._texts(facts, sure or anything))
            for kind in [] if anything else kinds(facts):
                if kind != "string":
                    compiler.of_type(kind, facts, label, words, others)
        found: list[Alternative] = [(*self._spell(form.behind), r, *closing) for r in lengths]
        if texts:
            dfa = union(texts)
            if not dfa.empty:
                text = made.rule(label, write(made, dfa, [closing], label, False))
                found.append((*self._spell(form.behind), text))
        listed = [*trie(made, [(word.encode(), ()) for word in words], label), *others]
        if listed:
            json = made.rule(label, listed)
            found.append(joined((*self._spell(form.behind_json or form.behind), json, *closing)))
        return found

    def _texts(self, facts: Facts, sure: bool) -> Dfa:
        """The texts that fit, but for those that hold what closes them, or would be read as something
        else where they are not sure to be read as texts."""
        try:
            return self._readable(automaton_of(facts), sure)
        except TooLarge as error:
            kind = "patterns" if facts.patterns else "formats" if facts.formats else "length"
            self._compiler.refuse(facts, kind, str(error))
            return self._readable(ANYTHING, sure)

    def _readable(self, dfa: Dfa, sure: bool) -> Dfa:
        found = without(dfa, self._with_end)
        return found if sure else without(found, from_pattern(_LIKE_JSON))
