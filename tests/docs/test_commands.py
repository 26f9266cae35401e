"""Every command, flag and setting that the manual names is there, and is understood as it is written."""

import re
from pathlib import Path

import pytest
from manual_text import ROOT, commands_of, pages, prose_of, spans_of, understand, words_of

from diskmoe.bench.cli import COMMANDS as BENCHES
from diskmoe.bench.cli import EXAMPLES
from diskmoe.engine.commands import COMMANDS
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.setting_sources import resolve
from diskmoe.engine.settings import BY_NAME, PREFIX, SETTINGS

NAMES = [str(path.relative_to(ROOT)) for path in pages()]
# upper case words that are no settings of ours
OTHERS = {
    "MODEL", "SRC", "OUT", "DIR", "FILE", "TEXT", "PATH", "SUMS", "N", "S", "KEY", "RAM", "DISK",
    "NUMBA_CACHE_DIR", "DISKMOE_", "LOCALAPPDATA", "BOS", "LOG", "AVX", "VNNI", "TRACE",
}  # fmt: skip
OTHERS_FLAGS = {
    "--ioengine",
    "--direct",
    "--repack",
    "--no-warmup",
    "--no-deps",
    "--check",
    "--pre",
}


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_understood(name: str) -> None:
    for line in commands_of((ROOT / name).read_text("utf-8")):
        for words, env in words_of(line):
            try:
                understand(words, env)
            except Exception as error:  # noqa: BLE001
                pytest.fail(f"{name}: {line}: {error}")


def test_a_flag_a_value_and_a_command_that_there_is_not_are_found() -> None:
    for line in (
        "diskmoe --ram-gib 6 Hi",
        "RAM_GB=much diskmoe Hi",
        "diskmoe convert A B --expert q4",
        "diskmoe serve --paralel 2",
        "diskmoe bench ad --a ''",
        "diskmoe bench ppl MODEL FILE --stripe 3",
        "diskmoe grammar cheque a.gbnf",
        "diskmoe plan m --ngen 3x",
    ):
        (found,) = words_of(line)
        with pytest.raises(BadRequest):
            understand(*found)


def test_examples_of_the_help_are_understood() -> None:
    lines = [line for command in COMMANDS.values() for line, _ in command.examples]
    for line in [*lines, *EXAMPLES.values()]:
        found = list(words_of(line))
        assert found, line
        for words, env in found:
            understand(words, env)


@pytest.mark.parametrize("name", NAMES)
def test_every_flag_and_setting_within_a_line_is_there(name: str) -> None:
    page = (ROOT / name).read_text("utf-8")
    flags = {setting.flag for setting in SETTINGS} | {"--raw", "--help", "--version"} | OTHERS_FLAGS
    for command in COMMANDS.values():
        flags |= set(command.flags)
    for bench in BENCHES:
        module = __import__(f"diskmoe.bench.{bench}", fromlist=["FLAGS"])
        flags |= set(module.FLAGS)
    flags |= {"--regex", "--choices", "--root", "--strict", "--profile", "--compact", "--lax"}
    for span in spans_of(page):
        flag = re.match(r"--[a-z][a-z0-9-]*", span)
        assert not flag or flag[0] in flags, f"{name}: {span}"
        setting = re.fullmatch(rf"(?:{PREFIX})?([A-Z][A-Z_]+)(?:=(\S*))?", span)
        if setting and setting[1] not in OTHERS:
            assert setting[1] in BY_NAME, f"{name}: {span}"
            if setting[2] and re.fullmatch(r"[-0-9.a-z]+", setting[2]) and setting[2] != "n":
                resolve({setting[1]: setting[2]}, {})


@pytest.mark.parametrize("name", NAMES)
def test_every_link_within_the_manual_leads_somewhere(name: str) -> None:
    page = prose_of((ROOT / name).read_text("utf-8"))
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page):
        if "://" not in target:
            assert ((ROOT / name).parent / target).exists(), f"{name}: {target}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    for path in sorted(Path(ROOT / "docs").glob("*.md")):
        assert path.name == "README.md" or f"({path.name})" in index, path.name
