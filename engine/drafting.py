"""From what a run asks for to its draft sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from diskmoe.engine.corpora import open_corpus
from diskmoe.engine.draft_model import DraftModel
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.loading import Opened
from diskmoe.engine.options import Options
from diskmoe.engine.places import as_path
from diskmoe.engine.text.side import Prompt, TextSide
from diskmoe.engine.text.tokenizer import TextTokenizer
from diskmoe.experts.budget import shown_bytes
from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.course import Course
from diskmoe.grammar_draft.languages import from_schema
from diskmoe.grammar_draft.library import load, load_schema
from diskmoe.grammar_draft.rules import Grammar
from diskmoe.mtp.acceptance import Acceptance
from diskmoe.mtp.certain_source import CertainSource
from diskmoe.mtp.compose import Composer
from diskmoe.mtp.corpus import MAPPED_BYTES, Corpus, CorpusSource
from diskmoe.mtp.costs import Costs
from diskmoe.mtp.grammar_source import GrammarSource
from diskmoe.mtp.ngram import NgramSource
from diskmoe.mtp.planner import Planner
from diskmoe.mtp.source import DraftSource

Say = Callable[[str], None]


def grammar_of(
    grammar: str | None,
    schema: str | None,
    constrain: str,
    text: TextSide,
    say: Say,
    *,
    blanks: str = "flexible",
    lax: bool = False,
) -> Grammar | None:
    """The grammar that a run's settings name: GRAMMAR, or else SCHEMA.

    blanks and lax: of a schema, see ``from_schema``.

    Raises:
        BadGrammar: no such file, or one that cannot be used; the line has the place.
        BadRequest: the model has no tokenizer; CONSTRAIN without either, or with both.
    """
    enforced = constrain != "0"
    if grammar is None and schema is None:
        if enforced:
            raise BadRequest(f"CONSTRAIN={constrain} needs what to follow: give GRAMMAR or SCHEMA")
        return None
    if grammar is not None and schema is not None:
        if enforced:
            raise BadRequest(f"CONSTRAIN={constrain} follows GRAMMAR or SCHEMA: give one of them")
        say("note      SCHEMA has no effect beside GRAMMAR")
    tokenizer = _tokenizer(text)
    profile = "json-schema" if enforced else "drafts"
    if grammar is not None:
        found = load(
            str(as_path(grammar)),
            token_id=tokenizer.token_id,
            profile=profile,
            whitespace=blanks,
            lax=lax,
        )
    else:
        assert schema is not None
        if schema.lstrip().startswith("{"):
            found = from_schema(schema, profile=profile, whitespace=blanks, lax=lax, name="SCHEMA")
        else:
            found = load_schema(str(as_path(schema)), profile, blanks, lax)
        if not enforced:
            say("note      SCHEMA only drafts; CONSTRAIN=1 makes the text follow it")
    for note in found.notes:
        say(f"note      {found.name}: {note}")
    return found


@dataclass(frozen=True)
class Experience:
    """What is known of a model from one text to the next: what its forwards cost, and how often the
    models that draft for it were right."""

    costs: Costs = field(default_factory=Costs)
    chances: dict[str, Acceptance] = field(default_factory=dict)


@dataclass(frozen=True)
class Helpers:
    """What a model has beside it to draft with, opened once for all its runs."""

    corpus: Corpus | None
    small: DraftModel | None

    @classmethod
    def open(cls, options: Options, text: TextSide) -> Helpers:
        """Raises BadRequest, BadModel: something that cannot be used, or not with this model."""
        with ExitStack() as stack:
            corpus = small = None
            if options.corpus is not None:
                corpus = open_corpus(options.corpus, text.tokenizer)
                stack.callback(corpus.close)
            if options.draft_model is not None:
                small = DraftModel.open(options.draft_model, text.tokenizer)
            stack.pop_all()
        return cls(corpus, small)

    @property
    def models(self) -> list[Opened]:
        """Those whose kernels are needed."""
        return [] if self.small is None else [self.small.opened]

    def nbytes(self, context: int, options: Options) -> int:
        """Memory that it takes, for the plan."""
        nbytes = 0 if self.corpus is None else MAPPED_BYTES
        return nbytes if self.small is None else nbytes + self.small.nbytes(context, options)

    def load(self, workers: Workers, context: int, options: Options) -> None:
        """Raises BadModel: weights that cannot be read."""
        if self.small is not None:
            self.small.load(workers, context, options)

    def describe(self, context: int, options: Options) -> Iterator[str]:
        """A line for each."""
        if self.corpus is not None:
            yield (
                f"corpus    {self.corpus.path}: {len(self.corpus)} tokens of "
                f"{self.corpus.documents} documents, mapped"
            )
        if self.small is not None:
            nbytes = shown_bytes(self.small.nbytes(context, options))
            yield f"draft     {self.small.describe()}; {nbytes}, counted as scratch"

    def close(self) -> None:
        if self.corpus is not None:
            self.corpus.close()
        if self.small is not None:
            self.small.close()


def composer_of(
    grammar: Grammar | None,
    models: Sequence[DraftSource],
    text: TextSide,
    prompt: Prompt,
    vocab: int,
    options: Options,
    helpers: Helpers,
    experience: Experience,
    say: Say,
    course: Course | None = None,
    begun: bool = False,
) -> Composer | None:
    """What drafts for one run; None: nothing does. ``vocab``: ids of the model are below it;
    models: sources that are models themselves; experience: of other texts, added to; course: what
    constrains the run; begun: the grammar does so from the first byte on.

    Raises:
        BadRequest: a grammar where the model has no tokenizer.
    """
    forced: list[DraftSource] = []
    others: list[DraftSource] = []
    if course is not None:
        forced.append(CertainSource(course))
    if grammar is not None and options.span:
        forced.append(_grammar_source(grammar, text, prompt, options, begun))
    if options.ngram and options.draft != 0:
        others.append(NgramSource(prompt.ids))
    if helpers.corpus is not None:
        others.append(CorpusSource(helpers.corpus, prompt.ids))
    others += models
    if not options.draft_rows or not (forced or others):
        return None
    planner = Planner(options.draft, experience.costs)
    return Composer(
        forced,
        others,
        vocab,
        options.draft_rows,
        planner,
        options.guard,
        say,
        experience.chances,
        lambda chain: course is None or course.after(chain) is not None,
    )


def _grammar_source(
    grammar: Grammar, text: TextSide, prompt: Prompt, options: Options, begun: bool
) -> GrammarSource:
    tags, thinking = text.thinking(prompt.ids)
    return GrammarSource(
        Automaton(grammar),
        _tokenizer(text),
        prompt.ids,
        cap=options.span,
        continues=not prompt.in_chat,
        tags=tags,
        thinking=thinking,
        begun=begun,
    )


def _tokenizer(text: TextSide) -> TextTokenizer:
    if text.tokenizer is None:
        raise BadRequest(f"a grammar is of text, and {text.path} has no tokenizer.json")
    return text.tokenizer
