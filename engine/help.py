"""What ``--help`` prints: of the program, and of each command."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from diskmoe.engine.arguments import BrokenCommand, loaded_command, other_commands
from diskmoe.engine.commands import COMMANDS, Command
from diskmoe.engine.settings import PREFIX, SETTINGS, Setting

GROUPS = (
    ("what", "what to run"),
    ("sampling", "sampling (default: the model's own, else greedy)"),
    ("memory", "memory"),
    ("speed", "speed (never changes a token)"),
    ("drafts", "drafts"),
    ("serve", "serve"),
    ("output", "output"),
)
_EXITS = (
    "exit codes: 0 done; 1 something failed while running; 2 a usage, a model, a grammar or a budget "
    "that is no good; 130 Ctrl-C."
)
_SETTINGS = (
    "Each setting is a flag and an environment variable; DISKMOE_<NAME> wins over <NAME>, a flag over "
    "both."
)
_WIDTH = 110
_COLUMN = 48  # of what settings mean


def overview() -> str:
    """Commands, and one line per setting."""
    lines = [
        "usage: " + COMMANDS["run"].usage[0],
        "       diskmoe COMMAND ...        diskmoe COMMAND --help tells more of each",
        "",
        "Runs a Mixture-of-Experts language model from disk and streams its text to stdout.",
        "",
        "commands:",
        *(f"  {name:<11}{c.summary}" for name, c in COMMANDS.items() if name != "run"),
        *_other_commands(),
        "  --version  which diskmoe this is",
        "",
        *_paragraph(COMMANDS["run"].about),
        "",
        *_paragraph(_SETTINGS),
        "",
        *_examples(COMMANDS["run"]),
        *_setting_lines([setting.name for setting in SETTINGS]),
        "  --chat, --raw              the same as --chat 1 and --chat 0",
        "",
        exit_codes(),
    ]
    return "\n".join(lines)


def of_command(name: str) -> str:
    """All about one command."""
    command = COMMANDS[name]
    lines = ["usage: " + "\n       ".join(command.usage), "", *_paragraph(command.about), ""]
    lines += _examples(command)
    if command.flags:
        for flag, told in command.flags.items():
            left = f"{flag} {told.kind}".rstrip()
            lines.append(f"  {left:<26} {told.help}")
        lines.append("")
    lines += [*_paragraph(_SETTINGS), "", *_setting_lines(command.settings)]
    return "\n".join([*lines, exit_codes(command.exits)])


def exit_codes(further: str = "") -> str:
    """What the exit codes mean; further: of one command."""
    return "\n".join(_paragraph(f"{_EXITS} {further}"))


def _setting_lines(names: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for group, title in GROUPS:
        of_group = [s for s in SETTINGS if s.group == group and s.name in names]
        if of_group:
            lines += [f"{title}:", *map(_line, of_group), ""]
    return lines


def _line(setting: Setting) -> str:
    name = setting.name if setting.bare else PREFIX + setting.name
    default = "" if setting.default is None else f" (default {shown_default(setting)})"
    left = f"  {f'{setting.flag} {setting.kind}'.rstrip():<26} {name:<18} "
    text, room = setting.help + default, " " * _COLUMN
    if len(left) <= _COLUMN:
        return textwrap.fill(text, _WIDTH, initial_indent=left, subsequent_indent=room)
    return (
        left.rstrip()
        + "\n"
        + textwrap.fill(text, _WIDTH, initial_indent=room, subsequent_indent=room)
    )


def shown_default(setting: Setting) -> str:
    """A default as a user would type it."""
    if setting.default is None:
        return "auto"
    return str(int(setting.default) if isinstance(setting.default, bool) else setting.default)


def _examples(command: Command) -> list[str]:
    lines = ["examples:"]
    for line, what in command.examples:
        lines.append(f"  {line:<72}  # {what}" if what else f"  {line}")
    return [*lines, ""]


def _other_commands() -> list[str]:
    """A line for each command that another package adds."""
    lines = []
    for name, point in sorted(other_commands().items()):
        try:
            summary = (loaded_command(point).__doc__ or "").strip().partition("\n")[0]
        except BrokenCommand as error:
            summary = " ".join(str(error).split())
        lines.append(f"  {name:<11}{summary}")
    return lines


def _paragraph(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_on_hyphens=False)
