"""The routed experts' feed-forward, straight from their slots in the arena.

The rule of this file: a selection (a row and one of its experts) is computed by the same
operations whatever other selections there are and in which call it comes; `combine` then adds a
row's selections in the row's own top-k order, never in the order of their arrival.

Work goes in two steps over items (expert, tile), so that one expert is shared by all threads too:
gate, up and the activation into a scratch row per selection, then down into `out`. The scratch is
bounded: at most `_BLOCK` selections are in work at a time.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.engine.kernels.matmul import check_floats, grain_for, prepare, prepared_bytes
from diskmoe.engine.kernels.products import (
    KIND,
    Q8,
    four_rows,
    one_row,
    quantise_rows,
    tile_bytes,
)
from diskmoe.engine.kernels.simd import (
    HOST,
    address,
    fma,
    load_f32,
    mul,
    silu,
    splat,
    splat_at,
    store_f32,
)
from diskmoe.engine.kernels.simd import add as plus
from diskmoe.engine.kernels.workers import Workers
from diskmoe.experts.compiled import kernel
from diskmoe.experts.tiles import MatrixLayout, RecordLayout

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

_BLOCK = 256  # selections in work at a time


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
) -> None:
    """out[selections[t]] = down @ (silu(gate @ x[rows[t]]) * (up @ x[rows[t]])) for expert j of t.

    Rows of `out` that no selection names are left as they are, so hits and misses of one layer
    can be computed by several calls into one `out`. Index arrays are int32; ValueError when one of
    them points outside its array.
    """
    hidden, ffn = layout.gate.cols, layout.gate.rows
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
    if not len(rows):
        return
    kind = KIND[layout.gate.format]
    slot_addresses = slots.astype(np.int64) * layout.nbytes + arena.ctypes.data
    prepared = _prepare_named(x, rows, kind, workers)
    hidden_rows = np.empty((min(_BLOCK, len(rows)), ffn), np.float32)
    for begin in range(0, len(rows), _BLOCK):
        end = min(begin + _BLOCK, len(rows))
        # Experts with entries in begin..end-1; the outer ones may have more of them elsewhere.
        first = int(np.searchsorted(row_begin, begin, side="right")) - 1
        last = int(np.searchsorted(row_begin, end, side="left"))
        macs = -(-(end - begin) // (last - first)) * 16
        workers.run(
            _gate_up,
            (last - first) * layout.gate.tiles,
            path,
            kind,
            _places(layout.gate, layout.gate_offset) + _places(layout.up, layout.up_offset),
            prepared,
            (begin, end, first, layout.gate.tiles, _depth(layout.gate)),
            rows,
            row_begin,
            slot_addresses,
            hidden_rows,
            grain=grain_for(2 * macs * hidden),
        )
        workers.run(
            _down,
            (last - first) * layout.down.tiles,
            path,
            kind,
            _places(layout.down, layout.down_offset),
            prepare(hidden_rows[: end - begin], kind, workers),
            (begin, end, first, layout.down.tiles, _depth(layout.down)),
            selections,
            row_begin,
            slot_addresses,
            out,
            grain=grain_for(macs * ffn),
        )


def expert_scratch_bytes(n: int, layout: RecordLayout) -> int:
    """Most bytes that `expert_ffn` takes for n rows, whatever their selections: for the plan."""
    ffn = layout.gate.rows
    row = prepared_bytes(layout.gate.cols) + 5  # and its flag and number, see `_distinct`
    return n * row + _BLOCK * (ffn * 4 + prepared_bytes(ffn))


def combine(
    selected: Floats,  # (n_selections, hidden), the `out` of expert_ffn
    index: Ints,  # (n, k) row of `selected` for row i's j-th choice
    weights: Floats,  # (n, k)
    y: Floats,  # (n, hidden), added to
) -> None:
    """y[i] += sum over j of weights[i, j] * selected[index[i, j]], j ascending.

    The sum starts at zero, is chained by fma in the row's own top-k order, then added to y once.
    """
    n, k = index.shape
    check_floats("selected", selected, (len(selected), selected.shape[1]))
    check_floats("weights", weights, (n, k))
    check_floats("y", y, (n, selected.shape[1]))
    if not _combine(selected, np.ascontiguousarray(index, np.int32), weights, y):
        raise ValueError(f"combine: an index is outside 0..{len(selected) - 1}")


def _prepare_named(x: Floats, rows: Ints, kind: int, workers: Workers) -> npt.NDArray[np.uint8]:
    """Like `matmul.prepare`, for the rows of x that `rows` names; the others are left undefined.

    A layer's experts come in several calls, most of which want few of its rows.
    """
    n, cols = x.shape
    if kind < Q8:
        return x.view(np.uint8)
    named = _distinct(rows, n)
    prepared = np.empty((n, prepared_bytes(cols)), np.uint8)
    workers.run(_quantise_named, len(named), x, named, prepared, grain=grain_for(8 * cols))
    return prepared


def _places(matrix: MatrixLayout, offset: int) -> tuple[int, int]:
    """Offsets of a matrix's data and scales in its record."""
    return offset, offset + matrix.scales_offset


def _depth(matrix: MatrixLayout) -> int:
    return matrix.groups if KIND[matrix.format] >= Q8 else matrix.cols


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
def _distinct(rows, n):  # pragma: no cover - compiled
    """The different ones of rows i32 (total,), each in 0..n-1, in the order of their coming."""
    seen = np.zeros(n, np.bool_)
    named = np.empty(n, np.int32)
    count = 0
    for row in rows:
        if not seen[row]:
            seen[row] = True
            named[count] = row
            count += 1
    return named[:count]


@kernel
def _quantise_named(x, named, prepared, begin, end):  # pragma: no cover - compiled
    """Rows named[begin:end] of x f32 (n, cols) -> the same rows of prepared u8 (n, bytes)."""
    for i in range(begin, end):
        row = np.int64(named[i])
        quantise_rows(x, x.shape[1], prepared, row, row + 1)


@kernel
def _gate_up(
    path, kind, places, prepared, block, rows, row_begin, slots, hidden_rows, begin, end
):  # pragma: no cover - compiled
    """Items (expert, tile): silu(gate) * up of the block's selections -> hidden_rows (., ffn)."""
    block_begin, block_end, first_expert, tiles, depth = block
    gate_data, gate_scales, up_data, up_scales = places
    stride = prepared.shape[1]
    ffn = hidden_rows.shape[1]
    x = address(prepared)
    gates = np.empty((4, 16), np.float32)
    ups = np.empty((4, 16), np.float32)
    g = address(gates)
    u = address(ups)
    for item in range(begin, end):
        expert = first_expert + item // tiles
        tile = item % tiles
        skip = tile * tile_bytes(kind, depth)
        skip_scales = tile * depth * 32
        record = slots[expert]
        count = min(16, ffn - tile * 16)
        t = max(np.int64(row_begin[expert]), block_begin)
        last = min(np.int64(row_begin[expert + 1]), block_end)
        while t < last:
            done = 4 if t + 4 <= last else 1
            if done == 4:
                at = (
                    x + rows[t] * stride,
                    x + rows[t + 1] * stride,
                    x + rows[t + 2] * stride,
                    x + rows[t + 3] * stride,
                )
                four_rows(
                    path,
                    kind,
                    record + gate_data + skip,
                    record + gate_scales + skip_scales,
                    depth,
                    at,
                    (g, g + 64, g + 128, g + 192),
                )
                four_rows(
                    path,
                    kind,
                    record + up_data + skip,
                    record + up_scales + skip_scales,
                    depth,
                    at,
                    (u, u + 64, u + 128, u + 192),
                )
            else:
                one = x + rows[t] * stride
                w = record + gate_data + skip
                one_row(path, kind, w, record + gate_scales + skip_scales, depth, one, g)
                w = record + up_data + skip
                one_row(path, kind, w, record + up_scales + skip_scales, depth, one, u)
            for j in range(done):
                store_f32(g + j * 64, mul(silu(load_f32(g + j * 64)), load_f32(u + j * 64)))
                for lane in range(count):
                    hidden_rows[t - block_begin + j, tile * 16 + lane] = gates[j, lane]
            t += done


@kernel
def _down(
    path, kind, places, prepared, block, selections, row_begin, slots, out, begin, end
):  # pragma: no cover - compiled
    """Items (expert, tile): down times the block's prepared hidden rows -> out[selection]."""
    block_begin, block_end, first_expert, tiles, depth = block
    data, scales = places
    stride = prepared.shape[1]
    hidden = out.shape[1]
    x = address(prepared)
    spill = np.empty((4, 16), np.float32)
    y = address(spill)
    for item in range(begin, end):
        expert = first_expert + item // tiles
        tile = item % tiles
        w = slots[expert] + data + tile * tile_bytes(kind, depth)
        s = slots[expert] + scales + tile * depth * 32
        count = min(16, hidden - tile * 16)
        t = max(np.int64(row_begin[expert]), block_begin)
        last = min(np.int64(row_begin[expert + 1]), block_end)
        while t < last:
            at = x + (t - block_begin) * stride
            done = 4 if t + 4 <= last else 1
            if done == 4:
                four_rows(
                    path,
                    kind,
                    w,
                    s,
                    depth,
                    (at, at + stride, at + 2 * stride, at + 3 * stride),
                    (y, y + 64, y + 128, y + 192),
                )
            else:
                one_row(path, kind, w, s, depth, at, y)
            for j in range(done):
                for lane in range(count):
                    out[selections[t + j], tile * 16 + lane] = spill[j, lane]
            t += done


@kernel
def _combine(selected, index, weights, y):  # pragma: no cover - compiled
    """False, and nothing done, when an index is outside."""
    n, k = index.shape
    hidden = y.shape[1]
    for i in range(n):
        for j in range(k):
            if index[i, j] < 0 or index[i, j] >= selected.shape[0]:
                return False
    whole = hidden // 16 * 16
    for i in range(n):
        scale = address(weights) + i * k * 4
        at = address(y) + i * hidden * 4
        for c in range(0, whole, 16):
            total = splat(np.float32(0.0))
            for j in range(k):
                part = load_f32(address(selected) + (index[i, j] * hidden + c) * 4)
                total = fma(splat_at(scale + j * 4), part, total)
            store_f32(at + c * 4, plus(load_f32(at + c * 4), total))
        for c in range(whole, hidden):
            rest = np.float32(0.0)
            for j in range(k):
                rest = fma(weights[i, j], selected[index[i, j], c], rest)
            y[i, c] += rest
    return True
