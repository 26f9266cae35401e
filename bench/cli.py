"""``diskmoe bench COMMAND``: the words, and which file does the work.

Results go to stdout, everything said beside them to stderr. Errors are raised, and made one line by
the command line of the engine, which found this file through the entry point ``bench``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.settings import did_you_mean

Say = Callable[[str], None]

INTRO = """\
usage: diskmoe bench ab --suite S --a ... --b ...  settings against settings, in turns
       diskmoe bench kernels [--json]            speed of each weight format against memory's
       diskmoe bench disk MODEL|DIR [--json]     speed of the reader against plain blocking reads
       diskmoe bench synth --like SHAPE --out DIR  a model of random weights and true shape
       diskmoe bench decode MODEL --tokens N     decode and prompt speed with fixed token ids
       diskmoe bench replay TRACE                hits of each cache policy in a recorded routing
       diskmoe bench drafts [MODEL]              speed with no, so many, and planned drafts
       diskmoe bench ppl MODEL FILE              perplexity of a text, and bits per byte
       diskmoe bench peer llama.cpp ...          llama.cpp on the same weights, in turns with ours

'diskmoe bench COMMAND --help' lists the options of a command.
"""
COMMANDS = ("ab", "kernels", "disk", "synth", "decode", "replay", "drafts", "ppl", "peer")


def main(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """Benchmarks: A/B runs, kernels, the disk, synthetic models, decoding, recorded routings."""
    ours = words[: words.index("--")] if "--" in words else words
    wants_help = any(word in ("--help", "-h") for word in ours) or words[:1] == ["help"]
    command = words[0] if words else ""
    if command not in COMMANDS:
        if wants_help:
            print(INTRO, end="")
            return 0
        if not command:
            raise BadRequest(f"bench needs a command: {', '.join(COMMANDS)}; see diskmoe bench -h")
        raise BadRequest(
            f"unknown command bench {command}{did_you_mean(command, COMMANDS)}; "
            f"there are {', '.join(COMMANDS)}"
        )
    rest = list(words[1:])
    if command == "ab":
        from diskmoe.bench import ab as chosen
    elif command == "kernels":
        from diskmoe.bench import kernels as chosen
    elif command == "disk":
        from diskmoe.bench import disk as chosen
    elif command == "synth":
        from diskmoe.bench import synth as chosen
    elif command == "decode":
        from diskmoe.bench import decode as chosen
    elif command == "drafts":
        from diskmoe.bench import drafts as chosen
    elif command == "peer":
        from diskmoe.bench import peer as chosen
    elif command == "ppl":
        from diskmoe.bench import ppl as chosen
    else:
        from diskmoe.bench import replay as chosen
    if wants_help:
        print(chosen.USAGE, end="")
        return 0
    return chosen.command(rest, env, say)
