"""What happens between the projections of latent attention (MLA) and attention itself.

Scores are q . (W_k c) = (W_k^T q) . c, and outputs are sums of W_v c = W_v (sums of c). So queries
are *folded* into the space of the latents, attention runs there with one head of keys that is its
values too, and its result is *unfolded*; the cache stays as small as the latents are.

The rule of this file: prompts, verifies and decoding are all computed in this one form, row by row
in the same order of operations. A folded number is a dot in 16 lanes, as attention's scores are,
with f32 weights as `tile_columns.py` has them; an unfolded one is a product like any other.

Queries of a head are `plain` dims, then `turning` ones; folded they are `rank`, then `turning`.
The matrix has, for each head, `plain` rows for its keys and `value` rows for its values.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskmoe.compiled.functions import inner
from diskmoe.engine.kernels.atomics import on_stack, put_word, word_at
from diskmoe.engine.kernels.attention_blocks import score_one, score_two
from diskmoe.engine.kernels.basic import norm_row
from diskmoe.engine.kernels.heads import CachePart, keep, turn
from diskmoe.engine.kernels.matrix import Matrix
from diskmoe.engine.kernels.multiply import ROWS, tiles_of_rows
from diskmoe.engine.kernels.products import depth_of, scale_bytes, tile_bytes, tile_kernel
from diskmoe.engine.kernels.program import Builder, Phase, Rows, address_of_array, f32_word
from diskmoe.engine.kernels.simd import address, f32_at, store_one
from diskmoe.engine.kernels.tile_columns import columns_together, tile_columns

Floats = npt.NDArray[np.float32]

PIECE = 64  # rows that are folded, mixed and unfolded together: what bounds their working memory


@dataclass(frozen=True)
class LatentHeads:
    """Sizes; `plain` and `value` are whole tiles."""

    heads: int
    plain: int
    turning: int
    rank: int
    value: int

    @property
    def width(self) -> int:
        """Numbers of a position's key: its latent, then what turns."""
        return self.rank + self.turning


@dataclass(frozen=True, eq=False)
class Turning:
    """How what turns is turned: rotary tables, and where the rows stand."""

    cos: Floats  # (positions, turning / 2)
    sin: Floats
    interleaved: bool
    start: int  # address of the first row's position, int64

    @property
    def words(self) -> list[int]:
        tables = [address_of_array(self.cos), address_of_array(self.sin)]
        return [*tables, self.cos.shape[1], int(self.interleaved), self.start]


def add_keep_latents(
    builder: Builder,
    n: int,
    shape: LatentHeads,
    x: Rows,  # (n, rank + turning), changed
    norm: Floats,  # (rank,)
    eps: float,
    turning: Turning,
    kv_kind: int,
    keys: CachePart,
    starts: int,  # address of int64 (pieces,): gets the position of each piece's first row
) -> None:
    """A phase: latents are normed, the shared part of their keys is turned, both are cached."""
    words = [
        *(x.address, x.step, shape.rank, shape.turning, address_of_array(norm), f32_word(eps)),
        *(*turning.words, kv_kind, *keys.words, starts),
    ]
    builder.add(KEEP_LATENTS, words, n, 8 * shape.width)


def add_fold(
    builder: Builder,
    n: int,
    shape: LatentHeads,
    q: Rows,  # (n, heads, plain + turning)
    matrix: Matrix,  # (heads * (plain + value), rank)
    turning: Turning,
    out: Rows,  # (n, heads, rank + turning)
) -> None:
    """Two phases: queries in the space of latents, and their turned dims behind them."""
    heads = shape.heads
    words = [
        *(heads, shape.plain, shape.turning, shape.rank),
        *(q.address, q.step, out.address, out.step, *turning.words),
    ]
    builder.add(TURN_QUERIES, words, n * heads, 4 * shape.turning)
    kind = matrix.kind
    words = [
        *(n, shape.plain, shape.plain + shape.turning, shape.rank, shape.width),
        *_matrix_words(matrix, 0, (shape.plain + shape.value) // 16),
        *(kind, q.address, q.step, out.address, out.step),
    ]
    together = int(columns_together(kind))
    items = heads * -(-shape.rank // together)
    builder.add(FOLD, words, items, (n + 2) * together * shape.plain)


def add_unfold(
    builder: Builder,
    n: int,
    shape: LatentHeads,
    matrix: Matrix,  # (heads * (plain + value), rank)
    x: Rows,  # (n * heads) rows of `rank`, prepared for the matrix's kind
    out: Rows,  # (n, heads, value)
) -> None:
    """A phase: values of all heads out of weighted sums of latents."""
    tiles = shape.value // 16
    words = [
        *(n, shape.heads, tiles, tile_kernel(matrix.layout.format)),
        *_matrix_words(matrix, shape.plain // 16, (shape.plain + shape.value) // 16),
        *(x.address, x.step, out.address, out.step),
    ]
    builder.add(UNFOLD, words, shape.heads * tiles, n * 16 * shape.rank)


def _matrix_words(matrix: Matrix, first_tile: int, head_tiles: int) -> list[int]:
    """Data and scales of the first head's tile `first_tile`, their bytes of a tile, depth, and the
    tiles from one head to the next."""
    layout, kind = matrix.layout, matrix.kind
    depth = int(depth_of(kind, layout.cols))
    data, scales = int(tile_bytes(kind, depth)), int(scale_bytes(kind, depth))
    begin = matrix.data_address
    return [
        begin + first_tile * data,
        begin + layout.scales_offset + first_tile * scales,
        *(data, scales, depth, head_tiles),
    ]


def _keep_latents(args, begin, end):  # pragma: no cover - compiled
    """Items: rows."""
    rank = word_at(args + 16)
    turning = word_at(args + 24)
    pairs = word_at(args + 64)
    start = word_at(word_at(args + 80))
    for row in range(begin, end):
        x = word_at(args) + row * word_at(args + 8)
        position = start + row
        if row % PIECE == 0:
            put_word(word_at(args + 144) + row // PIECE * 8, position)
        norm_row(x, word_at(args + 32), rank, f32_at(args + 40), x)
        at = position * pairs * 4
        turn(
            x + rank * 4,
            word_at(args + 48) + at,
            word_at(args + 56) + at,
            pairs,
            word_at(args + 72),
        )
        keep(x, rank + turning, word_at(args + 88), args + 96, np.int64(0), position)


def _turn_queries(args, begin, end):  # pragma: no cover - compiled
    """Items: (row, head)."""
    heads = word_at(args)
    plain = word_at(args + 8)
    turning = word_at(args + 16)
    rank = word_at(args + 24)
    pairs = word_at(args + 80)
    start = word_at(word_at(args + 96))
    for item in range(begin, end):
        row = item // heads
        head = item % heads
        q = word_at(args + 32) + row * word_at(args + 40)
        q += (head * (plain + turning) + plain) * 4
        y = word_at(args + 48) + row * word_at(args + 56)
        y += (head * (rank + turning) + rank) * 4
        for d in range(0, turning * 4, 4):
            store_one(y + d, f32_at(q + d))
        at = (start + row) * pairs * 4
        turn(y, word_at(args + 64) + at, word_at(args + 72) + at, pairs, word_at(args + 88))


@inner
def _fold_block(args, head, first, count, columns):  # pragma: no cover - compiled
    """Folded numbers first..first+count-1 of a head, of all rows; `columns`: room for the weights."""
    n = word_at(args)
    plain = word_at(args + 8)
    tile = head * word_at(args + 80)
    for t in range(plain // 16):
        tile_columns(
            word_at(args + 88),
            word_at(args + 40) + (tile + t) * word_at(args + 56),
            word_at(args + 48) + (tile + t) * word_at(args + 64),
            word_at(args + 72),
            first,
            count,
            columns + t * 64,
            plain * 4,
        )
    q = word_at(args + 96) + head * word_at(args + 16) * 4
    q_step = word_at(args + 104)
    y = word_at(args + 112) + (head * word_at(args + 32) + first) * 4
    y_step = word_at(args + 120)
    for row in range(0, n - 1, 2):
        at = q + row * q_step
        to = y + row * y_step
        score_two(at, at + q_step, columns, plain * 4, count, plain, to, to + y_step)
    if n % 2 == 1:
        last = n - 1
        score_one(q + last * q_step, columns, plain * 4, count, plain, y + last * y_step)


def _fold(args, begin, end):  # pragma: no cover - compiled
    """Items: (head, block of columns)."""
    plain = word_at(args + 8)
    rank = word_at(args + 24)
    together = columns_together(word_at(args + 88))
    blocks = (rank + together - 1) // together
    room = np.empty(together * plain + 16, np.float32)
    for item in range(begin, end):
        columns = (address(room) + 63) // 64 * 64  # in here: see `simd.address`
        first = item % blocks * together
        _fold_block(args, item // blocks, first, min(together, rank - first), columns)


_inputs = on_stack(8 * ROWS)
_outputs = on_stack(8 * ROWS)


def _unfold(args, begin, end):  # pragma: no cover - compiled
    """Items: tiles of values, head by head."""
    n = word_at(args)
    heads = word_at(args + 8)
    tiles = word_at(args + 16)
    x = word_at(args + 80)
    x_step = word_at(args + 88)
    xs = _inputs()
    ys = _outputs()
    item = begin
    while item < end:
        head = item // tiles
        until = min(end, (head + 1) * tiles)
        tile = head * word_at(args + 72)
        y = word_at(args + 96) + head * tiles * 64
        for row in range(0, n, ROWS):
            count = min(ROWS, n - row)
            for i in range(count):
                put_word(xs + i * 8, x + ((row + i) * heads + head) * x_step)
                put_word(ys + i * 8, y + (row + i) * word_at(args + 104))
            tiles_of_rows(
                word_at(args + 24),
                word_at(args + 32) + tile * word_at(args + 48),
                word_at(args + 40) + tile * word_at(args + 56),
                word_at(args + 64),
                word_at(args + 48),
                word_at(args + 56),
                item - head * tiles,
                until - head * tiles,
                xs,
                ys,
                count,
                tiles * 16,
            )
        item = until


KEEP_LATENTS = Phase(_keep_latents)
TURN_QUERIES = Phase(_turn_queries)
FOLD = Phase(_fold)
UNFOLD = Phase(_unfold)
