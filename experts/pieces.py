"""What a converted model is made of, piece by piece, each made just before it is written.

The rule of this file: memory is bounded by the threads and by a block of rows, never by the size of
a layer or of a matrix.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from diskmoe.experts.checkpoint import ROW_BLOCK_BYTES, Checkpoint
from diskmoe.experts.errors import BadModel
from diskmoe.experts.records import CheckpointRecords
from diskmoe.experts.safetensors_io import shown
from diskmoe.experts.tiles import TILE, Bytes, MatrixLayout, aligned_zeros, matrix_layout

T = TypeVar("T")


def in_order(records: CheckpointRecords, layer: int, threads: int) -> Generator[Bytes, None, None]:
    """The layer's records, expert by expert; as many as there are threads are made ahead.

    Closing it waits for the threads.
    """

    def make(expert: int) -> Bytes:
        record = aligned_zeros(records.record_layout_of(layer).nbytes)
        records.load(layer, expert, record)
        return record

    return made_ahead(make, records.n_experts, threads, "diskmoe-convert")


def made_ahead(
    make: Callable[[int], T], count: int, threads: int, name: str
) -> Generator[T, None, None]:
    """make(0), make(1), ... in order; as many as there are threads, called `name`, are made ahead.

    Closing it waits for the threads.
    """
    made: deque[Future[T]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix=name) as pool:
        try:
            for number in range(count):
                made.append(pool.submit(make, number))
                if len(made) > threads:
                    yield made.popleft().result()
            while made:
                yield made.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def packed_parts(checkpoint: Checkpoint, name: str, layout: MatrixLayout) -> Iterator[Bytes]:
    """The bytes of `Checkpoint.pack`, in pieces: tiles lie one after another, scales behind them."""
    block = max(ROW_BLOCK_BYTES // (4 * layout.cols) // TILE, 1) * TILE
    scales: list[Bytes] = []
    written = 0
    for begin in range(0, layout.rows, block):
        end = min(begin + block, layout.rows)
        part_layout = matrix_layout(layout.format, end - begin, layout.cols)
        try:
            part = checkpoint.pack_part(name, begin, part_layout)
        except ValueError as error:
            path = checkpoint.info(name).path
            raise BadModel(f"{path}: tensor {shown(name)} from row {begin} on: {error}") from None
        data, part_scales = part_layout.sections(part)
        scales.append(part_scales.copy())  # a view would keep the whole part
        yield data
        written += data.nbytes
        del part, data, part_scales  # gone before the next rows are read
    for part_scales in scales:
        yield part_scales
        written += part_scales.nbytes
    yield np.zeros(layout.nbytes - written, np.uint8)
