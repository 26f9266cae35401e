"""A model directory: its config, and the headers of its tensor files.

The rule of this file: headers, index and directory agree, or BadModel says what does not; no tensor
is read.
"""

import re
from pathlib import Path
from typing import Any

from diskmoe.experts.errors import BadModel
from diskmoe.experts.naming import layer_of
from diskmoe.experts.safetensors_io import (
    Header,
    TensorInfo,
    open_regular,
    parse_json,
    read_header,
    shown,
)

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
JSON_LIMIT = 64_000_000  # bytes of config.json or an index; real ones have at most a few million
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")


def check_model_directory(path: Path) -> None:
    """BadModel when `path` cannot be a model directory at all, saying what was looked for."""
    wanted = f"config.json and {INDEX_NAME} or *.safetensors"
    if path.suffix == ".partial":
        raise BadModel(f"{path}: an unfinished conversion; run the same `diskmoe convert` again")
    if not path.exists():
        raise BadModel(f"{path}: no such model directory (looked for {wanted} in it)")
    if not path.is_dir():
        if path.suffix.lower() == ".gguf":
            raise BadModel(
                f"{path}: a GGUF is converted before it runs: diskmoe convert {path} OUT"
            )
        raise BadModel(f"{path}: a file; give a directory with {wanted}")
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise BadModel(f"{path}: cannot be listed: {error.strerror or error}") from None
    if not names:
        raise BadModel(f"{path}: the directory is empty (looked for {wanted})")
    if not any(name.endswith(".safetensors") or name == INDEX_NAME for name in names):
        ggufs = [name for name in names if name.lower().endswith(".gguf")]
        if ggufs:
            raise BadModel(
                f"{path}: has a GGUF; first diskmoe convert {path}/{shown(ggufs[0])} OUT"
            )
        raise BadModel(f"{path}: no safetensors file among its {len(names)} (looked for {wanted})")
    if "config.json" not in names:
        raise BadModel(f"{path}: config.json is missing (looked for {wanted})")


def read_json_object(path: Path, place: str) -> dict[str, Any]:
    """A JSON file that must be an object and of sane size; BadModel otherwise."""
    fd = open_regular(path)
    with open(fd, "rb") as file:
        try:
            text = file.read(JSON_LIMIT + 1)
        except OSError as error:
            raise BadModel(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(text) > JSON_LIMIT:
        raise BadModel(f"{path}: more than {JSON_LIMIT} bytes, too large for a {place}")
    value = parse_json(text, path, place)
    if not isinstance(value, dict):
        raise BadModel(f"{path}: {place} is a JSON {type(value).__name__}, not an object")
    return value


def open_tensors(path: Path) -> tuple[dict[str, TensorInfo], list[Header]]:
    """{name in the files: where it lies}, and the headers in the order of file names."""
    return _open_indexed(path) if (path / INDEX_NAME).exists() else _open_unindexed(path)


def _open_indexed(path: Path) -> tuple[dict[str, TensorInfo], list[Header]]:
    index = path / INDEX_NAME
    weight_map = read_json_object(index, "index").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadModel(f"{index}: no weight_map object with tensors in it")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _is_plain_name(shard):
            raise BadModel(
                f"{index}: tensor {shown(name)} is said to be in {shown(shard)}, which is not the "
                "name of a safetensors file in this directory; refused"
            )
    shards = sorted(set(weight_map.values()))
    _refuse_missing(path, shards, f"named by {INDEX_NAME}")
    headers = {shard: read_header(path / shard) for shard in shards}
    infos = {}
    for name, shard in weight_map.items():
        if name not in headers[shard].tensors:
            raise BadModel(
                f"{path / shard}: tensor {shown(name)}{layer_of(name)} is missing, although "
                f"{INDEX_NAME} says it is there; fetch both again"
            )
        infos[name] = headers[shard].tensors[name]
    return infos, list(headers.values())


def _open_unindexed(path: Path) -> tuple[dict[str, TensorInfo], list[Header]]:
    if (path / SINGLE_NAME).exists():
        shards = [SINGLE_NAME]
    else:
        shards = sorted(entry.name for entry in path.glob("*.safetensors"))
        wanted: set[str] = set()
        for shard in shards:
            match = _SHARD.fullmatch(shard)
            if match and int(match[3]) <= 10_000:
                total = int(match[3])
                wanted |= {
                    f"{match[1]}-{n:05}-of-{match[3]}.safetensors" for n in range(1, total + 1)
                }
        _refuse_missing(path, sorted(wanted), "one of a numbered set")
    headers = [read_header(path / shard) for shard in shards]
    infos: dict[str, TensorInfo] = {}
    for header in headers:
        for name, info in header.tensors.items():
            if name in infos:
                raise BadModel(
                    f"{path}: tensor {shown(name)} is in {shown(infos[name].path.name)} and in "
                    f"{shown(header.path.name)}, and there is no {INDEX_NAME} to choose"
                )
            infos[name] = info
    return infos, headers


def _is_plain_name(shard: str) -> bool:
    return (
        shard.endswith(".safetensors")
        and not set(shard) & set("/\\:\0")
        and shard.isprintable()
        and len(shard.encode()) <= 255
    )


def _refuse_missing(path: Path, shards: list[str], why: str) -> None:
    missing = [shard for shard in shards if not (path / shard).exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise BadModel(
            f"{path}: {missing[0]}{more} is missing ({why}; {len(shards) - len(missing)} of "
            f"{len(shards)} files are there): fetch it again"
        )
