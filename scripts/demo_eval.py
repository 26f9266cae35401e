"""Figures of the demonstration model, measured on held-out prompts."""

from __future__ import annotations

import json
import re

import numpy as np
import torch
import torch.nn.functional as F
from demo_net import Net, forward
from demo_text import Text, answer, chat_ids, generate
from tokenizers import Tokenizer


@torch.inference_mode()
def score(net: Net, texts: list[Text]) -> dict[str, float]:
    """Perplexity of the answer tokens, and how often the greedy choice is the text's token."""
    loss, right, count = 0.0, 0, 0
    order = sorted(texts, key=lambda t: len(t.ids))
    for begin in range(0, len(order), 16):
        group = order[begin : begin + 16]
        tokens = torch.zeros((len(group), len(group[-1].ids)), dtype=torch.long)
        for row, text in enumerate(group):
            tokens[row, : len(text.ids)] = torch.from_numpy(text.ids.astype(np.int64))
        hidden = forward(net, tokens[:, :-1])
        for row, text in enumerate(group):
            span = slice(text.prompt - 1, len(text.ids) - 1)
            logits = hidden[row, span] @ net.embed.T
            target = tokens[row, text.prompt : len(text.ids)]
            loss += float(F.cross_entropy(logits, target, reduction="sum"))
            right += int((logits.argmax(-1) == target).sum())
            count += len(target)
    return {"ppl": float(np.exp(loss / count)), "match": right / count, "tokens": count}


def held_texts(
    net: Net, tokenizer: Tokenizer, prompts: list[str], states: bool, heat: float = 0.0
) -> list[Text]:
    """Answers to held-out prompts, greedy unless `heat` is given."""
    ids = [chat_ids(tokenizer, p) for p in prompts]
    made = generate(net, ids, 200, [heat] * len(ids), min(80, len(ids)), 0, states)
    return [text for _, text in sorted(made, key=lambda pair: pair[0])]


def parses(said: str) -> bool:
    """The whole answer, or its one fenced block, is JSON."""
    blocks = re.findall(r"```(?:json)?\s*\n(.*?)```", said, flags=re.DOTALL)
    for text in [said, *(blocks if len(blocks) == 1 else [])]:
        try:
            json.loads(text)
            return True
        except json.JSONDecodeError:
            pass
    return False


def json_answers(net: Net, tokenizer: Tokenizer, prompts: list[str]) -> list[tuple[str, bool]]:
    return [(said, parses(said)) for said in answer(net, tokenizer, prompts)]
