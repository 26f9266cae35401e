"""``diskmoe inspect``: what a model is, told from its headers and its text files.

The rule of this file: no weight is read, and nothing is compiled; what cannot be used is refused as
a run would refuse it.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diskmoe.engine.gguf_source import is_gguf, open_gguf
from diskmoe.engine.model.config import ModelConfig, read_config
from diskmoe.engine.model.tensors import tensor_plan, verify_container
from diskmoe.engine.model.weights import matrix_formats
from diskmoe.engine.text.side import TextSide
from diskmoe.experts.budget import shown_bytes
from diskmoe.experts.checkpoint import Checkpoint, TensorPlan
from diskmoe.experts.container import Container, is_container
from diskmoe.experts.gguf_in import GgufCheckpoint
from diskmoe.experts.records import chosen_expert_format
from diskmoe.experts.stored import experts_of


@dataclass(frozen=True)
class Stored:
    """Where the weights are: formats, and bytes on the disk."""

    kind: str  # "checkpoint", "gguf" or "converted"
    types: Mapping[
        str, int
    ]  # bytes by the type that a checkpoint calls them; {} of a converted one
    expert_format: str
    dense_formats: tuple[str, ...]  # of matrices, that of most bytes last
    total_bytes: int
    expert_bytes: int  # of one
    experts_bytes: int  # of all
    mtp_layers: tuple[int, ...]  # those whose tensors are there


@dataclass(frozen=True)
class Inspection:
    """What a model is. Bytes and weights of experts are those of routed ones."""

    path: Path
    config: ModelConfig
    plan: TensorPlan
    stored: Stored
    text: TextSide

    @property
    def cold_token_bytes(self) -> int:
        """What a token reads when no expert is in memory."""
        return len(self.config.moe_layers) * self.config.top_k * self.stored.expert_bytes

    @property
    def weights(self) -> tuple[int, int]:
        """(all, those that a token is multiplied with) of the main model."""
        expert = 3 * self.plan.hidden * self.plan.ffn
        dense = sum(math.prod(tensor.shape) for tensor in self.plan.dense if not tensor.mtp)
        layers = len(self.config.moe_layers)
        every = dense + layers * self.plan.n_experts * expert
        return every, dense + layers * self.config.top_k * expert

    def as_json(self) -> dict[str, Any]:
        """The keys are told in docs/convert.md."""
        config, stored, tokenizer = self.config, self.stored, self.text.tokenizer
        weights, of_token = self.weights
        kept = ("layers", "hidden", "vocab", "context", "heads", "kv_heads", "head_dim", "experts")
        kept += ("top_k", "expert_width", "shared_width", "dense_width", "quantisation")
        kept += ("latent", "indexer", "windows", "delta", "delta_layers")
        whole = asdict(config)
        return {
            "model": str(self.path),
            "kind": stored.kind,
            "family": config.family,
            **{key: whole[key] for key in kept},
            "moe_layers": len(config.moe_layers),
            "weights": weights,
            "weights_per_token": of_token,
            "expert_format": stored.expert_format,
            "dense_formats": list(stored.dense_formats),
            "types": dict(stored.types),
            "total_bytes": stored.total_bytes,
            "experts_bytes": stored.experts_bytes,
            "expert_bytes": stored.expert_bytes,
            "bytes_per_cold_token": self.cold_token_bytes,
            "tokenizer": None if tokenizer is None else tokenizer.kind,
            "tokens": None if tokenizer is None else tokenizer.valid_count,
            "template": None if self.text.template is None else self.text.template.source,
            "stops": {str(token): why for token, why in self.text.stop_sources.items()},
            "chat_stops": {str(token): text for token, text in self.text.turn_ends.items()},
            "mtp_layers": list(stored.mtp_layers),
            "mtp_announced": config.mtp_announced,
        }

    def lines(self) -> list[str]:
        config, stored, text = self.config, self.stored, self.text
        coded = f", {config.quantisation} in its config" if config.quantisation else ""
        layers = f"{config.layers} layers, {len(config.moe_layers)} with experts"
        if config.delta_layers:
            layers += f", {len(config.delta_layers)} with states"
        shared = f", and {config.shared_width} shared" if config.shared_width else ""
        experts, formats = "none: every layer is dense", ", ".join(reversed(stored.dense_formats))
        if config.experts:
            experts = f"{config.experts} a layer, {config.expert_width} wide"
            experts += f", top-{config.top_k}{shared}"
            formats = f"experts {stored.expert_format}, dense {formats}"
        types = ", ".join(f"{kind} {shown_bytes(n)}" for kind, n in stored.types.items())
        weights, of_token = (_shown_count(count) for count in self.weights)
        tokens = f"none{text.unread}: prompts are token ids"
        if text.tokenizer is not None:
            tokens = f"{text.tokenizer.kind}, {text.tokenizer.valid_count} tokens"
        cold = shown_bytes(self.cold_token_bytes)
        mtp = f"{len(stored.mtp_layers)} layer(s)" if stored.mtp_layers else "none"
        if config.mtp_announced and not stored.mtp_layers:
            mtp += f", though the config announces {config.mtp_announced}"
        return [
            f"model     {self.path}: {config.family}, {_KINDS[stored.kind]}{coded}",
            f"shape     {layers}, hidden size {config.hidden}, vocabulary {config.vocab}",
            f"attention {_attention(config)}; context {config.context}",
            f"experts   {experts}",
            f"weights   {weights}, {of_token} for a token",
            f"formats   {formats}" + (types and f"; {types}"),
            f"bytes     {shown_bytes(stored.total_bytes)}, {shown_bytes(stored.experts_bytes)} of experts",
            f"expert    {shown_bytes(stored.expert_bytes)}; a cold token reads {cold}",
            f"tokenizer {tokens}",
            f"template  {'none' if text.template is None else text.template.source}",
            f"stops     {_stops(text)}",
            f"mtp       {mtp}",
        ]


def _attention(config: ModelConfig) -> str:
    """Its heads, and which keys they see."""
    if config.latent is None:
        said = f"{config.heads} heads of {config.head_dim}, {config.kv_heads} of keys and values"
    else:
        said = f"{config.heads} heads of {config.head_dim}, latents of {config.latent.width}"
    if config.indexer is not None:
        full = sum(config.indexer.full)
        said += f", {config.indexer.top} keys chosen by {full} of {config.layers} layers"
    windows = [window for window in config.windows if window]
    if windows:
        said += f", the last {max(windows)} keys in {len(windows)} of {config.layers} layers"
    return said


def _stops(text: TextSide) -> str:
    """The stop tokens, as they are written where that is known."""
    if text.tokenizer is None or not text.stop_sources:
        return text.describe_stops()
    written = text.tokenizer.special_text
    said = [f"{written.get(token, token)} ({why})" for token, why in text.stop_sources.items()]
    return "; ".join([*said, *(f"{ending} (in a chat)" for ending in text.turn_ends.values())])


def _shown_count(number: int) -> str:
    unit, name = next(
        ((unit, name) for unit, name in ((1e9, "billion"), (1e6, "million")) if number >= unit),
        (1e3, "thousand"),
    )
    return f"{number / unit:.3g} {name}"


_KINDS = {"checkpoint": "a Hugging Face checkpoint", "gguf": "a GGUF", "converted": "converted"}


def inspect_model(path: Path) -> Inspection:
    """Raises BadModel for what is no model, is damaged, or is of a kind that is not supported."""
    files: Mapping[str, bytes] | None = None
    where = str(path / "config.json")
    if is_gguf(path):
        source, files = open_gguf(path)
        where = f"{path}: its metadata as a config.json"
    else:
        source = Container.open(path) if is_container(path) else Checkpoint.open(path)
    config = read_config(source.config, where)
    plan = tensor_plan(config, source.has)
    if isinstance(source, Container):
        verify_container(source, plan)
        stored = _converted(source, config, plan)
    else:
        source.verify(plan)
        stored = _checkpoint(source, config, plan)
    return Inspection(path, config, plan, stored, _text(path, files, source.config, config.vocab))


def _text(
    path: Path, files: Mapping[str, bytes] | None, config: dict[str, Any], vocab: int
) -> TextSide:
    """The text side of a directory, or of files that a conversion would make."""
    if files is None:
        return TextSide.load(path, config, vocab)
    with tempfile.TemporaryDirectory(prefix="diskmoe-inspect-") as folder:
        for name, contents in files.items():
            (Path(folder) / name).write_bytes(contents)
        return TextSide.load(Path(folder), config, vocab)


def _converted(container: Container, config: ModelConfig, plan: TensorPlan) -> Stored:
    each = container.record_layout.nbytes if container.layers else 0
    records = [
        container.record(layer, expert)[2]
        for layer in container.layers
        for expert in range(container.n_experts)
    ]
    files = [path.stat().st_size for path in container.path.glob("*.safetensors")]
    return Stored(
        kind="converted",
        types={},
        expert_format=container.expert_format,
        dense_formats=matrix_formats(container, config),
        total_bytes=sum(files),
        expert_bytes=each,
        experts_bytes=sum(records),
        mtp_layers=_mtp_layers(plan),
    )


def _checkpoint(checkpoint: Checkpoint, config: ModelConfig, plan: TensorPlan) -> Stored:
    each = [
        sum(piece.nbytes for piece in experts_of(checkpoint, plan, layer).pieces(0))
        for layer in plan.experts
    ]
    return Stored(
        kind="gguf" if isinstance(checkpoint, GgufCheckpoint) else "checkpoint",
        types=checkpoint.types,
        expert_format=chosen_expert_format(checkpoint, plan, None),
        dense_formats=matrix_formats(checkpoint, config),
        total_bytes=sum(checkpoint.types.values()),
        expert_bytes=max(each, default=0),  # a model that drafts may have none
        experts_bytes=sum(each) * plan.n_experts,
        mtp_layers=_mtp_layers(plan),
    )


def _mtp_layers(plan: TensorPlan) -> tuple[int, ...]:
    return tuple(layer.layer for layer in plan.experts if layer.mtp)
