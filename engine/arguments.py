"""The words of a command line, and the settings they make.

Numbers first (``CAP EXPERT_BITS DENSE_BITS``), then one text, flags anywhere. Everything that is
not understood is refused with the nearest thing that is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, distributions
from typing import cast

from diskmoe.engine.commands import COMMANDS
from diskmoe.engine.errors import BadRequest, DiskMoeError
from diskmoe.engine.setting_sources import Value, resolve
from diskmoe.engine.setting_values import did_you_mean, switch
from diskmoe.engine.settings import PREFIX, SETTINGS

WORDS = (*COMMANDS, "help")  # that a command line of ours may begin with
POSITIONALS = ("CAP", "EXPERT_BITS", "DENSE_BITS")
COMMAND_GROUP = "diskmoe.commands"  # entry points: ``main(words, environment, say) -> exit code``


def other_commands() -> dict[str, EntryPoint]:
    """Commands that installed packages add to ours, by their first word.

    Every distribution is asked: of two of one name (an old ``diskmoe.egg-info`` in the working
    directory hides the installed one) ``entry_points()`` would read the first only.
    """
    found: dict[str, EntryPoint] = {}
    for distribution in distributions():
        try:
            points = distribution.entry_points.select(group=COMMAND_GROUP)
        except Exception:  # noqa: BLE001, S112 - another package's damaged metadata: not ours to mend
            continue
        for point in points:
            if point.name not in WORDS:
                found.setdefault(point.name, point)
    return found


class BrokenCommand(DiskMoeError):
    """A command of another package that cannot be loaded."""

    exit_code = 1


def loaded_command(point: EntryPoint) -> Callable[..., int]:
    """The function behind an entry point.

    Raises:
        BrokenCommand: importing it failed, whatever way.
    """
    try:
        function = point.load()
    except (Exception, SystemExit) as error:
        raise _broken(point, f"{type(error).__name__}: {error}") from error
    if not callable(function):
        raise _broken(point, "it is no function")
    return cast("Callable[..., int]", function)


def _broken(point: EntryPoint, why: str) -> BrokenCommand:
    owner = "" if point.dist is None else f" {point.dist.name}"
    return BrokenCommand(
        f"the command {point.name} ({point.value}) cannot be loaded ({why}): "
        f"reinstall the package{owner} that it comes from, or remove it"
    )


def wants_traceback(words: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether DEBUG is on; never fails, since it is asked before anything else is understood."""
    text = env.get(PREFIX + "DEBUG", env.get("DEBUG", ""))
    for word in words:
        flag, equals, value = word.partition("=")
        if flag == "--debug":
            text = value if equals else "1"
    return text.lower() in ("1", "true", "yes", "on")


def split_words(
    words: Sequence[str], extra: Mapping[str, bool] | None = None
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Command-line words as (setting texts by name, extra flags by name, positionals).

    Args:
        words: what stands behind the command.
        extra: flags of this command alone, ``{"--experts": takes a value}``.

    Raises:
        BadRequest: an unknown flag (with did-you-mean), or a flag without its value.
    """
    by_flag = {setting.flag: setting for setting in SETTINGS}
    extra = extra or {}
    texts: dict[str, str] = {}
    others: dict[str, str] = {}
    positionals: list[str] = []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if word == "--":
            positionals.extend(queue)
            break
        if not word.startswith("--") or word == "-":
            if word.startswith("-") and len(word) > 1 and not word[1:].isdigit():
                raise BadRequest(f"unknown option {word}; see diskmoe --help")
            positionals.append(word)
            continue
        flag, equals, value = word.partition("=")
        if flag in ("--raw", "--chat") and not equals:
            nxt = queue[0].lower() if queue else ""
            if flag == "--chat" and nxt in ("auto", "1", "0"):
                texts["CHAT"] = queue.pop(0)
            else:
                texts["CHAT"] = "0" if flag == "--raw" else "1"
            continue
        if flag in extra:
            if extra[flag]:
                others[flag] = value if equals else _value_of(flag, queue)
            elif not equals or _is_on(flag, value):
                others[flag] = "1"
            else:
                others.pop(flag, None)
            continue
        if flag not in by_flag:
            known = [*by_flag, *extra, "--raw", "--help", "--version"]
            raise BadRequest(f"unknown option {flag}{did_you_mean(flag, known)}")
        setting = by_flag[flag]
        if setting.kind == "" and not equals:
            texts[setting.name] = "1"
        else:
            texts[setting.name] = value if equals else _value_of(flag, queue)
    return texts, others, positionals


def _is_on(flag: str, text: str) -> bool:
    try:
        return switch(text)
    except ValueError as error:
        raise BadRequest(f"{flag} is {text[:60]!r}; it must be {error}") from None


def _value_of(flag: str, queue: list[str]) -> str:
    if not queue:
        raise BadRequest(f"{flag} needs a value behind it")
    return queue.pop(0)


def run_settings(
    words: Sequence[str],
    env: Mapping[str, str],
    extra: Mapping[str, bool] | None = None,
    text_positional: str = "PROMPT",
) -> tuple[dict[str, Value], dict[str, str], list[str]]:
    """Resolves a command's settings; up to three numbers first, then one text.

    Returns (values, the command's own flags, notes to say).
    """
    texts, others, positionals = split_words(words, extra)
    sources: dict[str, str] = {}
    numbers: list[str] = []
    rest: list[str] = []
    for word in positionals:
        if not rest and len(numbers) < len(POSITIONALS) and word.lstrip("-").isdigit():
            numbers.append(word)
        else:
            rest.append(word)
    if text_positional == "MODEL" and not numbers and rest:
        # 'plan MODEL 8 4 8': the directory comes first, the numbers behind it
        tail = rest[1:]
        if len(tail) <= len(POSITIONALS) and all(word.isdigit() for word in tail):
            numbers, rest = tail, rest[:1]
    if rest and len(numbers) == len(POSITIONALS) and rest[0].isdigit():
        raise BadRequest(
            f"{rest[0]} is a fourth number; CAP EXPERT_BITS DENSE_BITS are three "
            "(a prompt that is a number goes behind --prompt)"
        )
    for name, word in zip(POSITIONALS, numbers, strict=False):
        if name in texts:
            raise BadRequest(f"{name} is given twice: {word} as an argument and {texts[name]}")
        texts[name], sources[name] = word, "argument"
    if len(rest) > 1:
        raise BadRequest(_too_many_words(rest))
    if rest:
        if text_positional == "PROMPT":
            _refuse_mistyped_command(rest[0])
        if text_positional in texts:
            raise BadRequest(f"{text_positional} is given twice, as an argument and as a flag")
        texts[text_positional], sources[text_positional] = rest[0], "argument"
    values, notes = resolve(texts, env, sources)
    return values, others, notes


def _too_many_words(rest: Sequence[str]) -> str:
    hint = did_you_mean(rest[0], [*WORDS, *other_commands()])
    if hint:
        return f"unknown command {rest[0]}{hint}"
    return f"too many arguments: {rest[1]!r} is one too many; quote a prompt of several words"


def _refuse_mistyped_command(word: str) -> None:
    if " " in word or len(word) < 3:
        return
    hint = did_you_mean(word, [*WORDS, *other_commands()], cutoff=0.75)
    if hint:
        raise BadRequest(f"unknown command {word}{hint} (a one-word prompt goes behind --prompt)")
