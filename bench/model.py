"""A synthetic model: every tensor of a real shape, random, with a routing that was built in.

What is not random: norms change nothing, biases are zeros, the router and the routing's columns of
the embedding come from ``bench.routing``, and no matrix writes to the numbers that the router reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.bench.card import COUNTED, WARMING, Card, card_slots, choices, measure
from diskmoe.bench.routing import (
    RESERVED,
    Routing,
    router_rows,
    routing_named,
    walk,
)
from diskmoe.bench.shapes import Shape
from diskmoe.bench.weights import Block, RandomWeights, silenced
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.model.config import ModelConfig, read_config
from diskmoe.engine.model.families import FAMILIES
from diskmoe.engine.model.router import route_rule
from diskmoe.engine.model.tensors import tensor_plan
from diskmoe.experts.checkpoint import DenseTensor, TensorPlan
from diskmoe.experts.formats import FORMATS
from diskmoe.experts.tiles import RecordLayout, record_layout

MARK = "diskmoe_synth"  # the key of config.json that tells a synthetic model
STREAMS = 8  # places in the vocabulary where the card's tokens begin
_WRITE_SIZE = 0.5  # of what a projection adds to the hidden state, which so grows slowly


@dataclass(frozen=True, eq=False)
class Synthetic:
    """A model that can be made tensor by tensor; nothing big is held but the routing's columns."""

    raw: dict[str, Any]  # config.json
    config: ModelConfig
    plan: TensorPlan
    routing: Routing
    expert_format: str
    dense_format: str
    seed: int

    @staticmethod
    def make(
        shape: Shape,
        layers: int | None,
        routing: str,
        expert_format: str,
        dense_format: str,
        seed: int,
        vocab: int | None = None,
    ) -> Synthetic:
        """layers, vocab: as many as the shape has where None.

        Raises BadRequest for a routing or a number of layers that the shape cannot have."""
        raw = shape.cut(layers, vocab)
        raw[MARK] = {
            "like": shape.name,
            "routing": routing,
            "experts": expert_format,
            "dense": dense_format,
            "seed": seed,
        }
        config = read_config(raw, f"the config of {shape.name}")
        if config.hidden < 2 * RESERVED or config.hidden % 32:
            raise BadRequest(
                f"{shape.name}: a hidden size of {config.hidden} has no room for a routing of "
                f"{RESERVED} numbers"
            )
        made = routing_named(routing, config.experts, config.top_k)
        plan = tensor_plan(config)
        return Synthetic(raw, config, plan, made, expert_format, dense_format, seed)

    @cached_property
    def _weights(self) -> RandomWeights:
        return RandomWeights(self.seed)

    @cached_property
    def _steps(self) -> tuple[npt.NDArray[np.int8], float]:
        """(vocab, RESERVED) integers of the embedding's last columns, and their one scale."""
        most, scale = (7, 0.5) if FORMATS[self.dense_format].weight_bits == 4 else (127, 1 / 32)
        said = walk(self.routing, self.config.vocab, self.seed)
        return np.clip(np.rint(said / np.float32(scale)), -most, most).astype(np.int8), scale

    @property
    def signal(self) -> npt.NDArray[np.float32]:
        """(vocab, RESERVED) what the router is told, as stored."""
        steps, scale = self._steps
        return steps.astype(np.float32) * np.float32(scale)

    def routers(self) -> list[npt.NDArray[np.float32]]:
        """Per layer with experts: the router's columns (experts, RESERVED)."""
        return [
            router_rows(self.routing, self.config.experts, layer, self.seed)
            for layer in self.config.moe_layers
        ]

    @property
    def record_layout(self) -> RecordLayout:
        config = self.config
        sizes = (config.hidden, config.expert_width)
        return record_layout(self.expert_format, *sizes, config.expert_bias)

    # ---- tensors ---------------------------------------------------------------------------------

    def matrix(self, tensor: DenseTensor) -> Iterator[Block]:
        """A dense matrix, some rows at a time."""
        names = FAMILIES[self.config.family].names
        rows, cols = tensor.shape
        if tensor.name == names.embedding:
            return self._embedding(tensor.name, rows, cols)
        writers = (names.o + ".weight", names.delta_out, names.dense_down, names.shared_down)
        if not tensor.name.endswith(writers):
            return self._weights.matrix(tensor.name, self.dense_format, rows, cols)
        blocks = self._weights.matrix(tensor.name, self.dense_format, rows, cols, _WRITE_SIZE)
        return (silenced(block, rows - RESERVED, rows) for block in blocks)

    def _embedding(self, name: str, rows: int, cols: int) -> Iterator[Block]:
        steps, scale = self._steps
        group = FORMATS[self.dense_format].group
        for block in self._weights.matrix(name, self.dense_format, rows, cols, math.sqrt(cols)):
            values, scales = block.values.copy(), block.scales.copy()
            if group:
                scales[:, -(RESERVED // group) :] = scale
            else:  # one scale for all: halved integers keep the other columns at unit size
                values = np.trunc(values / 2).astype(np.int8)
                scales[:] = scale
            values[:, -RESERVED:] = steps[block.first_row : block.first_row + len(values)]
            yield Block(block.format, block.first_row, values, scales)

    def vector(self, tensor: DenseTensor) -> npt.NDArray[np.float32]:
        """A router; ones in norms and convolutions, zeros in anything else."""
        names = FAMILIES[self.config.family].names
        if not tensor.name.endswith(names.router):
            ones = "norm" in tensor.name or tensor.name.endswith(names.delta_conv)
            value = float(ones and tensor.form != "plus_one")
            return np.full(tensor.shape, value, np.float32)
        layer = next(
            i for i in self.config.moe_layers if tensor.name.startswith(names.layer.format(L=i))
        )
        rows = np.zeros(tensor.shape, np.float32)
        rows[:, -RESERVED:] = router_rows(self.routing, self.config.experts, layer, self.seed)
        return rows

    def expert(self, layer: int, expert: int) -> tuple[Block, Block, Block]:
        """gate, up (ffn, hidden) and down (hidden, ffn) of one expert."""
        hidden, ffn = self.config.hidden, self.config.expert_width
        at, fmt = f"layers.{layer}.experts.{expert}", self.expert_format
        gate = self._weights.block(f"{at}.gate", fmt, ffn, hidden)
        up = self._weights.block(f"{at}.up", fmt, ffn, hidden)
        down = self._weights.block(f"{at}.down", fmt, hidden, ffn, size=2 * _WRITE_SIZE)
        return gate, up, silenced(down, hidden - RESERVED, hidden)

    # ---- what it is like -------------------------------------------------------------------------

    def chosen(self, tokens: Sequence[int]) -> npt.NDArray[np.int64]:
        """(layers with experts, tokens, top_k): the experts that these tokens go to."""
        return choices(self.signal[list(tokens)], self.routers(), route_rule(self.config))

    def card(self, total_bytes: int) -> Card:
        """The figures of the routing, over `STREAMS` stretches of consecutive token ids."""
        config = self.config
        length = WARMING + COUNTED
        starts = [config.vocab * stream // STREAMS for stream in range(STREAMS)]
        stretches = [
            self.chosen([(start + i) % config.vocab for i in range(length)]) for start in starts
        ]
        slots = card_slots(config.experts, config.top_k)
        unique, rates = measure(np.concatenate(stretches), config.experts, slots)
        nbytes = self.record_layout.nbytes
        return Card(
            self.routing.text, config.experts, config.top_k, unique, rates, nbytes, total_bytes
        )
