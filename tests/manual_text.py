"""What README and docs/ hold that can be checked: blocks of code, code within lines, commands.

for command in commands_of(page): understand(command.words, command.env)
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from diskmoe.bench.cli import COMMANDS as BENCHES
from diskmoe.bench.words import understood as understood_bench
from diskmoe.engine import make
from diskmoe.engine.arguments import run_settings
from diskmoe.engine.commands import COMMANDS
from diskmoe.engine.errors import BadRequest
from diskmoe.grammar_draft import cli as grammar_cli

ROOT = Path(__file__).resolve().parents[1]
NOT_FOR_USERS = ("DESIGN.md",)
_RUNS = ("run", "chat", "serve", "plan")
_ASSIGNED = re.compile(r"[A-Z_]+=.*", re.DOTALL)
_COMMAND_START = re.compile(r"(^|[|&(`]\s*)((?:[A-Z_]+=\S+\s+)*)diskmoe(\s|$)")


def pages() -> list[Path]:
    """README and the pages of docs/ that are written for users."""
    docs = sorted(path for path in (ROOT / "docs").glob("*.md") if path.name not in NOT_FOR_USERS)
    return [ROOT / "README.md", *docs]


@dataclass(frozen=True)
class Block:
    """A fenced block. line: its first line in the page, from 1."""

    language: str
    text: str
    line: int


def blocks_of(page: str) -> Iterator[Block]:
    """The fenced blocks of a page."""
    language, lines, first = "", list[str](), 0
    for number, line in enumerate(page.splitlines(), 1):
        if line.startswith("```"):
            if first:
                yield Block(language, "\n".join(lines) + "\n", first)
                first = 0
            else:
                language, lines, first = line[3:].strip(), [], number + 1
        elif first:
            lines.append(line)
    assert not first, f"the block of line {first} has no end"


def prose_of(page: str) -> str:
    """A page without its blocks."""
    return re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)


def spans_of(page: str) -> Iterator[str]:
    """Code within lines, but for that of blocks."""
    for _, span in re.findall(r"(`+)(.+?)\1(?!`)", prose_of(page), flags=re.DOTALL):
        yield " ".join(span.split())


def commands_of(page: str) -> Iterator[str]:
    """Lines that call diskmoe: of blocks for a shell, and within lines."""
    for block in blocks_of(page):
        if block.language in ("sh", "console"):
            joined = block.text.replace("\\\n", " ")
            yield from (line for line in joined.splitlines() if _COMMAND_START.search(line))
    for span in spans_of(page):
        if _COMMAND_START.match(span) and span != "diskmoe":
            yield span
    for line in page.splitlines():  # README's results show their commands like this
        if line.startswith("    diskmoe "):
            yield line.strip()


def words_of(line: str) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Each call of diskmoe in a line, as (words, environment). Of what a usage leaves open, the
    first way is taken."""
    said = re.sub(r"\[(?=[-A-Z])|(?<=\w)\]|(?<=\.)\](?!\s*\d)", "", line)
    for call in re.split(r"\s(?:\||&&)\s", said):
        words = shlex.split(call.partition(" > ")[0], comments=True)
        env = {}
        while words and _ASSIGNED.fullmatch(words[0]):
            name, _, value = words.pop(0).partition("=")
            env[name] = value
        if words and words[0] == "diskmoe":
            yield [word for word in words[1:] if word != "..."], env


def understand(words: Sequence[str], env: Mapping[str, str]) -> None:
    """Parses a call as the program does, and does nothing.

    Raises:
        BadRequest, BadGrammar: as the program would.
    """
    if not words or words[0] in ("--help", "--version", "help"):
        return
    name, rest = (words[0], words[1:]) if words[0] in COMMANDS else ("run", words)
    if "--help" in words or "-h" in words:
        return
    if words[0] == "grammar":
        if words[1:2] not in (["check"], ["test"]):
            raise BadRequest(f"no command grammar {words[1:2]}")
        grammar_cli.options_of(words[2:])
    elif words[0] == "bench":
        if len(words) > 1:
            if words[1] not in BENCHES:
                raise BadRequest(f"no command bench {words[1]}")
            bench = import_module(f"diskmoe.bench.{words[1]}")
            understood_bench(words[1], words[2:], env, bench.FLAGS, bench.SETTINGS)
    elif name in _RUNS:
        run_settings(rest, env, text_positional="PROMPT" if name == "run" else "MODEL")
    else:
        make.understood(name, rest, env)
