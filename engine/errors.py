"""The error classes of the public door; those of models live in experts, BadGrammar with grammars."""

from diskmoe.experts.errors import (
    BadModel,
    BadOutput,
    DiskFull,
    DiskMoeError,
    OutOfBudget,
    ReadFailed,
    WriteFailed,
)
from diskmoe.grammar_draft.errors import BadGrammar, DeadEnd

__all__ = [
    "BadGrammar",
    "BadModel",
    "BadOutput",
    "BadRequest",
    "DeadEnd",
    "DiskFull",
    "DiskMoeError",
    "OutOfBudget",
    "ReadFailed",
    "WriteFailed",
]


class BadRequest(DiskMoeError):
    """A prompt, a setting or a combination of them cannot be carried out."""
