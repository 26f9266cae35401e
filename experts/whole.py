"""Small files that are there whole or not at all."""

import os
import secrets
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, chunks: Iterable[bytes]) -> None:
    """Write the chunks under another name, then give the file its own; what was there is replaced.

    Nothing is left behind when that fails, by an OSError of the disk or by what `chunks` raises.
    """
    # a name of 255 bytes is the longest that most file systems take
    unfinished = path.with_name(f".{path.name[:50]}.{secrets.token_hex(4)}.tmp")
    try:
        with unfinished.open("xb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:  # Ctrl-C too
        unfinished.unlink(missing_ok=True)
        raise
