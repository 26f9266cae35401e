"""The same weights as a GGUF, for other programs to run.

The rule of this file: nothing is quantised here. A q4 block's values -8..7 with one f16 scale per
32 columns are GGUF's Q4_0 exactly, q8 values its Q8_0, mxfp4 codes its MXFP4; the bytes are only put
in its order. Tensors
are written where they belong as they come, so memory is bounded by one block of rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from diskmoe.bench.weights import Block
from diskmoe.engine.errors import BadOutput
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.rope import Yarn
from diskmoe.experts.formats import FORMATS, round_to_bf16

_TYPES = {
    "q4": gguf.GGMLQuantizationType.Q4_0,
    "q4g64": gguf.GGMLQuantizationType.Q4_0,  # two groups of 32 with one scale
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "int4": gguf.GGMLQuantizationType.Q4_0,  # scales of 8 bits: bf16 has them, and f16
    "mxfp4": gguf.GGMLQuantizationType.MXFP4,
    "q8": gguf.GGMLQuantizationType.Q8_0,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "f32": gguf.GGMLQuantizationType.F32,
}
_BLOCK = 32


def ggml_bytes(block: Block) -> npt.NDArray[np.uint8]:
    """The block's rows as GGUF stores them, u8 1-D."""
    values = block.values
    if not FORMATS[block.format].quantised:
        wide = block.f32()
        stored = round_to_bf16(wide) if block.format == "bf16" else wide
        return stored.reshape(-1).view(np.uint8)
    rows, cols = values.shape
    groups = cols // _BLOCK
    scales = np.repeat(block.scales, block.group // _BLOCK, axis=1)[:, :, None].view(np.uint8)
    quants = values.reshape(rows, groups, _BLOCK).view(np.uint8)
    if FORMATS[block.format].weight_bits == 4:
        unsigned = quants + np.uint8(8)
        if block.format == "mxfp4":
            codes, exponents = block.codes()
            unsigned, scales = codes.reshape(quants.shape), exponents[:, :, None]
        if block.minima is not None:
            scales = np.concatenate([scales, block.minima[:, :, None].view(np.uint8)], axis=2)
        quants = unsigned[..., :16] | (unsigned[..., 16:] << np.uint8(4))
    return np.concatenate([scales, quants], axis=2).reshape(-1)


def row_nbytes(fmt: str | None, cols: int) -> int:
    """Bytes of a row of `cols` weights; a format of None is a plain f32 vector."""
    size, nbytes = gguf.GGML_QUANT_SIZES[_TYPES[fmt or "f32"]]
    return cols // size * nbytes


class GgufFile:
    """A GGUF under way: declare all tensors, `begin`, `put` their bytes in any order, `finish`.

    Until `finish` there is only ``FILE.tmp``.
    """

    def __init__(self, path: Path, arch: str, config: ModelConfig, raw: Mapping[str, Any]) -> None:
        self.path = path
        self.temporary = path.with_name(path.name + ".tmp")
        self._writer = gguf.GGUFWriter(None, arch)
        _describe(self._writer, config, raw, path.stem)
        architecture = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
        self._names = gguf.get_tensor_name_map(architecture, config.layers)
        self._places: dict[str, tuple[int, int]] = {}  # our name -> (offset among data, bytes)
        self._end = 0
        self._fd = -1
        self._data = 0
        self._ours = False  # the temporary file was made here

    def declare(self, name: str, fmt: str | None, shape: tuple[int, ...]) -> None:
        """A tensor under its checkpoint's name; `shape` row-major, as ours, experts in front."""
        nbytes = row_nbytes(fmt, shape[-1])
        for dimension in shape[:-1]:
            nbytes *= dimension
        self._writer.add_tensor_info(
            self._gguf_name(name), shape, np.dtype(np.float32), nbytes, _TYPES[fmt or "f32"]
        )
        self._places[name] = (self._end, nbytes)
        self._end += gguf.GGUFWriter.ggml_pad(nbytes, self._writer.data_alignment)

    def _gguf_name(self, name: str) -> str:
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        name = name.replace("self_attn.sinks", "self_attn.sinks.weight")
        found = self._names.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise ValueError(f"GGUF has no name for {name}")
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return self._end

    def begin(self) -> None:
        """Write the header; all tensors are declared.

        Raises BadOutput when the temporary file is there already: another run may be writing it.
        """
        try:
            self.temporary.touch(exist_ok=False)
        except FileExistsError:
            raise BadOutput(
                f"{self.temporary}: is in the way, of another run or left by one; if none is under "
                "way remove it"
            ) from None
        self._ours = True
        self._writer.write_header_to_file(self.temporary)
        self._writer.write_kv_data_to_file()
        self._writer.write_ti_data_to_file()
        self._writer.close()
        alignment = self._writer.data_alignment
        self._data = gguf.GGUFWriter.ggml_pad(self.temporary.stat().st_size, alignment)
        self._fd = os.open(self.temporary, os.O_RDWR | getattr(os, "O_BINARY", 0))
        os.truncate(self._fd, self._data + self._end)

    def put(self, name: str, at: int, data: npt.NDArray[np.uint8]) -> None:
        """Bytes of a tensor from its byte `at` on."""
        offset, nbytes = self._places[name]
        if at + data.nbytes > nbytes:
            raise ValueError(f"{name} has {nbytes} bytes, not {at + data.nbytes}")
        view = np.ascontiguousarray(data).data
        place = self._data + offset + at
        os.lseek(self._fd, place, os.SEEK_SET)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            error.filename = str(self.temporary)
            raise

    def finish(self) -> None:
        """Make the file durable and give it its name."""
        os.fsync(self._fd)
        self._close()
        os.replace(self.temporary, self.path)
        self._ours = False

    def discard(self) -> None:
        """Remove what was written, unless it is finished."""
        self._close()
        self._writer.close()
        if self._ours:
            self.temporary.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _describe(
    writer: gguf.GGUFWriter, config: ModelConfig, raw: Mapping[str, Any], name: str
) -> None:
    """The keys that llama.cpp asks of these architectures."""
    writer.add_name(name)
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(int(raw.get("intermediate_size", config.expert_width)))
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_epsilon)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.rope_dims)
    writer.add_expert_count(config.experts)
    writer.add_expert_used_count(config.top_k)
    writer.add_expert_feed_forward_length(config.expert_width)
    writer.add_vocab_size(config.vocab)
    if config.shared_width:
        writer.add_expert_shared_count(config.shared_width // config.expert_width)
    if len(config.moe_layers) < config.layers:
        writer.add_leading_dense_block_count(config.moe_layers[0])
    if config.score == "sigmoid":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(config.routed_scale)
        writer.add_expert_weights_norm(config.renorm)
    if config.clip_qkv is not None:
        writer.add_clamp_kqv(config.clip_qkv)
    if any(config.windows):
        writer.add_sliding_window(max(config.windows))
    yarn = config.rope_scaling
    if isinstance(yarn, Yarn):  # the only one that a shape has
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(yarn.factor)
        writer.add_rope_scaling_orig_ctx_len(yarn.trained)
        writer.add_rope_scaling_yarn_beta_fast(yarn.fast)
        writer.add_rope_scaling_yarn_beta_slow(yarn.slow)
    _add_tokenizer(writer, config.vocab)


def _add_tokenizer(writer: gguf.GGUFWriter, vocab: int) -> None:
    """A byte-level tokenizer: 256 bytes, one merge, and names for all other ids."""
    spelt = [gguf_byte(byte) for byte in range(256)]
    tokens = [*spelt, "ab", "<|end|>"][:vocab]
    tokens += [f"<|{number}|>" for number in range(len(tokens), vocab)]
    kinds = [gguf.TokenType.NORMAL] * min(257, vocab)
    kinds += [gguf.TokenType.CONTROL] * (vocab - len(kinds))
    end = min(257, vocab - 1)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)


def gguf_byte(byte: int) -> str:
    """A byte as byte-level tokenizers spell it: printable ones as they are, the rest shifted."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in printable:
        return chr(byte)
    rest = [b for b in range(256) if b not in printable]
    return chr(256 + rest.index(byte))
