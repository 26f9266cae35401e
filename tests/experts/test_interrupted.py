"""Ctrl-C at any line of the hot store: who goes on with the same store finds it whole."""

import linecache
import random
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.experts.test_store import EXPERTS, LAYERS, FakeSource, claims_are_true, consume, ids

from diskmoe.experts.policy import POLICIES
from diskmoe.experts.store import ExpertStore

FILES = {"store.py", "slots.py", "ahead.py", "reader.py", "policy.py"}
LOCK = "with self._changed"  # Python runs no handler between the end of such a block and its exit


def some_fetches(store: ExpertStore, seed: int) -> None:
    rng = random.Random(seed)
    for step in range(6):
        layer, other = LAYERS[step % 2], LAYERS[(step + 1) % 2]
        store.look_ahead(other, rng.sample(range(EXPERTS), 3))
        wanted = ids(*sorted(rng.sample(range(EXPERTS), rng.randint(1, 6))))
        drafted = {int(e) for e in wanted[::2]}
        if store.resident_slots(layer, wanted) is None:
            consume(store, layer, wanted, drafted)
        store.cool(layer, drafted)


class Interrupt:
    """A trace function that raises KeyboardInterrupt at the n-th line of the store's files."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        path = frame.f_code.co_filename
        if Path(path).name not in FILES or Path(path).parent.name != "experts":
            return None
        if event == "line":
            self.left -= 1
            if self.left <= 0 and LOCK not in linecache.getline(path, frame.f_lineno):
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("policy", POLICIES)
def test_a_store_that_was_interrupted_anywhere_goes_on(policy: str) -> None:
    before = sys.gettrace()
    for n in range(1 + len(policy), 2300, 149):
        store = ExpertStore(FakeSource(), 3, LAYERS, EXPERTS, 2, POLICIES[policy], ahead_slots=2)
        try:
            sys.settrace(Interrupt(n))
            some_fetches(store, 0)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        failed: list[BaseException] = []

        def go_on(store: ExpertStore = store, failed: list[BaseException] = failed) -> None:
            try:
                for seed in range(1, 4):
                    some_fetches(store, seed)
            except BaseException as error:  # noqa: BLE001
                failed.append(error)

        thread = threading.Thread(target=go_on, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), f"waits for ever after an interrupt at line event {n}"
        assert not failed, f"interrupt at line event {n}: {failed}"
        assert claims_are_true(store)
        owned = [slot for layer in store._layers.values() for slot in layer.slots]
        assert sorted([*owned, *store._ahead._slots]) == sorted(store._lent)
        store.close()
