"""docs/settings.md, made from the table of settings."""

from diskmoe.engine.commands import COMMANDS
from diskmoe.engine.help import GROUPS, shown_default
from diskmoe.engine.settings import PREFIX, SETTINGS, Setting

HEAD = """\
# Settings

<!-- made by scripts/make_manual.py: edit engine/settings.py -->

Every setting is a flag and an environment variable. A flag wins over `DISKMOE_<NAME>`, that over `<NAME>`,
that over the default. Of a name that begins with `DISKMOE_` below the short form is not read: it belongs to
other programs too. `TEMP`, `DEBUG`, `JSON` and `PROMPT` mean something else on some systems: a `TEMP` that is no number is
ignored, with a note. A flag may be written `--ngen 64` or `--ngen=64`; a switch without a value is on.
`auto`: decided from the model or the machine, and said when a run starts.

A value out of its range is refused (exit code 2), and so is a `DISKMOE_` variable that there is not. What does
not concern a command has no effect on it: a note says so of commands that run a model, others refuse the flag.
`diskmoe bench COMMAND --help` tells which settings a benchmark heeds.
"""


def settings_page() -> str:
    parts = [HEAD]
    for group, title in GROUPS:
        parts.append(f"\n## {title[0].upper()}{title[1:]}\n")
        parts.append(
            "| setting | flag | default | values | concerns | meaning |\n|---|---|---|---|---|---|"
        )
        parts += [_row(setting) for setting in SETTINGS if setting.group == group]
        parts.append("")
    return "\n".join(parts)


def _row(setting: Setting) -> str:
    name = f"`{setting.name if setting.bare else PREFIX + setting.name}`"
    flag = f"`{setting.flag} {setting.kind}`" if setting.kind else f"`{setting.flag}`"
    cells = [
        name,
        flag,
        shown_default(setting),
        _values(setting),
        _concerned(setting),
        setting.help,
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _concerned(setting: Setting) -> str:
    """The commands that heed it."""
    found = [name for name, command in COMMANDS.items() if setting.name in command.settings]
    return "all" if len(found) == len(COMMANDS) else ", ".join(found)


def _values(setting: Setting) -> str:
    """What a value must be, in the words of the error for one that it cannot be."""
    try:
        setting.parse("\0")
    except ValueError as error:
        return str(error)
    return "any text"
