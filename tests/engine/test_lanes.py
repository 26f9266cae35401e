"""Several texts at once: each is what it would be alone, and what they share is read once."""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_model import random_tensors, tiny_config, write_checkpoint

from diskmoe.engine.api import Model, Options, Sampling
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.generation import Run
from diskmoe.engine.stats import snapshot
from diskmoe.engine.turns import Turns
from diskmoe.mtp.verify import verify

FAMILIES = ["qwen3_moe", "qwen3_next", "glm4_moe"]


@pytest.fixture(scope="module", params=FAMILIES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models with attention, with states, and with a draft head."""
    more = {"num_nextn_predict_layers": 1} if request.param == "glm4_moe" else {}
    config = tiny_config(request.param, eos_token_id=None, **more)
    folder = tmp_path_factory.mktemp("lanes") / request.param
    return write_checkpoint(folder, config, random_tensors(config, seed=4, mtp=bool(more)))


def options(**more) -> Options:
    return Options(ctx=96, cap=3, expert_bits=8, dense_bits=8, **more)


def prompts(count: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(96) for _ in range(rng.randrange(1, 40))] for _ in range(count)]


def alone(path: Path, texts: list[list[int]], sampling: Sampling, limit: int) -> list[list[int]]:
    with Model.load(path, options(ngram=False, mtp=False)) as model:
        runs = []
        for text in texts:
            runs.append(model.generate(text, sampling=sampling, limit=limit, reuse=False))
            list(runs[-1])
    return [run.token_ids for run in runs]


def in_threads(jobs: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.2, seed=5)])
def test_texts_at_once_are_what_they_are_alone(path: Path, sampling: Sampling) -> None:
    texts = prompts(9, seed=1)
    wanted = alone(path, texts, sampling, limit=24)
    found: dict[int, list[int]] = {}
    with Model.load(path, options(parallel=3)) as model:

        def client(numbers: range) -> None:
            for number in numbers:
                run = model.generate(texts[number], sampling=sampling, limit=24)
                list(run)
                found[number] = run.token_ids

        in_threads([lambda n=n: client(range(n, 9, 3)) for n in range(3)])
        assert [found[number] for number in range(9)] == wanted
        assert model.transformer.counters.misses


def test_equal_texts_at_once_read_what_one_reads(tmp_path: Path) -> None:
    config = tiny_config("qwen3_moe", eos_token_id=None)
    path = write_checkpoint(tmp_path, config, random_tensors(config, seed=4))
    misses, forwards = [], []
    for count in (1, 2):
        with Model.load(path, options(parallel=2, ngram=False)) as model:
            runs = [model.generate([5, 6, 7], limit=40) for _ in range(count)]
            in_threads([lambda run=run: list(run) for run in runs])  # pyright: ignore
            misses.append(model.transformer.counters.misses)
            forwards += [run.stats.decode.forwards for run in runs]
    assert forwards == [40, 40, 40]
    assert misses[1] < 1.5 * misses[0]  # a few forwards at the start and end are not shared


def test_an_interrupted_text_leaves_the_others_alone(path: Path) -> None:
    first, second = prompts(2, seed=3)
    wanted = alone(path, [second], Sampling(), limit=30)
    with Model.load(path, options(parallel=2)) as model:
        run = model.generate(second, limit=30)

        def quitting() -> None:
            for _ in range(4):
                other = model.generate(first, limit=30)
                for number, _ in enumerate(other._tokens):  # pyright: ignore
                    if number == 5:
                        other.stop("gone")

        in_threads([quitting, lambda: list(run)])  # pyright: ignore[reportArgumentType]
        assert run.token_ids == wanted[0]
        assert all(lane.text is None for lane in model._lanes.lanes)


def test_texts_in_one_thread_take_turns(path: Path) -> None:
    texts = prompts(2, seed=6)
    wanted = alone(path, texts, Sampling(), limit=12)
    with Model.load(path, options(parallel=2)) as model:
        runs = [model.generate(text, limit=12) for text in texts]
        for _ in zip(*(run._tokens for run in runs), strict=True):  # pyright: ignore
            pass
        again = [model.generate(text, limit=12) for text in texts]
        for run in again:
            list(run)
    assert [run.token_ids for run in again] == wanted


def test_one_text_more_than_lanes_ends_the_first(path: Path) -> None:
    with Model.load(path, options(parallel=2)) as model:
        runs = [model.generate([number + 1], limit=5) for number in range(3)]
        with pytest.raises(BadRequest, match="ended by a newer one"):
            list(runs[0])
        for run in runs[1:]:
            list(run)
            assert len(run.token_ids) == 5


def test_a_text_that_has_lost_its_lane_takes_nothing_back_in_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another may take the lane between a forward with drafts and the end of those rejected."""
    [prompt] = prompts(1, seed=9)
    wanted = alone(path, [[4]], Sampling(), limit=8)
    with Model.load(path, options()) as model:
        first = model.generate(prompt, limit=30)
        newer: list[Run] = []

        def overtaken(picker, logits, guesses, stops):
            tokens = verify(picker, logits, guesses, stops)
            if guesses and not newer:
                newer.append(model.generate([4], limit=8, reuse=False))
                newer[0].token_ids.append(next(newer[0]._tokens))  # pyright: ignore
            return tokens

        monkeypatch.setattr("diskmoe.engine.decode.verify", overtaken)
        with pytest.raises(BadRequest, match="ended by a newer one"):
            list(first)
        list(newer[0])
        assert newer[0].token_ids == wanted[0]


def test_a_text_goes_on_from_what_an_earlier_one_has_left(path: Path) -> None:
    [prompt] = prompts(1, seed=9)
    with Model.load(path, options()) as model:
        run = model.generate(prompt, limit=10)
        list(run)
        longer = prompt + run.token_ids + [3, 4, 5]
        wanted = model.generate(longer, limit=10, reuse=False)
        list(wanted)
    with Model.load(path, options()) as model:
        list(model.generate(prompt, limit=10))
        found = model.generate(longer, limit=10)
        list(found)
    assert found.token_ids == wanted.token_ids
    # the last token of the first text was never fed
    assert found.stats.reused_tokens == len(prompt) + 9
    assert wanted.stats.reused_tokens == 0
    assert found.stats.prefill.rows + found.stats.reused_tokens == wanted.stats.prefill.rows


def test_a_text_that_differs_early_is_reused_as_far_as_a_cache_can_go_back(path: Path) -> None:
    [prompt] = prompts(1, seed=9)
    with Model.load(path, options()) as model:
        list(model.generate(prompt, limit=10))
        changed = [*prompt[:5], (prompt[5] + 1) % 96, *prompt[6:]]
        wanted = model.generate(changed, limit=10, reuse=False)
        list(wanted)
        list(model.generate(prompt, limit=10, reuse=False))
        found = model.generate(changed, limit=10)
        list(found)
        assert found.token_ids == wanted.token_ids
        has_states = model.config.delta is not None
        assert found.stats.reused_tokens == (0 if has_states else 5)


def test_a_text_within_the_progress_of_another_ends_that_one(path: Path) -> None:
    first, second = prompts(2, seed=3)
    wanted = alone(path, [second, first], Sampling(), limit=6)
    with Model.load(path, options(parallel=2)) as model:
        inner: list[list[int]] = []

        def begin_another(done: int, rows: int) -> None:
            if not inner:
                run = model.generate(second, limit=6)
                list(run)
                inner.append(run.token_ids)

        outer = model.generate(first, limit=6, on_prefill=begin_another)
        with pytest.raises(BadRequest, match="read within the progress"):
            list(outer)
        again = model.generate(first, limit=6)
        list(again)
        assert [*inner, again.token_ids] == wanted and not outer.token_ids


def test_what_another_texts_cache_holds_is_copied(path: Path) -> None:
    """While that one goes on; of states only where they are still at that place."""
    [prompt] = prompts(1, seed=9)
    longer = [*prompt, 7, 8, 9]
    wanted = alone(path, [prompt, longer, [*prompt[:6], 1, 2]], Sampling(), limit=10)
    with Model.load(path, options(parallel=3, ngram=False, mtp=False)) as model:
        first = model.generate(prompt, limit=10)
        first.token_ids.append(next(first._tokens))  # pyright: ignore
        second = model.generate(longer, limit=10)
        list(second)
        third = model.generate([*prompt[:6], 1, 2], limit=10)
        list(third)
        list(first)
        assert [run.token_ids for run in (first, second, third)] == wanted
        states = model.config.delta is not None
        assert second.stats.reused_tokens == len(prompt)
        assert third.stats.reused_tokens == (0 if states else 6)
        assert second.stats.prefill.rows == len(longer) - 1 - second.stats.reused_tokens


def test_equal_prompts_at_once_are_read_once(path: Path) -> None:
    prompt = list(range(1, 80))
    wanted = alone(path, [prompt], Sampling(), limit=8)
    with Model.load(path, options(parallel=2, ngram=False, mtp=False, prefill_chunk=16)) as model:
        runs = [model.generate(prompt, limit=8) for _ in range(2)]  # before a row is read
        in_threads([lambda run=run: list(run) for run in runs])  # pyright: ignore
        assert [run.token_ids for run in runs] == wanted * 2
        rows = [run.stats.prefill.rows for run in runs]
        assert [run.stats.reused_tokens + n for run, n in zip(runs, rows, strict=True)] == [78, 78]
        if model.config.delta is None:
            assert sum(rows) == 78  # whoever came first to a chunk read it


def test_a_text_that_reuses_nothing_copies_nothing(path: Path) -> None:
    [prompt] = prompts(1, seed=9)
    with Model.load(path, options(parallel=2)) as model:
        list(model.generate(prompt, limit=4))
        run = model.generate(prompt, limit=4, reuse=False)
        list(run)
        assert run.stats.reused_tokens == 0 and run.stats.prefill.rows == len(prompt) - 1


def test_a_stream_goes_on_between_the_layers_of_anothers_prompt(path: Path) -> None:
    first, prompt = [3, 1, 4], list(range(1, 81))
    wanted = alone(path, [first, prompt], Sampling(), limit=12)
    order: list[str] = []
    with Model.load(path, options(parallel=2, ngram=False, mtp=False, prefill_chunk=32)) as model:
        lanes = model._lanes
        streaming = model.generate(first, limit=12)

        streaming.token_ids.append(next(streaming._tokens))  # pyright: ignore

        def stream() -> None:
            for token in streaming._tokens:  # pyright: ignore
                streaming.token_ids.append(token)
                order.append("token")

        def told(done: int, rows: int) -> None:
            """The stream asks for its turn, and ours has lasted as long as a forward."""
            until = time.monotonic() + 20
            while len(lanes.turns._line) < 2 and thread.is_alive() and time.monotonic() < until:
                time.sleep(0.001)
            time.sleep(2 * lanes.seconds)
            order.append("layer")

        thread = threading.Thread(target=stream)
        reading = model.generate(prompt, limit=12, on_prefill=told)
        thread.start()
        list(reading)
        thread.join(60)
    assert [streaming.token_ids, reading.token_ids] == wanted
    layers = [place for place, what in enumerate(order) if what == "layer"]
    assert len(layers) == 3 * model.config.layers
    busy = [place for place in layers if "token" in order[place:]]  # the stream still ran
    assert all(order[place + 1] == "token" for place in busy)
    assert len(busy) > 2


def test_the_lane_that_has_most_of_a_text_is_taken(tmp_path: Path) -> None:
    config = tiny_config("qwen3_moe", eos_token_id=None)
    path = write_checkpoint(tmp_path, config, random_tensors(config, seed=4))
    with Model.load(path, options(parallel=3)) as model:
        for start in (10, 20, 30):
            list(model.generate([start] * 8, limit=4))
        for start in (30, 10, 20):
            run = model.generate([start] * 7 + [1], limit=4)
            list(run)
            assert run.stats.reused_tokens == 7


def test_memory_for_each_text_is_planned(tmp_path: Path) -> None:
    config = tiny_config("qwen3_moe", eos_token_id=None)
    path = write_checkpoint(tmp_path, config, random_tensors(config, seed=4))
    planned = []
    for texts in (1, 4):
        with Model.load(path, options(parallel=texts)) as model:
            planned.append(model.memory.request.kv_bytes)
            assert sum(lane.kv.nbytes for lane in model._lanes.lanes) == planned[-1]
    assert planned[1] == 4 * planned[0]
    with pytest.raises(BadRequest, match="one text at a time"):
        Options(parallel=2, trace=tmp_path / "trace.csv")


def test_states_are_kept_for_heads_alone_and_planned(path: Path) -> None:
    planned = []
    for texts in (1, 2):
        with Model.load(path, options(parallel=texts)) as model:
            request = model.memory.request
            planned.append(request.scratch_bytes)
            text, _ = model._lanes.begin([1, 2, 3])
            text.forward([1, 2], "none")
            has_head = text.lane.head is not None
            assert text.hidden.flags.owndata == (has_head and texts == 2)
    if has_head:
        assert request.prompt_rows is not None
        assert planned[1] - planned[0] > 2 * 4 * request.prompt_rows * model.config.hidden


def test_turns_are_given_in_the_order_asked_for() -> None:
    turns, order = Turns(), []

    def ask(number: int) -> None:
        with turns:
            order.append(number)

    with turns:
        threads = []
        for number in range(8):
            threads.append(threading.Thread(target=ask, args=(number,)))
            threads[-1].start()
            while len(turns._line) < number + 2:
                time.sleep(0.001)
    for thread in threads:
        thread.join(10)
    assert order == list(range(8))


def test_the_phases_of_all_texts_are_what_the_store_was_asked_for(path: Path) -> None:
    """Prompts, shared forwards and drafting: each once, whoever shares it."""
    with Model.load(path, options(parallel=3)) as model:
        runs = [model.generate(text, limit=12, reuse=False) for text in prompts(3, seed=6)]
        in_threads([lambda run=run: list(run).clear() for run in runs])
        prefill, decode = model.phases
        for name, value in snapshot(model.transformer.counters, 0).items():
            if name != "selections":
                assert getattr(prefill, name) + getattr(decode, name) == pytest.approx(value)
        assert prefill.selections + decode.selections == model.transformer.selections
        assert prefill.rows == sum(run.stats.prefill.rows for run in runs)
        assert decode.rows == sum(run.stats.decode.rows for run in runs)
        assert decode.forwards <= sum(run.stats.decode.forwards for run in runs)
        assert 0 < decode.forward_seconds <= decode.seconds
        assert 0 < prefill.forward_seconds <= prefill.seconds
