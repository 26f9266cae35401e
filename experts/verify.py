"""Are a converted model's bytes on the disk still those that were written?

The rule of this file: every piece is read once, in the order of the files and past the page cache
where that works (what memory holds says nothing about a disk), and all that is damaged is found,
not only the first.
"""

import threading
from collections.abc import Iterator
from queue import SimpleQueue

from diskmoe.experts.arena import Arena
from diskmoe.experts.checksums import Piece, new_digest
from diskmoe.experts.container import Container
from diskmoe.experts.direct import probe_direct
from diskmoe.experts.errors import ReadFailed
from diskmoe.experts.reader import FileReader, ReadPool, through_nbytes

BLOCK_BYTES = 8 << 20  # read at once; a record is smaller, an embedding is not


def pieces_of(container: Container) -> list[Piece]:
    """All that has a checksum, in the order of the files."""
    pieces = container.dense_pieces()
    for layer in container.layers:
        of_layer = (container.record_piece(layer, e) for e in range(container.n_experts))
        pieces += sorted(of_layer, key=lambda piece: piece.offset)
    return pieces


def verify(pieces: list[Piece], n_threads: int = 2) -> Iterator[tuple[Piece, str | None]]:
    """(piece, what is wrong with it or None), one after another as they are done.

    Uses `n_threads` blocks of memory. Abandoned, it ends with the reads under way.
    """
    if not pieces:
        return
    direct, _ = probe_direct(pieces[0].path)
    reader, pool = FileReader(direct), ReadPool(n_threads)
    arena = Arena(pool.n_threads, through_nbytes(BLOCK_BYTES))
    todo, lock = iter(pieces), threading.Lock()
    done: SimpleQueue[tuple[Piece, str | None] | BaseException] = SimpleQueue()
    stop = threading.Event()

    def work(slot: int) -> None:
        try:
            while not stop.is_set():
                with lock:
                    piece = next(todo, None)
                if piece is None:
                    return
                done.put((piece, _damage(piece, reader, arena, slot)))
        except BaseException as error:  # noqa: BLE001 - raised below, where it is waited for
            done.put(error)

    try:
        for slot in range(pool.n_threads):
            pool.submit(lambda slot=slot: work(slot))
        for _ in pieces:
            result = done.get()
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        stop.set()
        pool.close()
        reader.close()
        arena.close()


def _damage(piece: Piece, reader: FileReader, arena: Arena, slot: int) -> str | None:
    digest = new_digest()
    for begin in range(0, piece.nbytes, BLOCK_BYTES):
        nbytes = min(BLOCK_BYTES, piece.nbytes - begin)
        try:
            data = reader.read_through(piece.path, piece.offset + begin, nbytes, arena.slot(slot))
        except ReadFailed as error:
            return f"{error} ({piece.what})"
        digest.update(data.data)
    return piece.damage(digest.hexdigest())
