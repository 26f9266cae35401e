"""A model that is known to fit what is asked of it, before a weight of it is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from diskmoe.engine.decode import check_prompt
from diskmoe.engine.drafting import Helpers
from diskmoe.engine.loading import Opened, open_model, ready_model_kernels
from diskmoe.engine.memory import plan_for
from diskmoe.engine.options import Options
from diskmoe.engine.text.side import TextSide
from diskmoe.experts.budget import MemoryPlan

Say = Callable[[str], None]


def silent(line: str) -> None:
    """Says nothing."""


@dataclass(frozen=True)
class Prepared:
    """A model that was opened and found good, with its text side; no weight is in memory."""

    opened: Opened
    text: TextSide
    helpers: Helpers
    options: Options

    def check_prompt(self, ids: Sequence[int]) -> None:
        """Raises BadRequest when the model cannot be fed these tokens."""
        check_prompt(ids, self.opened.config.vocab, self.opened.context)

    def plan(self, say: Say = silent) -> MemoryPlan:
        """Compiles the kernels and plans the memory. Raises OutOfBudget."""
        constrains = (
            self.options.constrain != "0" or self.options.parallel > 1
        )  # any may ask for it
        ready_model_kernels([self.opened, *self.helpers.models], say, constrains)
        return plan_for(
            self.opened, self.options, say, self.helpers.nbytes(self.opened.context, self.options)
        )

    def for_run(self, tokens: int, limit: int) -> Prepared:
        """The same for one prompt of so many tokens and an answer of at most `limit`.

        Memory is planned for that alone: where no CTX was given, the KV cache holds no more
        positions than these (and no more than before).
        """
        opened = self.opened
        if self.options.ctx is None:
            opened = replace(opened, context=min(opened.context, tokens + limit))
        options = replace(self.options, longest_prompt=max(1, tokens))
        return replace(self, opened=opened, options=options)

    def close(self) -> None:
        """Closes the files of a model that is not to be loaded."""
        self.helpers.close()
        self.opened.records.close()


def prepare(path: str | Path, options: Options | None = None, say: Say = silent) -> Prepared:
    """Opens a model's headers and text files.

    Args:
        path: a converted model or a Hugging Face directory.
        options: how it is to run.
        say: gets one line per thing worth knowing.

    Raises:
        BadModel: one line that names the file and what is wrong with it.
        BadRequest: something to draft with that cannot be used.
    """
    options = options or Options()
    if options.draft == 0:  # else their memory would be taken for nothing
        for name in ("draft_model", "corpus"):
            if getattr(options, name) is not None:
                say(f"note      {name.upper()}={getattr(options, name)} is not used: DRAFT=0")
        options = replace(options, draft_model=None, corpus=None)
    opened = open_model(Path(path), options)
    for note in opened.notes:
        say(f"note      {note}")
    try:
        config = opened.config
        text = TextSide.load(opened.path, opened.source.config, config.vocab, opened.context)
        helpers = Helpers.open(options, text)
    except BaseException:
        opened.records.close()
        raise
    return Prepared(opened, text, helpers, options)
