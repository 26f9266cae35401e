"""How to run a model: memory, I/O, drafts. A value that is out of its range is refused here."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.kernels.heads import KV_KIND
from diskmoe.engine.setting_values import CONSTRAIN_WORDS, did_you_mean
from diskmoe.experts.policy import POLICIES
from diskmoe.grammar_draft.spans import DEFAULT_CAP, MAX_CAP
from diskmoe.mtp.draft_model import DEFAULT_P_MIN

if TYPE_CHECKING:
    from typing_extensions import Unpack

DIRECT_WORDS = ("auto", "1", "0")
_PATHS = ("trace", "usage", "corpus", "draft_model", "grammar_cache")


def check_constrain(value: object) -> None:
    """Raises BadRequest where a value says nothing about enforcing."""
    if value not in CONSTRAIN_WORDS:
        raise BadRequest(f"constrain is {value!r}; it must be one of {', '.join(CONSTRAIN_WORDS)}")


@dataclass(frozen=True)
class Options:
    """How to run a model. None means: decided from the model or the machine.

    cap: hot-store slots per layer. expert_bits, dense_bits: 4, 8, 16 or 32, for checkpoints that
    are quantised on the way in. ctx: positions of the KV cache. ram_gb: memory budget in GiB.
    kv: format of the KV cache, f32, f16 or q8; all but f32 change the text. disk_bps: the bytes a
    second that reading experts is held down to. verify: compare each expert's checksum once.
    usage: folder of what is learned from runs, of which pin_gb GiB stay in memory; None: nothing is.
    draft_rows: most drafts of a forward, for which memory is planned; 0: none. span: most of
    them in a row that a grammar forces. draft: so many others in each forward; None: as many as
    pay. ngram: draft what followed where the text's end stood before; corpus: where it stands in
    the texts of this directory; draft_model: what the small model of this directory says, for as
    long as it gives it p_min; mtp: what the model's own head says, where it has one; None: and its
    memory can be had. guard: switch drafts off that are mostly wrong. parallel: texts at once, each
    with a KV cache of its own. constrain: what a run's grammar does that says nothing of its own. "0":
    it drafts; "1": it is enforced; "mask", "check": it is enforced in this way of the two that "1"
    chooses from. grammar_cache: directory where the automata of grammars that constrain are kept.

    Raises:
        BadRequest: a value that is out of its range.
    """

    cap: int | None = None
    expert_bits: int | None = None
    dense_bits: int | None = None
    ctx: int | None = None
    ram_gb: float | None = None
    threads: int | None = None
    io_threads: int = 4
    direct: str = "auto"
    prefill_chunk: int | None = None
    disk_bps: int | None = None
    verify: bool = False
    kv: str = "f32"
    prefetch: str = "0"
    policy: str = "auto"
    trace: Path | None = None
    usage: Path | None = None
    pin_gb: float | None = None
    longest_prompt: int | None = None
    draft_rows: int = DEFAULT_CAP
    span: int = DEFAULT_CAP
    draft: int | None = None
    ngram: bool = True
    corpus: Path | None = None
    draft_model: Path | None = None
    p_min: float = DEFAULT_P_MIN
    guard: bool = True
    mtp: bool | None = None
    constrain: str = "0"
    grammar_cache: Path | None = None
    parallel: int = 1

    def __post_init__(self) -> None:
        for name, least in (
            ("cap", 1),
            ("ctx", 2),
            ("threads", 1),
            ("io_threads", 1),
            ("prefill_chunk", 1),
            ("longest_prompt", 1),
            ("disk_bps", 1),
            ("parallel", 1),
        ):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                raise BadRequest(f"{name} is {value!r}; it must be a whole number from {least} on")
        if self.parallel > 1 and self.trace is not None:
            raise BadRequest("a trace is of one text at a time: parallel must be 1 with it")
        for name in ("draft_rows", "span", "draft"):
            value = getattr(self, name)
            if value is None and name == "draft":
                continue
            if type(value) is not int or not 0 <= value <= MAX_CAP:
                raise BadRequest(
                    f"{name} is {value!r}; it must be a whole number from 0 to {MAX_CAP}"
                )
        for name in ("expert_bits", "dense_bits"):
            value = getattr(self, name)
            if value is not None and value not in (4, 8, 16, 32):
                raise BadRequest(f"{name} is {value!r}; it must be 4, 8, 16 or 32")
        for name in ("ram_gb", "pin_gb"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, int | float):
                raise BadRequest(f"{name} is {value!r}; it must be a number")
        for name in _PATHS:
            value = getattr(self, name)
            if value is not None and not isinstance(value, Path):
                raise BadRequest(f"{name} is {value!r}; it must be a Path")
        if self.ram_gb is not None and not (0 < self.ram_gb < math.inf):
            raise BadRequest(f"ram_gb is {self.ram_gb!r}; it must be a number above 0")
        if self.pin_gb is not None and not (0 <= self.pin_gb < math.inf):
            raise BadRequest(f"pin_gb is {self.pin_gb!r}; it must be a number from 0 on")
        if not isinstance(self.p_min, int | float) or not 0 <= self.p_min <= 1:
            raise BadRequest(f"p_min is {self.p_min!r}; it must be a number from 0 to 1")
        if self.policy not in ("auto", *POLICIES):
            raise BadRequest(
                f"policy is {self.policy!r}; it must be one of auto, {', '.join(POLICIES)}"
            )
        if self.prefetch not in ("0", "1", "count"):
            raise BadRequest(f"prefetch is {self.prefetch!r}; it must be 0, 1 or count")
        check_constrain(self.constrain)
        if self.kv not in KV_KIND:
            raise BadRequest(f"kv is {self.kv!r}; it must be one of {', '.join(KV_KIND)}")
        if self.direct not in DIRECT_WORDS:
            raise BadRequest(f"direct is {self.direct!r}; it must be auto, 1 or 0")


class OptionWords(TypedDict, total=False):
    """The fields of ``Options`` as keywords; see there. Paths may be text."""

    cap: int | None
    expert_bits: int | None
    dense_bits: int | None
    ctx: int | None
    ram_gb: float | None
    threads: int | None
    io_threads: int
    direct: str
    prefill_chunk: int | None
    disk_bps: int | None
    verify: bool
    kv: str
    prefetch: str
    policy: str
    trace: str | Path | None
    usage: str | Path | None
    pin_gb: float | None
    longest_prompt: int | None
    draft_rows: int
    span: int
    draft: int | None
    ngram: bool
    corpus: str | Path | None
    draft_model: str | Path | None
    p_min: float
    guard: bool
    mtp: bool | None
    constrain: str
    grammar_cache: str | Path | None
    parallel: int


def options_with(options: Options | None = None, **words: Unpack[OptionWords]) -> Options:
    """Options, of which some are given in words.

    Raises:
        BadRequest: an option that there is not, or out of its range.
    """
    known = [field.name for field in fields(Options)]
    for name in words:
        if name not in known:
            raise BadRequest(f"there is no option {name}{did_you_mean(name, known)}")
    given = {
        name: Path(value) if name in _PATHS and isinstance(value, str) else value
        for name, value in words.items()
    }
    return replace(options or Options(), **given)
