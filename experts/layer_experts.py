"""What `records` asks of the experts of a layer, wherever they are."""

from collections.abc import Callable
from typing import Protocol

from diskmoe.experts.safetensors_io import TensorInfo
from diskmoe.experts.tiles import Bytes, MatrixLayout, RecordLayout

Read = Callable[[TensorInfo, Bytes], Bytes]  # (what to read, room for it) -> its bytes in the room


class LayerExperts(Protocol):
    """The experts of a layer, and how their records are made."""

    def exact_formats(self) -> tuple[set[str], set[str]]:
        """The formats that keep every number of gate and up, and those that keep down's."""
        ...

    def pieces(self, expert: int) -> list[TensorInfo]:
        """The parts of tensors that an expert is made of."""
        ...

    def buffer_bytes(self, expert: int) -> int:
        """The buffer that `load` needs."""
        ...

    def temporary_bytes(self, expert: int, part: MatrixLayout) -> int:
        """Most bytes that `load` takes to pack one matrix so, beside the buffer."""
        ...

    def load(
        self, expert: int, buffer: Bytes, read: Read, layout: RecordLayout, record: Bytes
    ) -> None:
        """Fill an expert's record u8 (layout.nbytes,).

        buffer: page-aligned, `buffer_bytes`. BadModel for numbers that the format cannot have.
        """
        ...
