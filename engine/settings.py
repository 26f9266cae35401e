"""Every setting, once: environment name, flag, type, default, help.

The command line, docs/settings.md, the settings line of a run and the JSON report are all made
from ``SETTINGS``; nothing else knows a default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from diskmoe.engine.setting_values import (
    CONSTRAIN_WORDS,
    any_text,
    bits,
    choice,
    integer,
    number,
    some_text,
    speed,
    switch,
    token_ids,
)
from diskmoe.experts.policy import AUTO, POLICIES
from diskmoe.grammar_draft.spans import DEFAULT_CAP, MAX_CAP
from diskmoe.mtp.draft_model import DEFAULT_P_MIN

PREFIX = "DISKMOE_"


@dataclass(frozen=True)
class Setting:
    """One row of the table. ``default`` None means: decided from the model or the machine."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    help: str
    kind: str = "VALUE"  # what stands behind the flag in the help; "" for a switch
    group: str = "run"
    bare: bool = True  # False: the bare name belongs to others, only DISKMOE_<NAME> is read

    @property
    def flag(self) -> str:
        return "--" + self.name.lower().replace("_", "-")


SETTINGS: tuple[Setting, ...] = (
    Setting("MODEL", some_text, None, "model directory; without it the demo model", "DIR", "what"),
    Setting("PROMPT", any_text, None, "the prompt; else the argument, else stdin", "TEXT", "what"),
    Setting("PROMPT_IDS", token_ids, None, "the prompt as token ids: 1,2,3", "IDS", "what"),
    Setting("SYSTEM", any_text, None, "system message of a chat", "TEXT", "what", bare=False),
    Setting(
        "CHAT",
        choice("auto", "1", "0"),
        "auto",
        "1 chat template, 0 raw text; auto: the template if the model has one",
        "auto|1|0",
        "what",
    ),
    Setting(
        "NGEN",
        integer(1, 1_000_000),
        256,
        "most tokens to generate; without it an answer of chat has up to 2048",
        "N",
        "what",
    ),
    Setting("IGNORE_EOS", switch, False, "go on after the model's stop tokens", "", "what"),
    Setting("STOP", any_text, None, "stop before this text (\\n is a newline)", "TEXT", "what"),
    Setting(
        "CONSTRAIN",
        choice(*CONSTRAIN_WORDS),
        "0",
        "1: the text must follow GRAMMAR or SCHEMA; mask and check: in this one way of the two",
        "0|1|mask|check",
        "what",
    ),
    Setting(
        "GRAMMAR_CACHE",
        some_text,
        None,
        "keep the automata of grammars that constrain in DIR for later runs",
        "DIR",
        "what",
    ),
    Setting(
        "TRIGGER",
        any_text,
        None,
        "constrain from this word, /pattern/ or <[id]> of a token on, not from the start",
        "TEXT",
        "what",
    ),
    Setting(
        "THINK_BUDGET",
        integer(-1, 1_000_000),
        None,
        "most tokens of a thinking block, which is then ended; -1 any, 0 none",
        "N",
        "what",
    ),
    Setting("THINK_MESSAGE", any_text, None, "said before such an end", "TEXT", "what"),
    Setting("TEMP", number(0, 100), None, "temperature; 0 is greedy", "T", "sampling"),
    Setting("TOP_K", integer(0, 10_000_000), None, "keep the k likeliest; 0 all", "K", "sampling"),
    Setting("TOP_P", number(0, 1), None, "keep this share of probability", "P", "sampling"),
    Setting("MIN_P", number(0, 1), None, "drop below this share of the best", "P", "sampling"),
    Setting("SEED", integer(0, 2**63 - 1), None, "makes sampling repeatable", "N", "sampling"),
    Setting(
        "CTX",
        integer(2, 10_000_000),
        None,
        "positions of the KV cache; else what prompt and NGEN need, at most 4096",
        "N",
        "memory",
    ),
    Setting(
        "KV",
        choice("f32", "f16", "q8"),
        "f32",
        "numbers of the KV cache; f16 and q8 take less memory and change the text",
        "f32|f16|q8",
        "memory",
    ),
    Setting("RAM_GB", number(0.01, 100_000), None, "memory budget in GiB", "GB", "memory"),
    Setting(
        "CAP",
        integer(1, 100_000),
        None,
        "hot-store slots per layer; else what the budget holds",
        "N",
        "memory",
    ),
    Setting(
        "POLICY",
        choice("auto", *POLICIES),
        "auto",
        f"which expert a slot loses; auto: {AUTO}, or lru where experts are under 512 KiB",
        "|".join(("auto", *POLICIES)),
        "memory",
    ),
    Setting(
        "PIN_GB",
        number(0, 100_000),
        None,
        "hot-store memory that keeps the experts used most in earlier runs",
        "GB",
        "memory",
    ),
    Setting("USAGE", switch, True, "learn from runs which experts are used most", "0|1", "memory"),
    Setting(
        "EXPERT_BITS",
        bits,
        None,
        "bits of experts when a checkpoint is quantised on the way in",
        "4|8|16|32",
        "memory",
    ),
    Setting("DENSE_BITS", bits, None, "the same for dense weights", "4|8|16|32", "memory"),
    Setting("THREADS", integer(1, 1024), None, "compute threads; else usable cores", "N", "speed"),
    Setting("IO_THREADS", integer(1, 64), 4, "reads in flight", "N", "speed"),
    Setting(
        "DIRECT",
        choice("auto", "1", "0"),
        "auto",
        "read experts past the page cache",
        "auto|1|0",
        "speed",
    ),
    Setting(
        "DISK_BPS",
        speed,
        None,
        "read experts no faster than this, like 500M: an honest slow disk",
        "BPS",
        "speed",
    ),
    Setting("VERIFY", switch, False, "compare each expert's checksum once", "0|1", "speed"),
    Setting(
        "PREFILL_CHUNK",
        integer(1, 4096),
        None,
        "prompt rows per forward; else 256 to 1024, as memory allows",
        "N",
        "speed",
    ),
    Setting(
        "PREFETCH",
        choice("0", "1", "count"),
        "0",
        "read experts that the next layer will probably want while the disk is idle; "
        "count: only count how good the guesses are",
        "0|1|count",
        "speed",
    ),
    Setting(
        "TRACE", some_text, None, "write which experts each token chose to FILE", "FILE", "output"
    ),
    Setting(
        "DRAFT",
        integer(0, MAX_CAP),
        None,
        "so many drafts in each forward besides a grammar's; else as many as pay",
        "N",
        "drafts",
    ),
    Setting("MTP", switch, None, "draft with the model's own head, if it has one", "0|1", "drafts"),
    Setting(
        "NGRAM",
        switch,
        True,
        "draft what followed where the text's last tokens stood before, in it or in the prompt",
        "0|1",
        "drafts",
    ),
    Setting(
        "CORPUS",
        some_text,
        None,
        "draft from texts on disk, made by diskmoe corpus for this model",
        "DIR",
        "drafts",
    ),
    Setting(
        "DRAFT_MODEL",
        some_text,
        None,
        "draft with a small model of the same vocabulary, kept in memory",
        "DIR",
        "drafts",
    ),
    Setting(
        "P_MIN",
        number(0, 1),
        DEFAULT_P_MIN,
        "its drafts end where it gives the next one less than this",
        "P",
        "drafts",
    ),
    Setting(
        "GRAMMAR",
        some_text,
        None,
        "draft what a grammar expects (GBNF, or the name of one of ours); by itself never changes "
        "the text",
        "FILE",
        "drafts",
    ),
    Setting(
        "SCHEMA", some_text, None, "the same from a JSON Schema: a file, or {...}", "FILE", "drafts"
    ),
    Setting(
        "SCHEMA_BLANKS",
        choice("flexible", "compact"),
        "flexible",
        "blanks between the parts of a schema's JSON: as people and programs set them, or none",
        "flexible|compact",
        "drafts",
    ),
    Setting(
        "SCHEMA_LAX",
        switch,
        False,
        "let pass, with a line, what of a schema cannot be enforced",
        "0|1",
        "drafts",
    ),
    Setting(
        "GRAMMAR_DRAFT",
        integer(0, MAX_CAP),
        DEFAULT_CAP,
        "most tokens that a grammar drafts at once; 0 none",
        "N",
        "drafts",
    ),
    Setting("GUARD", switch, True, "switch drafts off that are mostly wrong", "0|1", "drafts"),
    Setting("HOST", some_text, "127.0.0.1", "address to listen at", "ADDR", "serve", bare=False),
    Setting(
        "PORT", integer(0, 65535), 8080, "its port; 0 any that is free", "N", "serve", bare=False
    ),
    Setting(
        "API_KEY",
        some_text,
        None,
        "what clients must send as their key",
        "KEY",
        "serve",
        bare=False,
    ),
    Setting("PARALLEL", integer(1, 64), None, "texts at once; else 2", "N", "serve", bare=False),
    Setting("QUEUE", integer(0, 100_000), 16, "requests that may wait", "N", "serve", bare=False),
    Setting(
        "REQUEST_SECONDS",
        number(1, 1e7),
        3600.0,
        "after so long a request ends with what it has",
        "S",
        "serve",
        bare=False,
    ),
    Setting(
        "BODY_BYTES",
        integer(1000, 1 << 30),
        8 << 20,
        "the longest body of a request",
        "N",
        "serve",
        bare=False,
    ),
    Setting("STATS", switch, True, "the report at the end", "0|1", "output"),
    Setting("JSON", switch, False, "one JSON object on stdout in place of the text", "", "output"),
    Setting("VERBOSE", switch, False, "all settings and sources", "", "output", bare=False),
    Setting("DEBUG", switch, False, "a traceback with an error", "", "output"),
    Setting("CACHE_DIR", any_text, None, "home of the demo model", "DIR", "output", bare=False),
    Setting("STATE_DIR", any_text, None, "home of what is learned", "DIR", "output", bare=False),
)

BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}
