"""How an answer reaches its client, without a server around it."""

import asyncio
from typing import Any

import pytest

from diskmoe.engine.server.answering import whole
from diskmoe.engine.server.desk import Piece
from diskmoe.engine.server.refusals import Refusal
from diskmoe.engine.tools.parts import Said


class Endless:
    """Stands for the events of a text, the writer and the job: there is always more, until it ends."""

    cancelled = False

    async def take(self) -> list[Piece]:
        return [Piece(Said("a", False))]

    async def rest(self, seconds: float) -> None:
        await asyncio.sleep(0)

    def add(self, *_: Any) -> None:
        """Nothing is kept."""

    def cancel(self) -> None:
        self.cancelled = True


class Left:
    """A request whose client has gone."""

    async def receive(self) -> dict[str, str]:
        return {"type": "http.disconnect"}


def test_a_client_that_leaves_is_noticed_however_fast_its_text_comes() -> None:
    endless: Any = Endless()
    left: Any = Left()

    async def asked() -> None:
        await asyncio.wait_for(whole(left, endless, endless, endless), 20)

    with pytest.raises(Refusal) as caught:
        asyncio.run(asked())
    assert caught.value.status == 499 and endless.cancelled
