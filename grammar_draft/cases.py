"""Grammars with strings that they accept and reject: one JSON object a line, judged.

``{"grammar": TEXT, "root": "root", "accept": [...], "reject": [...]}``; a string may be a list of
segments, each a text, ``{"token": ID}`` or ``{"bytes": HEX}``. ``"ok": false`` says that the
grammar cannot be used. Where ``root`` is null the first rule is it. In place of a grammar there may
be ``"schema"`` (a JSON Schema or its text, with ``profile``, ``whitespace``, ``lax``), ``"regex"`` or
``"choices"``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from diskmoe.grammar_draft.automaton import Automaton, State
from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.languages import from_choices, from_gbnf, from_regex, from_schema
from diskmoe.grammar_draft.rules import Grammar

_KINDS = ("grammar", "schema", "regex", "choices")
_SHOWN = 60  # characters of a string in a message


@dataclass
class Tally:
    """How many verdicts were right, and a line for each that was not."""

    passed: int = 0
    failures: list[str] = field(default_factory=list)
    skipped: int = 0  # lines that hold something else


def judge(lines: Iterable[str], name: str, strict: bool) -> Tally:
    """Judges all cases of a file. Raises BadGrammar where a line is no case at all."""
    tally = Tally()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            case = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadGrammar(f"line {number} is no JSON: {error}", name) from None
        if not isinstance(case, dict):
            raise BadGrammar(f"line {number} is no JSON object", name)
        if case.get("kind") == "lark" or not any(kind in case for kind in _KINDS):
            tally.skipped += 1
            continue
        label = f"{name}:{number} {case.get('name', '')}".rstrip()
        try:
            _judge(case, label, strict, tally)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise BadGrammar(f"line {number} is no case: {error!r}", name) from None
    return tally


def _judge(case: dict[str, Any], label: str, strict: bool, tally: Tally) -> None:
    try:
        automaton = Automaton(_read(case, label, strict))
    except BadGrammar as error:
        if case.get("ok") is False:
            tally.passed += 1
        else:
            tally.failures.append(f"{label}: the grammar is refused: {error}")
        return
    if case.get("ok") is not None:
        if case["ok"]:
            tally.passed += 1
        else:
            tally.failures.append(f"{label}: the grammar must be refused ({case.get('why')})")
    for wanted, strings in ((True, case.get("accept", ())), (False, case.get("reject", ()))):
        for string in strings:
            if accepts(automaton, string) == wanted:
                tally.passed += 1
            else:
                shown = json.dumps(string, ensure_ascii=False)[:_SHOWN]
                verb = "accept" if wanted else "reject"
                tally.failures.append(f"{label}: must {verb} {shown}")


def _read(case: dict[str, Any], label: str, strict: bool) -> Grammar:
    if "grammar" in case:
        text = case["grammar"]
        root = case.get("root") or _first(text)
        return from_gbnf(text, name=label, root=root, strict=strict)
    if "schema" in case:
        options = {key: case[key] for key in ("profile", "whitespace", "lax") if key in case}
        if strict:
            options.setdefault("profile", "llama.cpp")
        return from_schema(case["schema"], name=label, **options)
    if "regex" in case:
        return from_regex(case["regex"], name=label)
    return from_choices(case["choices"], name=label)


def _first(text: str) -> str:
    found = re.search(r"[\w-]+(?=\s*::=)", text)
    return found.group() if found else "root"


def accepts(automaton: Automaton, string: str | list[Any]) -> bool:
    """Whether a string is complete. Each character of a text is fed as one token of id 0."""
    state: State | None = automaton.start
    for token, data in _pieces(string):
        state = automaton.advance_token(state, token, data)
        if state is None:
            return False
    return state.may_end


def _pieces(string: str | list[Any]) -> Iterator[tuple[int, bytes]]:
    for segment in [string] if isinstance(string, str) else string:
        if isinstance(segment, str):
            for character in segment:
                yield 0, character.encode("utf-8", "surrogatepass")
        elif "token" in segment:
            yield int(segment["token"]), b"<[%d]>" % segment["token"]
        else:
            yield 0, bytes.fromhex(segment["bytes"])
