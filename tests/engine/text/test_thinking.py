"""An answer's reasoning is told from what it says, by the tokens of the tags."""

from diskmoe.engine.text.thinking import Thinking

TAGS, IDS = ("<think>", "</think>"), (90, 91)


def split(pieces: list[tuple[str, list[int]]], inside: bool = False) -> Thinking:
    thinking, ids = Thinking(TAGS, IDS, inside), []
    for piece, fresh in pieces:
        ids += fresh
        list(thinking.parts(piece, ids))
    return thinking


def test_printed_tags_are_in_neither_part() -> None:
    found = split([("<think>", [90]), ("hm", [1]), ("\n</think>", [91]), ("\n\nYes", [2])])
    assert (found.reasoning, found.content) == ("hm", "Yes")


def test_tags_that_print_nothing_are_told_all_the_same() -> None:
    found = split([("hm", [90, 1]), ("Yes", [91, 2])])
    assert (found.reasoning, found.content) == ("hm", "Yes")


def test_a_block_that_the_prompt_has_opened() -> None:
    found = split([("hm", [1]), ("</think>No", [91, 3])], inside=True)
    assert (found.reasoning, found.content) == ("hm", "No")


def test_text_that_only_looks_like_a_tag_is_text() -> None:
    found = split([("<think>", [1, 2]), ("x", [3])])
    assert (found.reasoning, found.content) == ("", "<think>x")


def test_a_model_without_tags_only_says() -> None:
    thinking = Thinking(None, (-1, -1), False)
    assert list(thinking.parts("a\n", [1])) == [(False, "a\n")]
    assert thinking.content == "a\n"
