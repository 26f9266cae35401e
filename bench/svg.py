"""A drawing as SVG text that follows the reader's light or dark screen.

The rule of this file: whoever draws uses the colours named here, which are placeholders. In the SVG
each becomes a CSS variable, and `STYLE` gives the variables their values for light and for dark. So
there is one picture of everything, a page can hold many, and the same data gives the same bytes.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping
from html import escape
from types import MappingProxyType
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#010203", "#010204", "#010205", "#010206"
# after Okabe and Ito: told apart by every kind of colour vision, by their lightness too
COLOURS = ("#020101", "#020102", "#020103", "#020104", "#020105", "#020106", "#020107")
REST = "#010207"  # what is neither of the named parts
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HEAT = "cividis"  # for amounts; readable on both papers

_SCREENS: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {  # placeholder: variable, its value on a light screen and on a dark one
        INK: ("ink", "#1b1f24", "#e6e8eb"),
        MUTED: ("muted", "#5b6470", "#a3acb8"),
        GRID: ("grid", "#dfe3e8", "#343b44"),
        PAPER: ("paper", "#ffffff", "#15181c"),
        REST: ("rest", "#a9b0b9", "#69727d"),
        COLOURS[0]: ("c0", "#0072b2", "#4aa8e8"),
        COLOURS[1]: ("c1", "#d55e00", "#ff8a3d"),
        COLOURS[2]: ("c2", "#009e73", "#2fcf9f"),
        COLOURS[3]: ("c3", "#b8568f", "#ea9ccb"),
        COLOURS[4]: ("c4", "#c28a00", "#f2c14e"),
        COLOURS[5]: ("c5", "#56b4e9", "#a8d8f5"),
        COLOURS[6]: ("c6", "#4d4d4d", "#c9ccd1"),
    }
)
_RC: Mapping[Any, Any] = MappingProxyType(
    {
        "svg.fonttype": "none",
        "svg.hashsalt": "diskmoe",
        "text.parse_math": False,  # a setting may have a $ in it
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same layout everywhere
        "font.size": 10.0,
        "text.color": INK,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.labelsize": 10.0,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": GRID,
        "grid.linewidth": 0.8,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "xtick.labelsize": 9.0,
        "ytick.labelsize": 9.0,
        "lines.linewidth": 1.8,
        "lines.markersize": 5.0,
        "legend.fontsize": 9.0,
        "legend.frameon": False,
        "legend.handlelength": 1.6,
    }
)


def variables(dark: bool) -> str:
    """The CSS variables of a light or a dark screen."""
    return "".join(f"--{name}:{on[dark]};" for name, *on in _SCREENS.values())


def screen_css(root: str) -> str:
    """CSS that gives `root` the variables of the reader's screen."""
    dark = f"@media(prefers-color-scheme:dark){{{root}{{{variables(True)}}}}}"
    return f"{root}{{{variables(False)}}}{dark}"


def svg_of(
    draw: Callable[[Axes], None], name: str, title: str, width: float = 5.4, height: float = 3.7
) -> str:
    """The drawing as an ``<svg>`` element without a background, for a page that has `screen_css`.

    name: goes before all ids in it, so that pictures of a page do not share any. title: what is
    read out in its place. width, height: inches of 72 points.
    """
    with matplotlib.rc_context(dict(_RC)), warnings.catch_warnings():
        # the reader's fonts draw the text, not that which its place is reckoned with
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure.add_subplot())
        text = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    return _finished(text.getvalue(), name, title)


def alone(svg: str) -> str:
    """The element as a file of its own, with paper under it."""
    css = screen_css("svg") + "svg{background:var(--paper)}"
    head, rest = svg.split(">", 1)
    return f"{head}><style>{css}</style>{rest}"


def _finished(text: str, name: str, title: str) -> str:
    """matplotlib's file as an element: no prolog, no style for the whole page, ids of its own."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r" ?font-family: [^;\"]*;?", "", text)
    text = re.sub(r"\b(id=\"|url\(#|href=\"#)", rf"\g<1>{name}-", text)
    for placeholder, (variable, *_) in _SCREENS.items():
        text = text.replace(placeholder, f"var(--{variable})")
    size = re.match(r'<svg [^>]*?width="([\d.]+)pt" height="([\d.]+)pt"', text)
    assert size is not None
    wide, high = size.groups()
    said = escape(title, quote=True)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {wide} {high}" role="img" aria-label="{said}" '
        'font-family="system-ui,sans-serif" stroke-linejoin="round">'
    )
    return printable(head + re.sub(r"\n\s*", "\n", text[text.index(">") + 1 :]).strip() + "\n")


def printable(text: str) -> str:
    """Text without what neither XML nor UTF-8 can hold: a replacement character is in its place."""
    return re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)
