"""Constraints that begin within a text: triggers however they are spelled, and what follows them."""

from collections.abc import Sequence
from random import Random

import pytest
from feeding import allowed, fed
from parting import splits

from diskmoe.grammar_draft.constraint import Constraint, State
from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.gbnf import parse
from diskmoe.grammar_draft.lazy import OVER, Free, Lazy
from diskmoe.grammar_draft.triggers import Finder
from diskmoe.grammar_draft.vocabulary import Vocabulary

TOOL, END = 256, 257
SPECIAL = {TOOL: "<tool>", END: "<end>"}
# every byte, two tokens that print nothing, and words
TEXTS: list[bytes | None] = [bytes([b]) for b in range(256)] + [None, None]
TEXTS += [b"call:", b"call:{", b"call:x", b"xcall:{}", b"all:", b"ca", b"{}"]


def vocabulary_of(texts: Sequence[bytes | None] = TEXTS) -> Vocabulary:
    return Vocabulary(texts, SPECIAL, {END})


def lazy(grammar: str, *triggers: str, texts: Sequence[bytes | None] = TEXTS) -> Lazy:
    return Lazy(Constraint(parse(grammar), vocabulary_of(texts)), triggers)


def token(text: bytes) -> int:
    return TEXTS.index(text)


def test_a_finder_finds_what_a_search_in_the_whole_text_finds():
    words = ["aab", "ab", "baa", "bb"]
    finder, random = Finder.of(words), Random(1)
    for _ in range(200):
        text = bytes(random.choices(b"ab", k=12))
        spot, found = finder.start, []
        for at, byte in enumerate(text, 1):
            spot = finder.step(spot, byte)
            longest = max((len(w) for w in words if text[:at].endswith(w.encode())), default=0)
            found.append((spot.found, longest))
        assert all(said == true for said, true in found)


def test_a_pattern_is_found_with_its_longest_match():
    finder = Finder.of(["/x[0-9]*;/", "word"])
    spot, ends = finder.start, {}
    for at, byte in enumerate(b"x1x23; word x;", 1):
        spot = finder.step(spot, byte)
        if spot.found:
            ends[at] = spot.found
    assert ends == {6: 4, 11: 4, 14: 2}


def test_a_pattern_over_a_long_text_takes_work_for_each_byte_only():
    finder = Finder.of(["/a.*b.*c/"])
    spot = finder.start
    for byte in b"ab" * 20_000:
        spot = finder.step(spot, byte)
    assert not spot.found and len(spot.under_way) <= 4


@pytest.mark.parametrize("bad", ["", "/(/", "/a*/"])
def test_triggers_that_are_none_are_refused(bad: str):
    with pytest.raises(BadGrammar):
        lazy('root ::= "a"', bad)


def test_a_word_is_found_however_tokens_part_it():
    """Each way to part `.call:{}` gives the grammar the text from the word's first byte on."""
    parts = {part for split in splits(b".call:{}") for part in split}
    texts: list[bytes | None] = [*TEXTS, *sorted(parts - set(TEXTS))]
    rules = lazy('root ::= "call:{" "x"* "}"', "call:", texts=texts)
    ends = set()
    for split in splits(b".call:{}"):
        state = fed(rules, *(texts.index(part) for part in split))
        assert state is not None and rules.complete(state), split
        ends.add(state)
    assert len(ends) == 1


def test_a_token_that_never_comes_within_a_text_is_no_trigger():
    with pytest.raises(BadGrammar, match=r"tokens from 0 to \d+, no <\[9999\]>"):
        lazy('root ::= "a"', "<[9999]>")
    end = next(iter(vocabulary_of(TEXTS).ends))
    with pytest.raises(BadGrammar, match=r"<\[\d+\]> ends the text"):
        lazy('root ::= "a"', f"<[{end}]>")


def test_a_grammar_that_cannot_begin_with_the_trigger_begins_behind_it():
    rules = lazy('root ::= "{" "x"* "}"', "call:")
    for tokens in ([token(b"call:"), token(b"{}")], [token(b"xcall:{}")], [token(b"call:{"), 0x7D]):
        state = fed(rules, *tokens)
        assert state is not None and rules.complete(state)


def test_a_token_that_goes_on_behind_the_trigger_as_the_grammar_forbids_is_not_allowed():
    rules = lazy('root ::= "call:{" "}"', "call:")
    assert fed(rules, token(b"call:x")) is None and fed(rules, token(b"xcall:{}")) is not None
    everything = set(range(len(TEXTS)))
    assert allowed(rules, rules.start) == everything - {token(b"call:x")}
    behind = fed(rules, ord("c"))
    assert behind is not None and allowed(rules, behind) == everything - {token(b"call:x")}


def test_masks_say_what_accept_says_wherever_a_trigger_is_under_way():
    rules = lazy('root ::= "{" [a-z]* "}"', "call:", "/x[0-9]+c/", "<[256]>")
    random = Random(3)
    for _ in range(60):
        state: State | None = rules.start
        for _ in range(random.randrange(6)):
            state = rules.accept(state, random.choice([99, 97, 108, 58, 120, 49, 262, 263]))
            if state is None:
                break
        if state is not None:
            accepted = {t for t in range(len(TEXTS)) if rules.allows(state, t)}
            assert allowed(rules, state) == accepted


def test_a_pattern_gives_the_grammar_its_whole_match():
    rules = lazy('root ::= "x" [0-9]+ "c" "!"', "/x[0-9]+c/")
    state = fed(rules, *b"..x1x12c")
    assert state is not None and not rules.free(state)
    assert rules.wanted(state) == "byte '!'"


def test_a_token_may_be_the_trigger_by_its_id_or_as_it_is_written():
    for trigger in ("<[256]>", "<tool>"):
        named = lazy('root ::= <[256]> "!"', trigger)
        state = fed(named, ord("."), TOOL)
        assert state is not None and named.wanted(state) == "byte '!'"
        spelled = lazy('root ::= "<tool>" "!"', trigger)
        state = fed(spelled, TOOL)
        assert state is not None and spelled.wanted(state) == "byte '!'"
        behind = lazy('root ::= "?" "!"', trigger)
        state = fed(behind, TOOL)
        assert state is not None and behind.wanted(state) == "byte '?'"
    assert fed(lazy('root ::= "a"', "<tool>"), *b"<tool>a") is not None  # spelled out as well


def test_a_text_that_never_triggers_may_end_anywhere():
    rules = lazy('root ::= "a"', "call:")
    state = fed(rules, *b"cal", END)
    assert state is OVER and rules.complete(state) and not rules.mask(state).any()
    assert rules.may_end(rules.start) and not rules.complete(rules.start)


def test_behind_its_trigger_a_grammar_is_a_constraint_like_others():
    rules = lazy('root ::= "call:" ("a" | "b")', "call:")
    state = fed(rules, token(b"call:"))
    assert allowed(rules, state) == {97, 98} and not rules.may_end(state)
    assert rules.accept(state, END) is None and rules.accept(state, 99) is None
    behind = rules.accept(state, 97)
    assert rules.complete(behind) and allowed(rules, behind) == {END}


def test_free_rules_forbid_nothing():
    rules = Free(vocabulary_of())
    state = fed(rules, *b"anything", TOOL)
    assert allowed(rules, state) == set(range(len(TEXTS))) and not rules.complete(state)
