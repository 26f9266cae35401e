"""The words behind ``diskmoe bench COMMAND``, with the settings of the engine where they apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from diskmoe.engine.arguments import split_words
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.settings import Value, did_you_mean, resolve

Say = Callable[[str], None]


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
        number = int(text) if text.lstrip("-").isdecimal() and len(text) < 20 else None
        if number is None or not low <= number <= high:
            raise BadRequest(f"{flag} is {text!r}; it must be a whole number from {low} to {high}")
        return number

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
            raise BadRequest(f"{flag} is {text!r}; it must be a number from {low:g} to {high:g}")
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
    rows, _, cols = text.lower().partition("x")
    if rows.isdecimal() and cols.isdecimal() and len(rows) < 8 and len(cols) < 8:
        shape = int(rows), int(cols)
        if 16 <= shape[0] <= 1 << 20 and 32 <= shape[1] <= 1 << 20:
            return shape
    raise BadRequest(
        f"--shape is {text!r}; it must be ROWSxCOLS, like 768x2048, from 16x32 to 1048576x1048576"
    )


def _allowed(flag: str, word: str, allowed: Sequence[str]) -> str:
    if word not in allowed:
        hint = did_you_mean(word, list(allowed))
        raise BadRequest(f"{flag} is {word!r}; it must be one of {', '.join(allowed)}{hint}")
    return word
