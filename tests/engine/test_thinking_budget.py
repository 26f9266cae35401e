"""Runs with thinking blocks: what constrains them begins behind, a budget ends them; triggers."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_model import random_tensors, tiny_config, write_checkpoint
from tiny_text import VOCAB, write_tokenizer

from diskmoe.engine.api import Model, Options, Run, Sampling, ThinkBudget
from diskmoe.engine.cli import main
from diskmoe.engine.errors import BadRequest
from diskmoe.grammar_draft.gbnf import parse

END, OPEN, CLOSE = 260, 261, 262


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that may think."""
    path = tmp_path_factory.mktemp("tiny")
    config = tiny_config("qwen3_moe", vocab_size=VOCAB, eos_token_id=END)
    write_checkpoint(path, config, random_tensors(config, seed=3), "bf16")
    tokenizer = write_tokenizer(path) / "tokenizer.json"
    data = json.loads(tokenizer.read_text(encoding="utf-8"))
    end = data["added_tokens"][-1]
    for token, text in ((OPEN, "<think>"), (CLOSE, "</think>")):
        data["added_tokens"].append({**end, "id": token, "content": text})
    tokenizer.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    with Model.load(path, Options(ctx=160, cap=4)) as model:
        yield model


def run(model: Model, prompt: str, grammar: str | None = None, **how) -> Run:
    made = model.generate(
        prompt, grammar=grammar and parse(grammar), constrain=grammar is not None, **how
    )
    list(made)
    return made


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.2, top_p=0.95, seed=5)])
def test_a_budget_ends_a_block_that_the_prompt_opened_and_drafts_the_end(model, sampling):
    how = {"limit": 30, "sampling": sampling, "ignore_eos": True}
    free = run(model, "x<think>", **how)
    assert CLOSE not in free.token_ids
    spent = run(model, "x<think>", **how, thinking=ThinkBudget(5, " so"))
    message = [*model.text.tokenizer.encode(" so"), CLOSE]
    at = spent.token_ids.index(CLOSE) + 1 - len(message)
    assert 5 <= at <= 8  # a character may have to be waited for
    assert spent.token_ids[:at] == free.token_ids[:at]
    assert spent.token_ids[at : at + len(message)] == message
    forced = spent.stats.drafts["forced"]
    assert forced.accepted == forced.judged >= len(message) - 1


def test_a_block_that_is_not_open_costs_nothing(model):
    how = {"limit": 30, "ignore_eos": True}
    assert (
        run(model, "x", **how).token_ids
        == run(model, "x", **how, thinking=ThinkBudget(5)).token_ids
    )


@pytest.mark.parametrize("draft_rows", [24, 0])
def test_a_grammar_begins_behind_a_block_that_the_prompt_opened(path, draft_rows):
    with Model.load(path, Options(ctx=160, cap=4, draft_rows=draft_rows)) as model:
        made = run(model, "x<think>", 'root ::= "yes" | "no"', thinking=ThinkBudget(4))
        at = made.token_ids.index(CLOSE)
        assert 4 <= at <= 7 and made.stats.stop_reason == "grammar complete"
        said = model.text.tokenizer.decode_bytes(made.token_ids[at + 1 :])
        assert said in (b"yes", b"no")


def test_a_block_that_is_closed_by_the_prompt_leaves_the_text_to_the_grammar(model):
    made = run(model, "x<think>y</think>", 'root ::= "yes" | "no"')
    assert made.text in ("yes", "no")


def test_a_grammar_waits_for_its_trigger(model):
    # the likeliest text of this model holds no such word; its first byte will do
    free = run(model, "x", limit=30, ignore_eos=True)
    first = model.text.tokenizer.token_bytes[free.token_ids[2]]
    at = next(i for i, token in enumerate(free.token_ids) if token == free.token_ids[2])
    trigger = f"<[{free.token_ids[2]}]>"
    made = run(model, "x", 'root ::= "!?"', triggers=[trigger], limit=30, ignore_eos=True)
    assert made.token_ids[: at + 1] == free.token_ids[: at + 1]
    assert model.text.tokenizer.decode_bytes(made.token_ids[at:]) == first + b"!?"
    assert made.stats.stop_reason == "grammar complete"


def test_requests_that_make_no_sense_are_refused(model, path, capsys):
    with pytest.raises(BadRequest, match="a trigger needs a grammar"):
        run(model, "x", triggers=["a"])
    with pytest.raises(BadRequest, match="the budget of thinking is -2"):
        ThinkBudget(-2)
    with pytest.raises(BadRequest, match="holds a token that ends the text"):
        run(model, "x", thinking=ThinkBudget(3, "<|end|>"))
    words = ["--model", str(path), "--ctx", "64", "--temp", "0", "--ngen", "20"]
    assert main([*words, "x", "--grammar", "json", "--trigger", "a"]) == 2
    assert "TRIGGER says where a grammar begins that is enforced" in capsys.readouterr().err


def test_the_command_line_ends_a_block(path, capsys):
    words = ["--model", str(path), "--ctx", "64", "--temp", "0", "--ngen", "20", "--json"]
    schema = ["--schema", '{"const": "so"}', "--constrain", "1"]
    said = ["--think-budget", "3", "--think-message", " I stop."]
    assert main([*words, "x<think>", *schema, *said]) == 0
    out, err = capsys.readouterr()
    got = json.loads(out)
    assert got["text"].endswith(' I stop."so"') and got["token_ids"].count(CLOSE) == 1
    assert "\nthinking  3 tokens a block at most\n" in err
    assert main([*words, "x", "--think-message", "a"]) == 0
    assert "THINK_MESSAGE has no effect without THINK_BUDGET" in capsys.readouterr().err


def test_a_model_without_thinking_blocks_has_no_budget_for_them(tmp_path: Path):
    config = tiny_config("qwen3_moe", vocab_size=VOCAB, eos_token_id=None)
    write_checkpoint(tmp_path, config, random_tensors(config, seed=3), "bf16")
    write_tokenizer(tmp_path)
    with (
        Model.load(tmp_path, Options(ctx=64)) as model,
        pytest.raises(BadRequest, match="the model has no thinking blocks"),
    ):
        run(model, "x", thinking=ThinkBudget(3))
