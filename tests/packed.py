"""Expert records made of three matrices at once."""

from collections.abc import Sequence

from diskmoe.experts.packing import Weights, pack, pack_biases
from diskmoe.experts.tiles import Bytes, Floats, RecordLayout, checked_out


def pack_record(
    gate: Weights,
    up: Weights,
    down: Weights,
    layout: RecordLayout,
    out: Bytes | None = None,
    biases: Sequence[Floats] = (),
) -> Bytes:
    """gate, up (ffn, hidden), down (hidden, ffn), f32 or bf16 bits -> record u8 (nbytes,).

    biases: of gate, up, down, where the layout has them.
    """
    out = checked_out(layout.nbytes, out)
    for weights, (part, begin, end) in zip((gate, up, down), layout.parts(), strict=True):
        pack(weights, part, out[begin:end])
    pack_biases(biases, layout, out)
    return out
