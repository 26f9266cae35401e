"""Checksums of records and tensors: BLAKE2b-64 in hex, kept in the metadata of our files."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from diskmoe.experts.tiles import Bytes

NO_CHECKSUM = "0" * 16  # stands where one will be written


def new_digest() -> "hashlib.blake2b":
    """Takes bytes by ``update``; its ``hexdigest`` is the checksum."""
    return hashlib.blake2b(digest_size=8)


@dataclass(frozen=True)
class Piece:
    """Bytes of a file whose checksum is known. what: whose they are, for messages."""

    what: str
    path: Path
    offset: int
    nbytes: int
    checksum: str

    def damage(self, found: str) -> str | None:
        """What is wrong, in one line, when the bytes read have the checksum `found`."""
        if found == self.checksum:
            return None
        return (
            f"{self.path}: {self.what} ({self.nbytes} bytes at {self.offset}) has checksum {found}, "
            f"it was written with {self.checksum}: convert the model again, and check the disk"
        )


def checksum(data: Bytes) -> str:
    """The checksum of bytes in memory, u8 1-D."""
    digest = new_digest()
    digest.update(data.data)
    return digest.hexdigest()
