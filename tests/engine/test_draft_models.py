"""A small model drafts for a large one: no id changes, its memory is planned, others are refused."""

from pathlib import Path

import pytest
from tiny_model import random_tensors, tiny_config, write_checkpoint
from tiny_text import VOCAB, WORDS, write_tokenizer

from diskmoe.engine.api import Model, Options, Sampling
from diskmoe.engine.cli import main
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.prepared import prepare

PROMPTS = (
    "once upon",
    "the",
    "on and on and on and on and on and on and on and on and on and on and",
)


def made(folder: Path, family: str, seed: int) -> Path:
    config = tiny_config(family, vocab_size=VOCAB, eos_token_id=None)
    write_checkpoint(folder, config, random_tensors(config, seed=seed), dtype="bf16")
    return write_tokenizer(folder)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("large"), "qwen3_moe", 11)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense model that knows nothing of the large one."""
    return made(tmp_path_factory.mktemp("stranger"), "llama", 5)


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.7, top_k=20, seed=3)], ids=["greedy", "sampled"]
)
def test_a_draft_model_changes_no_id(large: Path, stranger: Path, sampling: Sampling) -> None:
    def ids(**drafting) -> list[tuple[list[int], int, int]]:
        options = Options(ctx=160, cap=4, ngram=False, guard=False, **drafting)
        found = []
        with Model.load(large, options) as model:
            for prompt in PROMPTS:
                run = model.generate(prompt, limit=40, sampling=sampling)
                list(run)
                account = run.stats.drafts.get("draft")
                accepted, judged = (account.accepted, account.judged) if account else (0, 0)
                assert run.stats.sampled + accepted == len(run.token_ids)
                found.append((run.token_ids, accepted, judged))
        return found

    plain = ids()
    itself = ids(draft_model=large, draft=3, p_min=0.0)  # in 8 bits
    wrong = ids(draft_model=stranger, draft=3, p_min=0.0)
    priced = ids(draft_model=large, p_min=0.0)
    for others in (itself, wrong, priced):
        assert [one[0] for one in others] == [one[0] for one in plain]
    assert sum(one[1] for one in itself) > 40
    assert sum(one[2] - one[1] for one in wrong) > 40


def test_the_memory_of_a_draft_model_is_in_the_plan_and_said(large: Path, stranger: Path) -> None:
    said: list[str] = []
    with Model.load(large, Options(ctx=64)) as alone:
        before = alone.memory.request.scratch_bytes
    with Model.load(large, Options(ctx=64, draft_model=stranger), said.append) as both:
        added = both.memory.request.scratch_bytes - before
    (line,) = [line for line in said if line.startswith("draft ")]
    assert "llama, 3 layers, no experts" in line and "counted as scratch" in line
    kv, embedding_and_head = 64 * 3 * 2 * 32 * 4, 2 * VOCAB * 64
    assert added > kv + embedding_and_head


def test_experts_of_a_draft_model_are_all_resident(large: Path) -> None:
    with Model.load(large, Options(ctx=64, cap=2, draft_model=large, draft=2)) as model:
        list(model.generate("on and on", limit=30))
        small = model.helpers.small
        assert small is not None
        counters = small.transformer.counters
        assert 0 < counters.misses <= 3 * 8  # each expert of each layer once


def test_a_draft_model_of_another_vocabulary_is_refused_with_the_first_id(
    large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_tokenizer(made(tmp_path, "llama", 5), (WORDS[0], ("a", "n"), *WORDS[2:]))
    words = ["Hi", "--model", str(large), "--draft-model", str(other), "--ctx", "64"]
    assert main(words) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error:")]
    assert "its token 257 prints 'an', the model's 'the'" in line


def test_a_draft_model_without_a_tokenizer_is_refused(large: Path, tiny: Path) -> None:
    with pytest.raises(BadRequest, match="it has no tokenizer.json"):
        Model.load(large, Options(draft_model=tiny))
    with pytest.raises(BadRequest, match="needs a tokenizer.json in both models"):
        Model.load(tiny, Options(draft_model=large))


def test_without_drafts_it_is_not_loaded_and_that_is_said(large: Path, stranger: Path) -> None:
    said: list[str] = []
    options = Options(ctx=64, draft=0, draft_model=stranger)
    prepared = prepare(large, options, said.append)
    try:
        assert prepared.helpers.small is None
    finally:
        prepared.close()
    assert said == [f"note      DRAFT_MODEL={stranger} is not used: DRAFT=0"]
