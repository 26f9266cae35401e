"""Sources of drafts on real forwards: whatever they say, the ids are those of plain decoding."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
from tiny_model import running_scarce

from diskmoe.engine.api import Model, Options
from diskmoe.engine.decode import decode
from diskmoe.engine.model.forward import Transformer
from diskmoe.engine.sampling import Sampler, Sampling
from diskmoe.engine.stats import RunStats
from diskmoe.mtp.compose import Account, Composer
from diskmoe.mtp.corpus import Corpus, CorpusSource, write_corpus
from diskmoe.mtp.ngram import NgramSource
from diskmoe.mtp.planner import Planner
from diskmoe.mtp.source import DraftSource

VOCAB = 96
SAMPLINGS = [Sampling(), Sampling(temperature=0.2, top_k=8, seed=3)]


@pytest.fixture(scope="module", params=["qwen3_moe", "gpt_oss"])
def model(request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Transformer]:
    with running_scarce(tmp_path_factory.mktemp(request.param), request.param) as transformer:
        yield transformer


def ids_of(
    model: Transformer,
    prompt: Sequence[int],
    sampling: Sampling,
    source: DraftSource | None = None,
    limit: int = 60,
    stops: Sequence[int] = (),
) -> tuple[list[int], Account]:
    stats = RunStats()
    composer = (
        None
        if source is None
        else Composer([], [source], VOCAB, most=5, planner=Planner(5), guard=False)
    )
    picker = Sampler(sampling, VOCAB)
    tokens = decode(
        model, prompt, picker, limit=limit, stop_ids=stops, stats=stats, drafts=composer
    )
    ids = list(tokens)
    account = Account() if composer is None else next(iter(composer.accounts.values()))
    assert len(ids) == stats.tokens == stats.sampled + account.accepted
    assert account.accepted <= account.judged <= account.proposed
    return ids, account


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
def test_prompt_lookup_changes_no_id(model: Transformer, sampling: Sampling) -> None:
    random, taken, wrong = Random(1), 0, 0
    for _ in range(8):
        words = [random.randrange(VOCAB) for _ in range(9)]
        prompt = [*words, *words[:6], *words]
        plain, _ = ids_of(model, prompt, sampling)
        ids, account = ids_of(model, prompt, sampling, NgramSource(prompt))
        assert ids == plain
        for limit in (1, 2, 7):
            assert ids_of(model, prompt, sampling, NgramSource(prompt), limit)[0] == plain[:limit]
        stop = plain[random.randrange(60)]
        ends = ids_of(model, prompt, sampling, NgramSource(prompt), stops=[stop])[0]
        assert ends == plain[: plain.index(stop) + 1]
        taken, wrong = taken + account.accepted, wrong + account.judged - account.accepted
    assert taken >= 10 and wrong > 5


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
def test_a_corpus_changes_no_id(model: Transformer, sampling: Sampling, tmp_path: Path) -> None:
    random, taken, wrong = Random(2), 0, 0
    prompts = [[random.randrange(VOCAB) for _ in range(9)] for _ in range(6)]
    plain = [ids_of(model, prompt, sampling)[0] for prompt in prompts]
    documents = [[*prompt, *ids] for prompt, ids in zip(prompts, plain, strict=True)]
    for document in documents:  # now and then it goes on otherwise
        document[random.randrange(20, 60)] = random.randrange(VOCAB)
    write_corpus(tmp_path / "c", documents, "")
    corpus = Corpus.open(tmp_path / "c", "")
    for prompt, ids in zip(prompts, plain, strict=True):
        again, account = ids_of(model, prompt, sampling, CorpusSource(corpus, prompt))
        assert again == ids
        for limit in (1, 2, 7):
            source = CorpusSource(corpus, prompt)
            assert ids_of(model, prompt, sampling, source, limit)[0] == ids[:limit]
        taken, wrong = taken + account.accepted, wrong + account.judged - account.accepted
    assert taken > 100 and wrong


def test_prompt_lookup_needs_no_tokenizer_and_is_in_the_accounts(tiny: Path) -> None:
    prompt = [5, 17, 33, 8, 61, 2] * 3
    with Model.load(tiny, Options(ctx=128, draft=4)) as loaded:
        run = loaded.generate(prompt, limit=64)
        list(run)
    assert run.stats.drafts["ngram"].judged
    with Model.load(tiny, Options(ctx=128, ngram=False)) as loaded:
        plain = loaded.generate(prompt, limit=64)
        list(plain)
        assert plain.token_ids == run.token_ids and not plain.stats.drafts
