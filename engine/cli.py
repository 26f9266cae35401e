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
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata

from diskmoe.engine.arguments import (
    loaded_command,
    other_commands,
    run_settings,
    wants_traceback,
)
from diskmoe.engine.commands import COMMANDS
from diskmoe.engine.errors import BadGrammar, BadRequest, DiskMoeError
from diskmoe.engine.help import of_command, overview
from diskmoe.engine.setting_values import did_you_mean

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
        try:
            sys.stdout.write(piece)
            sys.stdout.flush()
        except OSError as error:
            error.filename = "stdout"
            raise


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
    reconfigure = getattr(sys.stdin, "reconfigure", None)
    if reconfigure is not None:  # what is no UTF-8 is refused where it is used, in a line of ours
        reconfigure(encoding="utf-8", errors="surrogateescape")


def _dispatch(words: list[str], env: Mapping[str, str], out: _Out) -> int:
    if words and words[0] in ("--version", "-V"):
        print(f"diskmoe {metadata.version('diskmoe')}")
        return 0
    if words and words[0].islower() and words[0] not in COMMANDS:
        other = other_commands().get(words[0])
        if other is not None:
            return loaded_command(other)(words[1:], env, out.say)
    if words[:1] == ["help"] and words[1:] not in ([], ["--help"], ["-h"], ["help"]):
        known = [*COMMANDS, *other_commands()]
        if words[1] not in known:
            hint = did_you_mean(words[1], known)
            raise BadRequest(f"there is no command {words[1][:40]!r}{hint}; see diskmoe help")
        return _dispatch([*words[1:], "--help"], env, out)
    ours = words[: words.index("--")] if "--" in words else words
    if any(word in ("--help", "-h") for word in ours) or words[:1] == ["help"]:
        print(of_command(words[0]) if words[0] in COMMANDS else overview())
        return 0
    command = words[0] if words and words[0] in COMMANDS else "run"
    rest = words[1:] if words and words[0] in COMMANDS else words
    face = _FACES.get(command)
    return make_command(command, rest, env, out) if face is None else face(rest, env, out)


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


def make_command(name: str, words: Sequence[str], env: Mapping[str, str], out: _Out) -> int:
    from diskmoe.engine import make

    return make.COMMANDS[name](words, env, out.say)


_FACES: Mapping[str, Callable[[Sequence[str], Mapping[str, str], _Out], int]] = {
    "run": run_command,
    "chat": chat_command,
    "serve": serve_command,
    "plan": plan_command,
}


if __name__ == "__main__":
    sys.exit(main())
