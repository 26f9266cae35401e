"""Where the value of each setting comes from: in falling order the flag (or positional argument),
``DISKMOE_<NAME>``, ``<NAME>``, the default.

>>> values, notes = resolve({"TEMP": "0.5"}, {"NGEN": "16"})
>>> values["TEMP"].value, values["TEMP"].source, values["NGEN"].source
(0.5, 'flag --temp', 'env NGEN')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.setting_values import did_you_mean
from diskmoe.engine.settings import BY_NAME, PREFIX, SETTINGS, Setting

# Bare names that mean something else on some systems; only the prefixed form is sure to be ours.
_FOREIGN = {
    "TEMP": "is a directory on Windows",
    "DEBUG": "belongs to other programs too",
    "JSON": "belongs to other programs too",
}


@dataclass(frozen=True)
class Value:
    """A setting's value and where it comes from."""

    value: Any
    source: str


def resolve(
    flags: Mapping[str, str], env: Mapping[str, str], sources: Mapping[str, str] | None = None
) -> tuple[dict[str, Value], list[str]]:
    """All settings' values, and notes about what was ignored.

    Args:
        flags: text given on the command line by setting name.
        env: the environment.
        sources: where a flag's text came from, when it was not the flag itself.

    Raises:
        BadRequest: a value that does not parse, or an unknown ``DISKMOE_`` variable.
    """
    notes: list[str] = []
    for key in env:
        if key.startswith(PREFIX) and key[len(PREFIX) :] not in BY_NAME:
            raise BadRequest(f"unknown setting {key}{did_you_mean(key, _prefixed())}")
    values: dict[str, Value] = {}
    for setting in SETTINGS:
        values[setting.name] = _resolve_one(setting, flags, env, sources or {}, notes)
    return values, notes


def _prefixed() -> list[str]:
    return [PREFIX + setting.name for setting in SETTINGS]


def _resolve_one(
    setting: Setting,
    flags: Mapping[str, str],
    env: Mapping[str, str],
    sources: Mapping[str, str],
    notes: list[str],
) -> Value:
    name = setting.name
    if name in flags:
        source = sources.get(name, f"flag {setting.flag}")
        return Value(_parsed(setting, flags[name], source), source)
    if PREFIX + name in env:
        source = f"env {PREFIX}{name}"
        return Value(_parsed(setting, env[PREFIX + name], source), source)
    text = env.get(name) if setting.bare else None
    if not text:
        return Value(setting.default, "default")
    source = f"env {name}"
    foreign = _FOREIGN.get(name, "")
    if name == "PROMPT" and text == "$P$G":
        foreign = "is the command prompt's own template on Windows"
    elif foreign and _is_ours(setting, text):
        foreign = ""
    if foreign:
        notes.append(f"{name}={text!r} was ignored: the name {foreign}")
        return Value(setting.default, "default")
    return Value(_parsed(setting, text, source), source)


def _is_ours(setting: Setting, text: str) -> bool:
    """Whether a value under a shared name was meant for us: a number, even one out of range."""
    try:
        float(text)
    except ValueError:
        try:
            setting.parse(text)
        except ValueError:
            return False
    return True


def _parsed(setting: Setting, text: str, source: str) -> Any:
    try:
        return setting.parse(text)
    except ValueError as error:
        shown = text if len(text) <= 60 else text[:57] + "..."
        raise BadRequest(f"{setting.name} ({source}) is {shown!r}; it must be {error}") from None
