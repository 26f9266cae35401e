"""``diskmoe verify``: is every byte of a converted model still what was written?"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from diskmoe.engine.converting import progress_lines
from diskmoe.engine.errors import BadModel
from diskmoe.experts.budget import shown_bytes
from diskmoe.experts.container import Container, is_container
from diskmoe.experts.verify import pieces_of, verify

Say = Callable[[str], None]
MOST_LINES = 20  # of damaged pieces; a disk that is lost has thousands


def verify_model(path: Path, say: Say) -> str:
    """Compares all checksums; the summary, in one line.

    Raises:
        BadModel: something is damaged; each piece was said in a line before.
    """
    if not is_container(path):
        raise BadModel(f"{path} is not a converted model: it has no checksums to compare with")
    container = Container.open(path)
    pieces = pieces_of(container)
    total, done, damaged = sum(piece.nbytes for piece in pieces), 0, 0
    if not container.dense_pieces():
        say(
            "note      the dense tensors have no checksums: this model was converted by an earlier "
            "version; convert it again to have them"
        )
    tell, started = progress_lines(say, "verify"), time.perf_counter()
    for piece, damage in verify(pieces):
        done += piece.nbytes
        if damage is not None:
            damaged += 1
            if damaged <= MOST_LINES:
                say(f"damaged   {damage}")
        tell(done, total, piece.path.name)
    if damaged:
        raise BadModel(
            f"{path}: {damaged} of {len(pieces)} records and tensors are damaged; check the disk, "
            "and convert the model again"
        )
    seconds = time.perf_counter() - started
    return (
        f"{path}: {len(pieces)} records and tensors, {shown_bytes(total)}, are as they were written "
        f"({seconds:.1f} s)"
    )
