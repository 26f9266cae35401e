"""The columns of every table of runs, in order: what each is called and how it is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from diskmoe.experts.budget import shown_bytes


@dataclass(frozen=True)
class Column:
    """figure: its name in `Figures`; None in a run is shown as "-"."""

    title: str
    figure: str
    form: Callable[[float], str]

    def shown(self, value: float | None) -> str:
        return "-" if value is None else self.form(value)


def _number(digits: int) -> Callable[[float], str]:
    return lambda value: f"{value:.{digits}f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _bytes(value: float) -> str:
    return shown_bytes(value)


def _seconds(value: float) -> str:
    return f"{value:.3g} s"


COLUMNS = (
    Column("tok/s", "tok_per_s", _number(2)),
    Column("tokens/forward", "tokens_per_forward", _number(2)),
    Column("hit rate", "hit_rate", _percent),
    Column("misses/token", "misses_per_token", _number(1)),
    Column("read/token", "miss_bytes_per_token", _bytes),
    Column("ttft", "ttft_seconds", _seconds),
    Column("prefill tok/s", "prefill_tok_per_s", _number(1)),
    Column("peak RSS", "peak_rss_bytes", _bytes),
    Column("read wait", "read_wait_share", _percent),
)
