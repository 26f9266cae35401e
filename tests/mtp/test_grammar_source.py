"""A grammar as a draft source: where a text begins, what it learns from its prompt, when it ends."""

from collections.abc import Sequence
from itertools import islice

from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.gbnf import parse
from diskmoe.mtp.grammar_source import GrammarSource

ROWS = r"""
root ::= ( "{\"id\":" [0-9]+ ",\"ok\":" ( "true" | "false" ) "}\n" )+
"""


class Bytes:
    """Every byte is a token; 256 prints nothing and is written <think>."""

    token_bytes: Sequence[bytes | None] = (*(bytes([b]) for b in range(256)), None)

    @property
    def special_text(self) -> dict[int, str]:
        return {256: "<think>"}

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def source(prompt: bytes, grammar: str = ROWS, **more) -> GrammarSource:
    return GrammarSource(Automaton(parse(grammar)), Bytes(), list(prompt), **more)


def said(drafts: GrammarSource, room: int = 24) -> bytes:
    return bytes(draft.token for draft in islice(drafts.drafts([]), room))


def test_an_answer_begins_anew_and_is_drafted_from_its_first_fitting_byte() -> None:
    drafts = source(b'{"id":1,"ok":tr')
    assert said(drafts) == b""
    drafts.observe(list(b"{"))
    assert said(drafts) == b'"id":'


def test_a_text_that_goes_on_is_drafted_from_where_its_prompt_ends() -> None:
    assert said(source(b'{"id":1,"ok":t', continues=True)) == b"rue}\n"


def test_habits_come_from_the_prompt_either_way() -> None:
    for continues in (False, True):
        drafts = source(b'{"id":1,"ok":true}\n', continues=continues)
        drafts.observe(list(b'{"id":2'))
        drafts.observe(list(b","))
        assert said(drafts).startswith(b'"ok":true}\n')


def test_a_thinking_block_is_passed_over() -> None:
    drafts = source(b"", tags=("<think>", "</think>"), thinking=True)
    drafts.observe(list(b'{"id":'))
    assert said(drafts) == b""
    drafts.observe(list(b"</think>{"))
    assert said(drafts) == b'"id":'
    drafts = source(b"", tags=("<think>", "</think>"))
    drafts.observe([256, *b"{"])
    assert said(drafts) == b""


def test_cap_and_room_bound_a_draft() -> None:
    drafts = source(b"", 'root ::= "' + "x" * 90 + '"', cap=5)
    drafts.observe(list(b"x"))
    assert said(drafts) == b"x" * 5 and said(drafts, 2) == b"xx"


def test_a_grammar_that_is_too_ambiguous_gives_up_with_a_reason() -> None:
    drafts = source(b"", "root ::= (((x{0,20}){0,20}){0,20})\nx ::= [a-z]")
    for _ in range(2000):
        drafts.observe(list(b"abcdefgh "))
        if drafts.gave_up:
            break
    assert "too ambiguous" in drafts.gave_up and said(drafts) == b""
