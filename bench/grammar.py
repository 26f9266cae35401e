"""``diskmoe bench grammar``: masks and what belongs to them, beside XGrammar's and llguidance's."""

from __future__ import annotations

import base64
import gc
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from diskmoe.bench.words import understood
from diskmoe.engine.errors import BadRequest
from diskmoe.grammar_draft.constraint import Constraint
from diskmoe.grammar_draft.gbnf import parse
from diskmoe.grammar_draft.library import load
from diskmoe.grammar_draft.rules import Grammar
from diskmoe.grammar_draft.vocabulary import Vocabulary

Say = Callable[[str], None]

USAGE = """\
usage: diskmoe bench grammar [options]

Follows the same documents (JSON, a fixed schema, arithmetic) with diskmoe and, where they are
installed, XGrammar and llguidance (pip install xgrammar llguidance), in turn and on one thread. Of
every token the mask before it and its acceptance are measured, once from the start ("first": nothing
is known of grammar or document) and as the least of several runs ("warm"); then copies of the state,
and compilation. Microseconds, milliseconds for compilation: median / 99 of 100 are below.

  --vocabulary FILE  a .tiktoken file; default: the 151,643 tokens of Qwen's that are in
                     the Python package dashscope (pip install --no-deps dashscope)
  --runs N           (default 7)
  --ours             diskmoe alone
  --json             one JSON object
"""
FLAGS = {"--vocabulary": True, "--runs": True, "--ours": False}
SETTINGS = ("JSON", "DEBUG", "VERBOSE")
SPARE_IDS = 293  # special tokens behind the others, as Qwen's files have them

ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] ws term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t]*
"""
ARITHMETIC_LARK = r"""
start: (expr "=" WS term "\n")+
expr: term (/[-+*\/]/ WS term)*
term: IDENT WS | NUM WS | "(" WS expr ")" WS
IDENT: /[a-z][a-z0-9_]*/
NUM: /[0-9]+/
WS: /[ \t]*/
"""
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "role": {"enum": ["admin", "administrator", "guest", "user"]},
    },
    "required": ["name", "age", "role"],
    "additionalProperties": False,
}
SCHEMA_GBNF = r"""
root ::= "{" ws "\"name\"" ws ":" ws string ws "," ws "\"age\"" ws ":" ws integer ws ","
         ws "\"role\"" ws ":" ws role ws "}"
role ::= "\"admin\"" | "\"administrator\"" | "\"guest\"" | "\"user\""
string ::= "\"" ([^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
integer ::= "-"? ("0" | [1-9] [0-9]*)
ws ::= [ \t\n\r]*
"""
DOCUMENTS = {
    "JSON": [
        json.dumps(
            {
                "title": "Reise nach Zürich — 旅行 🚄",
                "tags": ["train", "mountains", "näher", "日本語"],
                "stops": [
                    {"name": "Genève", "minutes": 12, "open": True, "notes": None},
                    {
                        "name": 'Bern "Hbf"',
                        "minutes": 7.5,
                        "open": False,
                        "notes": "coffee\nand cake",
                    },
                    {"name": "Olten", "minutes": -1e3, "open": True, "notes": ["a", ["b", {}]]},
                ],
                "price": {"amount": 129.90, "currency": "CHF", "parts": [64.95, 64.95]},
                "comment": "Please keep the window seat, it is a birthday present for my sister.",
            },
            ensure_ascii=False,
        )
    ],
    "schema": [
        '{"name": "Ada Lovelace", "age": 36, "role": "administrator"}',
        '{"name": "Jürgen Müller-Lüdenscheid", "age": 7, "role": "guest"}',
        '{"name": "王小明", "age": 101, "role": "admin"}',
    ],
    "arithmetic": ["(alpha + 12) * (beta_2 - (7 / gamma)) + ((x1 * 34) - (y + 5)) / delta = 42\n"],
}


@dataclass(frozen=True)
class Line:
    """What one program took for one kind of document. [median, 99 of 100 below], microseconds;
    compile_ms: milliseconds."""

    kind: str
    program: str
    mask_first: tuple[float, float]
    mask: tuple[float, float]
    accept_first: tuple[float, float]
    accept: tuple[float, float]
    fork: tuple[float, float]
    compile_ms: tuple[float, float]
    how: str  # what the grammar was made into, where the program says so


class Matcher(Protocol):
    """A grammar at one place of a document."""

    how: str

    def mask(self) -> Any: ...
    def accept(self, token: int) -> bool: ...
    def fork(self) -> Any: ...
    def restart(self) -> None: ...


class Ours:
    """diskmoe's constraint."""

    def __init__(self, kind: str, vocabulary: Vocabulary):
        self._rules = Constraint(_grammar(kind), vocabulary)
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
    return parse(ARITHMETIC if kind == "arithmetic" else SCHEMA_GBNF)


class XGrammar:
    """XGrammar's matcher."""

    def __init__(self, kind: str, tokenizer: Any):
        xgrammar = import_module("xgrammar")

        compiler = xgrammar.GrammarCompiler(tokenizer, max_threads=1, cache_enabled=False)
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


def command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """Measures, prints. Raises BadRequest for words that are wrong."""
    line = understood("grammar", words, env, FLAGS, SETTINGS)
    if line.places:
        raise BadRequest(f"bench grammar takes no argument, and got {line.places[0]!r}")
    vocabulary = read_vocabulary(line.flags.get("--vocabulary"))
    runs = line.whole("--runs", 1, 1000, 7)
    makers: dict[str, Callable[[str], Matcher]] = {"diskmoe": lambda k: Ours(k, vocabulary)}
    if "--ours" not in line.flags:
        makers |= _peers(vocabulary, say)
    lines = [found for kind in DOCUMENTS for found in measured(kind, makers, vocabulary, runs)]
    if line.values["JSON"].value:
        print(json.dumps({"tokens": len(vocabulary), "lines": [asdict(found) for found in lines]}))
    else:
        print(table(lines, len(vocabulary)), end="")
    return 0


def read_vocabulary(place: str | None) -> Vocabulary:
    """The tokens of a file. Raises BadRequest where there is none, or it is none of ours."""
    if place is None:
        found = util.find_spec("dashscope")
        if found is None or not found.submodule_search_locations:
            raise BadRequest(
                "bench grammar needs a vocabulary: --vocabulary FILE, or "
                "pip install --no-deps dashscope"
            )
        place = str(Path(found.submodule_search_locations[0]) / "resources" / "qwen.tiktoken")
    try:
        data = Path(place).read_bytes()
        texts: list[bytes | None] = []
        for line in data.splitlines():
            text, number = line.split()
            if int(number) != len(texts):
                raise ValueError(f"line {len(texts) + 1} has the id {int(number)}")
            texts.append(base64.b64decode(text, validate=True))
    except (OSError, ValueError) as error:
        raise BadRequest(f"{place} is no vocabulary: {error}") from None
    special = {len(texts) + i: f"<|{i}|>" for i in range(SPARE_IDS)}
    return Vocabulary([*texts, *[None] * SPARE_IDS], special, {len(texts)})


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


def _peers(vocabulary: Vocabulary, say: Say) -> dict[str, Callable[[str], Matcher]]:
    """The other programs that are installed."""
    found: dict[str, Callable[[str], Matcher]] = {}
    texts = [text or b"" for text in vocabulary.texts]
    (end,) = vocabulary.ends
    if util.find_spec("xgrammar"):
        xgrammar = import_module("xgrammar")

        for token, text in vocabulary.special.items():
            texts[token] = text.encode()
        info = xgrammar.TokenizerInfo(texts, vocab_size=len(texts), stop_token_ids=[end])
        found[f"XGrammar {metadata.version('xgrammar')}"] = lambda kind: XGrammar(kind, info)
    if util.find_spec("llguidance"):
        llguidance = import_module("llguidance")

        made = llguidance.LLTokenizer(Wrapped(vocabulary, texts), len(texts))
        found[f"llguidance {metadata.version('llguidance')}"] = lambda kind: Llguidance(kind, made)
    for name in ("xgrammar", "llguidance"):
        if not util.find_spec(name):
            say(f"{name} is not installed: pip install {name} to compare with it")
    return found


def greedy(text: bytes, vocabulary: Vocabulary) -> list[int]:
    """A text as the longest tokens that fit, from left to right."""
    trie = vocabulary.trie
    found: list[int] = []
    at = 0
    while at < len(text):
        node, stop, size = 0, len(trie.byte), 0
        best = (0, -1)
        while node < stop and at + size < len(text):
            if trie.byte[node] != text[at + size]:
                node = int(trie.end[node])
                continue
            size += 1
            if trie.first[node] < trie.first[node + 1]:
                best = size, int(trie.tokens[trie.first[node]])
            node, stop = node + 1, int(trie.end[node])
        if not best[0]:
            raise BadRequest(f"the vocabulary has no token for {text[at : at + 1]!r}")
        found.append(best[1])
        at += best[0]
    return found


def measured(
    kind: str, makers: Mapping[str, Callable[[str], Matcher]], vocabulary: Vocabulary, runs: int
) -> list[Line]:
    """All programs on the documents of one kind, in turn."""
    documents = [greedy(text.encode(), vocabulary) for text in DOCUMENTS[kind]]
    matchers: dict[str, Matcher] = {}
    compiled: dict[str, list[float]] = {name: [] for name in makers}
    for turn in range(runs + 1):
        for name, make in makers.items():
            began = time.perf_counter()
            matchers[name] = make(kind)
            if turn:  # the first may load code
                compiled[name].append(1e3 * (time.perf_counter() - began))
    passes: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in makers}
    forks: dict[str, list[float]] = {name: [] for name in makers}
    gc.collect()
    gc.disable()
    try:
        for _ in range(runs):
            for name, matcher in matchers.items():
                steps: list[tuple[float, float]] = []
                for document in documents:
                    matcher.restart()
                    steps += _followed(matcher, document, name, forks[name])
                passes[name].append(steps)
    finally:
        gc.enable()
    lines = []
    for name, matcher in matchers.items():
        every = np.array(passes[name])  # (runs, tokens, 2)
        first, warm = every[0], every.min(0)
        lines.append(
            Line(
                kind,
                name,
                _spread(first[:, 0]),
                _spread(warm[:, 0]),
                _spread(first[:, 1]),
                _spread(warm[:, 1]),
                _spread(np.array(forks[name])),
                _spread(np.array(compiled[name])),
                matcher.how,
            )
        )
    return lines


def _followed(
    matcher: Matcher, document: Sequence[int], name: str, forks: list[float]
) -> list[tuple[float, float]]:
    """(microseconds of the mask, of acceptance) per token."""
    clock = time.perf_counter
    steps: list[tuple[float, float]] = []
    for place, token in enumerate(document):
        began = clock()
        mask = matcher.mask()
        masked = clock()
        accepted = matcher.accept(token)
        ended = clock()
        kept = matcher.fork()
        forks.append(1e6 * (clock() - ended))
        del kept
        bits = mask.view(np.uint32)
        if not accepted or not bits[token >> 5] >> (token & 31) & 1:
            raise BadRequest(f"{name} refuses token {place} of a document")
        steps.append((1e6 * (masked - began), 1e6 * (ended - masked)))
    return steps


def _spread(values: Any) -> tuple[float, float]:
    return float(np.median(values)), float(np.percentile(values, 99))


def table(lines: Sequence[Line], tokens: int) -> str:
    """The result as text."""
    heads = ("mask first", "mask warm", "accept first", "accept warm", "fork", "compile ms")
    rows = [f"{tokens} tokens; microseconds, median / p99"]
    rows.append(f"{'':11}{'':18}" + "".join(f"{head:>16}" for head in heads))
    for line in lines:
        values = (line.mask_first, line.mask, line.accept_first, line.accept, line.fork)
        cells = [f"{_short(a)} / {_short(b)}" for a, b in (*values, line.compile_ms)]
        rows.append(
            f"{line.kind:11}{line.program:18}"
            + "".join(f"{c:>16}" for c in cells)
            + f"  {line.how}"
        )
    return "\n".join(rows) + "\n"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.1f}"
