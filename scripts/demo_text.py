"""Prompts and text for the demonstration model: everything is written by the model itself.

Prompts are hand-written templates crossed with topics (`demo_prompts/train.txt`). Answers are
generated in batches with a key/value cache; the final hidden states are kept because the MTP
layer trains on them.
"""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from demo_net import Cache, Net, extend
from tokenizers import Tokenizer
from torch import Tensor

from diskmoe.engine.demo_form import HIDDEN

END = 2  # <|im_end|>
SYSTEM = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\n"
)
ANSWER = "<|im_end|>\n<|im_start|>assistant\n"


@dataclass
class Text:
    """One sequence: all token ids, where the answer begins, and the states of all positions."""

    ids: np.ndarray
    prompt: int
    states: np.ndarray | None = None


def chat_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    return tokenizer.encode(SYSTEM + prompt + ANSWER, add_special_tokens=False).ids


def lines(path: Path) -> list[str]:
    return [x.strip() for x in path.read_text().splitlines() if x.strip() and x[0] != "#"]


def train_prompts(paths: list[Path], seed: int, forbidden: set[str]) -> list[str]:
    """All templates of the files filled in, shuffled; sections are [name] lines."""
    sections: dict[str, list[str]] = {}
    current = sections.setdefault("single", [])
    for line in itertools.chain.from_iterable(map(lines, paths)):
        if re.fullmatch(r"\[\w+\]", line):
            current = sections.setdefault(line[1:-1], [])
        else:
            current.append(line)
    rng = random.Random(seed)
    out = set(sections["single"])
    for template in sections["template"]:
        names = re.findall(r"<(\w+)>", template)
        space = 1
        for name in names:
            space *= len(sections[name])
        for _ in range(min(space * 2, 200)):
            text = template
            for name in names:
                text = text.replace(f"<{name}>", rng.choice(sections[name]), 1)
            out.add(text)
    kept = sorted(x for x in out if x.lower() not in forbidden)
    rng.shuffle(kept)
    return kept


def _pick(logits: Tensor, heat: Tensor, generator: torch.Generator) -> Tensor:
    """Greedy where heat is 0, otherwise sampled at that temperature (by Gumbel noise)."""
    hot = heat.nonzero()[:, 0]
    choice = logits.argmax(-1)
    if len(hot):
        noise = -torch.empty(len(hot), logits.shape[1]).exponential_(generator=generator).log()
        choice[hot] = (logits[hot] / heat[hot, None] + noise).argmax(-1)
    return choice


@torch.inference_mode()
def generate(
    net: Net,
    prompts: list[list[int]],
    new: int,
    heat: list[float] | None = None,
    rows: int = 128,
    seed: int = 0,
    states: bool = False,
    vocab: Tensor | None = None,
    stop: int = END,
) -> Iterator[tuple[int, Text]]:
    """Yield (index, text) as sequences finish; `vocab` restricts the tokens that may come.

    All prompts must begin with the same tokens (the system turn): its keys are computed once.
    Prompts are taken in order of length, so a batch needs little padding; rows that have ended
    are dropped from the batch when they are a fifth of it.
    """
    generator = torch.Generator().manual_seed(seed)
    heats = torch.tensor(heat or [0.0] * len(prompts))
    head = net.embed if vocab is None else net.embed[vocab]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    first = prompts[order[0]]
    shared = 0
    while shared < len(first) - 1 and all(p[shared] == first[shared] for p in prompts):
        shared += 1
    longest = len(prompts[order[-1]])
    cache = Cache(rows, longest + new)
    prefix_cache = Cache(1, max(shared, 1))
    prefix_states = extend(
        net, prefix_cache, torch.tensor([first[:shared]]), torch.arange(shared)[None], None
    )
    for begin in range(0, len(order), rows):
        batch = order[begin : begin + rows]
        count, width = len(batch), len(prompts[batch[-1]]) - shared
        cache.rows, cache.used = count, shared
        cache.keys[:, :count, :, :shared] = prefix_cache.keys[:, :, :, :shared]
        cache.values[:, :count, :, :shared] = prefix_cache.values[:, :, :, :shared]
        pad = torch.tensor([width - len(prompts[i]) + shared for i in batch])
        tokens = torch.full((count, width), END)
        for row, i in enumerate(batch):
            tokens[row, pad[row] :] = torch.tensor(prompts[i][shared:])
        positions = (torch.arange(shared, shared + width) - pad[:, None]).clamp_min(0)
        hidden = extend(net, cache, tokens, positions, (shared, shared + pad))
        history = [hidden.half().numpy()] if states else []
        alive = torch.arange(count)  # original row of each row in the cache
        spread = [np.arange(count)]
        written = torch.zeros((count, new), dtype=torch.long)
        length = torch.zeros(count, dtype=torch.long)
        done = torch.zeros(count, dtype=torch.bool)
        warm = heats[batch]
        for step in range(new):
            choice = _pick(hidden[:, -1] @ head.T, warm[alive], generator)
            if vocab is not None:
                choice = vocab[choice]
            going = ~done[alive]
            written[alive[going], step] = choice[going]
            length[alive[going]] = step + 1
            done[alive] |= choice == stop
            left = (~done[alive]).nonzero()[:, 0]
            if len(left) == 0 or step == new - 1:
                break
            if len(left) <= 0.8 * len(alive):
                cache.keep(left)
                alive, choice = alive[left], choice[left]
            positions = (cache.used - pad[alive])[:, None]
            hidden = extend(net, cache, choice[:, None], positions, (shared, shared + pad[alive]))
            if states:
                history.append(hidden[:, 0].half().numpy())
                spread.append(alive.numpy().copy())
        for row, i in enumerate(batch):
            made = int(length[row])
            ids = np.array(prompts[i] + written[row, :made].tolist(), dtype=np.int32)
            kept = None
            if states:
                kept = np.empty((len(ids) - 1, HIDDEN), dtype=np.float16)
                kept[:shared] = prefix_states[0].half().numpy()
                kept[shared : len(prompts[i])] = history[0][row, int(pad[row]) :]
                for step in range(1, made):
                    place = int(np.searchsorted(spread[step], row))
                    kept[len(prompts[i]) + step - 1] = history[step][place]
            yield i, Text(ids, len(prompts[i]), kept)


def save_texts(path: Path, texts: list[Text]) -> None:
    """Ids flat with lengths and prompt lengths; states, where there are any, in a file beside."""
    part = path.with_name(f"part-{path.name}")
    np.savez(
        part,
        ids=np.concatenate([t.ids for t in texts]),
        lengths=np.array([len(t.ids) for t in texts], dtype=np.int32),
        prompts=np.array([t.prompt for t in texts], dtype=np.int32),
    )
    states = [t.states for t in texts if t.states is not None]
    if states:
        with path.with_suffix(".states.npy").open("wb") as file:
            np.save(file, np.concatenate(states))
    part.rename(path)


def load_texts(path: Path, states: bool = False) -> list[Text]:
    data = np.load(path)
    edges = np.concatenate([[0], np.cumsum(data["lengths"])])
    held = np.load(path.with_suffix(".states.npy"), mmap_mode="r") if states else None
    out = []
    for index, prompt in enumerate(data["prompts"]):
        begin, end = int(edges[index]), int(edges[index + 1])
        kept = None if held is None else held[begin - index : end - index - 1]
        out.append(Text(data["ids"][begin:end], int(prompt), kept))
    return out


def answer(net: Net, tokenizer: Tokenizer, prompts: list[str], new: int = 200) -> list[str]:
    """Greedy answers, in the order of the prompts."""
    ids = [chat_ids(tokenizer, p) for p in prompts]
    out = [""] * len(prompts)
    for index, text in generate(net, ids, new, rows=min(64, len(ids))):
        out[index] = tokenizer.decode(text.ids[text.prompt :].tolist(), skip_special_tokens=True)
    return out


class Clock:
    """Says how far a long job is, now and then."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.start, self.said = what, total, time.time(), time.time()

    def tell(self, done: int, tokens: int) -> None:
        now = time.time()
        if now - self.said > 20 or done == self.total:
            self.said = now
            rate = tokens / (now - self.start)
            print(f"{self.what} {done}/{self.total}, {tokens} tokens, {rate:.0f}/s", flush=True)
