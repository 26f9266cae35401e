"""Grammars at a place of a document: ours, XGrammar's, llguidance's, behind one face."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module, metadata, util
from typing import Any, Protocol

import numpy as np

from diskmoe.bench.grammar_texts import ARITHMETIC, ARITHMETIC_LARK, SCHEMA
from diskmoe.bench.vocabulary_file import greedy
from diskmoe.engine.errors import BadRequest
from diskmoe.grammar_draft.constraint import Constraint
from diskmoe.grammar_draft.gbnf import parse
from diskmoe.grammar_draft.languages import from_schema
from diskmoe.grammar_draft.library import load
from diskmoe.grammar_draft.rules import Grammar
from diskmoe.grammar_draft.tables import Tables
from diskmoe.grammar_draft.vocabulary import Vocabulary

Say = Callable[[str], None]
Maker = Callable[[str, bool], "Matcher"]  # (kind of document, whether what was compiled is kept)


class Matcher(Protocol):
    """A grammar at one place of a document."""

    how: str

    def mask(self) -> Any: ...
    def accept(self, token: int) -> bool: ...
    def fork(self) -> Any: ...
    def restart(self) -> None: ...


class Ours:
    """diskmoe's constraint."""

    def __init__(self, kind: str, vocabulary: Vocabulary, tables: Tables | None):
        """tables: where compiled grammars are kept."""
        self._rules = Constraint(_grammar(kind), vocabulary, tables)
        self.how = self._rules.how
        self.restart()

    def restart(self) -> None:
        self._state = self._rules.start

    def mask(self) -> Any:
        return self._rules.mask(self._state)

    def accept(self, token: int) -> bool:
        after = self._rules.accept(self._state, token)
        self._state = after
        return after is not None

    def fork(self) -> Any:
        return self._state


def _grammar(kind: str) -> Grammar:
    if kind == "JSON":
        return load("json")
    return parse(ARITHMETIC) if kind == "arithmetic" else from_schema(SCHEMA)


class XGrammar:
    """XGrammar's matcher."""

    def __init__(self, kind: str, tokenizer: Any, compiler: Any):
        xgrammar = import_module("xgrammar")

        if kind == "JSON":
            self._compiled = compiler.compile_builtin_json_grammar()
        elif kind == "schema":
            self._compiled = compiler.compile_json_schema(json.dumps(SCHEMA))
        else:
            self._compiled = compiler.compile_grammar(ARITHMETIC)
        self._words = xgrammar.allocate_token_bitmask(1, tokenizer.vocab_size)
        self._new = xgrammar.GrammarMatcher
        self.how = ""
        self.restart()

    def restart(self) -> None:
        self._matcher = self._new(self._compiled)

    def mask(self) -> Any:
        self._matcher.fill_next_token_bitmask(self._words)
        return self._words.numpy()[0].view(np.uint32)

    def accept(self, token: int) -> bool:
        return self._matcher.accept_token(token)

    def fork(self) -> Any:
        return self._matcher.fork()


class Llguidance:
    """llguidance's matcher."""

    def __init__(self, kind: str, tokenizer: Any):
        llguidance = import_module("llguidance")

        if kind == "arithmetic":
            text = llguidance.LLMatcher.grammar_from_lark(ARITHMETIC_LARK)
        else:
            text = llguidance.LLMatcher.grammar_from_json_schema(SCHEMA if kind == "schema" else {})
        self._matcher = self._first = llguidance.LLMatcher(tokenizer, text)
        if self._matcher.is_error():
            raise BadRequest(f"llguidance: {self._matcher.get_error()}")
        self._words = np.zeros(-(-tokenizer.vocab_size // 32), np.int32)
        self._at, self._bytes = self._words.ctypes.data, self._words.nbytes
        self.how = ""
        self.restart()

    def restart(self) -> None:
        self._matcher = self._first.deep_copy()

    def mask(self) -> Any:
        self._matcher.unsafe_compute_mask_ptr(self._at, self._bytes)
        return self._words.view(np.uint32)

    def accept(self, token: int) -> bool:
        return self._matcher.consume_token(token)

    def fork(self) -> Any:
        return self._matcher.deep_copy()


class Wrapped:
    """A vocabulary as llguidance takes it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, texts: Sequence[bytes]):
        self._vocabulary = vocabulary
        (self.eos_token_id,) = vocabulary.ends
        self.special_token_ids = list(vocabulary.special)
        self.tokens = texts

    def __call__(self, text: str | bytes) -> list[int]:
        return greedy(text.encode() if isinstance(text, str) else text, self._vocabulary)


def our_maker(vocabulary: Vocabulary) -> Maker:
    """diskmoe."""
    kept = Tables()
    return lambda kind, again: Ours(kind, vocabulary, kept if again else None)


def peers(vocabulary: Vocabulary, say: Say) -> dict[str, Maker]:
    """The other programs that are installed."""
    found: dict[str, Maker] = {}
    texts = [text or b"" for text in vocabulary.texts]
    (end,) = vocabulary.ends
    if util.find_spec("xgrammar"):
        xgrammar = import_module("xgrammar")

        for token, text in vocabulary.special.items():
            texts[token] = text.encode()
        info = xgrammar.TokenizerInfo(texts, vocab_size=len(texts), stop_token_ids=[end])
        new, kept = (
            xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=cached)
            for cached in (False, True)
        )
        found[f"XGrammar {metadata.version('xgrammar')}"] = lambda kind, again: XGrammar(
            kind, info, kept if again else new
        )
    if util.find_spec("llguidance"):
        llguidance = import_module("llguidance")

        made = llguidance.LLTokenizer(Wrapped(vocabulary, texts), len(texts))
        found[f"llguidance {metadata.version('llguidance')}"] = lambda kind, _: Llguidance(
            kind, made
        )
    for name in ("xgrammar", "llguidance"):
        if not util.find_spec(name):
            say(f"{name} is not installed and left out: pip install {name}")
    return found
