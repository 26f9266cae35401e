"""Expected bytes as drafts: spelling, the last token, and the cap. Vocabularies are toys."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.gbnf import parse
from diskmoe.grammar_draft.spans import Spans
from diskmoe.grammar_draft.walker import Walker

ROWS = r"""
root ::= ( "{\"id\":" [0-9]+ ",\"kind\":\"" ( "good" | "bad" ) "\",\"why\":" string "}\n" )+
string ::= "\"" [^"\\\n]* "\""
"""


class Toy:
    """Every byte is a token; longer ones are merged greedily, longest first, left to right."""

    def __init__(self, *words: str, blank_first: bool = False):
        self.token_bytes: Sequence[bytes | None] = [
            *(bytes([b]) for b in range(256)),
            *(word.encode() for word in words),
            None,
        ]
        self._longest = sorted(words, key=len, reverse=True)
        self._blank_first = blank_first
        self.encoded = 0

    @property
    def special(self) -> int:
        return len(self.token_bytes) - 1

    @property
    def special_text(self) -> dict[int, str]:
        return {self.special: "<think>"}

    def encode(self, text: str) -> list[int]:
        self.encoded += 1
        data = ((" " if self._blank_first else "") + text).encode()
        ids: list[int] = []
        at = 0
        while at < len(data):
            for word in self._longest:
                if data.startswith(word.encode(), at):
                    ids.append(self.token_bytes.index(word.encode()))
                    at += len(word.encode())
                    break
            else:
                ids.append(data[at])
                at += 1
        return ids

    def text(self, ids: Sequence[int]) -> str:
        return b"".join(self.token_bytes[i] or b"" for i in ids).decode()


def made(grammar: str, toy: Toy, cap: int = 24) -> Spans:
    return Spans(Walker(Automaton(parse(grammar))), toy, cap)


def test_a_span_is_the_text_in_the_tokenizers_own_tokens() -> None:
    toy = Toy('{"', "id", '":', '","')
    spans = made(ROWS, toy)
    spans.accept(toy.encode('{"'))
    assert spans.propose(24) == toy.encode('id":')


def test_nothing_is_proposed_before_the_text_begins_or_without_room() -> None:
    toy = Toy()
    spans = made(ROWS, toy)
    spans.accept(toy.encode("Well: "))
    assert spans.propose(24) == []
    spans.accept(toy.encode("{"))
    assert spans.propose(0) == []


def test_cap_and_room_cut_a_span_and_what_is_cut_is_not_held_back() -> None:
    toy = Toy()
    spans = made('root ::= "abcdefgh" [xy]', toy, cap=4)
    spans.accept(toy.encode("a"))
    assert toy.text(spans.propose(24)) == "bcde"
    assert toy.text(spans.propose(2)) == "bc"


def test_the_last_token_is_held_back_where_it_could_be_part_of_a_longer_one() -> None:
    toy = Toy("ab", "abc")
    spans = made('root ::= "(ab" ("c" | "d" | "e")', toy)
    spans.accept(toy.encode("("))
    assert spans.propose(24) == []
    assert made('root ::= "(ab" ("d" | "e")', toy)._bytes is toy.token_bytes
    other = made('root ::= "(ab" ("d" | "e")', toy)  # no token goes on as this grammar does
    other.accept(toy.encode("("))
    assert toy.text(other.propose(24)) == "ab"


def test_the_last_token_is_kept_where_the_document_ends() -> None:
    toy = Toy("ab", "abc")
    spans = made('root ::= "(ab"', toy)
    spans.accept(toy.encode("("))
    assert toy.text(spans.propose(24)) == "ab"


def test_a_token_held_back_in_vain_is_proposed_once_that_was_seen() -> None:
    toy = Toy("ab", "abc")
    spans = made('root ::= ("(ab" ("c" | "d") "\\n")+', toy)
    proposed = []
    for letter in "dddd":
        spans.accept(toy.encode("("))
        span = spans.propose(24)
        proposed.append(toy.text(span))
        for token in (*toy.encode("ab"), *toy.encode(letter + "\n")):
            spans.accept([token])
    assert proposed[0] == "" and proposed[-1].startswith("ab")


def test_a_span_is_spelled_behind_the_text_it_follows() -> None:
    toy = Toy('":', "id", ':"')
    spans = made(r'root ::= "{\"id\":\"" [a-z]', toy)
    spans.accept(toy.encode('{"id'))
    assert spans.propose(24) == toy.encode('":"')
    spans.accept(toy.encode('"'))  # the model wrote the quote alone, so the colon stands elsewhere
    assert spans.propose(24) == toy.encode(':"')


def test_a_tokenizer_that_puts_a_blank_first_is_understood() -> None:
    toy = Toy("id", blank_first=True)
    spans = made(ROWS, toy)
    spans.accept([ord("{"), ord('"')])
    assert toy.text(spans.propose(24)) == 'id":'


def test_characters_are_never_cut_and_may_have_begun_already() -> None:
    toy = Toy("\u20ac")
    spans = made('root ::= "a\u20acb" [xy]', toy)
    spans.accept([ord("a"), 0xE2])
    assert spans.propose(24) == []  # a token would have to begin inside the character
    spans.accept([0x82, 0xAC])
    assert toy.text(spans.propose(24)) == "b"


def test_a_tag_that_prints_nothing_opens_a_thinking_block() -> None:
    toy = Toy()
    walker = Walker(Automaton(parse(ROWS)), (b"<think>", b"</think>"))
    spans = Spans(walker, toy)
    spans.accept([toy.special, *toy.encode('{"id":')])
    assert spans.propose(24) == []
    spans.accept(toy.encode("</think>{"))
    assert toy.text(spans.propose(24)) == '"id":'


def test_special_tokens_part_texts() -> None:
    toy = Toy("}{")
    spans = made(r'root ::= "{\"id\":" [0-9]', toy)
    spans.accept([ord("}"), toy.special, ord("{")])
    assert toy.text(spans.propose(24)) == '"id":'
    spans.accept([10**9])  # no token of this vocabulary prints anything


def test_a_token_that_the_grammar_names_is_proposed_by_its_id() -> None:
    toy = Toy()
    spans = made('root ::= "a" <[256]> "b"', toy)
    spans.accept([ord("a")])
    assert spans.propose(24) == [256]


def test_habits_are_learned_from_the_prompt_and_the_text_starts_anew() -> None:
    toy = Toy()
    spans = made(ROWS, toy)
    spans.restart(toy.encode('Rate:\n{"id": 1, "kind": "good", "why": "x"}\n'))
    assert spans.propose(24) == []
    spans.accept(toy.encode("{"))
    assert toy.text(spans.propose(24)) == '"id": '


def test_a_span_that_was_spelled_once_is_remembered() -> None:
    toy = Toy()
    spans = made(ROWS, toy)
    for _ in range(3):
        spans.accept(toy.encode('{"id":1,"kind":"good","why":"x"}\n'))
    spans.accept(toy.encode('{"id":1'))
    first = spans.propose(24)
    before = toy.encoded
    assert spans.propose(24) == first and toy.encoded == before


@pytest.mark.parametrize("words", [(), ('{"', '":"', '","', "good", '"}\n', "ood"), ('d"', ':"b')])
def test_drafting_along_a_text_never_changes_what_is_emitted(words: tuple[str, ...]) -> None:
    """The text decides; drafts that agree with it are taken. Most do, and most are whole tokens."""
    toy = Toy(*words)
    choose = random.Random(3)
    rows = (
        f'{{"id":{i},"kind":"{choose.choice(("good", "bad"))}","why":"w{i}"}}\n' for i in range(30)
    )
    ids = toy.encode("".join(rows))
    spans = made(ROWS, toy)
    at, forwards, accepted, judged = 0, 0, 0, 0
    while at < len(ids):
        draft = spans.propose(len(ids) - at)
        taken = 0
        while taken < len(draft) and draft[taken] == ids[at + taken]:
            taken += 1
        judged += min(taken + 1, len(draft))
        accepted += taken
        emitted = ids[at : at + taken + 1]
        spans.accept(emitted)
        at += len(emitted)
        forwards += 1
    assert at == len(ids)
    assert accepted >= 0.9 * judged
    assert len(ids) >= 2 * forwards


def test_behind_tokens_that_may_come_the_next_span_is_spelled_and_nothing_is_learned() -> None:
    toy = Toy('{"', "id", '":', '","')
    spans = made(ROWS, toy)
    spans.accept(toy.encode('{"id":1'))
    before = spans.propose(24)
    assert toy.text(spans.propose(24, toy.encode("7,"))) == '"kind":"'
    assert spans.propose(24, toy.encode("7x")) == []  # bytes that do not fit
    assert spans.propose(24, [toy.special]) == []
    assert spans.propose(24) == before
    spans.accept(toy.encode(","))
    assert toy.text(spans.propose(24)) == '"kind":"'
