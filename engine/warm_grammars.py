"""Compiles what grammars call that constrain a text: one of each kind of automaton is used once."""

from diskmoe.grammar_draft.constraint import Constraint
from diskmoe.grammar_draft.gbnf import parse
from diskmoe.grammar_draft.vocabulary import Vocabulary

_TEXTS = (b"a", b"ab", b"(", b")", b'"', b"x", "é".encode(), b"((", None)
_GRAMMARS = (
    'root ::= "a"* "b"',  # a finite automaton
    'root ::= "(" root ")" | "x"',  # with a stack
    'root ::= "\\"" [^"]{2,40} "\\""',  # counted characters
    'root ::= root root | "a" | "ab"',  # ambiguous: sets of stacks
)


def warm_grammars() -> None:
    """Masks, choices that are checked and texts that are followed, with each."""
    for text in _GRAMMARS:
        vocabulary = Vocabulary(_TEXTS, {len(_TEXTS) - 1: "<end>"}, {len(_TEXTS) - 1})
        constraint = Constraint(parse(text), vocabulary)
        state = constraint.start
        for _ in range(3):
            mask = int(constraint.mask(state)[0])
            allowed = [token for token in range(len(_TEXTS) - 1) if mask >> token & 1]
            for token in range(len(_TEXTS)):
                constraint.allows(state, token)
            after = constraint.accept(state, allowed[0]) if allowed else None
            if after is None:
                break
            state = after
        constraint.walk(constraint.start, b"(x)")
        constraint.only(state)
