"""``diskmoe grammar check|test``: is a grammar right, and does it say what was meant.

Results go to stdout, everything beside them to stderr. Found by the command line of the engine
through the entry point ``grammar``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from diskmoe.grammar_draft.advice import warnings
from diskmoe.grammar_draft.automaton import Automaton, State
from diskmoe.grammar_draft.cases import judge
from diskmoe.grammar_draft.errors import BadGrammar, place
from diskmoe.grammar_draft.languages import from_choices, from_regex
from diskmoe.grammar_draft.library import load, shipped
from diskmoe.grammar_draft.rules import Grammar
from diskmoe.grammar_draft.schema.profiles import PROFILES

Say = Callable[[str], None]

USAGE = """\
usage: diskmoe grammar check FILE [TEXT ...] [--root NAME] [--strict]
       diskmoe grammar check SCHEMA.json [TEXT ...] [--profile NAME] [--compact] [--lax]
       diskmoe grammar check --regex PATTERN | --choices A,B,... [TEXT ...]
       diskmoe grammar test CASES.jsonl [--strict]

check reads a grammar (GBNF, or a JSON Schema) and says what is wrong with it or unwise in it; of
each TEXT (@FILE reads one from a file) it says where it leaves the grammar, and which share of its
bytes the grammar forces. FILE may be one of ours: {ours}.
test judges cases, one JSON object a line, with "schema", "regex" or "choices" in place of "grammar":
  {{"grammar": "root ::= ...", "root": "root", "accept": ["..."], "reject": ["..."]}}

  --root NAME     the rule to start from (default: root)
  --strict        give the verdicts of llama.cpp, its limits and refusals included
  --profile NAME  how a schema is read: {profiles} (default: json-schema)
  --compact       a schema's JSON has no blanks between its parts
  --lax           let pass, with a line, what of a schema cannot be enforced

examples:
  diskmoe grammar check my.gbnf '{{"name": "Bob"}}' @answer.json
  diskmoe grammar check record.json --compact
  diskmoe grammar check --regex "[A-Z]{{3}}-[0-9]+" ABC-12
  diskmoe grammar test cases.jsonl --strict

exit codes: 0 fine; 1 a TEXT is outside the grammar, or a case was judged wrongly; 2 the grammar or the
usage is no good.
"""


def main(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """Grammars: check one, test it with cases."""
    del env  # no variable concerns these commands
    command, *rest = [*words, ""]
    if not words or command == "help" or "--help" in words or "-h" in words:
        profiles = ", ".join(profile.name for profile in PROFILES)
        print(USAGE.format(ours=", ".join(shipped()), profiles=profiles), end="")
        return 0
    if command not in ("check", "test"):
        raise BadGrammar(f"unknown command grammar {command!r}; there are check and test")
    options, places = options_of(rest[:-1])
    if not places and not (options.regex or options.choices):
        raise BadGrammar(f"grammar {command} needs a file; see diskmoe grammar --help")
    try:
        if command == "check":
            return _check(places, options, say)
        return _test(places, options.strict, say)
    except BadGrammar as error:
        for line in error.excerpt.splitlines():
            say("  " + line)
        raise


@dataclass
class _Options:
    strict: bool = False
    compact: bool = False
    lax: bool = False
    root: str = "root"
    profile: str = "json-schema"
    regex: str = ""
    choices: str = ""


def options_of(words: Sequence[str]) -> tuple[_Options, list[str]]:
    options, places = _Options(), []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--")
        known = getattr(options, name, None) if flag.startswith("--") else None
        if word == "--":
            places += queue
            break
        if known is False and not equals:
            setattr(options, name, True)
        elif isinstance(known, str) and (equals or queue):
            setattr(options, name, value if equals else queue.pop(0))
        elif word.startswith("--"):
            raise BadGrammar(f"unknown option {word}; see diskmoe grammar --help")
        else:
            places.append(word)
    return options, places


def _test(places: Sequence[str], strict: bool, say: Say) -> int:
    passed = failed = 0
    for path in places:
        try:
            with Path(path).open(encoding="utf-8", newline="\n") as file:
                tally = judge(file, path, strict)
        except UnicodeDecodeError as error:
            raise BadGrammar(f"the file is no UTF-8 text ({error.reason})", path) from None
        for line in tally.failures:
            say(line)
        if tally.skipped:
            say(f"{path}: {tally.skipped} lines hold no grammar and are skipped")
        passed += tally.passed
        failed += len(tally.failures)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def _check(places: Sequence[str], options: _Options, say: Say) -> int:
    began = time.perf_counter()
    if options.regex:
        name, grammar = "regex", from_regex(options.regex)
    elif options.choices:
        name, grammar = "choices", from_choices(options.choices.split(","))
    else:
        name, *places = places
        whitespace = "compact" if options.compact else "flexible"
        grammar = load(
            name, options.root, options.strict, None, options.profile, whitespace, options.lax
        )
    automaton = Automaton(grammar)
    milliseconds = (time.perf_counter() - began) * 1e3
    print(f"{name}: fine, {_rules(grammar)}, read in {milliseconds:.1f} ms")
    for line in warnings(grammar):
        say(f"warning: {line}")
    outside = 0
    for text in places:
        data = Path(text[1:]).read_bytes() if text.startswith("@") else text.encode()
        verdict, fits = _verdict(automaton, data)
        shown = (
            text if text.startswith("@") else repr(text if len(text) <= 40 else text[:37] + "...")
        )
        print(f"{shown}: {verdict}")
        outside += not fits
    return 1 if outside else 0


def _rules(grammar: Grammar) -> str:
    count = sum(not rule.made for rule in grammar.rules) or len(grammar.used)
    return f"{count} rule{'s' if count != 1 else ''}"


def _verdict(automaton: Automaton, data: bytes) -> tuple[str, bool]:
    """What a text is to a grammar, in words; and whether it is complete."""
    state, forced = automaton.start, 0
    for i, byte in enumerate(data):
        after = automaton.advance(state, byte)
        if after is None:
            text = data.decode("utf-8", "replace")
            line, column = place(text, len(data[:i].decode("utf-8", "replace")))
            return f"leaves the grammar at {line}:{column}: {_expected(state)} expected", False
        forced += byte == state.only
        state = after
    share = f"{100 * forced / max(len(data), 1):.0f} % of {len(data)} bytes forced"
    if not state.may_end:
        return f"incomplete: {_expected(state)} expected; {share}", False
    return f"complete, {share}", True


def _expected(state: State) -> str:
    """The bytes that a state reads, as runs: 'a'-'z' or '\"'."""
    runs: list[list[int]] = []
    for byte in range(256):
        if state.allowed >> byte & 1:
            if runs and runs[-1][1] == byte - 1:
                runs[-1][1] = byte
            else:
                runs.append([byte, byte])
    words = [_byte(low) if low == high else f"{_byte(low)}-{_byte(high)}" for low, high in runs]
    if state.tokens:
        words.append("a token")
    if state.may_end:
        words.append("the end")
    return " or ".join(words[:8]) + (" or others" if len(words) > 8 else "")


def _byte(byte: int) -> str:
    return repr(chr(byte)) if byte < 0x80 else f"byte {byte:02X}"
