"""What can go wrong, in words for the person who can mend it.

Every message is one line that names the file, the place, the numbers that disagree and the next
step. The command line prints it after ``error:`` and exits; a library user catches the class.
"""


class DiskMoeError(Exception):
    """Base of all errors that are somebody's to mend; never a bug in this program."""

    exit_code = 2


class BadModel(DiskMoeError):
    """A model directory, its files or their contents cannot be used."""


class DiskFull(BadModel):
    """A conversion ran out of disk; what is written already is kept and can be resumed."""


class WriteFailed(DiskMoeError):
    """The disk refused to take bytes, for another reason than being full."""

    exit_code = 1


class BadOutput(DiskMoeError):
    """The place named for output cannot be used: read-only, no directory, or taken."""


class OutOfBudget(DiskMoeError):
    """The memory budget cannot hold what must be resident."""


class ReadFailed(DiskMoeError):
    """The disk refused to give bytes that the file is known to have."""

    exit_code = 1
