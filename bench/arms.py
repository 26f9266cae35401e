"""What is compared: the words of an arm, of the rungs and of a smaller machine, understood.

The rule of this file: every setting is checked before anything runs, and one that the benchmark
itself decides is refused by name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.setting_sources import resolve
from diskmoe.engine.setting_values import did_you_mean
from diskmoe.engine.settings import BY_NAME, PREFIX

# what a benchmark says itself to each of its runs
OURS = (
    "PROMPT",
    "PROMPT_IDS",
    "JSON",
    "STATS",
    "VERBOSE",
    "DEBUG",
    "STATE_DIR",
    "TRACE",
)
FREE = tuple(name for name in BY_NAME if name not in OURS)
_LEAST_RAM, _MOST_RAM = 64 << 20, 1 << 50
Settings = Mapping[str, str]  # by name, as text


@dataclass(frozen=True)
class Laptop:
    """A smaller machine, as it was asked for; None: not limited in this."""

    ram_bytes: int | None
    disk_bps: int | None


def arm_settings(text: str, flag: str) -> dict[str, str]:
    """``"GRAMMAR=fit.gbnf CAP=8"`` as settings; empty for none. BadRequest for what is no setting."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadRequest(f"{flag} is {_shown(text)}: {error}") from None
    found: dict[str, str] = {}
    for word in words:
        name, value = _setting(word, flag)
        if name in found:
            raise BadRequest(f"{flag} has {name} twice: {found[name]} and {value}")
        found[name] = value
    return found


def names_given(text: str) -> dict[str, str]:
    """The same of an arm that is a record: whatever version of diskmoe it is from."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = [text]
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def rungs_of(text: str) -> list[dict[str, str]]:
    """``"CAP=4,8,16"`` as one set of settings for each rung; no text is one rung of none."""
    if not text:
        return [{}]
    words = text.split()
    if len(words) != 1:
        raise BadRequest(f"--rungs is {_shown(text)}; it must be one setting, like CAP=4,8,16")
    name, equals, values = words[0].partition("=")
    parts = [part for part in values.split(",") if part]
    if not equals or not parts:
        raise BadRequest(f"--rungs is {_shown(text)}; it must be one setting, like CAP=4,8,16")
    found = [dict([_setting(f"{name}={part}", "--rungs")]) for part in dict.fromkeys(parts)]
    return found


def laptop_of(text: str) -> Laptop:
    """``"8,500M"``: GiB of memory, bytes a second of the disk; 0 or nothing for no limit."""
    ram_text, comma, disk_text = text.partition(",")
    fault = BadRequest(
        f"--laptop is {_shown(text)}; it must be RAM,DISK: GiB (or 800M) and bytes a second, like "
        "8,500M"
    )
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([gGmM]?)(?:i?[bB])?", ram_text.strip())
    if not comma or match is None:
        raise fault
    ram = round(float(match[1]) * (1 << (20 if match[2] in ("m", "M") else 30)))
    if ram and not _LEAST_RAM <= ram <= _MOST_RAM:
        raise fault
    try:
        disk = BY_NAME["DISK_BPS"].parse(disk_text.strip() or "0")
    except ValueError as error:
        raise BadRequest(f"--laptop is {_shown(text)}; DISK must be {error}") from None
    return Laptop(ram or None, disk)


def refuse_twice(
    arms: Mapping[str, Settings], rungs: Sequence[Settings], common: Settings, laptop: Laptop | None
) -> None:
    """BadRequest when two places say the same setting and it is not plain which one holds."""
    told = {"--rungs": {name for rung in rungs for name in rung}}
    if laptop is not None:
        told["--laptop"] = {"RAM_GB"} if laptop.ram_bytes else set()
        told["--laptop"] |= {"DISK_BPS"} if laptop.disk_bps else set()
    others = {f"--{name}": set(settings) for name, settings in arms.items()}
    others["the command line or the environment"] = set(common)
    for place, names in told.items():
        for other, theirs in [*others.items(), *told.items()]:
            both = sorted(names & theirs) if other != place else []
            if both:
                raise BadRequest(f"{both[0]} is in {place} and in {other}: leave one of them out")


def shown_settings(settings: Settings) -> str:
    """As they would be given again."""
    return " ".join(f"{name}={shlex.quote(text)}" for name, text in settings.items())


def flags_of(settings: Settings) -> list[str]:
    """The words of a command line that give these settings."""
    return [f"{BY_NAME[name].flag}={text}" for name, text in settings.items()]


def _setting(word: str, flag: str) -> tuple[str, str]:
    """(name, text) of ``NAME=text``, checked."""
    name, equals, text = word.partition("=")
    name = name.removeprefix("--").replace("-", "_").upper().removeprefix(PREFIX)
    if name not in BY_NAME:
        hint = did_you_mean(name, list(FREE))
        raise BadRequest(f"{flag}: {_shown(word)} is no setting{hint}; it must be like CAP=8")
    if name in OURS:
        raise BadRequest(f"{flag}: {name} is the benchmark's own; there are {', '.join(FREE)}")
    if not equals:
        raise BadRequest(f"{flag}: {name} has no value; it must be like {name}=...")
    resolve({name: text}, {}, {name: flag})
    return name, text


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
