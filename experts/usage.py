"""What is learned from runs of a model: how often decoding used each expert.

The rules of this file: only rows that were accepted count; nothing is written while a run
generates, and ``save`` never makes a run fail; the file is a help, so one that is missing, damaged
or of another model is passed over.

    history = UsageHistory(folder, fingerprint, layers, n_experts, say)
    pin_most_used(store, history, 1 << 30, say)
    ...  # history.record(layer, ids, phase) from each forward
    history.save()
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.experts.budget import shown_bytes
from diskmoe.experts.errors import BadModel
from diskmoe.experts.safetensors_io import parse_json
from diskmoe.experts.store import ExpertStore
from diskmoe.experts.trace import DECODE
from diskmoe.experts.whole import write_whole

HALF_LIFE = 8192.0  # tokens of later runs, after which a use counts half
MOST_BYTES = 16 << 20  # of a file
PIN_SHARE = 0.5  # of a layer's slots, at most; the others follow the text
_VERSION = 1
_MOST = 1e12  # of any number in a file
_SAMPLE = 4096

Floats = npt.NDArray[np.float64]


def model_fingerprint(config: Mapping[str, Any], files: Sequence[Path]) -> str:
    """What names a model wherever it lies, 32 hex digits: its config, the names and sizes of its
    expert files, and a sample of each (a fine-tune differs in nothing else). Raises OSError."""
    digest = hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=16)
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            file.seek(size // 2)
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


class UsageHistory:
    """Counts of uses by layer and expert: those of earlier runs, and those of this one.

    folder: where the files of all models are. say: gets a line when a file cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        fingerprint: str,
        layers: Sequence[int],
        n_experts: int,
        say: Callable[[str], None],
    ) -> None:
        self._path = folder / f"{fingerprint}.json"
        self._fingerprint = fingerprint
        self._n_experts = n_experts
        self._say = say
        self._layers = tuple(layers)
        self._fresh = self._zeros()
        self._fresh_tokens = 0
        self._latest: dict[int, npt.NDArray[np.int32]] = {}  # rows of the forward at hand
        self.tokens, self.counts = self._read(say)

    def _zeros(self) -> dict[int, Floats]:
        return {layer: np.zeros(self._n_experts) for layer in self._layers}

    def record(self, layer: int, ids: npt.NDArray[np.int32], phase: int) -> None:
        """Rows of a forward, ids i32 (n, top_k); see ``TraceRecorder.record``. Prompts don't count,
        and rows count when the next forward begins, unless ``accepted`` has taken some away."""
        if phase != DECODE or layer not in self.counts:
            return
        if layer in self._latest:
            self.accepted(range(len(self._latest[layer])))
        self._latest[layer] = ids.copy()

    def accepted(self, rows: Sequence[int]) -> None:
        """Of the latest forward these rows were accepted; the others are forgotten."""
        for layer, ids in self._latest.items():
            kept = ids[np.asarray(rows, np.intp)].ravel()
            self._fresh[layer] += np.bincount(kept, minlength=self._n_experts)
        self._fresh_tokens += len(rows) if self._latest else 0
        self._latest = {}

    def most_used(self, n: int, most_per_layer: Mapping[int, int]) -> dict[int, list[int]]:
        """The `n` most used experts of all layers, the most used first, by layer."""
        ranked = sorted(
            (-float(count), layer, expert)
            for layer, counts in self.counts.items()
            for expert, count in enumerate(counts)
            if count > 0
        )
        found: dict[int, list[int]] = {}
        for _, layer, expert in ranked:
            if n and len(found.get(layer, ())) < most_per_layer[layer]:
                found.setdefault(layer, []).append(expert)
                n -= 1
        return found

    def save(self) -> None:
        """Add this run to what the file has by now; a line is said when that cannot be written."""
        if self._latest:
            self.accepted(range(len(next(iter(self._latest.values())))))
        if not self._fresh_tokens:
            return
        tokens, counts = self._read(lambda line: None)  # another process may have written since
        decay = 0.5 ** (self._fresh_tokens / HALF_LIFE)
        content = {
            "version": _VERSION,
            "fingerprint": self._fingerprint,
            "tokens": round(tokens * decay + self._fresh_tokens, 3),
            "layers": {
                layer: np.round(counts[layer] * decay + self._fresh[layer], 3).tolist()
                for layer in self._layers
            },
        }
        self._fresh, self._fresh_tokens = self._zeros(), 0
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, [json.dumps(content, separators=(",", ":")).encode()])
        except OSError as error:
            self._say(f"note      the usage history was not saved: {_reason(self._path, error)}")

    def _read(self, say: Callable[[str], None]) -> tuple[float, dict[int, Floats]]:
        """(tokens, counts) of the file; zeros where there is none that can be used, and why."""
        try:
            if not self._path.exists():
                return 0.0, self._zeros()
            return self._checked()
        except OSError as error:
            reason = _reason(self._path, error)
        except BadModel as error:
            reason = str(error)
        say(f"note      the usage history is ignored: {reason}")
        return 0.0, self._zeros()

    def _checked(self) -> tuple[float, dict[int, Floats]]:
        path = self._path
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            raise BadModel(f"{path}: is no file of at most {MOST_BYTES} bytes")
        found = parse_json(path.read_bytes(), path, "the file")
        head = (_VERSION, self._fingerprint)
        if not isinstance(found, dict) or (found.get("version"), found.get("fingerprint")) != head:
            raise BadModel(f"{path}: is not of version {_VERSION} and this model")
        layers = found.get("layers")
        if not isinstance(layers, dict) or sorted(layers) != sorted(map(str, self._layers)):
            raise BadModel(f"{path}: has not the {len(self._layers)} layers of this model")
        counts = {layer: self._numbers(layers[str(layer)], layer) for layer in self._layers}
        return float(_numbers([found.get("tokens")], 1, f"{path}: tokens")[0]), counts

    def _numbers(self, values: Any, layer: int) -> Floats:
        return _numbers(values, self._n_experts, f"{self._path}: layer {layer}")


def _numbers(values: Any, n: int, place: str) -> Floats:
    if not isinstance(values, list) or len(values) != n:
        raise BadModel(f"{place} is not a list of {n} numbers")
    if not all(type(value) in (int, float) and 0 <= value <= _MOST for value in values):
        raise BadModel(f"{place} has a value that is no number from 0 to {_MOST:g}")
    return np.array(values, np.float64)


def _reason(path: Path, error: OSError) -> str:
    return f"{path}: {error.strerror or error}"


def pin_most_used(
    store: ExpertStore, history: UsageHistory, nbytes: int, say: Callable[[str], None]
) -> int:
    """Read the most used experts into slots that they keep, up to `nbytes`; says how many, and why
    so few. At most `PIN_SHARE` of a layer's slots. Raises ReadFailed."""
    each = store.record_layout.nbytes
    room = {layer: int(store.slots(layer) * PIN_SHARE) for layer in history.counts}
    wanted = history.most_used(nbytes // each, room)
    pinned = sum(store.pin(layer, np.array(ids, np.int32)) for layer, ids in wanted.items())
    learned = f"learned from {history.tokens:.0f} tokens"
    if not pinned and not history.tokens:
        learned = "nothing is learned of this model yet"
    elif not any(room.values()):
        learned = "a layer's only slot is never pinned"
    elif nbytes < each:
        learned = f"{shown_bytes(nbytes)} do not hold one of {shown_bytes(each)}"
    elif pinned == sum(room.values()):
        learned += f", {100 * PIN_SHARE:.0f} % of the slots"
    say(f"pins      {pinned} experts, {shown_bytes(pinned * each)}; {learned}")
    return pinned
