"""Tiny GGUF files for tests: the golden ones of llama.cpp's converter, and others made of them.

written = rewrite(golden_gguf("olmoe"), tmp_path / "o.gguf", types={"exps": "Q8_0"})
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tiny_model import Tensors, random_tensors

FOLDER = Path(__file__).resolve().parent / "golden" / "gguf"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.gguf")))
BLOCKS = tuple(sorted(path.stem for path in FOLDER.with_name("gguf_blocks").glob("*.gguf")))


def golden_gguf(name: str) -> Path:
    return (FOLDER.with_name("gguf_blocks") if name in BLOCKS else FOLDER) / f"{name}.gguf"


def golden_facts(name: str) -> dict[str, Any]:
    """config, seed, prompt, greedy, ... of a fixture; see scripts/make_gguf_golden.py."""
    return json.loads(golden_gguf(name).with_suffix(".json").read_text(encoding="utf-8"))


def golden_tensors(config: dict[str, Any], seed: int, mtp: bool) -> Tensors:
    """The checkpoint that a fixture was made of, under the hub's names, f32.

    Each tensor is drawn by its own name: it stays the same whatever is planned beside it.
    """
    zero_centred = config["model_type"].startswith(("qwen3_next", "qwen3_5"))
    tensors: Tensors = {}
    for name, tensor in random_tensors(config, 0, mtp=mtp).items():
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        spread, centre = 0.08, 0.0
        if "norm" in name:
            spread, centre = 0.1, float(not zero_centred or "linear_attn" in name)
        elif name.endswith(("gate.weight", "router.weight", "conv1d.weight", "lm_head.weight")):
            spread = 0.4  # a loud head makes llama.cpp's choices clear
        elif name.endswith(("sinks", "A_log", "dt_bias")):
            spread = 1.0
        tensors[name] = (centre + spread * rng.standard_normal(tensor.shape)).astype(np.float32)
    return tensors


def rewrite(
    source: Path,
    out: Path,
    types: Mapping[str, str] | None = None,
    entries: Mapping[str, Any] | None = None,
    without: tuple[str, ...] = (),
    more: Mapping[str, np.ndarray] | None = None,
    shards: int = 1,
) -> Path:
    """The same model with tensors in other types, by parts of their names; entries replaced (None:
    left out); tensors left out or added; or in so many files. Returns the (first) file."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(
        out, architecture, split_max_tensors=-(-len(reader.tensors) // shards) if shards > 1 else 0
    )
    changed = dict(entries or {})
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind = field.types[0]
        value = field.contents()
        if key in changed:
            value = changed.pop(key)
            kind = _kind(value)
        if value is not None:
            sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, value, kind, sub)
    for key, value in changed.items():
        writer.add_key_value(key, value, _kind(value))
    for tensor in reader.tensors:
        if tensor.name in without:
            continue
        shape = [int(n) for n in tensor.shape][::-1]
        data = np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type)).reshape(shape)
        wanted = [kind for part, kind in (types or {}).items() if part in tensor.name]
        if not wanted:
            writer.add_tensor(tensor.name, data)
            continue
        kind = gguf.GGMLQuantizationType[wanted[0]]
        writer.add_tensor(tensor.name, gguf.quants.quantize(data, kind), raw_dtype=kind)
    for name, data in (more or {}).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if shards == 1:
        return out
    return next(iter(sorted(out.parent.glob(f"{out.stem}-00001-of-*.gguf"))))


def _kind(value: Any) -> gguf.GGUFValueType:
    return gguf.GGUFValueType.STRING if value is None else gguf.GGUFValueType.get_type(value)
