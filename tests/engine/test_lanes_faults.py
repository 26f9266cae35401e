"""Texts at once where something goes wrong for one of them, or happens at an unlucky moment."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest
from tiny_model import random_tensors, tiny_config, write_checkpoint

from diskmoe.engine.api import Model, Options
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.lanes import Lane, Lanes, Text
from diskmoe.engine.model.moe import FeedForward
from diskmoe.engine.model.together import Part
from diskmoe.experts.errors import ReadFailed


@pytest.fixture(scope="module", params=["qwen3_moe", "qwen3_next"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config(request.param, eos_token_id=None)
    folder = tmp_path_factory.mktemp("faults") / request.param
    return write_checkpoint(folder, config, random_tensors(config, seed=4))


@pytest.fixture
def model(path: Path) -> Iterator[Model]:
    options = Options(ctx=96, cap=3, expert_bits=8, dense_bits=8, parallel=3, ngram=False)
    with Model.load(path, options) as model:
        yield model


def begun(lanes: Lanes, *prompts: list[int]) -> list[Text]:
    """Texts whose prompts are read but for the last token."""
    texts = [lanes.begin(prompt, reuse=False)[0] for prompt in prompts]
    for text, prompt in zip(texts, prompts, strict=True):
        text.forward(prompt[:-1], "none")
    return texts


def asked(text: Text, *ids: int) -> np.ndarray:
    return text.forward(ids, "all" if len(ids) > 1 else "last")


def bits(logits: Any) -> bytes:
    assert isinstance(logits, np.ndarray), logits
    return logits.tobytes()


def alone(lanes: Lanes, *tokens: int) -> list[bytes]:
    """What a text of the prompt 5, 6 that goes on so gets beside nobody."""
    [text] = begun(lanes, [5, 6, 7])
    found = [bits(asked(text, token)) for token in tokens]
    text.end()
    return found


def in_thread(job: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """A thread, and what its job came to, or has raised."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(job())
        except BaseException as error:  # noqa: BLE001
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, found


def together(lanes: Lanes, *jobs: tuple[Text, int]) -> list[Any]:
    """What texts get of one forward that they share, the first of them leading; or raise."""
    lanes.seconds = 20.0  # a quarter of it the leader waits for the others
    threads = []
    for text, _ in jobs:
        lanes.expect(text)
    for text, token in jobs:
        threads.append(in_thread(lambda text=text, token=token: asked(text, token)))
        while len(threads) == 1 and lanes._open is None:
            time.sleep(0.001)
    for thread, _ in threads:
        thread.join(30)
        assert not thread.is_alive()
    return [found[0] for _, found in threads]


def test_an_expert_that_cannot_be_read_fails_the_texts_that_want_it_alone(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = model._lanes
    [wanted] = alone(lanes, 7)
    good, bad = begun(lanes, [5, 6, 7], [1, 2, 3])
    feed = FeedForward.run_experts

    def unreadable(self: FeedForward, layer: int, n: int, prompt: bool) -> None:
        """Rows that stand in the cache of the bad text want what the disk does not give."""
        if any(part.kv is bad.lane.kv for part in parts) and layer == 1:
            raise ReadFailed("expert 3 of layer 1: the disk gave nothing")
        feed(self, layer, n, prompt)

    parts: list[Part] = []
    compute = lanes._compute

    def noted(requests: Any) -> None:
        parts[:] = [request.part for request in requests]
        compute(requests)

    monkeypatch.setattr(lanes, "_compute", noted)
    monkeypatch.setattr(FeedForward, "run_experts", unreadable)
    for order in ((good, bad), (bad, good)):
        found = dict(zip(order, together(lanes, *((text, 7) for text in order)), strict=True))
        assert bits(found[good]) == wanted
        assert isinstance(found[bad], ReadFailed)
        good.kv.trim(2)
        assert bad.kv.length == 2


def test_a_leader_that_is_interrupted_late_gives_nobody_a_row_twice(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = model._lanes
    wanted = alone(lanes, 7, 8)
    leader, other = begun(lanes, [1, 2, 3], [5, 6, 7])
    ended = lanes.books.ended

    def interrupted(*args: Any) -> None:
        monkeypatch.setattr(lanes.books, "ended", ended)
        raise KeyboardInterrupt

    monkeypatch.setattr(lanes.books, "ended", interrupted)
    first, second = together(lanes, (leader, 3), (other, 7))
    assert isinstance(first, KeyboardInterrupt)
    leader.end()
    lanes.seconds = 0.01
    assert other.kv.length == 3
    assert [bits(second), bits(asked(other, 8))] == wanted


def test_a_text_within_the_progress_of_another_waits_for_nobody_who_waits_for_that(
    model: Model,
) -> None:
    """Another has begun a forward and waits for its turn, which the progress has."""
    lanes = model._lanes
    [wanted] = alone(lanes, 7)
    third, inner = begun(lanes, [1, 2, 3], [5, 6, 7])
    threads: list[tuple[threading.Thread, list[Any]]] = []

    def within(done: int, layers: int) -> None:
        if threads:
            return
        threads.append(in_thread(lambda: asked(third, 3)))
        while len(lanes.turns._line) < 2:
            time.sleep(0.001)
        found.append(bits(asked(inner, 7)))

    found: list[bytes] = []
    outer, _ = lanes.begin([9, 8, 7], reuse=False)
    reading, _ = in_thread(lambda: outer.forward([9, 8], "none", within))
    reading.join(30)
    assert not reading.is_alive() and found == [wanted]
    threads[0][0].join(30)
    assert isinstance(threads[0][1][0], np.ndarray)


def test_drafts_that_are_taken_back_while_a_cache_is_copied_leave_the_copy_whole(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = model._lanes
    [text] = begun(lanes, [5, 6, 7])
    asked(text, 7, 8, 9)  # of which two are drafts
    kv, taken = text.lane.kv, []
    holds = kv.holds

    def overtaken(ids: Any) -> int:
        found = holds(ids)
        if not taken:
            taken.append(in_thread(lambda: text.kv.trim(3)))
            taken[0][0].join(0.2)
        return found

    monkeypatch.setattr(kv, "holds", overtaken)
    other, reused = lanes.begin([5, 6, 7, 8, 9, 1])
    taken[0][0].join(30)
    assert kv.length == 3 and taken[0][1] == [None]
    assert reused == other.kv.length == len(other.lane.kv.tokens) == 5


class Unlucky(Lane):
    """Whoever looks whose it is, is told just before `meanwhile` happens."""

    meanwhile: Callable[[], None]

    @property
    def text(self) -> Text | None:
        found = super().text
        self.meanwhile()
        return found

    @text.setter
    def text(self, text: Text | None) -> None:
        self._text = None if text is None else ref(text)


def test_a_text_that_ends_while_another_takes_its_lane_leaves_it_to_that(model: Model) -> None:
    lanes, newer = model._lanes, []
    texts = begun(lanes, [5, 6, 7], [1, 2, 3], [2, 3, 4])
    lane, here = texts[0].lane, threading.get_ident()

    def meanwhile() -> None:
        if threading.get_ident() == here and not newer:
            newer.append(in_thread(lambda: lanes.begin([9, 9], reuse=False)[0]))
            newer[0][0].join(0.2)

    lane.__class__, lane.meanwhile = Unlucky, meanwhile  # pyright: ignore
    texts[0].end()
    thread, found = newer[0]
    thread.join(30)
    assert found[0].lane is lane
    found[0].check()


def test_rows_of_use_are_told_of_the_forward_that_they_are_of(model: Model) -> None:
    """A text that is slow to say it says nothing of another's drafts."""
    lanes, told = model._lanes, []
    lanes._on_accepted = told.append
    slow, quick = begun(lanes, [5, 6, 7], [1, 2, 3])
    asked(slow, 7, 8, 9)
    asked(quick, 3, 4, 5)
    slow.accepted(3)
    quick.accepted(1)
    asked(quick, 6)
    assert told == [[0], [0]]


def test_no_text_begins_in_a_model_that_was_closed(path: Path) -> None:
    """Not even one whose run was on its way when that happened."""
    with Model.load(path, Options(ctx=96, cap=3, parallel=2)) as model:
        lanes = model._lanes
    with pytest.raises(BadRequest, match="closed"):
        lanes.begin([1, 2])


def test_a_look_at_the_experts_may_end_in_the_middle_of_a_layer(model: Model) -> None:
    told: list[int] = []

    class Fickle(FeedForward):
        """Another thread ends the look as soon as it was seen that there is one."""

        @property
        def record(self) -> Any:
            self.__dict__["looks"] = looks = self.__dict__.get("looks", 0) + 1
            return None if looks % 2 == 0 else lambda layer, ids, phase: told.append(layer)

        @record.setter
        def record(self, record: Any) -> None: ...  # pyright: ignore[reportIncompatibleVariableOverride]

    model.transformer._feed_forward.__class__ = Fickle
    list(model.generate([1, 2, 3], limit=2))
    assert told
