"""The error classes of the public door; the base and the model errors live in experts."""

from diskmoe.experts.errors import (
    BadModel,
    BadOutput,
    DiskFull,
    DiskMoeError,
    OutOfBudget,
    ReadFailed,
    WriteFailed,
)

__all__ = [
    "BadModel",
    "BadOutput",
    "BadRequest",
    "DiskFull",
    "DiskMoeError",
    "OutOfBudget",
    "ReadFailed",
    "WriteFailed",
]


class BadRequest(DiskMoeError):
    """A prompt, a setting or a combination of them cannot be carried out."""
