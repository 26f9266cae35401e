"""The words behind ``diskmoe bench COMMAND``, with the settings of the engine where they apply."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from diskmoe.engine.arguments import split_words
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.setting_sources import Value, resolve
from diskmoe.engine.setting_values import did_you_mean

Say = Callable[[str], None]

# settings that commands heed which run a model as it would be run
OF_A_RUN = (
    *("THREADS", "CAP", "RAM_GB", "CTX", "KV", "IO_THREADS", "DIRECT", "DISK_BPS"),
    *("PREFILL_CHUNK", "EXPERT_BITS", "DENSE_BITS", "JSON", "DEBUG", "VERBOSE"),
)


@dataclass(frozen=True)
class Words:
    """A command's line, understood: settings, the command's own flags, the rest."""

    values: Mapping[str, Value]
    flags: Mapping[str, str]
    places: Sequence[str]

    def whole(self, flag: str, low: int, high: int, default: int) -> int:
        """A flag's whole number, or `default`. BadRequest when it is none, or out of bounds."""
        text = self.flags.get(flag)
        if text is None:
            return default
        number = _whole(text, low, high)
        if number is None:
            raise BadRequest(
                f"{flag} is {_shown(text)}; it must be a whole number from {low} to {high}"
            )
        return number

    def wholes(self, flag: str, low: int, high: int, default: Sequence[int]) -> list[int]:
        """A flag's list of whole numbers, ``1,2,4``, each once; `default` where it is not given."""
        text = self.flags.get(flag)
        if text is None:
            return list(default)
        numbers = [_whole(part, low, high) for part in text.replace(",", " ").split()]
        if not numbers or None in numbers:
            raise BadRequest(
                f"{flag} is {_shown(text)}; it must be whole numbers from {low} to {high}, like "
                + ",".join(map(str, default))
            )
        return list(dict.fromkeys(number for number in numbers if number is not None))

    def number(self, flag: str, low: float, high: float, default: float) -> float:
        """A flag's number, or `default`. BadRequest when it is none, or out of bounds."""
        text = self.flags.get(flag)
        if text is None:
            return default
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not low <= number <= high:  # true for NaN too
            raise BadRequest(
                f"{flag} is {_shown(text)}; it must be a number from {low:g} to {high:g}"
            )
        return number

    def one_of(self, flag: str, allowed: Sequence[str], default: str) -> str:
        """A flag's word, one of `allowed`."""
        return _allowed(flag, self.flags.get(flag, default), allowed)

    def several(self, flag: str, allowed: Sequence[str], default: Sequence[str]) -> list[str]:
        """A flag's list, ``a,b,c``, each one of `allowed`; `default` where it is not given."""
        text = self.flags.get(flag)
        if text is None:
            return list(default)
        parts = [part for part in text.replace(",", " ").split() if part]
        if not parts:
            raise BadRequest(f"{flag} is empty; it must be a list of {', '.join(allowed)}")
        return list(dict.fromkeys(_allowed(flag, part, allowed) for part in parts))


def understood(
    command: str,
    words: Sequence[str],
    env: Mapping[str, str],
    flags: Mapping[str, bool],
    settings: Sequence[str],
) -> Words:
    """Splits the words of ``diskmoe bench COMMAND``.

    flags: the command's own, ``{"--layers": takes a value}``. settings: names that it heeds.

    Raises:
        BadRequest: an unknown flag, or a setting that the command has no use for.
    """
    texts, others, places = split_words(words, flags)
    for name in texts:
        if name not in settings:
            flag = "--" + name.lower().replace("_", "-")
            known = [*flags, *("--" + s.lower().replace("_", "-") for s in settings)]
            raise BadRequest(
                f"{flag} has no effect on diskmoe bench {command}"
                f"{did_you_mean(flag, known)}; see diskmoe bench {command} --help"
            )
    values, _ = resolve(texts, env)
    return Words(values, others, places)


def shape_of(text: str) -> tuple[int, int]:
    """``"768x2048"`` -> (768, 2048). BadRequest for anything else."""
    first, _, second = text.lower().partition("x")
    rows, cols = _whole(first, 16, 1 << 20), _whole(second, 64, 1 << 20)
    if rows is None or cols is None or rows % 16 or cols % 64:
        raise BadRequest(
            f"--shape is {_shown(text)}; it must be ROWSxCOLS, like 768x2048: rows a multiple of "
            "16, columns of 64, neither above 1048576"
        )
    return rows, cols


def _whole(text: str, low: int, high: int) -> int | None:
    """The whole number that a text is, in ASCII digits; None when it is none or out of bounds."""
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        return None
    number = int(text)
    return number if low <= number <= high else None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _allowed(flag: str, word: str, allowed: Sequence[str]) -> str:
    if word not in allowed:
        hint = did_you_mean(word, list(allowed))
        raise BadRequest(f"{flag} is {_shown(word)}; it must be one of {', '.join(allowed)}{hint}")
    return word
