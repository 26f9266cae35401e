"""Models and the process that they are in: forks of it, several at once, and nothing left of them."""

import gc
import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_model import random_tensors, tiny_config, write_checkpoint

from diskmoe.engine.api import Model, Options, Sampling
from diskmoe.engine.errors import BadRequest, DiskMoeError
from diskmoe.grammar_draft.errors import BadGrammar

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
SAMPLING = Sampling(temperature=1.0, seed=3)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("processes")
    made = []
    for seed, family in enumerate(("qwen3_moe", "glm4_moe")):
        config = tiny_config(family, eos_token_id=None)
        made.append(write_checkpoint(folder / family, config, random_tensors(config, seed=seed)))
    return made


def options(**more: object) -> Options:
    return Options(ctx=96, cap=3, threads=2, **more)  # pyright: ignore[reportArgumentType]


def ids(model: Model, prompt: list[int]) -> list[int]:
    run = model.generate(prompt, sampling=SAMPLING, limit=20)
    list(run)
    return run.token_ids


def in_child(work: Callable[[], str], seconds: float = 20) -> str:
    """What work says in a fork of this process; fails where it hangs."""
    here, there = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks of threads, which this tests
        child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            said = work()
        except BaseException as error:  # noqa: BLE001 - the parent is to see it
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(there, said.encode())
            os._exit(0)
    os.close(there)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(os.read(here, 10_000)))
    reader.start()
    reader.join(seconds)
    if reader.is_alive():
        os.kill(child, 9)
        reader.join()
    os.waitpid(child, 0)
    os.close(here)
    return found[0].decode()


@forks
def test_a_fork_of_a_loaded_model_is_refused_and_the_parent_goes_on(paths: list[Path]) -> None:
    with Model.load(paths[0], options()) as model:
        wanted = ids(model, [1, 2, 3])

        def child() -> str:
            with pytest.raises(BadRequest, match="is a fork"):
                model.forget()
            try:
                model.generate([1, 2, 3])
            except DiskMoeError as error:
                model.close()
                return str(error)
            return "answered"

        said = in_child(child)
        assert f"loaded in process {os.getpid()}" in said and "spawn" in said, said
        assert "\n" not in said
        assert ids(model, [1, 2, 3]) == wanted


@forks
def test_a_run_that_was_begun_is_refused_in_a_fork_as_well(paths: list[Path]) -> None:
    with Model.load(paths[0], options()) as model:
        wanted = ids(model, [4, 5])
        run = model.generate([4, 5], sampling=SAMPLING, limit=20)
        tokens = run._tokens
        first = [next(tokens) for _ in range(5)]

        def child() -> str:
            nonlocal run, tokens
            try:
                next(tokens)
            except DiskMoeError as error:
                del run, tokens
                gc.collect()
                return f"refused: {error}"
            return "went on"

        assert in_child(child).startswith("refused: this model was loaded in process")
        assert first + list(tokens) == wanted


@forks
def test_forks_while_others_compute_are_refused_too(paths: list[Path]) -> None:
    """Locks are held by threads that a child has not: it is to touch none of them."""
    with Model.load(paths[0], options(parallel=2)) as model:
        wanted = ids(model, [7] * 9)
        over, wrong = threading.Event(), []

        def busy() -> None:
            while not over.is_set():
                if ids(model, [7] * 9) != wanted:
                    wrong.append("other ids")

        thread = threading.Thread(target=busy)
        thread.start()
        try:
            for _ in range(8):
                said = in_child(lambda: str(ids(model, [1, 2])))
                assert said.startswith("BadRequest: this model was loaded in"), said
        finally:
            over.set()
            thread.join(60)
        assert not wrong


def _use(model: Model, answers: "multiprocessing.SimpleQueue[str]") -> None:
    try:
        answers.put(str(ids(model, [1])))
    except BadRequest as error:
        answers.put(f"refused: {error}")


@forks
def test_multiprocessings_forks_are_refused(paths: list[Path]) -> None:
    context = multiprocessing.get_context("fork")
    with Model.load(paths[0], options()) as model, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        answers = context.SimpleQueue()
        child = context.Process(target=_use, args=(model, answers))
        child.start()
        child.join(20)
        assert child.exitcode == 0
        assert answers.get().startswith("refused: this model was loaded in")


def test_two_models_and_four_threads_get_what_each_gets_alone(paths: list[Path]) -> None:
    prompts = [[n, n + 1, n + 2] * (n + 1) for n in range(4)]
    wanted = []
    for path in paths:
        with Model.load(path, options()) as model:
            wanted.append([ids(model, prompt) for prompt in prompts])
    found: dict[tuple[int, int], list[int]] = {}
    two_texts = options(parallel=2)
    with Model.load(paths[0], two_texts) as one, Model.load(paths[1], two_texts) as two:
        jobs = [
            (number, model, range(half, 4, 2))
            for number, model in enumerate((one, two))
            for half in (0, 1)
        ]

        def client(number: int, model: Model, which: range) -> None:
            for prompt in which:
                found[number, prompt] = ids(model, prompts[prompt])

        threads = [threading.Thread(target=client, args=job) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert found == {(m, p): wanted[m][p] for m in range(2) for p in range(4)}


def test_a_run_that_was_never_begun_ends_no_other(paths: list[Path]) -> None:
    with Model.load(paths[0], options(parallel=2)) as model:
        wanted = ids(model, [1, 2, 3])
        run = model.generate([1, 2, 3], sampling=SAMPLING, limit=20)
        first = next(run._tokens)
        model.generate([5, 6], limit=20)  # and dropped
        with pytest.raises(BadGrammar):
            model.generate([5, 6], grammar="no-such-grammar", constrain=True)
        assert len(ids(model, [8, 9])) == 20
        assert [first, *run._tokens] == wanted


@pytest.mark.skipif(sys.platform != "linux", reason="counted in /proc")
def test_nothing_is_left_of_a_model_that_was_closed(paths: list[Path]) -> None:
    def held() -> tuple[int, int, int]:
        """Threads, open files, and bytes of memory that is mapped without a file."""
        gc.collect()
        maps = Path("/proc/self/smaps").read_text().splitlines()
        anonymous = sum(int(line.split()[1]) for line in maps if line.startswith("Anonymous:"))
        return (
            len(os.listdir("/proc/self/task")),
            len(os.listdir("/proc/self/fd")),
            anonymous << 10,
        )

    def used() -> None:
        with Model.load(paths[0], options(parallel=2, ram_gb=2.0)) as model:
            ids(model, [1, 2, 3])

    used()  # what a process keeps of its first model: kernels
    used()
    before = held()
    for _ in range(5):
        used()
    after = held()
    assert after[:2] == before[:2]
    assert after[2] - before[2] < 4 << 20
