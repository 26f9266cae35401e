"""Pages: all text is escaped, in both forms, and nothing is fetched."""

import re
from html.parser import HTMLParser

import pytest

from diskmoe.bench.page import (
    Block,
    Code,
    Heading,
    Lines,
    Listing,
    Picture,
    Pictures,
    Table,
    Text,
    html_of,
    markdown_of,
)

NASTY = '<script>alert("1")</script> a|b `c` *d* _e_ [f](http://g) & $h$ #i \\j\nk'
BLOCKS: tuple[Block, ...] = (
    Heading(NASTY),
    Text(NASTY),
    Lines([NASTY]),
    Listing([NASTY], loud=True),
    Table(["x", NASTY], [[NASTY, Code(NASTY)]], folded=NASTY),
)


class Page(HTMLParser):
    """Tags that are open, all tags, all attributes and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_text_of_others_is_text_in_html() -> None:
    page = Page(html_of(NASTY, BLOCKS))
    assert page.open == [] and "script" not in page.tags and "a" not in page.tags
    assert page.text.count(NASTY) + page.text.count(NASTY.replace("\n", " ")) == 9


@pytest.mark.parametrize("block", BLOCKS)
def test_text_of_others_is_text_in_markdown(block: Block) -> None:
    text = markdown_of([block])
    bare = re.sub(r"(`+).*?\1", "", text) if not isinstance(block, Lines) else ""
    assert not re.search(r"(?<!\\)[<*_`\[$]", bare.replace("`", ""))
    for line in text.splitlines():
        if isinstance(block, Table):
            assert len(re.findall(r"(?<!\\)\|", line)) == 3
        elif isinstance(block, Lines):
            assert line.startswith("    ")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (Code("a b"), "`a b`"),
        (Code("a`b"), "`` a`b ``"),
        (Code("a|b"), "`a\\|b`"),
        (Code(""), ""),
        ("a_b", "a\\_b"),
        ("1 < 2", "1 \\< 2"),
    ],
)
def test_code_is_fenced_and_other_text_is_not(text: str, written: str) -> None:
    assert markdown_of([Text(text)]) == written + "\n"


def test_numbers_stand_at_the_right_and_names_at_the_left() -> None:
    table = Table(["arm", "tok/s"], [["a", "1.0"]])
    assert markdown_of([table]) == "| arm | tok/s |\n| --- | ---: |\n| a | 1.0 |\n"
    assert '<td class="name">a</td><td>1.0</td>' in html_of("t", [table])


def test_pictures_are_in_the_page_and_beside_the_markdown() -> None:
    blocks = [Pictures([Picture("speed", "Speed", "<svg></svg>")])]
    assert markdown_of(blocks) == "![Speed](speed.svg)\n"
    assert "<figure><svg></svg></figure>" in html_of("t", blocks)


def test_what_is_empty_is_left_out() -> None:
    empty: list[Block] = [Listing([]), Table(["a"], []), Pictures([])]
    assert markdown_of(empty) == "\n"
    assert "<main>\n\n</main>" in html_of("t", empty)


def test_a_page_asks_for_nothing_and_knows_dark_screens() -> None:
    page = Page(html_of("t", BLOCKS))
    assert {value for name, value in page.attributes if name in ("src", "href")} == {"data:,"}
    assert "prefers-color-scheme:dark" in page.text and "url(" not in page.text
    assert "@import" not in page.text
