"""A process that has a model, and its children that only seem to have one.

A child made by ``fork`` has the model's memory and none of its threads; its locks are as other
threads had them at that moment. So whatever is asked of the model there would wait for ever: it is
refused instead, before a lock is touched.
"""

from __future__ import annotations

import os

from diskmoe.engine.errors import BadRequest


class Home:
    """The process in which it was made."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_here(self) -> bool:
        return os.getpid() == self._process

    def check(self) -> None:
        """BadRequest in any other process."""
        if not self.is_here:
            raise BadRequest(
                f"this model was loaded in process {self._process}, of which this one is a fork: its "
                "threads are not here. Load the model in this process, or start processes by spawn "
                "(multiprocessing.get_context('spawn'))"
            )
