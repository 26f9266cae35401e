"""``diskmoe bench COMMAND``: the words, and which file does the work.

Results go to stdout, everything said beside them to stderr. Errors are raised, and made one line by
the command line of the engine, which found this file through the entry point ``bench``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.help import exit_codes
from diskmoe.engine.setting_values import did_you_mean

Say = Callable[[str], None]

INTRO = """\
usage: diskmoe bench ab --suite S --a ... --b ...  settings against settings, in turns
       diskmoe bench report DIR                  a page of what such a comparison left in DIR
       diskmoe bench roofline [MODEL]            how far from what memory and disk allow, and why
       diskmoe bench kernels [--json]            speed of each weight format against memory's
       diskmoe bench disk MODEL|DIR [--json]     speed of the reader against plain blocking reads
       diskmoe bench synth --like SHAPE --out DIR  a model of random weights and true shape
       diskmoe bench decode MODEL --tokens N     decode and prompt speed with fixed token ids
       diskmoe bench replay TRACE                hits of each cache policy in a recorded routing
       diskmoe bench drafts [MODEL]              speed with no, so many, and planned drafts
       diskmoe bench serve [MODEL]               the server beside the command line; texts that share forwards
       diskmoe bench grammar                     masks beside XGrammar's and llguidance's
       diskmoe bench ppl MODEL FILE              perplexity of a text, and bits per byte
       diskmoe bench peer llama.cpp ...          llama.cpp on the same weights, in turns with ours

'diskmoe bench COMMAND --help' lists the options of a command. docs/benchmarks.md tells how to read
what they print, and what can go wrong.

examples:
{examples}
"""
# by command: a line to begin with
EXAMPLES: Mapping[str, str] = {
    "ab": 'diskmoe bench ab --suite ndjson --a "" --b GRAMMAR=fit_compact --out runs',
    "peer": "diskmoe bench peer llama.cpp --binary llama-bench --gguf big.gguf --model big",
    "report": "diskmoe bench report runs",
    "roofline": "diskmoe bench roofline ~/models/qwen3-q4 --ram-gb 6",
    "kernels": "diskmoe bench kernels --formats q4,q8 --threads 2",
    "disk": "diskmoe bench disk ~/models/qwen3-q4",
    "synth": "diskmoe bench synth --like qwen3-30b-a3b --layers 12 --out big --gguf big.gguf",
    "decode": "diskmoe bench decode big --tokens 128 --prompt 512",
    "replay": "diskmoe bench replay trace.csv --slots 8,16,32",
    "drafts": "diskmoe bench drafts --slots 8,16 --disks 200M,0",
    "serve": "diskmoe bench serve --parts overhead,union --pairs 8",
    "grammar": "diskmoe bench grammar --runs 3",
    "ppl": "diskmoe bench ppl ~/models/qwen3-q4 text.txt --out sums.json",
}
COMMANDS = tuple(EXAMPLES)  # each is a file beside this one


def main(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """Benchmarks: A/B runs, kernels, the disk, synthetic models, decoding, recorded routings."""
    ours = words[: words.index("--")] if "--" in words else words
    wants_help = any(word in ("--help", "-h") for word in ours) or words[:1] == ["help"]
    command = words[0] if words else ""
    if command not in COMMANDS:
        if wants_help:
            print(INTRO.format(examples="\n".join(f"  {line}" for line in EXAMPLES.values())))
            print(exit_codes())
            return 0
        if not command:
            raise BadRequest(f"bench needs a command: {', '.join(COMMANDS)}; see diskmoe bench -h")
        raise BadRequest(
            f"unknown command bench {command}{did_you_mean(command, COMMANDS)}; "
            f"there are {', '.join(COMMANDS)}"
        )
    rest = list(words[1:])
    chosen = import_module(f"diskmoe.bench.{command}")
    if wants_help:
        print(f"{chosen.USAGE}\nexample:\n  {EXAMPLES[command]}\n\n{exit_codes()}")
        return 0
    return chosen.command(rest, env, say)
