"""Runs that must follow a grammar: what comes out, how they end, what is refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from random_schemas import fits, random_schema
from tiny_model import random_tensors, tiny_config, write_checkpoint
from tiny_text import VOCAB, write_tokenizer

from diskmoe.engine import constraining
from diskmoe.engine.api import Model, Options, Sampling
from diskmoe.engine.cli import main
from diskmoe.engine.errors import BadRequest
from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.errors import DeadEnd
from diskmoe.grammar_draft.gbnf import parse
from diskmoe.grammar_draft.languages import from_schema
from diskmoe.grammar_draft.rules import Grammar
from diskmoe.grammar_draft.vocabulary import Vocabulary

END = 260  # <|end|>


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    config = tiny_config("qwen3_moe", vocab_size=VOCAB, eos_token_id=END)
    write_checkpoint(path, config, random_tensors(config, seed=3), "bf16")
    return write_tokenizer(path)


@pytest.fixture(scope="module")
def model(tiny_path: Path) -> Iterator[Model]:
    with Model.load(tiny_path, Options(ctx=160, cap=4)) as model:
        yield model


def said(model: Model, grammar: Grammar | None, limit: int = 40, **more) -> tuple[str, str]:
    run = model.generate("say on", grammar=grammar, limit=limit, **more)
    list(run)
    return run.text, run.stats.stop_reason


def test_the_end_token_of_the_tokenizer_is_the_models(model: Model):
    assert model.text.tokenizer and model.text.tokenizer.special_text == {END: "<|end|>"}


@pytest.mark.parametrize("part", range(5))
def test_texts_begin_a_document_and_those_that_end_by_themselves_are_one(model: Model, part: int):
    random = Random(part)
    ended = 0
    for _ in range(10):
        schema = random_schema(random)
        grammar = from_schema(schema, whitespace=random.choice(["flexible", "compact"]))
        sampling = Sampling(random.choice([0.0, 0.3, 0.8, 1.5]), seed=random.randrange(99))
        mode = random.choice(["1", "mask", "check"])
        limit = random.choice([3, 10, 25, 60])
        run = model.generate("x", grammar=grammar, limit=limit, sampling=sampling, constrain=mode)
        list(run)
        assert model.text.tokenizer is not None
        data = model.text.tokenizer.decode_bytes(run.token_ids)
        automaton = Automaton(grammar)
        assert automaton.walk(automaton.start, data) is not None, (schema, data)
        if run.stats.stop_reason != "limit":
            assert run.stats.stop_reason in ("stop token", "grammar complete")
            assert fits(schema, json.loads(data)), (schema, data)
            ended += 1
    assert ended


def test_a_grammar_by_itself_never_constrains(model: Model):
    grammar = parse('root ::= "never said"')
    plain = said(model, None)
    assert said(model, grammar) == plain == said(model, grammar, constrain=False)
    assert plain[0] != "never said" == said(model, grammar, constrain=True)[0]


def test_what_is_forced_is_drafted_from_the_first_token_on(tiny_path: Path):
    # a model that has not measured yet what rows cost here: on a busy machine they may not pay
    with Model.load(tiny_path, Options(ctx=160, cap=4)) as model:
        run = model.generate("x", grammar=parse('root ::= "never said"'), constrain=True)
        list(run)
    assert run.text == "never said" and run.stats.stop_reason == "grammar complete"
    assert run.stats.decode.forwards == 1
    assert run.stats.sampled == 0  # every token was a draft


def test_the_text_ends_where_the_grammar_does_even_when_the_model_is_to_go_on(model: Model):
    grammar = parse('root ::= "so"{1,4} "."')
    text, reason = said(model, grammar, constrain="mask", ignore_eos=True)
    assert reason == "grammar complete" and text in {"so" * n + "." for n in range(1, 5)}


def test_an_empty_document_takes_no_token(model: Model):
    assert said(model, parse('root ::= ""'), constrain=True) == ("", "grammar complete")


def test_runs_under_other_grammars_do_not_disturb_each_other(model: Model):
    first, second = parse('root ::= "one"'), parse('root ::= "two"')
    for _ in range(2):
        assert said(model, first, constrain=True)[0] == "one"
        assert said(model, second, constrain=True)[0] == "two"


def test_requests_that_say_nothing_to_follow_or_no_way_are_refused(model: Model):
    with pytest.raises(BadRequest, match="nothing to constrain by"):
        said(model, None, constrain=True)
    with pytest.raises(BadRequest, match="constrain is 'hard'; it must be one of 0, 1, mask"):
        said(model, parse('root ::= "a"'), constrain="hard")
    with pytest.raises(BadRequest, match="constrain is 'yes'"):
        Options(constrain="yes")


def test_a_token_that_does_not_exist_is_a_dead_end_behind_what_was_said(model: Model):
    run = model.generate("x", grammar=parse('root ::= "so " <[99999]>'), constrain=True)
    with pytest.raises(DeadEnd, match="behind 'so ': the grammar wants token 99999"):
        list(run)
    assert run.text == "so "


def test_stop_strings_end_a_text_inside_its_grammar(model: Model):
    grammar = parse('root ::= "one, two, three"')
    assert said(model, grammar, constrain=True, stop=[", t"]) == ("one", "stop string")


def cli(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> tuple[int, str, str]:
    code = main(["--model", str(path), "--ctx", "64", "--temp", "0", *words])
    out = capsys.readouterr()
    return code, out.out.strip(), out.err


def test_the_command_line_enforces_a_schema_given_as_text(tiny_path: Path, capsys):
    schema = '{"enum": ["left", "right"]}'
    code, text, err = cli(capsys, tiny_path, "x", "--schema", schema, "--constrain", "1")
    assert code == 0 and text in ('"left"', '"right"')
    assert "\nconstrain the text follows SCHEMA (" in err and " from its first byte on\n" in err
    assert "only drafts" not in err
    code, text, err = cli(capsys, tiny_path, "x", "--schema", schema, "--ngen", "4")
    assert code == 0 and text not in ('"left"', '"right"')
    assert "note      SCHEMA only drafts; CONSTRAIN=1 makes the text follow it" in err


def test_a_constrained_text_is_the_same_where_nothing_drafts(tiny_path: Path, capsys):
    words = ["x", "--schema", '{"enum": ["left", "right"]}', "--constrain", "1", "--json"]
    found = []
    for more in ([], ["--grammar-draft", "0", "--draft", "0"]):
        code, out, _ = cli(capsys, tiny_path, *words, *more)
        assert code == 0
        found.append(json.loads(out))
    drafted, plain = found
    assert plain["token_ids"] == drafted["token_ids"]
    assert not plain["drafts"] and plain["forwards"] == plain["tokens"] > drafted["forwards"]


def test_the_command_line_refuses_what_cannot_be_followed(tiny_path: Path, tmp_path: Path, capsys):
    code, _, err = cli(capsys, tiny_path, "x", "--constrain", "1")
    assert code == 2 and "CONSTRAIN=1 needs what to follow: give GRAMMAR or SCHEMA" in err
    both = ["--grammar", "json", "--schema", "{}"]
    code, _, err = cli(capsys, tiny_path, "x", "--constrain", "mask", *both)
    assert code == 2 and "CONSTRAIN=mask follows GRAMMAR or SCHEMA: give one of them" in err
    (tmp_path / "no.gbnf").write_text('root ::= "ab" <[9999]>', encoding="utf-8")
    given = str(tmp_path / "no.gbnf")
    code, text, err = cli(capsys, tiny_path, "x", "--constrain", "1", "--grammar", given)
    assert code == 1 and text == "ab"
    assert f"error: {given}: no token of the model can follow behind 'ab': the grammar wants" in err


def test_constraints_in_use_are_no_trouble_to_those_that_are_forgotten(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def answer(model: Model, word: str):
        return model.generate("x", grammar=parse(f'root ::= "{word}"'), constrain=True)

    with Model.load(tiny_path, Options(ctx=64, parallel=2)) as model:
        assert "".join(answer(model, "ab")) == "ab"
        pieces = iter(answer(model, "ab"))
        assert next(pieces) == "a"  # what was kept of it is in use
        monkeypatch.setattr(constraining, "KEPT_BYTES", 0)
        assert "".join(answer(model, "no")) == "no"
        assert next(pieces) == "b"


def test_a_text_that_was_too_ambiguous_leaves_nothing_to_the_next_of_its_grammar():
    many = "(((x{0,99}){0,99}){0,99})"
    grammar = parse(f'root ::= "ok" | <[0]> | {many}\nx ::= "a"')
    vocabulary = Vocabulary([b"a", b"ok", b"aa"], {}, ())
    constraints = constraining.Constraints(cast(Any, None), print)
    for _ in range(2):
        constraint, give_back = constraints._constraint(grammar, vocabulary)
        behind = constraint.walk(constraint.start, b"ok")
        assert behind is not None and constraint.may_end(behind)
        with pytest.raises(DeadEnd, match="too ambiguous"):
            constraint.walk(constraint.start, b"a" * 50)
        give_back()
