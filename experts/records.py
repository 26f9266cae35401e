"""Where the hot store gets expert records from: our container, or a Hugging Face directory.

The rule of this file: `load` fills a slot completely or raises, may be called from several threads
at once, and uses a fixed amount of memory beside the slot (`scratch_bytes`).
"""

import queue
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from diskmoe.experts.checkpoint import Checkpoint, TensorPlan
from diskmoe.experts.container import Container
from diskmoe.experts.errors import BadModel
from diskmoe.experts.formats import mtp_format
from diskmoe.experts.reader import DirectMode, FileReader, probe_direct
from diskmoe.experts.safetensors_io import as_f32, numpy_dtype, shown
from diskmoe.experts.tiles import Bytes, RecordLayout, pack, packing_bytes, record_layout


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

    def close(self) -> None: ...


class ContainerRecords:
    """Records of a converted model: one read each, straight into the slot."""

    scratch_bytes = 0

    def __init__(self, container: Container, direct: DirectMode = "auto") -> None:
        self.record_layout = container.record_layout
        self.expert_format = container.expert_format
        self.layers = container.layers
        self.n_experts = container.n_experts
        self.files = tuple(container.expert_files)
        self._container = container
        used, reason = probe_direct(self.files[0], direct) if self.files else (False, "no experts")
        self.io_mode = f"{'O_DIRECT' if used else 'plain reads'}: {reason}"
        self._reader = FileReader(used)

    def disk_bytes(self, layer: int, expert: int) -> int:
        return self._container.record(layer, expert)[2]

    def load(self, layer: int, expert: int, slot: Bytes) -> None:
        path, offset, nbytes = self._container.record(layer, expert)
        self._reader.read_into(path, offset, slot[:nbytes], layer, expert)

    def close(self) -> None:
        self._reader.close()


def own_expert_format(checkpoint: Checkpoint, plan: TensorPlan) -> str:
    """The format that keeps the experts' own precision: "bf16", or "f32" for F32 and F16."""
    # the experts of a layer share their type: one speaks for all
    names = [name for layer in plan.experts for name in layer.names(0)]
    return "bf16" if {checkpoint.own_format(name) for name in names} == {"bf16"} else "f32"


class CheckpointRecords:
    """Records made on the way in from an unconverted model: three reads and a packing per expert.

    `fmt` None keeps the experts' own precision exactly (bf16, or f32 for F32 and F16 sources).
    `io_threads` is how many loads run at once; each has a buffer for one matrix.
    """

    def __init__(
        self, checkpoint: Checkpoint, plan: TensorPlan, fmt: str | None = None, io_threads: int = 2
    ) -> None:
        self._names = {layer.layer: layer for layer in plan.experts}
        fmt = fmt or own_expert_format(checkpoint, plan)
        self.expert_format = fmt
        self.record_layout = record_layout(fmt, plan.hidden, plan.ffn)
        self._mtp_layout = record_layout(mtp_format(fmt), plan.hidden, plan.ffn)
        self.layers = tuple(self._names)
        self.n_experts = plan.n_experts
        self._checkpoint = checkpoint
        self._reader = FileReader()
        self.io_mode = "plain reads: tensors of a checkpoint are not aligned"
        self.files = tuple(header.path for header in checkpoint.files)
        infos = (
            checkpoint.info(name)
            for layer in plan.experts
            for expert in range(plan.n_experts)
            for name in layer.names(expert)
        )
        widest = {info.dtype: info.nbytes for info in infos}  # a matrix has hidden * ffn elements
        self._buffer_nbytes = max(widest.values(), default=0)
        self._buffers: queue.LifoQueue[Bytes | None] = queue.LifoQueue()
        for _ in range(max(1, io_threads)):
            self._buffers.put(None)  # made at first use
        layouts = (*self.record_layout.parts(), *self._mtp_layout.parts())
        temporary = max(
            (
                packing_bytes(part, dtype == "BF16")
                + (plan.hidden * plan.ffn * 4 if dtype == "F16" else 0)  # its f32 copy
                for dtype in widest
                for part, _, _ in layouts
            ),
            default=0,
        )
        self.scratch_bytes = max(1, io_threads) * (self._buffer_nbytes + temporary)

    def record_layout_of(self, layer: int) -> RecordLayout:
        """How a layer's records lie in their slots; only MTP layers may differ from the others."""
        return self._mtp_layout if self._names[layer].mtp else self.record_layout

    def disk_bytes(self, layer: int, expert: int) -> int:
        return sum(self._checkpoint.info(n).nbytes for n in self._names[layer].names(expert))

    def load(self, layer: int, expert: int, slot: Bytes) -> None:
        buffer = self._buffers.get()
        try:
            if buffer is None:
                buffer = np.empty(self._buffer_nbytes, np.uint8)
            names = self._names[layer].names(expert)
            layout = self.record_layout_of(layer)
            for name, (part, begin, end) in zip(names, layout.parts(), strict=True):
                try:
                    # not bound to a name: one matrix is gone before the next one is made
                    pack(self._read(name, buffer, layer, expert), part, slot[begin:end])
                except ValueError as error:
                    info = self._checkpoint.info(name)
                    raise BadModel(f"{info.path}: tensor {shown(name)}: {error}") from None
            slot[layout.down_offset + layout.down.nbytes :] = 0
        finally:
            self._buffers.put(buffer)

    def _read(
        self, name: str, buffer: Bytes, layer: int, expert: int
    ) -> npt.NDArray[np.float32] | npt.NDArray[np.uint16]:
        info = self._checkpoint.info(name)
        raw = buffer[: info.nbytes]
        self._reader.read_into(info.path, info.offset, raw, layer, expert)
        array = raw.view(numpy_dtype(info.dtype)).reshape(info.shape)
        return array.view(np.uint16) if info.dtype == "BF16" else as_f32(array, info.dtype)

    def close(self) -> None:
        self._reader.close()
