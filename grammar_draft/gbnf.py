"""GBNF, the grammar language of llama.cpp, read into rules.

Two modes. Strict gives llama.cpp's verdicts: its newline rules, names, limits and its refusal of
left recursion. The default mode reads all that and, for grammars written for other engines, ``_``
in names, ``\\^``, sequences that run over several lines and repetitions of nothing; on the other
hand it refuses what llama.cpp lets pass to nobody's good: a rule defined twice.

No step recurses: open groups are a list. Written after llama.cpp's ``grammars/README.md`` and the
behaviour of its parser.

    >>> grammar = parse('root ::= "yes" | "no"')
    >>> [rule.name for rule in grammar.rules]
    ['root']
"""

from __future__ import annotations

import re

from diskmoe.grammar_draft import slips
from diskmoe.grammar_draft.checks import check
from diskmoe.grammar_draft.errors import BadGrammar, place
from diskmoe.grammar_draft.lexer import STRICT_TIMES, Lexer, TokenId
from diskmoe.grammar_draft.rules import (
    ANY,
    Alternative,
    Chars,
    Grammar,
    Item,
    Literal,
    Ref,
    Repeat,
    Rule,
    Symbol,
)

MAX_TEXT = 1 << 20  # characters
MAX_RULES = 20_000  # groups included
MAX_ITEMS = 100_000
MAX_DEPTH = 10_000  # open groups

# a name or a plain literal: nine of ten symbols, and the blanks behind them
_COMMON = re.compile(r'(?:([A-Za-z0-9-]+)(?![A-Za-z0-9_-])|"([^"\\\r\n]+)")[ \t]*')
_HALF = re.compile("[\ud800-\udfff]")  # JSON and Python have such characters
_NOTHING, _ITEM, _EMPTY = range(3)  # what stands before a repetition


def parse(
    text: str | bytes,
    name: str = "grammar",
    root: str = "root",
    strict: bool = False,
    token_id: TokenId | None = None,
) -> Grammar:
    """Reads a grammar.

    Args:
        text: the grammar; bytes are read as UTF-8.
        name: of the file, for messages.
        root: the rule to start from.
        strict: give llama.cpp's verdicts.
        token_id: the id of the one token that a text like ``<think>`` is, None when it is none;
            without it ``<[1234]>`` is the only way to write a token.

    Raises:
        BadGrammar: with line, column, and what was expected there.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            shown = text.decode("utf-8", "replace")
            at = len(text[: error.start].decode("utf-8"))
            raise BadGrammar("the grammar is no UTF-8 text", name, shown, at) from None
    if len(text) > MAX_TEXT:
        raise BadGrammar(
            f"the grammar has {len(text)} characters; at most {MAX_TEXT} are read", name
        )
    half = _HALF.search(text)
    if half is not None:
        said = f"half of a surrogate pair, U+{ord(half.group()):X}: no UTF-8 text holds one"
        raise BadGrammar(said, name, text, half.start())
    if strict:
        text = text.partition("\0")[0]  # where llama.cpp's string ends
    grammar = _Parser(Lexer(text, name, strict, token_id)).parse(root)
    check(grammar, strict)
    return grammar


class _Parser:
    """One pass over the text."""

    def __init__(self, lexer: Lexer):
        self.lexer = lexer
        self.text = lexer.text
        self.strict = lexer.strict
        self.rules: list[Rule] = []
        self.numbers: dict[str, int] = {}  # of rules by name, mentioned or defined
        self.defined: dict[int, int] = {}  # rule -> where
        self.items = 0
        self.symbols = 0  # as llama.cpp counts them: names, groups, rewritten repetitions

    def parse(self, root: str) -> Grammar:
        lexer = self.lexer
        at = lexer.skip(1 if self.text.startswith("\ufeff") and not self.strict else 0, True)
        while at < len(self.text):
            at = self.rule(at)
        if not self.defined:
            raise BadGrammar("the grammar has no rules", lexer.name)
        for number, rule in enumerate(self.rules):
            if number not in self.defined and not rule.made:
                near = slips.nearest(rule.name, [self.rules[n].name for n in self.defined])
                raise lexer.error(rule.position, f"rule '{rule.name}' is not defined{near}")
        if root not in self.numbers:
            near = slips.nearest(root, self.numbers)
            first = next(iter(self.numbers))
            raise BadGrammar(
                f"there is no rule '{root}' to start from{near}; the first rule is '{first}'",
                lexer.name,
            )
        return Grammar(self.rules, self.numbers[root], lexer.name, self.text)

    def rule(self, at: int) -> int:
        """name ::= alternatives, up to the next rule."""
        lexer = self.lexer
        name = lexer.word(at)
        if not name:
            lexer.fail(at, "the name of a rule")
        number = self.number(name, at)
        after = lexer.skip(at + len(name), False)
        if not self.text.startswith("::=", after):
            lexer.fail(after, f"::= behind the name '{name}'")
        if number in self.defined and not self.strict:
            line, column = place(self.text, self.defined[number])
            raise lexer.error(at, f"rule '{name}' is defined twice; first at {line}:{column}")
        self.defined[number] = self.rules[number].position = at
        after, self.rules[number].alternatives = self.body(lexer.skip(after + 3, True), name)
        if after < len(self.text) and self.strict:
            if self.text[after] not in "\r\n":
                lexer.fail(after, "a symbol, | or the end of the line")
            after = lexer.skip(after, True)
        return after

    def body(self, at: int, name_of: str) -> tuple[int, list[Alternative]]:
        """Everything behind ::=, whatever its depth: the index behind it, and the alternatives."""
        lexer, text, size = self.lexer, self.text, len(self.text)
        groups: list[tuple[int, list[Alternative], list[Symbol], int]] = []
        done: list[Alternative] = []
        sequence: list[Symbol] = []
        before = _NOTHING
        weight = 1  # llama.cpp's count of rules inside the last item
        while at < size:
            common = _COMMON.match(text, at)
            if common is not None:
                name, written = common.groups()
                if name is not None:
                    sequence.append(Ref(self.number(name, at)))
                else:
                    sequence.append(Literal(written.encode()))
                before, weight = _ITEM, 1
                self.count(at)
                at = common.end()
                continue
            character = text[at]
            if character in " \t#":
                at = lexer.skip(at, bool(groups))
            elif character in "\r\n":
                after = lexer.skip(at, True)
                if not groups and (self.strict or lexer.is_head(after)):
                    break
                at = after
            elif character in "*+?{":
                if before == _NOTHING or (before == _EMPTY and self.strict):
                    lexer.fail(at, f"something to repeat before {character}")
                opened = at
                at, low, high = lexer.times(at, bool(groups))
                if before == _ITEM:
                    weight = self.weigh(opened, weight, low, high)
                    before = self.repeat(sequence, low, high, name_of, opened)
            elif character == "|":
                done.append(tuple(sequence))
                sequence, before = [], _NOTHING
                at = lexer.skip(at + 1, True)
            elif character == "(":
                if len(groups) >= MAX_DEPTH:
                    raise lexer.error(at, f"more than {MAX_DEPTH} groups are open")
                groups.append((at, done, sequence, self.symbols))
                done, sequence, before = [], [], _NOTHING
                self.symbols += 1
                at = lexer.skip(at + 1, True)
            elif character == ")" and groups:
                done.append(tuple(sequence))
                opened, outer, sequence, symbols = groups.pop()
                sequence.append(self.group(done, name_of, opened))
                done, before, weight = outer, _ITEM, max(1, self.symbols - symbols)
                at += 1
            else:
                after, item = self.item(at, character)
                if after == at:
                    break
                if item is not None:
                    sequence.append(item)
                before, weight = (_EMPTY if item is None else _ITEM), 1
                at = after
        if groups:
            line, column = place(text, groups[-1][0])
            lexer.fail(at, f"a symbol, | or the ) that closes the group of {line}:{column}")
        if not self.strict:
            at = self.next_rule(at)
        done.append(tuple(sequence))
        return at, done

    def next_rule(self, at: int) -> int:
        """The index of the next rule, from where a rule's last symbol ended."""
        if self.text.startswith("::=", at):
            self.lexer.fail(at, "a symbol, | or a new line before the name of the next rule")
        after = self.lexer.skip(at, True)
        if after == at and at < len(self.text):
            self.lexer.fail(at, "a symbol, | or a new rule")
        return after

    def item(self, at: int, character: str) -> tuple[int, Item | None]:
        """One literal, class, token, name or dot; the same index back when none starts here."""
        lexer = self.lexer
        self.count(at)
        if character == '"':
            return lexer.literal(at)
        if character == "[":
            return lexer.char_class(at)
        if character in "<!":
            return lexer.token(at)
        if character == ".":
            return at + 1, Chars(ANY)
        name = lexer.word(at)
        if not name:
            return at, None
        return at + len(name), Ref(self.number(name, at))

    def count(self, at: int) -> None:
        self.items += 1
        if self.items > MAX_ITEMS:
            raise self.lexer.error(at, f"the grammar has more than {MAX_ITEMS} symbols")

    def number(self, name: str, at: int) -> int:
        """The number of a rule by its name, new when the name is: until it is defined, its position
        is where it is first mentioned."""
        number = self.numbers.get(name)
        if number is None:
            number = self.numbers[name] = self.add(Rule(name, position=at))
            self.symbols += 1
        return number

    def group(self, alternatives: list[Alternative], name: str, opened: int) -> Item:
        """A group as one item; by default ( one item ) is that item."""
        if len(alternatives) == 1 and len(alternatives[0]) == 1 and not self.strict:
            only = alternatives[0][0]
            if not isinstance(only, Repeat):
                return only
        return self.made("group", alternatives, name, opened)

    def repeat(self, sequence: list[Symbol], low: int, high: int | None, name: str, at: int) -> int:
        """Repeats the last symbol of a sequence; what then stands before the next repetition."""
        if high == 0:
            sequence.pop()
            return _EMPTY
        if (low, high) != (1, 1):
            item = sequence[-1]
            if isinstance(item, Repeat):
                item = self.made("stack", [(item,)], name, at)
            sequence[-1] = Repeat(item, low, high)
        return _ITEM

    def weigh(self, at: int, weight: int, low: int, high: int | None) -> int:
        """llama.cpp's limit: rules inside an item times its repetitions."""
        times = high or low or 1
        self.symbols += 1 if high is None else high - low
        if self.strict and weight * times > STRICT_TIMES:
            raise self.lexer.error(
                at, f"{weight} rules repeated {times} times; llama.cpp reads {STRICT_TIMES} in all"
            )
        return weight * times

    def made(self, kind: str, alternatives: list[Alternative], name: str, position: int) -> Ref:
        """A rule that nobody named; llama.cpp names them alike."""
        return Ref(self.add(Rule(f"{name}_{len(self.rules)}", alternatives, position, kind)))

    def add(self, rule: Rule) -> int:
        if len(self.rules) >= MAX_RULES:
            raise self.lexer.error(rule.position, f"more than {MAX_RULES} rules and groups")
        self.rules.append(rule)
        return len(self.rules) - 1
