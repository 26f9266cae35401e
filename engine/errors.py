"""The error classes of the public door; the base and the model errors live in experts."""

from diskmoe.experts.errors import BadModel, DiskMoeError, OutOfBudget, ReadFailed

__all__ = ["BadModel", "BadRequest", "DiskMoeError", "OutOfBudget", "ReadFailed"]


class BadRequest(DiskMoeError):
    """A prompt, a setting or a combination of them cannot be carried out."""
