"""The routed experts' feed-forward, straight from their slots in the arena.

The rule of this file: a selection (a row and one of its experts) is computed by the same
operations whatever other selections there are and in which call it comes; `combine` then adds a
row's selections in the row's own top-k order, never in the order of their arrival.

A batch of experts is one program of three phases: gate, up and the activation into a scratch row
per selection; the scratch rows prepared; down into the selections' own rows of `out`. Items are
(expert, tile), so any number of experts is split evenly over the threads. The scratch is bounded:
at most `BLOCK` selections are in work at a time. A dense feed-forward is the same with one expert.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.compiled.functions import kernel
from diskmoe.engine.kernels import program
from diskmoe.engine.kernels.ffn import COLUMNS, COMBINE, DOWN, GATE_UP
from diskmoe.engine.kernels.ffn_shape import SILU, FfnShape, Swiglu
from diskmoe.engine.kernels.matmul import add_prepared, check_floats
from diskmoe.engine.kernels.multiply import PREPARE
from diskmoe.engine.kernels.paths import HOST
from diskmoe.engine.kernels.products import (
    KIND,
    depth_of,
    is_integer,
    prepared_bytes,
    scale_bytes,
    tile_bytes,
    tile_kernel,
)
from diskmoe.engine.kernels.program import (
    Builder,
    Program,
    Rows,
    address_of_array,
    is_worth_waking,
    rows_of,
)
from diskmoe.engine.kernels.workers import Workers
from diskmoe.experts.tiles import MatrixLayout, RecordLayout, aligned_zeros

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

BLOCK = 1024  # selections in work at a time


def add_gate_up(
    builder: Builder,
    shape: FfnShape,
    x: tuple[Rows, Rows],  # prepared for gate and for up
    entries: int,  # address of int64 (m, 3): record, its first selection, the one after its last
    rows: int,  # address of i32: row of x of each selection; 0: they are the same
    inner_rows: Rows,  # f32, (selections, padded width)
    first: int,  # address of int64: the selection that has inner row 0
    n_entries: int,
    n_selections: int,
    path: Any = HOST,
) -> int:
    """A phase: inner row of selection t = swiglu(gate @ x[rows[t]], up @ x[rows[t]]), with biases."""
    words = [entries, rows, inner_rows.address, inner_rows.step, first, shape.gate.tiles, 0, 0]
    for layout, at, prepared in ((shape.gate, shape.gate_at, x[0]), (shape.up, shape.up_at, x[1])):
        words += _matrix_words(layout, at, prepared, path)
    words += [*shape.biases_at[:2], *shape.swiglu.words]
    macs = 32 * shape.gate.cols * max(1, n_selections // max(1, n_entries))
    return builder.add(GATE_UP, words, n_entries * shape.gate.tiles, macs)


def add_down(
    builder: Builder,
    shape: FfnShape,
    x: Rows,  # inner rows prepared for down
    entries: int,
    selections: int,  # address of i32: row of out of each selection; 0: they are the same
    out: Rows,  # f32; `exact`: rows have no room for whole tiles
    exact: bool,
    first: int,
    n_entries: int,
    n_selections: int,
    path: Any = HOST,
) -> int:
    """A phase: row selections[t] of out = down @ inner row of t, with its bias."""
    rows = shape.down.rows if exact else shape.down.tiles * 16
    words = [entries, selections, out.address, out.step, first, shape.down.tiles, rows]
    words.append(shape.biases_at[2])
    words += _matrix_words(shape.down, shape.down_at, x, path)
    macs = 16 * shape.down.cols * max(1, n_selections // max(1, n_entries))
    return builder.add(DOWN, words, n_entries * shape.down.tiles, macs)


def _matrix_words(layout: MatrixLayout, at: int, x: Rows, path: Any) -> list[int]:
    kind = KIND[layout.format]
    depth = int(depth_of(kind, layout.cols))
    return [
        tile_kernel(layout.format, path),
        at,
        at + layout.scales_offset,
        int(tile_bytes(kind, depth)),
        int(scale_bytes(kind, depth)),
        depth,
        x.address,
        x.step,
    ]


def _own_room(name: str, nbytes: int) -> npt.NDArray[Any]:
    return aligned_zeros(nbytes)


class ExpertBatch:
    """The program of a batch of experts for chunks of up to a number of selections.

    Room and program are made once; `run` fills in which experts, rows and selections.
    """

    def __init__(
        self,
        layout: RecordLayout,
        x: Rows,  # prepared for the experts' kind
        out: Rows,  # (selections, hidden)
        exact: bool,
        n_selections: int,
        path: Any = HOST,
        block: int = 0,
        room: Callable[[str, int], npt.NDArray[Any]] = _own_room,  # (name, bytes), 64-aligned
        swiglu: Swiglu = SILU,
    ) -> None:
        shape = FfnShape.of_record(layout, swiglu)
        self.block = min(block or BLOCK, n_selections)
        down_kind = KIND[shape.down.format]
        width = shape.gate.rows
        self._entries = np.zeros((self.block, 3), np.int64)
        self._first = np.zeros(1, np.int64)
        self.rows = np.zeros(n_selections, np.int32)
        self.selections = np.zeros(n_selections, np.int32)
        inner_room = room("inner", self.block * shape.padded_width * 4)
        inner_rows = Rows(address_of_array(inner_room), shape.padded_width * 4)
        builder = Builder()
        entries, first = address_of_array(self._entries), address_of_array(self._first)
        rows, selections = address_of_array(self.rows), address_of_array(self.selections)
        add_gate_up(builder, shape, (x, x), entries, rows, inner_rows, first, 1, n_selections, path)
        prepared = inner_rows
        if is_integer(down_kind):
            step = int(prepared_bytes(down_kind, width))
            prepared_room = room("prepared", self.block * step)
            builder.keep(prepared_room)
            prepared = Rows(address_of_array(prepared_room), step)
            words = [down_kind, width, inner_rows.address, inner_rows.step]
            builder.add(PREPARE, [*words, prepared.address, prepared.step], 1, 4 * width)
        add_down(
            builder, shape, prepared, entries, selections, out, exact, first, 1, n_selections, path
        )
        builder.keep(inner_room)
        self._program: Program = builder.program()
        self._sizes = np.array(
            [layout.nbytes, shape.gate.tiles, shape.gate.cols, width, shape.down.tiles], np.int64
        )

    def run(
        self,
        slots: Ints,  # (m,)
        row_begin: Ints,  # (m + 1,) expert j has entries row_begin[j]:row_begin[j+1]
        arena: int,  # address of slot 0
        total: int,  # row_begin[m]; self.rows and self.selections hold that many
        workers: Workers,
    ) -> None:
        """Do the selections that stand in `rows` and `selections`."""
        for begin in range(0, total, self.block):
            end = min(begin + self.block, total)
            macs = _fill_batch(
                slots,
                row_begin,
                arena,
                begin,
                end,
                self._entries,
                self._first,
                self._sizes,
                program.MACS_PER_CLAIM,
                self._program.table,
            )
            self._program.worth_waking = is_worth_waking(macs)
            workers.run(self._program)


def batch_bytes(layout: RecordLayout, n_selections: int) -> int:
    """What an ExpertBatch takes, for the memory plan."""
    width, block = layout.gate.rows, min(BLOCK, n_selections)
    prepared = int(prepared_bytes(KIND[layout.down.format], width))
    return block * (layout.gate.tiles * 64 + prepared + 24) + 8 * n_selections + 256


def expert_ffn(
    x: Floats,  # (n, hidden)
    rows: Ints,  # (total,) row of x that each selection reads
    selections: Ints,  # (total,) row of `out` that each selection writes
    row_begin: Ints,  # (m + 1,) expert j has entries row_begin[j]:row_begin[j+1]
    slots: Ints,  # (m,) arena slot of expert j
    arena: npt.NDArray[np.uint8],  # 1-D, slot s begins at s * layout.nbytes
    layout: RecordLayout,
    out: Floats,  # (n_selections, hidden)
    workers: Workers,
    path: Any = HOST,
    block: int = 0,
    swiglu: Swiglu = SILU,
) -> None:
    """out[selections[t]] = down @ swiglu(gate @ x[rows[t]], up @ x[rows[t]]) for expert j of t.

    The biases of the three, where the layout has them, are added to each product.

    Rows of `out` that no selection names are left as they are, so hits and misses of one layer
    can be computed by several calls into one `out`. Index arrays are int32; ValueError when one of
    them points outside its array.
    """
    hidden = layout.gate.cols
    check_floats("x", x, (len(x), hidden))
    check_floats("out", out, (len(out), hidden))
    if len(row_begin) != len(slots) + 1 or len(rows) != len(selections):
        raise ValueError(
            f"{len(slots)} slots with {len(row_begin)} row_begin, "
            f"{len(rows)} rows with {len(selections)} selections"
        )
    if arena.dtype != np.uint8 or not arena.flags.c_contiguous:
        raise ValueError(f"the arena must be contiguous uint8, not {arena.dtype} {arena.shape}")
    rows, selections, row_begin, slots = (
        np.ascontiguousarray(indices, np.int32) for indices in (rows, selections, row_begin, slots)
    )
    wrong = _wrong_index(
        rows, selections, row_begin, slots, len(x), len(out), arena.size // layout.nbytes
    )
    if wrong:
        names = ("row_begin", "a row", "a selection", "a slot")
        raise ValueError(f"expert_ffn: {names[wrong - 1]} is outside its array")
    total = len(rows)
    if not total:
        return
    builder = Builder()
    prepared = add_prepared(builder, x, KIND[layout.gate.format])
    workers.run(preparation := builder.program())
    out_rows = rows_of(out)
    batch = ExpertBatch(layout, prepared, out_rows, True, total, path, block, swiglu=swiglu)
    batch.rows[:], batch.selections[:] = rows, selections
    batch.run(slots, row_begin, address_of_array(arena), total, workers)
    del preparation  # it held the prepared rows


def combine(
    selected: Floats,  # (n_selections, hidden), the `out` of expert_ffn
    index: Ints,  # (n, k) row of `selected` for row i's j-th choice
    weights: Floats,  # (n, k)
    y: Floats,  # (n, hidden), added to
    workers: Workers | None = None,
) -> None:
    """y[i] += sum over j of weights[i, j] * selected[index[i, j]], j ascending.

    The sum starts at zero, is chained by fma in the row's own top-k order, then added to y once.
    """
    n, k = index.shape
    check_floats("selected", selected, (len(selected), selected.shape[1]))
    check_floats("weights", weights, (n, k))
    check_floats("y", y, (n, selected.shape[1]))
    index = np.ascontiguousarray(index, np.int32)
    if index.size and (index.min() < 0 or index.max() >= len(selected)):
        raise ValueError(f"combine: an index is outside 0..{len(selected) - 1}")
    builder = Builder()
    add_combine(
        builder,
        n,
        k,
        y.shape[1],
        rows_of(selected),
        address_of_array(index),
        address_of_array(weights),
        rows_of(y),
    )
    if workers is None:
        with Workers(1) as alone:
            alone.run(builder.program())
    else:
        workers.run(builder.program())


def add_combine(
    builder: Builder,
    n: int,
    k: int,
    hidden: int,
    selected: Rows,
    index: int,  # address of i32 (n, k); 0: choice j of row i is row i * k + j
    weights: int,  # address of f32 (n, k)
    y: Rows,
) -> None:
    """A phase: see `combine`."""
    parts = -(-hidden // COLUMNS)
    words = [k, hidden, parts, selected.address, selected.step, index, weights, y.address, y.step]
    builder.add(COMBINE, words, n * parts, 4 * k * min(hidden, COLUMNS))


@kernel
def _wrong_index(rows, selections, row_begin, slots, n, n_out, n_slots):  # pragma: no cover
    """0 when every index is inside its array, else which one is not."""
    if row_begin[0] != 0 or row_begin[len(row_begin) - 1] != len(rows):
        return 1
    for j in range(len(slots)):
        if row_begin[j] > row_begin[j + 1]:
            return 1
        if slots[j] < 0 or slots[j] >= n_slots:
            return 4
    for t in range(len(rows)):
        if rows[t] < 0 or rows[t] >= n:
            return 2
        if selections[t] < 0 or selections[t] >= n_out:
            return 3
    return 0


@kernel
def _fill_batch(
    slots, row_begin, arena, begin, end, entries, first, sizes, macs_per_claim, table
):  # pragma: no cover - compiled
    """Experts with selections in begin..end-1 -> entries and the program's table; its macs."""
    record_nbytes, gate_tiles, hidden, width, down_tiles = sizes
    m = 0
    first[0] = begin
    for j in range(len(slots)):
        low = max(np.int64(row_begin[j]), begin)
        high = min(np.int64(row_begin[j + 1]), end)
        if low < high:
            entries[m, 0] = arena + np.int64(slots[j]) * record_nbytes
            entries[m, 1] = low
            entries[m, 2] = high
            m += 1
    share = max(1, (end - begin) // max(1, m))  # selections of an expert
    last = table.shape[0] - 1
    table[0, 2] = m * gate_tiles
    table[0, 3] = max(1, macs_per_claim // (32 * hidden * share))
    if last == 2:
        table[1, 2] = end - begin
        table[1, 3] = max(1, macs_per_claim // (4 * width))
    table[last, 2] = m * down_tiles
    table[last, 3] = max(1, macs_per_claim // (16 * width * share))
    return (end - begin) * 48 * hidden * gate_tiles
