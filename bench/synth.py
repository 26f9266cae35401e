"""``diskmoe bench synth``: a model of true shape, random weights and known routing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from diskmoe.bench.words import understood
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.places import as_path

Say = Callable[[str], None]

USAGE = """\
usage: diskmoe bench synth --like SHAPE --out DIR [options]

Writes a model of random weights that has the true shape of SHAPE, for measuring speed: its text is
noise. With --gguf the same weights, equal to the bit, go into a file for other programs too.
Prints a card: how many experts a layer uses over 128 tokens, and how often a least recently used
store of 8, 16, 32 or 64 slots would have had them.

  --like SHAPE       qwen3-30b-a3b, olmoe, glm-4.5-air, gpt-oss-20b; without --gguf also
                     mixtral-8x7b, qwen1.5-moe, minimax-m2, granite-3.1-3b-a800m,
                     deepseek-v2-lite, deepseek-v3, kimi-k2, glm-4.7-flash, glm-5,
                     qwen3-next-80b, qwen3.5-35b
  --out DIR          a new directory, a diskmoe model
  --gguf FILE        also as GGUF, bit for bit: q4, q4_0 and int4 become Q4_0, q4_1 Q4_1, q8 Q8_0,
                     mxfp4 MXFP4
  --layers N         default: as many as the model has
  --vocab N          token ids, from 512 on; default: as many as the model has
  --routing R        how experts are chosen (default uniform):
                     uniform    all alike; a store hits as often as slots / experts
                     zipf:S     the expert of rank r is drawn with weight r**-S
                     sticky     like Qwen3-30B-A3B: hits .38 .53 .65 .73 .85 at 1 2 3 4 6 x top-k
                     sticky:P   a token shares P of its experts with the one before
  --experts FORMAT   q4 (default), q4g64, q4_0, q4_1, int4, mxfp4, q8, bf16, f32
  --dense FORMAT     q8 (default), q4, bf16, f32
  --seed N           other weights, other routing (default 0)
  --threads N        threads that make weights (default: usable cores)
  --json             the card as one JSON object
"""
FLAGS = {
    "--like": True,
    "--layers": True,
    "--vocab": True,
    "--out": True,
    "--gguf": True,
    "--routing": True,
    "--experts": True,
    "--dense": True,
    "--seed": True,
}
SETTINGS = ("THREADS", "JSON", "DEBUG", "VERBOSE")


def command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """Runs ``bench synth``; returns the exit code."""
    line = understood("synth", words, env, FLAGS, SETTINGS)
    if line.places:
        raise BadRequest(
            f"bench synth takes no argument, and got {line.places[0]!r}; see diskmoe bench synth -h"
        )
    for flag in ("--like", "--out"):
        if not line.flags.get(flag):
            raise BadRequest(f"bench synth needs {flag}; see diskmoe bench synth --help")
    from diskmoe.bench.shapes import SHAPES

    shape = SHAPES[line.one_of("--like", list(SHAPES), "")]
    layers = line.whole("--layers", 1, 1024, 0) or None
    vocab = line.whole("--vocab", 512, 1 << 20, 0) or None
    seed = line.whole("--seed", 0, 2**31 - 1, 0)
    out = _place("--out", line.flags["--out"])
    gguf = _place("--gguf", line.flags["--gguf"]) if "--gguf" in line.flags else None
    if gguf is not None and shape.gguf_arch is None:
        kinds = ", ".join(name for name, made in SHAPES.items() if made.gguf_arch is not None)
        raise BadRequest(f"--gguf is not written for {shape.name}, only for {kinds}")

    from diskmoe.bench.model import Synthetic  # these import Numba
    from diskmoe.bench.weights import WRITABLE
    from diskmoe.bench.writing import write_model
    from diskmoe.engine.cores import usable_cores

    experts = line.one_of("--experts", WRITABLE, "q4")
    dense = line.one_of("--dense", ("q8", "q4", "bf16", "f32"), "q8")
    routing = line.flags.get("--routing", "uniform")
    model = Synthetic.make(shape, layers, routing, experts, dense, seed, vocab)
    config = model.config
    say(
        f"synth     {shape.name}: {config.family}, {config.layers} layers, {config.experts} experts "
        f"of {config.expert_width} x {config.hidden}, top-{config.top_k}; experts {experts}, "
        f"dense {dense}, routing {routing}"
    )
    # each thread holds experts in memory, and more threads than processors make none sooner
    threads = min(line.values["THREADS"].value or usable_cores()[0], os.cpu_count() or 1)
    total = write_model(model, out, gguf, shape.gguf_arch, say, threads)
    card = model.card(total)
    if line.values["JSON"].value:
        print(json.dumps({"path": str(out), "gguf": str(gguf) if gguf else None, **card.as_json()}))
    else:
        print("\n".join(card.lines()))
    return 0


def _place(flag: str, text: str) -> Path:
    path = as_path(text)
    if not text or not path.name:
        raise BadRequest(f"{flag} is {text!r}; it must name something new")
    return path
