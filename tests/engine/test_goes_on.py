"""A model that stays loaded: runs end in every way there is, and the next one is as the first."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diskmoe.engine.api import Model, Options
from diskmoe.engine.errors import BadRequest, ReadFailed, WriteFailed
from diskmoe.experts.reader import FileReader

PROMPT = [5, 17, 33, 9, 60, 2]


def ids(model: Model) -> list[int]:
    run = model.generate(PROMPT, limit=6, reuse=False)
    for _ in run:
        pass
    return run.token_ids


@pytest.mark.parametrize("prefetch", ["0", "1"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ReadFailed])
def test_a_run_after_one_that_failed_in_a_read_has_the_same_ids(
    tiny: Path, error: type[BaseException], prefetch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Model.load(tiny, Options(cap=1, prefetch=prefetch)) as model:
        expected = ids(model)
        read = FileReader._read
        for n in (1, 5, 40):
            left = [n]

            def failing(
                self: FileReader, *args: object, left: list[int] = left, read: object = read
            ) -> int:
                left[0] -= 1
                if left[0] == 0:
                    raise error("cut off")
                return read(self, *args)  # type: ignore[operator]

            monkeypatch.setattr(FileReader, "_read", failing)
            with pytest.raises(error):
                ids(model)
            monkeypatch.setattr(FileReader, "_read", read)
            assert ids(model) == expected


def test_a_paced_disk_is_paced_after_a_run_that_was_interrupted(tiny: Path) -> None:
    with Model.load(tiny, Options(cap=1, disk_bps=50_000_000)) as model:
        store = model._store
        fetch = store.fetch(0, np.arange(8, dtype=np.int32))
        next(fetch)
        fetch.close()
        pacer = model.opened.records.pacer
        assert pacer is not None
        ids(model)
        waiting = threading.Thread(target=pacer.wait, args=(pacer.ask(10**12),))
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
        pacer.hurry()
        waiting.join(10)


def test_a_run_that_a_newer_one_overtook_in_its_prompt_gives_no_token(tiny: Path) -> None:
    with Model.load(tiny, Options(cap=2)) as model:
        expected = ids(model)
        inner: list[list[int]] = []

        def begin_another(done: int, rows: int) -> None:
            if not inner:
                inner.append([])
                inner[0] = ids(model)

        overtaken = model.generate(PROMPT, limit=6, on_prefill=begin_another, reuse=False)
        with pytest.raises(BadRequest, match="ended by a newer one"):
            list(overtaken)
        assert overtaken.token_ids == [] and inner == [expected]
        again = model.generate(PROMPT, limit=6)  # goes on from what the inner one has left
        list(again)
        assert again.token_ids == expected and again.stats.reused_tokens == len(PROMPT) - 1
        assert ids(model) == expected


def test_a_trace_that_cannot_be_written_leaves_nothing_open(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = threading.active_count()
    model = Model.load(tiny, Options(trace=tmp_path / "t.csv"))
    ids(model)
    monkeypatch.setattr("os.fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(WriteFailed, match="cannot be written"):
        model.close()
    assert threading.active_count() == threads
    model.close()


def test_a_policy_that_never_has_to_choose_says_so(tiny: Path) -> None:
    said: list[str] = []
    Model.load(tiny, Options(policy="lru"), said.append).close()
    assert "note      POLICY=lru has no effect: all experts fit" in said


@pytest.mark.parametrize("wrong", [{"ram_gb": "6"}, {"pin_gb": "1"}, {"trace": "x"}, {"usage": 3}])
def test_an_option_of_another_type_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="it must be a"):
        Options(**wrong)
