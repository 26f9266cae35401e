"""What is true of a whole container, and how the metadata of its files says it.

The rule of this file: an entry is checked before it is believed; BadModel names the file and the
key. `container.py` lists the entries.
"""

from dataclasses import dataclass
from typing import Any

from diskmoe.experts.errors import BadModel
from diskmoe.experts.formats import FORMATS, expert_formats, mtp_format
from diskmoe.experts.safetensors_io import Header, parse_json, shown
from diskmoe.experts.tiles import RecordLayout, record_layout

FORMAT_VERSION = "2"  # 1 had a symmetric q4
MOST = 1 << 24  # of any count or dimension in the metadata; keeps products small


@dataclass(frozen=True)
class Facts:
    """What is true of a whole container: formats, sizes, and the fingerprint of its source."""

    dense_format: str
    expert_format: str
    hidden: int
    ffn: int
    n_experts: int
    layers: tuple[int, ...]
    mtp_layers: tuple[int, ...]
    config: str  # digest of config.json
    source: str
    biased: bool = False  # whether records end with the biases of gate, up and down

    def format_of(self, layer: int) -> str:
        """The format of a layer's records."""
        return mtp_format(self.expert_format) if layer in self.mtp_layers else self.expert_format

    def record_layout_of(self, layer: int) -> RecordLayout:
        return record_layout(self.format_of(layer), self.hidden, self.ffn, self.biased)

    def metadata(self) -> dict[str, str]:
        """The entries that every file of the container has."""
        return {
            "format_version": FORMAT_VERSION,
            "source": self.source,
            "config": self.config,
            "expert_format": self.expert_format,
            "hidden": str(self.hidden),
            "ffn": str(self.ffn),
            "n_experts": str(self.n_experts),
            **({"biased": "1"} if self.biased else {}),
        }


def read_facts(dense: Header) -> Facts:
    require_version(dense)
    layers = tuple(int_list_of(dense, "layers"))
    if sorted(set(layers)) != list(layers):
        raise BadModel(f"{dense.path}: metadata layers {shown(layers)} are not ascending")
    mtp_layers = tuple(int_list_of(dense, "mtp_layers"))
    if not set(mtp_layers) <= set(layers):
        raise BadModel(f"{dense.path}: metadata mtp_layers {shown(mtp_layers)} are no layers of it")
    return Facts(
        dense_format=_format(dense, "dense_format"),
        expert_format=_format(dense, "expert_format", of_experts=True),
        hidden=_count(dense, "hidden"),
        ffn=_count(dense, "ffn"),
        n_experts=_count(dense, "n_experts", least=1 if layers else 0),
        layers=layers,
        mtp_layers=mtp_layers,
        config=text_of(dense, "config"),
        source=text_of(dense, "source"),
        biased=dense.metadata.get("biased") == "1",
    )


def require_version(header: Header) -> None:
    """BadModel when the file is not one of ours, or of another format version."""
    version = header.metadata.get("format_version")
    if version is None:
        raise BadModel(f"{header.path}: no format_version in its metadata; not a diskmoe container")
    if version != FORMAT_VERSION:
        raise BadModel(
            f"{header.path}: container format version {shown(version)}, this program reads "
            f"{FORMAT_VERSION}; convert the model again with this version"
        )


def text_of(header: Header, key: str) -> str:
    value = header.metadata.get(key)
    if value is None:
        raise BadModel(f"{header.path}: {key} is missing in its metadata; convert again")
    return value


def _format(header: Header, key: str, of_experts: bool = False) -> str:
    value = text_of(header, key)
    parts = expert_formats(value) if of_experts else (value,)
    if not set(parts) <= set(FORMATS):
        raise BadModel(
            f"{header.path}: {key} {shown(value)} is unknown; there are {', '.join(FORMATS)}"
        )
    return value


def _count(header: Header, key: str, least: int = 1) -> int:
    value = text_of(header, key)
    is_number = value.isascii() and value.isdigit() and len(value) <= 8
    if not (is_number and least <= int(value) <= MOST):
        raise BadModel(
            f"{header.path}: {key} {shown(value)} is not a whole number from {least} to {MOST}"
        )
    return int(value)


def int_list_of(header: Header, key: str) -> list[int]:
    value = json_of(header, key)
    if not isinstance(value, list) or not all(type(n) is int and 0 <= n < 100_000 for n in value):
        raise BadModel(f"{header.path}: {key} {shown(value)} is not a list of layer numbers")
    return value


def json_of(header: Header, key: str) -> Any:
    return parse_json(
        text_of(header, key).encode("utf-8", "replace"), header.path, f"metadata {key}"
    )


def checksums_of(header: Header) -> dict[str, str]:
    sums = json_of(header, "checksums")
    if not isinstance(sums, dict) or not all(isinstance(v, str) for v in sums.values()):
        raise BadModel(f"{header.path}: metadata checksums are not an object of strings")
    return sums
