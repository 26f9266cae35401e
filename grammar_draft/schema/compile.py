"""A JSON Schema (2020-12, and what older drafts wrote for the same) as rules.

Every node of the schema, a set of schemas that hold for one value, becomes a rule, made when it is
first needed: neither depth nor ``$ref`` circles recurse. What a rule's text can be is worked out way
by way (`expand`), and type by type.

What is generated is valid; a keyword that rules cannot say is an error that names it and its JSON
Pointer, or with `lax` a note. What is accepted are documents with named members in the order of the
schema (others behind them), blanks as the whitespace mode has them, constants, keys and patterns
spelled one way (characters as they are unless JSON demands an escape).
"""

from __future__ import annotations

from typing import Any

from diskmoe.grammar_draft.checks import check
from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.json_rules import JsonRules, spelled
from diskmoe.grammar_draft.patience import breathe
from diskmoe.grammar_draft.regex.dfa import TooLarge
from diskmoe.grammar_draft.rules import Alternative, Grammar, Ref
from diskmoe.grammar_draft.schema.arrays import arrays
from diskmoe.grammar_draft.schema.contraries import contrary
from diskmoe.grammar_draft.schema.document import Document, Place
from diskmoe.grammar_draft.schema.expand import Expander, kinds
from diskmoe.grammar_draft.schema.facts import ALL, ANY, NEVER, TYPES, Facts, Node
from diskmoe.grammar_draft.schema.keywords import Keywords
from diskmoe.grammar_draft.schema.numbers import numbers
from diskmoe.grammar_draft.schema.objects import objects
from diskmoe.grammar_draft.schema.profiles import Profile
from diskmoe.grammar_draft.schema.strings import strings
from diskmoe.grammar_draft.schema.values import fits, type_of
from diskmoe.grammar_draft.tries import trie

_SHOWN = 6  # ignored keywords that a note lists
_KEYWORDS = {  # of the kinds of facts
    "length": "minLength and maxLength",
    "size": "minItems and maxItems",
    "members": "minProperties and maxProperties",
    "patterns": "pattern",
    "formats": "format",
    "excluded": "not",
    "unique": "uniqueItems",
    "multiples": "multipleOf",
    "low": "minimum",
    "high": "maximum",
    "contains": "contains",
    "keys": "properties",
    "names": "propertyNames",
    "required": "required",
}


def compile_schema(
    schema: Any, name: str, profile: Profile, whitespace: str = "flexible", lax: bool = False
) -> Grammar:
    """A schema as rules.

    Raises:
        BadGrammar: what is no schema, what cannot be expressed, a schema that nothing satisfies.
    """
    blanks = {"flexible": profile.blanks, "compact": None}
    if whitespace not in blanks:
        raise BadGrammar(f"whitespace is {whitespace!r}; it is flexible or compact", name)
    made = JsonRules(name, blanks[whitespace], profile.digits)
    return Compiler(Document(schema, name), profile, made, lax or profile.lax).compile()


class Compiler:
    """The rules of one schema under construction."""

    def __init__(self, document: Document, profile: Profile, made: JsonRules, lax: bool):
        self.document, self.profile, self.made = document, profile, made
        self.keywords = Keywords(document, profile)
        self.expander = Expander(self.keywords, lax)
        self._rules: dict[Node, Ref] = {}
        self._queue: list[Node] = []

    def compile(self) -> Grammar:
        return self.finish(self.rule(self.keywords.node(self.document.root)))

    def finish(self, root: Ref) -> Grammar:
        """The grammar of a rule, with all that it leads to."""
        while self._queue:
            breathe()
            node = self._queue.pop()
            try:
                self.made.define(self._rules[node], self._alternatives(node))
            except TooLarge as error:
                place = self.keywords.places[node[0][0]]
                raise self.document.error(place, f"this schema is too large: {error}") from None
        grammar = self.made.grammar
        grammar.root = root.rule
        if not grammar.ends[grammar.root]:
            raise self._empty(root)
        ignored = self.expander.ignored
        if ignored:
            shown = list(ignored)[:_SHOWN]
            more = f" and {len(ignored) - _SHOWN} more" if len(ignored) > _SHOWN else ""
            grammar.notes.append(f"ignored in the schema: {', '.join(shown)}{more}")
        check(grammar, strict=False)
        return grammar

    # what the types ask

    def rule(self, node: Node) -> Ref:
        if node == ANY:
            return self.made.shared("value")
        known = self._rules.get(node)
        if known is None:
            known = self._rules[node] = self.made.rule(self._label(node))
            self._queue.append(node)
        return known

    def ways(self, node: Node) -> list[Facts]:
        return self.expander.ways(node)

    def hopeless(self, node: Node) -> bool:
        return self.expander.hopeless(node)

    def fits(self, node: Node, value: Any) -> bool:
        return fits(self.expander, node, value)

    def contrary(self, node: Node) -> Node:
        return contrary(node)

    def refuse(self, facts: Facts, kind: str, why: str) -> None:
        place = facts.places.get(kind, self.document.root)
        self.expander.refuse(place, _KEYWORDS.get(kind, kind), why)

    def _label(self, node: Node) -> str:
        return self.keywords.places[node[0][0]].pointer if node != NEVER else "false"

    def _alternatives(self, node: Node) -> list[Alternative]:
        label = self._label(node)
        words: dict[str, None] = {}
        found: dict[Alternative, None] = {}
        for facts in self.ways(node):
            if facts.values is not None:
                for value in facts.values:
                    if isinstance(value, list | dict):
                        found[self.made.constant(value)] = None
                    else:
                        words[spelled(value)] = None
                continue
            if facts.types == ALL and not facts.excluded and not any(map(facts.rest_of, TYPES)):
                return [(self.made.shared("value"),)]
            for kind in kinds(facts):
                self.of_type(kind, facts, label, words, found)
        listed = trie(self.made, [(text.encode(), ()) for text in words], label)
        return [*listed, *found]

    def of_type(
        self,
        kind: str,
        facts: Facts,
        label: str,
        words: dict[str, None],
        found: dict[Alternative, None],
    ) -> None:
        """Adds the JSON of one type to words that are listed, or to other alternatives."""
        if kind in ("null", "boolean"):
            for value in (None,) if kind == "null" else (True, False):
                if not any(other is value for other in facts.excluded):
                    words[spelled(value)] = None
            return
        if kind in ("array", "object"):
            for value in facts.excluded:
                if type_of(value) == kind:
                    self.refuse(facts, "excluded", f"single {kind}s cannot be excluded")
        make = {"number": numbers, "string": strings, "array": arrays, "object": objects}[kind]
        found.update(dict.fromkeys(make(self, facts, label)))

    # when nothing fits

    def _empty(self, root: Ref) -> BadGrammar:
        """Follows what cannot be done without to the schema that nothing satisfies."""
        grammar = self.made.grammar
        nodes = {ref.rule: node for node, ref in self._rules.items()}
        here, seen = root.rule, {root.rule}
        place: Place = self.document.root
        reason = ""
        while True:
            node = nodes.get(here)
            if node == NEVER:
                reason = "it is false"
            elif node is not None:
                place = self.keywords.places[node[0][0]]
                reason = self.expander.reasons.get(node, "")
            following = next((n for n in grammar.uses(here) if not grammar.ends[n]), None)
            if following is None:
                break
            if following in seen:
                reason = "it needs itself without end; add a way out"
                break
            seen.add(following)
            here = following
        said = f": {reason}" if reason else ""
        return self.document.error(place, f"nothing can satisfy this schema{said}")
