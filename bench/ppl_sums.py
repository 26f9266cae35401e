"""The sums of a perplexity on disk, so that a run that was killed goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diskmoe.bench.perplexity import Sums
from diskmoe.engine.errors import BadOutput
from diskmoe.experts.whole import write_whole

_MOST_BYTES = 1 << 20  # of a file of sums
_VERSION = 1


@dataclass(frozen=True)
class Kept:
    """The file of sums of one model, one text and settings, which `of` names."""

    path: Path
    of: Mapping[str, Any]

    def read(self, most: int) -> Sums:
        """What was kept; nothing where there is no file yet.

        Raises BadOutput for a file of something else."""
        no_sums = BadOutput(f"--out {self.path} is no file of bench ppl: name another or remove it")
        try:
            raw = self.path.read_bytes() if self.path.stat().st_size <= _MOST_BYTES else b""
            found = json.loads(raw)
            sums, version = Sums(**found["sums"]), found["version"]
        except FileNotFoundError:
            return Sums()
        except OSError as error:
            raise BadOutput(f"--out {self.path}: {error.strerror or error}") from None
        except (ValueError, TypeError, KeyError, RecursionError):
            raise no_sums from None
        if version != _VERSION:
            raise no_sums
        for name, here in self.of.items():
            if found.get(name) != here:
                raise BadOutput(
                    f"--out {self.path} is of {_other(name, found.get(name), here)}: name another "
                    "file or remove it"
                )
        if not _sound(sums, most):
            raise no_sums
        return sums

    def write(self, sums: Sums) -> None:
        content = {"version": _VERSION, **self.of, "sums": asdict(sums)}
        try:
            write_whole(self.path, [json.dumps(content).encode()])
        except OSError as error:
            raise BadOutput(f"--out {self.path}: {error.strerror or error}") from None


def _sound(sums: Sums, most: int) -> bool:
    counts = (sums.windows, sums.tokens)
    whole = all(type(count) is int and count >= 0 for count in counts)
    parts = (sums.nll, sums.squares)
    real = all(isinstance(part, int | float) and 0 <= part < float("inf") for part in parts)
    return whole and real and sums.windows <= most and bool(sums.windows) == bool(sums.tokens)


def _other(name: str, there: Any, here: Any) -> str:
    """How a file of sums is another one's."""
    if name != "settings" or not isinstance(there, dict):
        return f"another {name} ({str(there)[:12]}..., not {str(here)[:12]}...)"
    changed = [
        f"{key} {there.get(key)}, not {here[key]}" for key in here if there.get(key) != here[key]
    ]
    return "other settings (" + "; ".join(changed) + ")"
