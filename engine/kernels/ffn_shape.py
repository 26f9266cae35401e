"""What the phases of a feed-forward are told about it: its matrices, biases and activation."""

from dataclasses import dataclass

from diskmoe.engine.kernels.matrix import Matrix
from diskmoe.engine.kernels.products import KIND
from diskmoe.engine.kernels.program import f32_word
from diskmoe.experts.tiles import MatrixLayout, RecordLayout


@dataclass(frozen=True)
class Swiglu:
    """What gate and up become: silu(gate) * up where there is no limit.

    Else, with gate at most `limit` and up within +-limit: (up + 1) * gate * sigmoid(alpha * gate).
    """

    limit: float | None = None
    alpha: float = 1.0

    @property
    def words(self) -> list[int]:
        return [int(self.limit is not None), f32_word(self.limit or 0.0), f32_word(self.alpha)]


SILU = Swiglu()


@dataclass(frozen=True)
class FfnShape:
    """gate and up (width, hidden), down (hidden, width): formats and where they lie.

    Addresses count from an expert's record; from 0 where the matrices are not in a record.
    """

    gate: MatrixLayout
    up: MatrixLayout
    down: MatrixLayout
    gate_at: int
    up_at: int
    down_at: int
    swiglu: Swiglu
    biases_at: tuple[int, int, int] = (0, 0, 0)  # f32, of whole tiles; 0: none

    @staticmethod
    def of_record(layout: RecordLayout, swiglu: Swiglu = SILU) -> "FfnShape":
        offsets = (layout.gate_offset, layout.up_offset, layout.down_offset)
        biases = layout.bias_offsets or (0, 0, 0)
        return FfnShape(layout.gate, layout.up, layout.down, *offsets, swiglu, biases)

    @staticmethod
    def of_matrices(gate: Matrix, up: Matrix, down: Matrix, swiglu: Swiglu = SILU) -> "FfnShape":
        addresses = (gate.data_address, up.data_address, down.data_address)
        return FfnShape(gate.layout, up.layout, down.layout, *addresses, swiglu)

    @property
    def padded_width(self) -> int:
        return self.gate.tiles * 16

    @property
    def kinds(self) -> tuple[int, int, int]:
        return KIND[self.gate.format], KIND[self.up.format], KIND[self.down.format]
