"""What constrains runs of a model: grammars made ready for its vocabulary, and kept for the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.options import check_constrain
from diskmoe.engine.text.side import Prompt, TextSide
from diskmoe.engine.text.tokenizer import TextTokenizer
from diskmoe.grammar_draft.compiled_table import digest
from diskmoe.grammar_draft.constraint import Constraint
from diskmoe.grammar_draft.course import Course
from diskmoe.grammar_draft.lazy import Free, Lazy
from diskmoe.grammar_draft.rules import Grammar
from diskmoe.grammar_draft.tables import Tables
from diskmoe.grammar_draft.thinking import UNLIMITED, Tags, Thinking
from diskmoe.grammar_draft.vocabulary import Vocabulary

MOST_SAID = 1000  # lines, of which none is said twice
KEPT_BYTES = 16 << 20  # of constraints that no text has now
Say = Callable[[str], None]
Key = tuple[str, frozenset[int]]  # a digest, and the ids that end a text


@dataclass(frozen=True)
class ThinkBudget:
    """How long a thinking block may be: so many tokens, -1: any number, 0: it is ended at once.
    message: what is written before the end of one that was too long."""

    tokens: int = UNLIMITED
    message: str = ""

    def __post_init__(self) -> None:
        if type(self.tokens) is not int or self.tokens < UNLIMITED:
            raise BadRequest(
                f"the budget of thinking is {self.tokens!r}; it must be a number of tokens, -1 for any"
            )


@dataclass(frozen=True)
class Wanted:
    """What is to constrain one run. mode: as of ``mode_of``. triggers: words, /patterns/ or <[ids]>
    of tokens, of which the first begins the grammar; none: the text does.

    Raises:
        BadRequest: what is to be enforced is not there, or triggers are to begin nothing.
    """

    grammar: Grammar | None
    mode: str
    triggers: Sequence[str] = ()
    thinking: ThinkBudget | None = None

    def __post_init__(self) -> None:
        if self.mode != "0" and self.grammar is None:
            raise BadRequest("nothing to constrain by: give a grammar or a schema")
        if self.mode == "0" and self.triggers:
            raise BadRequest("a trigger needs a grammar to begin: constrain by one")

    @property
    def enforced(self) -> Grammar | None:
        """The grammar, if it does more than draft."""
        return None if self.mode == "0" else self.grammar

    @property
    def way(self) -> str:
        """How a sampler is to go about it."""
        return "1" if self.mode == "0" else self.mode

    @property
    def from_the_start(self) -> bool:
        """Whether the text's first byte, but for a thinking block, is the grammar's."""
        return self.enforced is not None and not self.triggers


def mode_of(constrain: str | bool) -> str:
    """How to enforce: "0" (not at all), "1", "mask" or "check". Raises BadRequest for others."""
    if isinstance(constrain, bool):
        return "1" if constrain else "0"
    check_constrain(constrain)
    return constrain


class Constraints:
    """The constraints of one model."""

    def __init__(self, text: TextSide, say: Say, folder: Path | None = None) -> None:
        """folder: where compiled grammars outlive the process."""
        self._text = text
        self._say = say
        self._tables = Tables(folder, say)
        self._said: set[str] = set()
        self._vocabularies: dict[frozenset[int], Vocabulary] = {}
        self._lock = Lock()  # of those that are free, for moments only
        # by what a grammar says and the ends: those that no text has now
        self._free: dict[Key, list[Constraint]] = {}

    def course(
        self, wanted: Wanted, prompt: Prompt, ends: frozenset[int]
    ) -> tuple[Course | None, Callable[[], None]]:
        """What a new text is to follow, None for nothing; and what to call when it has ended. ends:
        the ids that end it.

        Raises:
            BadRequest: a budget where the model has no thinking blocks, a model without a tokenizer.
            BadGrammar: a trigger that is none.
        """
        grammar, thinking = wanted.enforced, wanted.thinking
        if grammar is None and thinking is None:
            return None, lambda: None
        vocabulary = self._vocabulary(ends)
        if grammar is None:
            return Course(self._with_thinking(Free(vocabulary), thinking, prompt)), lambda: None
        constraint, give_back = self._constraint(grammar, vocabulary)
        rules: Free | Constraint = constraint
        where = "from its first byte on"
        if wanted.triggers:
            rules = Lazy(constraint, wanted.triggers)
            where = " or ".join(_place(constraint, text) for text in wanted.triggers)
        self._tell(f"constrain the text follows {grammar.name} ({constraint.how}) {where}")
        return Course(self._with_thinking(rules, thinking, prompt)), give_back

    def _with_thinking(
        self, rules: Free | Constraint, budget: ThinkBudget | None, prompt: Prompt
    ) -> Free | Constraint | Thinking:
        """The rules, around the thinking blocks that a text may have."""
        texts, inside = self._text.thinking(prompt.ids)
        if texts is None:
            if budget is not None:
                raise BadRequest("a budget of thinking, and the model has no thinking blocks")
            return rules
        if not inside and isinstance(rules, Constraint) and (budget is None or not budget.tokens):
            return rules  # the text is the grammar's alone
        tokenizer = self._tokenizer
        opening, closing = (tokenizer.token_id(text) for text in texts)
        assert opening is not None and closing is not None
        tags = Tags(texts[0].encode(), texts[1].encode(), opening, closing)
        if budget is None:
            budget = ThinkBudget()
        elif budget.tokens >= 0:
            self._tell(f"thinking  {budget.tokens} tokens a block at most")
        if isinstance(rules, Constraint):
            self._tell("constrain thinking comes first, and is free")
        message = tokenizer.encode(budget.message)
        if not {closing, *message}.isdisjoint(rules.vocabulary.ends):
            raise BadRequest(
                f"{budget.message + texts[1]!r} is to end a thinking block, and holds a token that ends "
                "the text"
            )
        return Thinking(rules, tags, budget.tokens, message, inside)

    def _constraint(
        self, grammar: Grammar, vocabulary: Vocabulary
    ) -> tuple[Constraint, Callable[[], None]]:
        """A constraint that nobody else has: they are for one thread at a time, and texts may be in
        several. And what gives it back."""
        key = digest(grammar), frozenset(vocabulary.ends)
        with self._lock:
            free = self._free.pop(key, [])
            constraint = free.pop() if free else None
            if free:
                self._free[key] = free
        if constraint is None:
            constraint = Constraint(grammar, vocabulary, self._tables)
        constraint.name = grammar.name
        return constraint, partial(self._give_back, key, constraint)

    def _give_back(self, key: Key, constraint: Constraint) -> None:
        """Keeps a constraint for the next text, and forgets those longest unused beyond KEPT_BYTES."""
        if constraint.gave_up:  # the next text may go where it can be followed
            return
        with self._lock:
            self._free[key] = [*self._free.pop(key, []), constraint]  # the latest stands last
            size = sum(one.nbytes for free in self._free.values() for one in free)
            while size > KEPT_BYTES:
                oldest = next(iter(self._free))
                size -= self._free[oldest].pop(0).nbytes
                if not self._free[oldest]:
                    del self._free[oldest]

    def _tell(self, line: str) -> None:
        """Says what was not said before."""
        if line not in self._said:
            if len(self._said) >= MOST_SAID:
                self._said.clear()
            self._said.add(line)
            self._say(line)

    def _vocabulary(self, ends: frozenset[int]) -> Vocabulary:
        known = self._vocabularies.get(ends)
        if known is None:
            tokenizer = self._tokenizer
            known = Vocabulary(tokenizer.token_bytes, tokenizer.special_text, ends)
            self._vocabularies[ends] = known
        return known

    @property
    def _tokenizer(self) -> TextTokenizer:
        if self._text.tokenizer is None:
            raise BadRequest(f"a grammar is of text, and {self._text.path} has no tokenizer.json")
        return self._text.tokenizer


def _place(constraint: Constraint, trigger: str) -> str:
    """Where a grammar begins that a trigger begins, as far as it can be told beforehand."""
    if trigger.startswith(("/", "<[")):
        return f"where {trigger!r} comes"
    begins = constraint.walk(constraint.start, trigger.encode()) is not None
    return f"from {trigger!r} on" if begins else f"behind {trigger!r}"
