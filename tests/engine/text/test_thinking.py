"""An answer's reasoning is told from what it says, by the tokens of the tags."""

from diskmoe.engine.text.thinking import Thinking

TAGS, IDS = ("<think>", "</think>"), (90, 91)


def split(pieces: list[tuple[str, list[int]]], inside: bool = False) -> tuple[str, str]:
    """All that is reasoning, and all that is said."""
    thinking, ids = Thinking(TAGS, IDS, inside), []
    found = {True: "", False: ""}
    for piece, fresh in pieces:
        ids += fresh
        for reasoning, text in thinking.parts(piece, ids):
            found[reasoning] += text
    return found[True], found[False]


def test_printed_tags_are_in_neither_part() -> None:
    found = split([("<think>", [90]), ("hm", [1]), ("\n</think>", [91]), ("\n\nYes", [2])])
    assert found == ("hm\n", "\n\nYes")


def test_tags_that_print_nothing_are_told_all_the_same() -> None:
    found = split([("hm", [90, 1]), ("Yes", [91, 2])])
    assert found == ("hm", "Yes")


def test_a_block_that_the_prompt_has_opened() -> None:
    found = split([("hm", [1]), ("</think>No", [91, 3])], inside=True)
    assert found == ("hm", "No")


def test_text_that_only_looks_like_a_tag_is_text() -> None:
    found = split([("<think>", [1, 2]), ("x", [3])])
    assert found == ("", "<think>x")


def test_a_model_without_tags_only_says() -> None:
    thinking = Thinking(None, (-1, -1), False)
    assert list(thinking.parts("a\n", [1])) == [(False, "a\n")]
