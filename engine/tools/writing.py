"""Grammars of calls: a family's form, with the names of the tools and arguments by their schemas.

A marker that is a special token of the model stands as this token; one that ends the text is left to
the text's end.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from diskmoe.engine.text.side import TextSide
from diskmoe.engine.tools.forms import ID, NUMBER, Form
from diskmoe.engine.tools.toolbox import Tool, Toolbox
from diskmoe.grammar_draft.checks import check
from diskmoe.grammar_draft.languages import from_schema
from diskmoe.grammar_draft.rules import (
    ANY,
    Alternative,
    Chars,
    Grammar,
    Literal,
    Ref,
    Repeat,
    Rule,
    Symbol,
    Token,
    normal,
)
from diskmoe.grammar_draft.schema.parameters import compile_parameters

_DIGIT = Chars(normal([(48, 57)]))
_NINE = Chars(normal([(48, 57), (65, 90), (97, 122)]))
_BLANK_LINES = Repeat(Literal(b"\n"), 0, 2)  # before calls: templates write them behind reasoning
_ANALYSIS = ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant")
# what stands behind the name in a head of gpt-oss, as the model or its template writes it
_HEADS = (
    " <|constrain|>json<|message|>",
    "<|channel|>commentary <|constrain|>json<|message|>",
    " json<|message|>",
    "<|channel|>commentary json<|message|>",
)


@dataclass(frozen=True)
class Speller:
    """Texts of a form as symbols of a model. ends: tokens that end the text."""

    special: Mapping[str, int]
    ends: Container[int]

    @classmethod
    def of(cls, text: TextSide) -> Speller:
        names = {} if text.tokenizer is None else text.tokenizer.special_text
        return cls({name: token for token, name in names.items()}, text.stops(in_chat=True))

    def __call__(self, text: str) -> Alternative:
        found: list[Symbol] = []
        for part in self._parts(text):
            token = self.special.get(part)
            if token is None:
                placeholder = {NUMBER: Repeat(_DIGIT, 1, 3), ID: Repeat(_NINE, 9, 9)}.get(part)
                found.append(placeholder or Literal(part.encode()))
            elif token not in self.ends:
                found.append(Token(token, False))
        return tuple(found)

    def _parts(self, text: str) -> Iterable[str]:
        names = [name for name in self.special if name in text]
        names.sort(key=len, reverse=True)
        pattern = "|".join(map(re.escape, [*names, NUMBER, ID]))
        return filter(None, re.split(f"({pattern})", text))


class Calls:
    """The rules of calls under construction."""

    def __init__(
        self, form: Form, toolbox: Toolbox, spell: Speller, blanks: str, lax: bool
    ) -> None:
        """blanks, lax: of schemas, see ``from_schema``; tools that are not strict are lax anyway."""
        self._form = form
        self._toolbox = toolbox
        self._spell = spell
        self._blanks = blanks
        self._lax = lax
        self._grammar = Grammar([Rule("root")], name="calls of tools")
        self._arguments = [self._embedded(self._of(tool)) for tool in toolbox.only]

    def behind_opening(self) -> Grammar:
        """What follows the word that opens the calls. Raises BadGrammar: a schema is none, or asks
        for what cannot be enforced."""
        form = self._form
        if form.channels:
            return self._finished([(self._calls_in_channels(_HEADS),)])
        first = (form.section[0] or form.before).removeprefix(form.opening)
        return self._finished([self._several(self._spell(first))])

    def from_the_start(self, beside: Grammar | None = None) -> Grammar:
        """An answer that is calls, or what another grammar says. Raises BadGrammar."""
        form, found = self._form, self._in_channels() if self._form.channels else []
        if not found:
            found.append(
                (_BLANK_LINES, *self._several(self._spell(form.section[0] or form.before)))
            )
        if beside is not None:
            found.append((self._embedded(beside),))
        return self._finished(found)

    def _several(self, first: Alternative) -> Alternative:
        """Calls behind what the first of them begins with: that, and its section's."""
        form, spell = self._form, self._spell
        begin = spell(form.before)
        call = self._rule("call", self._named(spell(form.behind)))
        once = (*begin, call) if form.section[0] else (call,)
        more = self._rule("more", [(*spell(form.between), *begin, call)])
        again = (Repeat(more, 0, None),) if self._toolbox.several else ()
        return (*first, *once, *again, *spell(form.section[1]))

    def _named(self, behind: Alternative) -> list[Alternative]:
        """By name: the name, what stands behind it, the arguments and what closes a call."""
        closing = self._spell(self._form.closing)
        return [
            (Literal(tool.name.encode()), *behind, arguments, *closing)
            for tool, arguments in zip(self._toolbox.only, self._arguments, strict=True)
        ]

    def _calls_in_channels(self, heads: Iterable[str]) -> Ref:
        head = self._rule("head", [self._spell(head) for head in heads])
        return self._rule("call", self._named((head,)))

    def _in_channels(self) -> list[Alternative]:
        spell = self._spell
        begin, end = map(spell, _ANALYSIS)
        thought = self._rule("thought", [(*begin, Repeat(Chars(ANY), 0, None), *end)])
        own = spell("<|channel|>commentary to=functions.")
        as_rendered = spell(" to=functions.")
        return [
            (Repeat(thought, 0, 1), *own, self._calls_in_channels(_HEADS[::2])),
            (Repeat(thought, 0, 1), *as_rendered, self._calls_in_channels(_HEADS[1::2])),
        ]

    def _of(self, tool: Tool) -> Grammar:
        """A tool's arguments."""
        schema = {**(tool.parameters or {}), "type": "object"}  # arguments are no other value
        form, lax = self._form.parameters, self._lax or not tool.strict
        if form is None:
            return from_schema(schema, whitespace=self._blanks, lax=lax, name=tool.name)
        return compile_parameters(
            schema,
            form,
            self._spell,
            lambda key: tool.kinds(key) == {"string"},
            tool.name,
            self._blanks,
            lax,
        )

    def _rule(self, name: str, alternatives: Iterable[Alternative]) -> Ref:
        self._grammar.rules.append(Rule(name, list(alternatives), made="json"))
        return Ref(len(self._grammar.rules) - 1)

    def _embedded(self, other: Grammar) -> Ref:
        """Another grammar's root, with its rules behind ours."""
        shift = len(self._grammar.rules)
        for rule in other.rules:
            alternatives = [tuple(_shifted(s, shift) for s in each) for each in rule.alternatives]
            self._grammar.rules.append(Rule(rule.name, alternatives, made="json"))
        self._grammar.notes += [f"{other.name}: {note}" for note in other.notes]
        return Ref(other.root + shift)

    def _finished(self, found: list[Alternative]) -> Grammar:
        self._grammar.rules[0].alternatives = found
        check(self._grammar, strict=False)
        return self._grammar


def _shifted(symbol: Symbol, shift: int) -> Symbol:
    if type(symbol) is Ref:
        return Ref(symbol.rule + shift)
    if type(symbol) is Repeat and type(symbol.item) is Ref:
        return symbol._replace(item=Ref(symbol.item.rule + shift))
    return symbol
