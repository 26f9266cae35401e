"""What of the calls of an answer is enforced, and from where on."""

from __future__ import annotations

from dataclasses import dataclass

from diskmoe.engine.constraining import ThinkBudget
from diskmoe.engine.text.side import Prompt, TextSide
from diskmoe.engine.tools.forms import Form
from diskmoe.engine.tools.toolbox import Toolbox
from diskmoe.engine.tools.writing import Calls, Speller
from diskmoe.grammar_draft.rules import Grammar


@dataclass(frozen=True)
class Enforcing:
    """Of a request with tools. beside: what its answer must follow where it calls none.

    A call that must come, and an answer that must follow something anyway, are enforced from the
    first token on, but for reasoning. Else, where some tool is strict, what follows the word that
    opens calls is; where none is, nothing.
    """

    form: Form
    toolbox: Toolbox
    beside: Grammar | None = None

    @property
    def needed(self) -> bool:
        return self._from_the_start or self.toolbox.strict

    @property
    def triggers(self) -> tuple[str, ...]:
        """What the grammar begins behind; none: the answer begins with it."""
        return () if self._from_the_start else (self.form.opening,)

    def grammar(self, text: TextSide, blanks: str = "flexible", lax: bool = False) -> Grammar:
        """Raises BadGrammar: the schema of a tool's arguments is none, or cannot be enforced."""
        calls = Calls(self.form, self.toolbox, Speller.of(text), blanks, lax)
        if not self._from_the_start:
            return calls.behind_opening()
        return calls.from_the_start(None if self.toolbox.must else self.beside)

    def thinking(self, text: TextSide, prompt: Prompt) -> ThinkBudget | None:
        """Reasoning before the grammar, where the model may yet begin some."""
        return ThinkBudget() if self._from_the_start and text.may_think(prompt.ids) else None

    @property
    def _from_the_start(self) -> bool:
        return self.toolbox.must or self.beside is not None
