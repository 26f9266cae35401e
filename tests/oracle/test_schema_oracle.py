"""Schemas by chance: jsonschema says which documents are valid, llguidance which it would accept."""

from __future__ import annotations

import json
from decimal import Context, Decimal, localcontext
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wild_schemas import document, orders, walk, wild_schema, written

from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.languages import from_schema

pytestmark = pytest.mark.oracle
llguidance = pytest.importorskip("llguidance")
EXACT = Context(prec=400)
QUICK = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def truth(schema: Any) -> jsonschema.Draft202012Validator:
    """The validator of a schema whose patterns end where ECMA-262 ends them."""

    def ends(value: Any) -> Any:
        if isinstance(value, list):
            return [ends(inner) for inner in value]
        if not isinstance(value, dict):
            return value
        found = {key: ends(inner) for key, inner in value.items()}
        if isinstance(found.get("pattern"), str):
            found["pattern"] = found["pattern"].replace("$", r"\Z")
        if isinstance(found.get("patternProperties"), dict):
            patterns = found["patternProperties"].items()
            found["patternProperties"] = {p.replace("$", r"\Z"): inner for p, inner in patterns}
        return found

    return jsonschema.Draft202012Validator(
        ends(json.loads(json.dumps(schema), parse_float=Decimal))
    )


def valid(validator: jsonschema.Draft202012Validator, text: bytes) -> bool | None:
    """Its verdict; None where it has none (endless references, numbers beyond all bounds)."""
    try:
        with localcontext(EXACT):
            return validator.is_valid(json.loads(text, parse_float=Decimal))
    except (RecursionError, ArithmeticError):
        return None


def accepts(automaton: Automaton, text: bytes) -> bool:
    state = automaton.walk(automaton.start, text)
    return state is not None and state.may_end


@QUICK
@given(st.integers(0, 1 << 40))
def test_nothing_invalid_is_generated_and_nothing_valid_refused(seed: int) -> None:
    random = Random(seed)
    schema = wild_schema(random)
    validator = truth(schema)
    texts = [written(document(random)) for _ in range(12)]
    try:
        automaton = Automaton(from_schema(schema, whitespace="compact"))
    except BadGrammar as error:
        if "nothing can satisfy" in str(error):
            assert not any(valid(validator, text) for text in texts), schema
        return
    for text in texts:
        verdict = valid(validator, text)
        if verdict is False:
            assert not accepts(automaton, text), (schema, text)
        elif verdict:
            some = islice(orders(json.loads(text)), 2000)
            assert any(accepts(automaton, written(value)) for value in some), (schema, text)
    for _ in range(12):
        text = walk(random, automaton)
        if text is not None:
            assert valid(validator, text) is not False, (schema, text)


def theirs(schema: Any) -> Any:
    """llguidance's matcher of a schema, None where it refuses it."""
    options = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar, log_level=0)
    return None if matcher.is_error() else matcher


def they_accept(matcher: Any, text: bytes) -> bool:
    matcher = matcher.deep_copy()
    ids = llguidance.LLTokenizer("byte").tokenize_bytes(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@QUICK
@given(st.integers(0, 1 << 40))
def test_llguidance_accepts_the_same_documents(seed: int) -> None:
    random = Random(seed)
    schema = wild_schema(random)
    matcher = theirs(schema)
    if matcher is None:
        return
    try:
        automaton = Automaton(from_schema(schema, whitespace="compact"))
    except BadGrammar:
        return
    for _ in range(12):
        text = written(document(random))
        assert accepts(automaton, text) == they_accept(matcher, text), (schema, text)


def test_llguidance_agrees_on_the_cases_that_are_its_own(repo_root: Path) -> None:
    lines = (repo_root / "tests/golden/schema_cases.jsonl").read_text(encoding="utf-8")
    count = 0
    for line in lines.strip().split("\n"):
        case = json.loads(line)
        matcher = theirs(case["schema"]) if case["profile"] == "json-schema" else None
        if matcher is None:
            continue
        automaton = Automaton(from_schema(case["schema"], whitespace="compact", lax=True))
        for text in (*case["accept"], *case["reject"]):
            assert accepts(automaton, text.encode()) == they_accept(matcher, text.encode()), text
            count += 1
    assert count > 200
