"""A page of results as Markdown and as one HTML file that needs nothing else.

The rule of this file: it knows how things look and not what they mean. All text is escaped here, and
nowhere else; there is no script, no link and no file that a browser would have to fetch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from diskmoe.bench.svg import printable, screen_css


class Code(str):
    """Text that is to be read letter by letter: a file's name, a command, a key."""

    __slots__ = ()


@dataclass(frozen=True)
class Heading:
    """level: 1 for the page's, 2 for those in it."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Lines:
    """Text whose lines stay as they are: commands, a machine's line."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Listing:
    """Points, one below the other. loud: they must not be overlooked."""

    points: Sequence[str]
    loud: bool = False


@dataclass(frozen=True)
class Table:
    """Rows as wide as `head`. names: so many columns at the left are names; the others are numbers.

    folded: of interest to few; a click away.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int = 1
    folded: str = ""


@dataclass(frozen=True)
class Picture:
    """name: of its file, without the ending; svg: from `bench.svg`."""

    name: str
    title: str
    svg: str


@dataclass(frozen=True)
class Pictures:
    """Pictures, side by side where there is room."""

    pictures: Sequence[Picture]


_LONG = 24  # characters of a cell; longer ones may be broken
Block = Heading | Text | Lines | Listing | Table | Pictures


def markdown_of(blocks: Iterable[Block]) -> str:
    """The page as Markdown; pictures are files beside it."""
    return printable("\n\n".join(filter(None, map(_markdown, blocks))) + "\n")


def html_of(title: str, blocks: Iterable[Block]) -> str:
    """The page as HTML."""
    body = "\n".join(filter(None, map(_html, blocks)))
    return printable(
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        # no icon is asked for either
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{screen_css(':root')}{_CSS}</style>\n"
        f"</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_md(text)}"
        case Text(text):
            return _md(text)
        case Lines(lines):
            return "\n".join("    " + line for line in _one_line_each(lines))
        case Listing(points):
            return "\n".join("- " + _md(point) for point in points)
        case Table(head, rows, names):
            rule = ["---"] * names + ["---:"] * (len(head) - names)
            first, *others = ([_md(cell) for cell in row] for row in (head, *rows))
            cells = [first, rule, *others]
            return "\n".join("| " + " | ".join(row) + " |" for row in cells) if rows else ""
        case Pictures(pictures):
            return "\n".join(f"![{_md(p.title)}]({p.name}.svg)" for p in pictures)


def _md(text: str) -> str:
    """Text as Markdown that says just this."""
    line = " ".join(text.split())
    if isinstance(text, Code):
        fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
        pad = " " if "`" in line else ""
        return f"{fence}{pad}{line}{pad}{fence}".replace("|", "\\|") if line else ""
    return re.sub(r"([\\`*_\[\]<>|~#$])", r"\\\1", line)


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{_said(text)}</h{level}>"
        case Text(text):
            return f"<p>{_said(text)}</p>"
        case Lines(lines):
            return f"<pre>{escape(chr(10).join(_one_line_each(lines)))}</pre>" if lines else ""
        case Listing(points, loud):
            kind = ' class="loud"' if loud else ""
            items = "".join(f"<li>{_said(point)}</li>" for point in points)
            return f"<ul{kind}>{items}</ul>" if points else ""
        case Table():
            return _html_table(block) if block.rows else ""
        case Pictures(pictures):
            figures = "".join(f"<figure>{picture.svg}</figure>" for picture in pictures)
            return f'<div class="pictures">{figures}</div>' if pictures else ""


def _html_table(table: Table) -> str:
    kinds = [_kind(table, place) for place in range(len(table.head))]
    lines = [
        "".join(
            f"<{tag}{kind}>{_said(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True)
        )
        for tag, row in (("th", table.head), *(("td", row) for row in table.rows))
    ]
    head, *rows = (f"<tr>{line}</tr>" for line in lines)
    whole = (
        f'<div class="wide"><table><thead>{head}</thead><tbody>{"".join(rows)}</tbody>'
        "</table></div>"
    )
    if not table.folded:
        return whole
    return f"<details><summary>{_said(table.folded)}</summary>{whole}</details>"


def _kind(table: Table, place: int) -> str:
    """The class of a column's cells: names stand at the left, sentences may be broken."""
    names = ["name"] if place < table.names else []
    if max(len(row[place]) for row in table.rows) > _LONG:
        names.append("long")
    return ' class="' + " ".join(names) + '"' if names else ""


def _said(text: str) -> str:
    safe = escape(text)
    return f"<code>{safe}</code>" if isinstance(text, Code) and text else safe


def _one_line_each(lines: Sequence[str]) -> list[str]:
    return [" ".join(line.splitlines()) for line in lines]


_CSS = """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1200px;margin:0 auto;padding:24px 20px 64px}
h1{font-size:26px;line-height:1.2;margin:0 0 8px}
h2{font-size:18px;margin:36px 0 10px;padding-top:10px;border-top:1px solid var(--grid)}
p{margin:8px 0;max-width:78ch;overflow-wrap:anywhere}
code,pre{font:13px/1.45 ui-monospace,monospace}
code{overflow-wrap:anywhere}
pre{margin:8px 0;padding:10px 12px;border:1px solid var(--grid);border-radius:6px;
white-space:pre-wrap;overflow-wrap:anywhere}
ul{margin:8px 0;padding-left:22px}
ul.loud{list-style:none;padding:10px 14px;border-left:4px solid var(--c1);
background:color-mix(in srgb,var(--c1) 10%,transparent)}
.pictures{display:grid;gap:28px 32px;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr))}
figure{margin:0}
svg{display:block;width:100%;height:auto;max-width:620px}
.wide{overflow-x:auto;margin:8px 0}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:14px}
th,td{padding:5px 14px 5px 0;text-align:right;vertical-align:top;
border-bottom:1px solid var(--grid);white-space:nowrap}
th{color:var(--muted);font-weight:600;white-space:normal;vertical-align:bottom}
.name,.long{text-align:left}
.long{white-space:normal;min-width:20ch}
th:first-child,td:first-child{position:sticky;left:0;background:var(--paper)}
summary{cursor:pointer;color:var(--muted);margin:8px 0}
@media print{details>*{display:block}}
"""
