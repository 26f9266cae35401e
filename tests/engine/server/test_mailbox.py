"""What threads put in comes out once, in their order, and nobody sleeps on it."""

import asyncio
import threading
import time

from diskmoe.engine.server.mailbox import Mailbox


def test_all_that_threads_put_in_comes_out_in_their_order() -> None:
    async def collected() -> list[tuple[int, int]]:
        box: Mailbox[tuple[int, int]] = Mailbox()

        def put(thread: int) -> None:
            for number in range(400):
                box.put((thread, number))
                if number % 7 == 0:
                    time.sleep(0.0005)  # so that the other side has to wait now and then

        threads = [threading.Thread(target=put, args=(each,)) for each in range(3)]
        for thread in threads:
            thread.start()
        found: list[tuple[int, int]] = []
        while len(found) < 1200:
            some = await box.take(10)
            assert some  # nothing was put in that we were not told of
            found += some
        return found

    found = asyncio.run(collected())
    for thread in range(3):
        assert [number for each, number in found if each == thread] == list(range(400))


def test_an_empty_one_says_so_when_time_is_over() -> None:
    async def look() -> list[list[int]]:
        box: Mailbox[int] = Mailbox()
        empty = await box.take(0.01)
        box.put(1)
        box.put(2)
        return [empty, await box.take(0.01), await box.take(0.01)]

    assert asyncio.run(look()) == [[], [1, 2], []]


def test_a_rest_is_over_when_something_urgent_comes() -> None:
    async def rest(thing: object, seconds: float) -> bool:
        box: Mailbox[object] = Mailbox(urgent=(str,))
        threading.Timer(0.05, box.put, (thing,)).start()
        try:
            await asyncio.wait_for(box.rest(seconds), 20)
        except asyncio.TimeoutError:
            return False
        return await box.take(0) == [thing]

    assert asyncio.run(rest("urgent", 3600))
    assert asyncio.run(rest(b"not", 0.2))


def test_who_puts_something_in_after_the_loop_has_ended_is_not_disturbed() -> None:
    boxes: list[Mailbox[int]] = []

    async def leave() -> None:
        boxes.append(Mailbox())
        waiting = asyncio.create_task(boxes[0].take())
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(leave())
    boxes[0]._waiter = boxes[0]._loop.create_future()  # as if it had ended within `take`
    boxes[0].put(1)
