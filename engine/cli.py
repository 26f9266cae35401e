"""The command line: ``diskmoe [CAP [EXPERT_BITS [DENSE_BITS]]] [PROMPT]`` and a few commands.

stdout carries the model's text and nothing else (or one JSON object, or a plan that was asked
for); everything said beside it goes to stderr. Exit codes: 0 done, 1 run-time, 2 usage, model or
budget, 130 Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from diskmoe.engine.errors import BadRequest, DiskMoeError
from diskmoe.engine.settings import BY_NAME, SETTINGS, Value, did_you_mean, resolve

COMMANDS = ("run", "convert", "plan", "demo-model", "help")
POSITIONALS = ("CAP", "EXPERT_BITS", "DENSE_BITS")

INTRO = """\
usage: diskmoe [CAP [EXPERT_BITS [DENSE_BITS]]] [PROMPT] [--flag VALUE ...]
       diskmoe convert SRC OUT [--experts q4|q8|bf16|f32] [--dense q8|bf16|f32]
       diskmoe plan [MODEL] [CAP [EXPERT_BITS [DENSE_BITS]]] [--json]
       diskmoe demo-model [--form sparse|dense] [--export DIR] [--wheel FILE]
       diskmoe --version

Runs a Mixture-of-Experts language model from disk and streams its text to stdout.

  CAP          hot-store slots per layer (experts kept in RAM); default: what the budget holds
  EXPERT_BITS  4, 8, 16 or 32: bits of experts when a checkpoint is quantised on the way in
  DENSE_BITS   the same for all other weights
  PROMPT       else --prompt, the variable PROMPT, or stdin. A model with a chat template is
               given the prompt as a chat message; --raw feeds the text as it is.

Each setting is a flag and an environment variable; DISKMOE_<NAME> wins over <NAME>, a flag over
both. 'TEMP=0 PROMPT="Hi" diskmoe 8' and 'diskmoe 8 Hi --temp 0' are the same.
"""

GROUPS = (
    ("what", "what to run"),
    ("sampling", "sampling (default: the model's own, else greedy)"),
    ("memory", "memory"),
    ("speed", "speed (never changes a token)"),
    ("drafts", "drafts"),
    ("output", "output"),
)


class _Out:
    """Where the two streams go; a reader that left (a closed pipe) ends the run quietly."""

    def say(self, line: str) -> None:
        try:
            print(line, file=sys.stderr, flush=True)
        except BrokenPipeError:
            pass

    def text(self, piece: str) -> None:
        sys.stdout.write(piece)
        sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """The console script. Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    _speak_utf8()
    out = _Out()
    debug = "--debug" in words or os.environ.get("DISKMOE_DEBUG", os.environ.get("DEBUG")) == "1"
    try:
        return _dispatch(words, os.environ, out)
    except DiskMoeError as error:
        if debug:
            traceback.print_exc()
        out.say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        out.say("interrupted")
        return 130
    except BrokenPipeError:
        # the reader closed stdout: point it at nothing so that the shutdown flush stays silent
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        if debug:
            traceback.print_exc()
        out.say("error: the system has no memory left; set a smaller RAM_GB or CTX")
        return 1
    except OSError as error:
        if debug:
            traceback.print_exc()
        out.say(f"error: {error.strerror or error}: {error.filename or 'no file named'}")
        return 1


def _speak_utf8() -> None:
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="replace")


def _dispatch(words: list[str], env: Mapping[str, str], out: _Out) -> int:
    if words and words[0] in ("--version", "-V"):
        print(f"diskmoe {metadata.version('diskmoe')}")
        return 0
    if any(word in ("--help", "-h") for word in words) or words[:1] == ["help"]:
        print(help_text())
        return 0
    command = words[0] if words and words[0] in COMMANDS else "run"
    rest = words[1:] if words and words[0] in COMMANDS else words
    if command == "convert":
        return convert_command(rest, env, out)
    if command == "plan":
        return plan_command(rest, env, out)
    if command == "demo-model":
        return demo_command(rest, env, out)
    return run_command(rest, env, out)


def help_text() -> str:
    """The whole help: usage and one line per setting, made from the table."""
    lines = [INTRO]
    for group, title in GROUPS:
        lines.append(f"{title}:")
        for setting in SETTINGS:
            if setting.group != group:
                continue
            left = f"{setting.flag} {setting.kind}".rstrip()
            default = "" if setting.default is None else f" (default {_plain(setting.default)})"
            note = " [no effect in this version]" if setting.effect else ""
            lines.append(f"  {left:<26} {setting.name:<14} {setting.help}{default}{note}")
        lines.append("")
    lines.append("  --chat, --raw              the same as --chat 1 and --chat 0")
    return "\n".join(lines)


def _plain(value: Any) -> str:
    return {True: "1", False: "0"}.get(value, str(value)) if isinstance(value, bool) else str(value)


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
            others[flag] = value if equals else _value_of(flag, queue) if extra[flag] else "1"
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
    notes += [
        f"{setting.name} has no effect: {setting.effect}"
        for setting in SETTINGS
        if setting.effect and values[setting.name].source != "default"
    ]
    return values, others, notes


def _too_many_words(rest: Sequence[str]) -> str:
    hint = did_you_mean(rest[0], COMMANDS)
    if hint:
        return f"unknown command {rest[0]}{hint}"
    return f"too many arguments: {rest[1]!r} is one too many; quote a prompt of several words"


def _refuse_mistyped_command(word: str) -> None:
    if " " in word or len(word) < 3:
        return
    hint = did_you_mean(word, COMMANDS)
    if hint:
        raise BadRequest(f"unknown command {word}{hint} (a one-word prompt goes behind --prompt)")


def run_command(words: Sequence[str], env: Mapping[str, str], out: _Out) -> int:
    from diskmoe.engine import run

    values, _, notes = run_settings(words, env)
    return run.run(values, notes, out.say, out.text)


def plan_command(words: Sequence[str], env: Mapping[str, str], out: _Out) -> int:
    from diskmoe.engine import run

    values, _, notes = run_settings(words, env, text_positional="MODEL")
    return run.plan(values, notes, out.say)


def convert_command(words: Sequence[str], env: Mapping[str, str], out: _Out) -> int:
    from diskmoe.engine import make

    return make.convert_command(words, env, out.say)


def demo_command(words: Sequence[str], env: Mapping[str, str], out: _Out) -> int:
    from diskmoe.engine import make

    return make.demo_command(words, env, out.say)


def setting_value(values: Mapping[str, Value], name: str) -> Any:
    """A setting's value by name; the name must be in the table."""
    assert name in BY_NAME
    return values[name].value


if __name__ == "__main__":
    sys.exit(main())
