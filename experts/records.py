"""Where the hot store gets expert records from: our container, or a Hugging Face directory.

The rule of this file: `load` fills a slot completely or raises, may be called from several threads
at once, and uses a fixed amount of memory beside the slot (`scratch_bytes`).
"""

import queue
from pathlib import Path
from typing import Protocol

from diskmoe.experts.arena import Arena
from diskmoe.experts.checkpoint import Checkpoint, TensorPlan
from diskmoe.experts.checksums import checksum
from diskmoe.experts.container import Container
from diskmoe.experts.direct import DirectMode, direct_way, probe_direct
from diskmoe.experts.errors import BadModel
from diskmoe.experts.formats import chosen_format, expert_format, expert_formats, mtp_format
from diskmoe.experts.pacer import Pacer
from diskmoe.experts.reader import FileReader
from diskmoe.experts.safetensors_io import TensorInfo
from diskmoe.experts.stored import experts_of
from diskmoe.experts.tiles import PAGE, Bytes, RecordLayout, record_layout


class RecordSource(Protocol):
    """What `ExpertStore` asks of a place that has expert records."""

    @property
    def record_layout(self) -> RecordLayout: ...

    @property
    def expert_format(self) -> str: ...

    @property
    def layers(self) -> tuple[int, ...]: ...

    @property
    def n_experts(self) -> int: ...

    @property
    def scratch_bytes(self) -> int:
        """Memory that loads use beside the slots, all threads together."""
        ...

    @property
    def io_mode(self) -> str:
        """How bytes are read and why, for the report."""
        ...

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold expert bytes."""
        ...

    def disk_bytes(self, layer: int, expert: int) -> int:
        """Bytes that one `load` asks of the disk."""
        ...

    def load(self, layer: int, expert: int, slot: Bytes) -> None:
        """Fill `slot` u8 (record_layout.nbytes,); ReadFailed when the disk does not give them."""
        ...

    def hurry(self) -> None:
        """A paced disk keeps nobody waiting from here on: a fetch is about to end, or all is."""
        ...

    def resume(self) -> None:
        """Reads are paced again; none is under way that was begun before."""
        ...

    def close(self) -> None: ...


def _mode(direct: bool, reason: str, pacer: Pacer | None) -> str:
    """How bytes are read and why, in words."""
    text = f"{(direct and direct_way()) or 'plain reads'}: {reason}"
    return text if pacer is None else f"{text}; {pacer}"


class _Paced:
    """A source whose reads may be those of a slower disk."""

    pacer: Pacer | None

    def hurry(self) -> None:
        if self.pacer is not None:
            self.pacer.hurry()

    def resume(self) -> None:
        if self.pacer is not None:
            self.pacer.resume()


class ContainerRecords(_Paced):
    """Records of a converted model: one read each, straight into the slot.

    With `verify`, the first load of each record in this object's life compares its checksum and
    raises BadModel when it is another one. `why` is the reason for a `direct` other than "auto".
    """

    scratch_bytes = 0

    def __init__(
        self,
        container: Container,
        direct: DirectMode = "auto",
        verify: bool = False,
        pacer: Pacer | None = None,
        why: str = "",
    ) -> None:
        self.record_layout = container.record_layout
        self.expert_format = container.expert_format
        self.layers = container.layers
        self.n_experts = container.n_experts
        self.files = tuple(container.expert_files)
        self._container = container
        used, reason = probe_direct(self.files[0], direct) if self.files else (False, "no experts")
        self.io_mode = _mode(used, why or reason, pacer)
        self.pacer = pacer
        self._reader = FileReader(used, pacer)
        self._verified: set[tuple[int, int]] | None = set() if verify else None

    def record_layout_of(self, layer: int) -> RecordLayout:
        """How a layer's records lie in their slots; only MTP layers may differ from the others."""
        return self._container.record_layout_of(layer)

    def disk_bytes(self, layer: int, expert: int) -> int:
        return self._container.record(layer, expert)[2]

    def load(self, layer: int, expert: int, slot: Bytes) -> None:
        path, offset, nbytes = self._container.record(layer, expert)
        self._reader.read_into(path, offset, slot[:nbytes], layer, expert)
        if self._verified is not None and (layer, expert) not in self._verified:
            damage = self._container.record_piece(layer, expert).damage(checksum(slot[:nbytes]))
            if damage is not None:
                raise BadModel(damage)
            self._verified.add((layer, expert))

    def close(self) -> None:
        self._reader.close()


def chosen_expert_format(checkpoint: Checkpoint, plan: TensorPlan, asked: str | None) -> str:
    """The format that experts get where `asked` is wanted, None standing for their own numbers in the
    smallest format that holds them (`formats.chosen_format`): one for gate and up of all layers, one
    for down. MTP layers do not count: `formats.mtp_format` says what they get.
    """
    exact = [
        experts_of(checkpoint, plan, layer).exact_formats()
        for layer in plan.experts
        if not layer.mtp
    ]
    parts = zip(*exact, strict=True) if exact else [[{"f32"}]] * 2
    wanted = (None, None) if asked is None else expert_formats(asked)
    return expert_format(
        *(chosen_format(set.intersection(*of), one) for of, one in zip(parts, wanted, strict=True))
    )


class CheckpointRecords(_Paced):
    """Records made on the way in from an unconverted model: a few reads and a packing per expert.

    `fmt`: what is asked of `chosen_expert_format`; None keeps the experts' own numbers exactly.
    `io_threads` is how many loads run at once; each has a buffer for one matrix. Tensors lie anyhow
    in their files: a direct read takes the pages around one. `why` is the reason for a `direct`
    other than "auto".
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        plan: TensorPlan,
        fmt: str | None = None,
        io_threads: int = 2,
        direct: DirectMode = "off",
        pacer: Pacer | None = None,
        why: str = "",
    ) -> None:
        self._stored = {layer.layer: experts_of(checkpoint, plan, layer) for layer in plan.experts}
        self._mtp_layers = {layer.layer for layer in plan.experts if layer.mtp}
        fmt = chosen_expert_format(checkpoint, plan, fmt)
        self.expert_format = fmt
        self.record_layout = record_layout(fmt, plan.hidden, plan.ffn, plan.biased)
        self._mtp_layout = record_layout(mtp_format(fmt), plan.hidden, plan.ffn, plan.biased)
        self.layers = tuple(self._stored)
        self.n_experts = plan.n_experts
        self.files = tuple(header.path for header in checkpoint.files)
        used, reason = probe_direct(self.files[0], direct) if self.files else (False, "no files")
        self.io_mode = _mode(used, why or reason, pacer)
        self.pacer = pacer
        self._reader = FileReader(used, pacer)
        every = [(s, expert) for s in self._stored.values() for expert in range(plan.n_experts)]
        n_buffers = max(1, io_threads)
        widest = max((s.buffer_bytes(expert) for s, expert in every), default=PAGE)
        self._arena = Arena(n_buffers, widest)
        self._buffers: queue.LifoQueue[Bytes] = queue.LifoQueue()
        for number in range(n_buffers):
            self._buffers.put(self._arena.slot(number))
        layouts = {self.record_layout.gate, self.record_layout.down}
        layouts |= {self._mtp_layout.gate, self._mtp_layout.down} if self._mtp_layers else set()
        temporary = max(
            (s.temporary_bytes(expert, part) for s, expert in every for part in layouts), default=0
        )
        self.scratch_bytes = self._arena.nbytes + n_buffers * temporary

    def record_layout_of(self, layer: int) -> RecordLayout:
        """See ``ContainerRecords.record_layout_of``."""
        return self._mtp_layout if layer in self._mtp_layers else self.record_layout

    def disk_bytes(self, layer: int, expert: int) -> int:
        return sum(piece.nbytes for piece in self._stored[layer].pieces(expert))

    def load(self, layer: int, expert: int, slot: Bytes) -> None:
        buffer = self._buffers.get()
        try:

            def read(piece: TensorInfo, room: Bytes) -> Bytes:
                return self._read(piece, room, layer, expert)

            layout = self.record_layout_of(layer)
            self._stored[layer].load(expert, buffer, read, layout, slot)
        finally:
            self._buffers.put(buffer)

    def _read(self, piece: TensorInfo, room: Bytes, layer: int, expert: int) -> Bytes:
        if self._reader.direct and piece.offset % 4 == 0:  # compiled packers want aligned numbers
            return self._reader.read_through(
                piece.path, piece.offset, piece.nbytes, room, layer, expert
            )
        raw = room[: piece.nbytes]
        self._reader.read_into(piece.path, piece.offset, raw, layer, expert)
        return raw

    def close(self) -> None:
        self._reader.close()


class LayerRecords:
    """One layer of another source, which is lent: the records of an MTP layer have a layout of their
    own, and so a store of their own."""

    scratch_bytes = 0  # the source's

    def __init__(self, source: ContainerRecords | CheckpointRecords, layer: int) -> None:
        self._source = source
        self.record_layout = source.record_layout_of(layer)
        self.expert_format = self.record_layout.format
        self.layers = (layer,)
        self.n_experts = source.n_experts
        self.io_mode = source.io_mode
        self.files = source.files

    def disk_bytes(self, layer: int, expert: int) -> int:
        return self._source.disk_bytes(layer, expert)

    def load(self, layer: int, expert: int, slot: Bytes) -> None:
        self._source.load(layer, expert, slot)

    def hurry(self) -> None:
        self._source.hurry()

    def resume(self) -> None:
        self._source.resume()

    def close(self) -> None:
        """The source is closed by whom it belongs to."""
