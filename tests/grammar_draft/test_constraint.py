"""Which tokens a grammar allows, and where they lead."""

import weakref

import pytest
from feeding import allowed, fed

from diskmoe.grammar_draft import masks
from diskmoe.grammar_draft.constraint import Constraint, State
from diskmoe.grammar_draft.gbnf import parse
from diskmoe.grammar_draft.vocabulary import Vocabulary

TEXTS = [
    b"",
    None,
    None,
    None,
    *(bytes([b]) for b in range(256)),
    b"ab",
    b"<x>",
    b'"}',
    "é!".encode(),
]
X, END, OTHER_END = 1, 2, 3  # special tokens: <x>, and two that end a text
SPECIAL = {X: "<x>", END: "<end>", OTHER_END: "</s>"}


def constraint_of(grammar: str) -> Constraint:
    return Constraint(parse(grammar), Vocabulary(TEXTS, SPECIAL, {END, OTHER_END}))


def after(constraint: Constraint, *tokens: int) -> State:
    state = fed(constraint, *tokens)
    assert state is not None
    return state


def after_one(constraint: Constraint, state: State, token: int) -> State:
    behind = constraint.accept(state, token)
    assert behind is not None
    return behind


def byte(character: str) -> int:
    return TEXTS.index(character.encode())


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "a" "b"? "c"',
        'root ::= "<x>" [^a]* | "ab"*',
        "root ::= .*",
        'root ::= ("é" "!")+ "x"',
        "root ::= (!<[1]>)* <[1]>",
        'root ::= <[260]> "}" | <[1]> "a" | "a"',
    ],
)
def test_a_mask_says_of_every_token_what_accept_says(grammar: str):
    constraint = constraint_of(grammar)
    seen, queue = {constraint.start}, [constraint.start]
    while queue and len(seen) < 40:
        state = queue.pop()
        taken = allowed(constraint, state)
        assert taken == {t for t in range(len(TEXTS)) if constraint.allows(state, t)}
        for token in sorted(taken)[:20]:
            behind = constraint.accept(state, token)
            if behind not in seen:
                seen.add(behind)
                queue.append(behind)


def test_special_tokens_are_never_matched_by_how_they_are_written():
    constraint = constraint_of('root ::= "<x>"')
    assert allowed(constraint, constraint.start) == {byte("<"), TEXTS.index(b"<x>")}


def test_all_ids_that_end_a_text_are_allowed_exactly_where_the_parse_may_end():
    constraint = constraint_of('root ::= "a" "b"?')
    assert not allowed(constraint, constraint.start) & {END, OTHER_END}
    assert allowed(constraint, after(constraint, byte("a"))) == {byte("b"), END, OTHER_END}
    assert allowed(constraint, after(constraint, TEXTS.index(b"ab"))) == {END, OTHER_END}


def test_nothing_follows_a_token_that_ended_the_text():
    constraint = constraint_of('root ::= "a"*')
    ended = after(constraint, END)
    assert not constraint.mask(ended).any() and constraint.may_end(ended)
    assert constraint.accept(ended, END) is None and constraint.complete(ended)


def test_a_text_may_not_end_in_the_middle_of_a_character():
    constraint = constraint_of('root ::= "é"*')
    state = after(constraint, TEXTS.index(b"\xc3"))
    assert allowed(constraint, state) == {TEXTS.index(b"\xa9")}
    assert not constraint.may_end(state)


def test_tokens_that_a_grammar_names_work_and_empty_ones_never_do():
    constraint = constraint_of("root ::= (!<[1]>)* <[1]>")
    # of the tokens that end a text neither is "any other token"
    assert allowed(constraint, constraint.start) == set(range(len(TEXTS))) - {0, END, OTHER_END}
    assert allowed(constraint, after(constraint, byte("a"), X)) == {END, OTHER_END}


def test_nothing_may_follow_a_document_that_is_complete():
    constraint = constraint_of('root ::= "a" "b"?')
    assert not constraint.complete(after(constraint, byte("a")))
    assert constraint.complete(after(constraint, byte("a"), byte("b")))


def test_old_states_stay_good():
    constraint = constraint_of('root ::= ("a" | "b")* "c"')
    state = after(constraint, byte("a"))
    constraint.accept(constraint.accept(state, byte("b")), byte("c"))
    assert constraint.accept(state, byte("c")) is after(constraint, byte("b"), byte("c"))


def test_masks_of_a_long_text_are_forgotten_with_its_states(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(masks, "MAX_BYTES", 0)  # the least number of them
    constraint = constraint_of(f'root ::= "{"ab" * 150}"')
    state, kept = constraint.start, []
    for number in range(300):
        kept.append(weakref.ref(constraint.mask(state)))
        state = after_one(constraint, state, byte("ab"[number % 2]))
    assert sum(mask() is not None for mask in kept) < 70
    assert constraint.complete(state)


def test_what_is_wanted_is_said_in_words():
    constraint = constraint_of('root ::= [0-9"] | <[1]>')
    assert constraint.wanted(constraint.start) == ("one of the bytes '\"', '0' to '9' or token 1")
    assert constraint.wanted(after(constraint, X)) == "the end"
