"""Thinking blocks: what constrains a text leaves them alone, and a budget ends them."""

import pytest
from feeding import allowed, fed
from parting import splits

from diskmoe.grammar_draft.constraint import Constraint, State
from diskmoe.grammar_draft.course import Course
from diskmoe.grammar_draft.gbnf import parse
from diskmoe.grammar_draft.lazy import OVER, Free, Lazy
from diskmoe.grammar_draft.thinking import UNLIMITED, Tags, Thinking
from diskmoe.grammar_draft.vocabulary import Vocabulary

OPEN, CLOSE, END = 256, 257, 258
TAGS = Tags(b"<t>", b"</t>", OPEN, CLOSE)
PARTS = sorted(
    {
        p
        for tag in (b".<t>", b"<t>x", b"?</t>", b"</t>{}")
        for s in splits(tag)
        for p in s
        if len(p) > 1
    }
)


def vocabulary_of(special: bool) -> Vocabulary:
    """Every byte, the tags as tokens that print nothing or as words, and parts of tags."""
    texts: list[bytes | None] = [bytes([b]) for b in range(256)]
    known = {END: "<end>"}
    if special:
        texts += [None, None, None]
        known |= {OPEN: "<t>", CLOSE: "</t>"}
    else:
        texts += [b"<t>", b"</t>", None]
    return Vocabulary([*texts, *PARTS], known, {END})


def thinking(
    grammar: str = "",
    *triggers: str,
    budget: int = UNLIMITED,
    message: bytes = b"",
    inside: bool = False,
    special: bool = True,
) -> Thinking:
    vocabulary = vocabulary_of(special)
    inner: Free | Constraint = Free(vocabulary)
    if grammar:
        inner = Constraint(parse(grammar), vocabulary)
        inner = Lazy(inner, triggers) if triggers else inner
    return Thinking(inner, TAGS, budget, list(message), inside)


def forced(rules: Thinking, state: State | None) -> list[int]:
    """What must come until there is a choice."""
    found = []
    while state is not None and (token := rules.only(state)) is not None:
        assert allowed(rules, state) == {token}
        found.append(token)
        state = rules.accept(state, token)
    return found


def test_a_block_that_is_too_long_is_ended_with_the_message():
    rules = thinking(budget=3, message=b"ok")
    state = fed(rules, OPEN, *b"ab")
    assert forced(rules, state) == []
    assert forced(rules, fed(rules, OPEN, *b"abc")) == [*b"ok", CLOSE]
    done = fed(rules, OPEN, *b"abc", *b"ok", CLOSE)
    assert done == rules.start  # as if nothing had been


def test_a_block_that_closes_in_time_is_left_alone_and_the_next_has_its_own_budget():
    rules = thinking(budget=3)
    again = fed(rules, OPEN, *b"ab", CLOSE, *b"text that is longer", OPEN, *b"ab")
    assert again is not None and forced(rules, again) == []
    assert forced(rules, rules.accept(again, ord("c"))) == [CLOSE]


def test_no_budget_ends_a_block_as_it_opens_and_an_unlimited_one_never():
    assert forced(thinking(budget=0), fed(thinking(budget=0), OPEN)) == [CLOSE]
    rules = thinking(budget=0, inside=True)
    assert forced(rules, rules.start) == [CLOSE]
    rules = thinking(inside=True)
    assert forced(rules, fed(rules, *b"x" * 1000)) == []


def test_the_end_waits_for_a_whole_character():
    rules = thinking(budget=2, inside=True)
    state = fed(rules, ord("a"), 0xF0)  # the budget is spent within a character
    for byte in (0x9F, 0x98):
        assert forced(rules, state) == [] and state is not None
        state = rules.accept(state, byte)
    assert forced(rules, state) == [] and state is not None
    assert forced(rules, rules.accept(state, 0x80)) == [CLOSE]
    broken = fed(rules, ord("a"), 0xF0, ord("b"))  # it is none after all
    assert forced(rules, broken) == [CLOSE]


@pytest.mark.parametrize("special", [True, False])
def test_tags_are_seen_however_tokens_part_them(special: bool):
    rules = thinking(budget=1, special=special)
    texts = rules.vocabulary.texts
    seen = 0
    for opening in splits(b".<t>"):
        state = fed(rules, *(texts.index(part) for part in opening))
        assert forced(rules, rules.accept(state, ord("x"))) == [CLOSE], opening
        # a whole token of the budget goes before the rest of one that the tag ends in
        assert forced(rules, state) == []
    unlimited = thinking(special=special)
    inside = fed(unlimited, OPEN)
    for closing in splits(b"?</t>"):
        state = inside
        for part in closing:
            state = unlimited.accept(state, texts.index(part))
        assert state == unlimited.start, closing
        seen += 1
    assert seen == 16


def test_what_stands_in_one_token_with_a_tag_is_inside_or_outside_as_its_bytes_say():
    rules = thinking(budget=1)
    opened = fed(rules, rules.vocabulary.texts.index(b"<t>x"))
    assert forced(rules, opened) == []  # the rest of the token is not counted
    assert forced(rules, rules.accept(opened, ord("y"))) == [CLOSE]


def test_a_lazy_grammar_sees_nothing_of_a_block():
    rules = thinking('root ::= "{" "x"* "}"', "{")
    inside = fed(rules, ord("?"), OPEN, *b"{ not a call }")
    assert inside is not None and ord("z") in allowed(rules, inside)
    outside = fed(rules, OPEN, *b"{", CLOSE, *b"free {x")
    assert outside is not None and allowed(rules, outside) == {ord("x"), ord("}")}


@pytest.mark.parametrize("special", [True, False])
def test_the_end_of_a_block_may_be_the_trigger(special: bool):
    rules = thinking('root ::= "{" "x"* "}"', "</t>", special=special)
    state = fed(rules, OPEN, *b"so", CLOSE)
    assert state is not None and allowed(rules, state) == {ord("{"), *_words(rules, b"{")}
    spelled = fed(rules, OPEN, *b"so", *b"</t>")
    assert spelled == state
    if not special:
        return
    by_id = thinking('root ::= "{" "x"* "}"', "<[257]>")
    state = fed(by_id, OPEN, *b"so", CLOSE)
    assert state is not None and ord("z") not in allowed(by_id, state)


def _words(rules: Thinking, start: bytes) -> set[int]:
    return {
        t
        for t, data in enumerate(rules.vocabulary.texts)
        if data == start or data in (b"{}", b"{x")
    }


def test_a_forced_end_may_be_the_trigger_too():
    rules = thinking('root ::= "{" "x"* "}"', "</t>", budget=2, message=b".")
    state = fed(rules, OPEN, *b"ab", ord("."), CLOSE)
    assert state is not None and ord("z") not in allowed(rules, state)


def test_tags_inside_a_constrained_text_are_text():
    rules = thinking('root ::= "{" [^}]* "}"', "{")
    state = fed(rules, *b"{<t>", *b"}")
    assert state is not None and rules.complete(state)


def test_a_trigger_and_a_tag_in_one_token_are_taken_in_their_order():
    texts: list[bytes | None] = [*vocabulary_of(True).texts, b"{<t>", b"<t>{"]
    vocabulary = Vocabulary(texts, vocabulary_of(True).special, {END})
    rules = Thinking(Lazy(Constraint(parse('root ::= "{" [^}]* "}"'), vocabulary), ["{"]), TAGS)
    first, second = (rules.accept(rules.start, texts.index(t)) for t in (b"{<t>", b"<t>{"))
    assert ord("}") in allowed(rules, first) and CLOSE not in allowed(rules, first)
    assert CLOSE in allowed(rules, second)


def test_a_grammar_from_the_start_begins_behind_the_block_that_was_opened():
    rules = thinking('root ::= "yes" | "no"', inside=True)
    inside = fed(rules, *b"hm, {")
    assert inside is not None and allowed(rules, inside) >= {ord("z"), CLOSE}
    assert END not in allowed(rules, inside) and not rules.may_end(inside)
    outside = fed(rules, *b"hm", CLOSE)
    assert outside is not None and allowed(rules, outside) == {ord("y"), ord("n")}
    assert fed(rules, *b"hm", CLOSE, OPEN) is None


def test_under_a_grammar_from_the_start_a_block_may_be_opened_by_the_first_token_only():
    rules = thinking('root ::= "yes" | "no"', budget=2)
    assert allowed(rules, rules.start) == {ord("y"), ord("n"), OPEN}
    done = fed(rules, OPEN, *b"ab", CLOSE, *b"no")
    assert done is not None and rules.complete(done)
    assert allowed(rules, fed(rules, ord("y"))) == {ord("e")}


def test_masks_say_what_accept_says():
    texts = vocabulary_of(True).texts
    walks = [[], [OPEN], [OPEN, 60], [OPEN, 60, 47], [texts.index(b"?<"), OPEN], [60], [60, 116]]
    for rules in (
        thinking(budget=5),
        thinking('root ::= "{" "x"* "}"', "{", budget=5),
        thinking('root ::= "{" "x"* "}"', "</t>", budget=5),
        thinking('root ::= "{" "x"* "}"', budget=5),
        thinking('root ::= "{" "x"* "}"', inside=True),
        thinking('root ::= "{" "x"* "}"', budget=0, inside=True),
    ):
        for walk in walks:
            state = fed(rules, *walk)
            if state is not None:
                accepted = {t for t in range(len(texts)) if rules.allows(state, t)}
                assert allowed(rules, state) == accepted, walk


def test_a_text_may_end_inside_a_block_where_nothing_else_is_asked_of_it():
    rules = thinking(budget=5)
    assert fed(rules, OPEN, END) is OVER and fed(rules, END) is OVER
    assert rules.may_end(fed(rules, OPEN)) and rules.complete(OVER)


def test_a_course_looks_ahead_over_the_end_of_a_block():
    rules = thinking('root ::= "yes"', budget=1, inside=True)
    course = Course(rules)
    course.take(ord("a"))
    assert course.after([CLOSE, *b"yes"]) is not None
    assert course.after([CLOSE, *b"no"]) is None and course.after([ord("b")]) is None
