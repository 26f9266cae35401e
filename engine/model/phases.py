"""Phases of a layer for a number of rows, with their working arrays from the scratch.

The one rule: rows of working arrays have room for whole tiles, so that products are written where
they belong without a detour.
"""

from collections.abc import Iterable

from diskmoe.engine.kernels.basic import add_norm
from diskmoe.engine.kernels.matmul import add_preparation
from diskmoe.engine.kernels.products import is_integer, prepared_bytes
from diskmoe.engine.kernels.program import Builder, Rows, rows_of
from diskmoe.engine.model.scratch import Floats, Scratch


def padded(width: int) -> int:
    """Numbers in a working row: whole tiles."""
    return -(-width // 16) * 16


class RowBuilder(Builder):
    """A program for ``n`` rows.

    first: where these begin among the rows of a forward that several texts share. prompt: they are
    of a prompt's chunk, within which others may be computed. Working arrays are used anew by each
    layer, but for those that one layer leaves to the next.
    """

    def __init__(self, n: int, scratch: Scratch, first: int = 0, prompt: bool = False) -> None:
        super().__init__()
        self.n = n
        self.scratch = scratch
        self.first = first
        self._prompt = prompt

    def rows(self, name: str, width: int, n: int | None = None) -> Rows:
        """Working rows of at least ``width`` f32."""
        n = self.n if n is None else n
        return rows_of(self.scratch.take(name, self.first + n, padded(width))).from_row(self.first)

    def lasting(self, name: str, width: int) -> Rows:
        """Rows of ``width`` f32 that the next layers of the same forward find as they were left."""
        name += " of a prompt" if self._prompt else ""
        return rows_of(self.scratch.take(name, self.first + self.n, width)).from_row(self.first)

    def normed(self, name: str, x: Rows, weight: Floats, eps: float) -> Rows:
        out = self.rows(name, len(weight))
        add_norm(self, self.n, x, weight, eps, out)
        return out

    def prepared(self, name: str, x: Rows, cols: int, kinds: Iterable[int]) -> dict[int, Rows]:
        """x as matrices of each of these kinds want it."""
        found: dict[int, Rows] = {}
        for kind in kinds:
            if kind not in found:
                found[kind] = x
                if is_integer(kind):
                    out = prepared_rows(self.scratch, f"{name} for {kind}", self.n, cols, kind)
                    found[kind] = add_preparation(self, self.n, cols, kind, x, out)
        return found


def prepared_rows(scratch: Scratch, name: str, n: int, cols: int, kind: int) -> Rows:
    """Room for n prepared rows."""
    return rows_of(scratch.take(name, n, -(-int(prepared_bytes(kind, cols)) // 4)))


def preparation_bytes(n: int, cols: int, kinds: Iterable[int]) -> int:
    """Bytes of the working arrays of ``RowBuilder.prepared``."""
    return sum(n * int(prepared_bytes(kind, cols)) for kind in set(kinds) if is_integer(kind))
