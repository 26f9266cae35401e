"""The command line: ``diskmoe [CAP [EXPERT_BITS [DENSE_BITS]]] [PROMPT]`` and a few commands.

stdout carries the model's text and nothing else (or one JSON object, or a plan that was asked
for); everything said beside it goes to stderr. Exit codes: 0 done, 1 run-time, 2 usage, model or
budget, 130 Ctrl-C.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from diskmoe.engine.arguments import (
    COMMANDS,
    BrokenCommand,
    loaded_command,
    other_commands,
    run_settings,
    wants_traceback,
)
from diskmoe.engine.errors import BadGrammar, DiskMoeError
from diskmoe.engine.settings import PREFIX, SETTINGS

INTRO = """\
usage: diskmoe [CAP [EXPERT_BITS [DENSE_BITS]]] [PROMPT] [--flag VALUE ...]
       diskmoe chat [MODEL] [CAP]     a conversation: answers as they come, /help lists commands
       diskmoe serve [MODEL] [CAP]    OpenAI's endpoints at http://127.0.0.1:8080/v1
       diskmoe convert SRC OUT [--experts FORMAT] [--dense FORMAT]
                                      SRC: a directory or a GGUF; default: q4, q8
       diskmoe inspect MODEL [--json] what it is: family, shapes, formats, bytes, text files
       diskmoe verify MODEL           are all bytes of a converted model still as written?
       diskmoe export MODEL OUT       a converted model back as an f32 checkpoint
       diskmoe plan [MODEL] [CAP [EXPERT_BITS [DENSE_BITS]]] [--json]
       diskmoe corpus FILE... --model DIR --out DIR   texts (or JSONL) to draft from: CORPUS
       diskmoe demo-model [--form sparse|dense] [--export DIR] [--wheel FILE] [--force]
       diskmoe warmup [--formats FORMAT,...]   compiles the kernels ahead of the first run
       diskmoe --version

Runs a Mixture-of-Experts language model from disk and streams its text to stdout.

  FORMAT       q4 (four bits that are there already are kept), q4g64, q8, q4_0, q4_1, int4, mxfp4,
               fp8, bf16, f32, or keep: the checkpoint's own precision
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
    ("serve", "serve"),
    ("output", "output"),
)


# what is wrong with a path that the user gave, not with the machine
_PATH_ERRNOS = (errno.ENAMETOOLONG, errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class _Out:
    """Where the two streams go; a reader that left (a closed pipe) ends the run quietly."""

    def say(self, line: str) -> None:
        if sys.stderr is None:  # closed: print would take stdout instead
            return
        try:
            print(line, file=sys.stderr, flush=True)
        except OSError:  # a full disk or a closed pipe behind stderr is no reason to stop
            pass

    def text(self, piece: str) -> None:
        sys.stdout.write(piece)
        sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """The console script. Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    _speak_utf8()
    out = _Out()
    debug = wants_traceback(words, os.environ)
    try:
        return _dispatch(words, os.environ, out)
    except (DiskMoeError, BadGrammar) as error:
        if debug:
            traceback.print_exc()
        out.say("error: " + " ".join(str(error).split()))
        return error.exit_code
    except KeyboardInterrupt:
        out.say("interrupted")
        return 130
    except BrokenPipeError:
        # the reader closed stdout: point it at nothing so that the shutdown flush stays silent
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        out.say("error: the system has no memory left; set a smaller RAM_GB or CTX")
        if debug:
            traceback.print_exc()
        return 1
    except OSError as error:
        where = str(error.filename or "no file named")
        where = where if len(where) <= 200 else where[:197] + "..."
        out.say(f"error: {error.strerror or error}: {where}")
        if debug:
            traceback.print_exc()
        return 2 if error.errno in _PATH_ERRNOS else 1
    except Exception as error:  # noqa: BLE001  a bug of ours: one line all the same
        said = " ".join(str(error).split())[:300]
        out.say(
            f"error: internal: {type(error).__name__}: {said}; "
            "DEBUG=1 shows where: please report it"
        )
        if debug:
            traceback.print_exc()
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
    if words and words[0].islower() and words[0] not in COMMANDS:
        other = other_commands().get(words[0])
        if other is not None:
            return loaded_command(other)(words[1:], env, out.say)
    ours = words[: words.index("--")] if "--" in words else words
    if any(word in ("--help", "-h") for word in ours) or words[:1] == ["help"]:
        print(help_text())
        return 0
    command = words[0] if words and words[0] in COMMANDS else "run"
    rest = words[1:] if words and words[0] in COMMANDS else words
    if command == "chat":
        return chat_command(rest, env, out)
    if command == "serve":
        return serve_command(rest, env, out)
    if command == "convert":
        return convert_command(rest, env, out)
    if command == "inspect":
        return inspect_command(rest, env, out)
    if command == "verify":
        return verify_command(rest, env, out)
    if command == "export":
        return export_command(rest, env, out)
    if command == "plan":
        return plan_command(rest, env, out)
    if command == "corpus":
        return corpus_command(rest, env, out)
    if command == "demo-model":
        return demo_command(rest, env, out)
    if command == "warmup":
        return warmup_command(rest, env, out)
    return run_command(rest, env, out)


def help_text() -> str:
    """The whole help: usage and one line per setting, made from the table."""
    lines = [INTRO, *_other_help()]
    for group, title in GROUPS:
        lines.append(f"{title}:")
        for setting in SETTINGS:
            if setting.group != group:
                continue
            left = f"{setting.flag} {setting.kind}".rstrip()
            default = "" if setting.default is None else f" (default {_plain(setting.default)})"
            name = setting.name if setting.bare else PREFIX + setting.name
            lines.append(f"  {left:<26} {name:<18} {setting.help}{default}")
        lines.append("")
    lines.append("  --chat, --raw              the same as --chat 1 and --chat 0")
    return "\n".join(lines)


def _other_help() -> list[str]:
    """A line for each command that another package adds."""
    lines = []
    for name, point in sorted(other_commands().items()):
        try:
            summary = (loaded_command(point).__doc__ or "").strip().partition("\n")[0]
        except BrokenCommand as error:
            lines.append(f"  diskmoe {name:<10} {' '.join(str(error).split())}")
            continue
        lines.append(f"  diskmoe {name:<10} {summary} See diskmoe {name} --help.")
    return ["more commands:", *lines, ""] if lines else []


def _plain(value: Any) -> str:
    return {True: "1", False: "0"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def run_command(words: Sequence[str], env: Mapping[str, str], out: _Out) -> int:
    from diskmoe.engine import run

    values, _, notes = run_settings(words, env)
    return run.run(values, notes, out.say, out.text)


def chat_command(words: Sequence[str], env: Mapping[str, str], out: _Out) -> int:
    from diskmoe.engine.chat import chat

    values, _, notes = run_settings(words, env, text_positional="MODEL")
    return chat(values, notes, out.say, out.text)


def serve_command(words: Sequence[str], env: Mapping[str, str], out: _Out) -> int:
    from diskmoe.engine.server.serve import serve

    values, _, notes = run_settings(words, env, text_positional="MODEL")
    return serve(values, notes, out.say)


def plan_command(words: Sequence[str], env: Mapping[str, str], out: _Out) -> int:
    from diskmoe.engine import run

    values, _, notes = run_settings(words, env, text_positional="MODEL")
    return run.plan(values, notes, out.say)


def convert_command(words: Sequence[str], env: Mapping[str, str], out: _Out) -> int:
    from diskmoe.engine import make

    return make.convert_command(words, env, out.say)


def inspect_command(words: Sequence[str], env: Mapping[str, str], out: _Out) -> int:
    from diskmoe.engine import make

    return make.inspect_command(words, env, out.say)


def verify_command(words: Sequence[str], env: Mapping[str, str], out: _Out) -> int:
    from diskmoe.engine import make

    return make.verify_command(words, env, out.say)


def export_command(words: Sequence[str], env: Mapping[str, str], out: _Out) -> int:
    from diskmoe.engine import make

    return make.export_command(words, env, out.say)


def corpus_command(words: Sequence[str], env: Mapping[str, str], out: _Out) -> int:
    from diskmoe.engine import make

    return make.corpus_command(words, env, out.say)


def warmup_command(words: Sequence[str], env: Mapping[str, str], out: _Out) -> int:
    from diskmoe.engine import make

    return make.warmup_command(words, env, out.say)


def demo_command(words: Sequence[str], env: Mapping[str, str], out: _Out) -> int:
    from diskmoe.engine import make

    return make.demo_command(words, env, out.say)


if __name__ == "__main__":
    sys.exit(main())
