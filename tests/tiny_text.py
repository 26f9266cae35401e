"""A tokenizer for tiny models: every byte is a token, and a few words are."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB = 272  # rows of a model for it; it has a few tokens fewer
WORDS = (("t", "h"), ("th", "e"), ("i", "n"), ("o", "n"))


def write_tokenizer(folder: Path, words: tuple[tuple[str, str], ...] = WORDS) -> Path:
    """Puts tokenizer.json into a model directory; `words` are pairs of tokens that are one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate([*alphabet, *map("".join, words)])}
    tokenizer = Tokenizer(models.BPE(vocab, list(words)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    data = json.loads(tokenizer.to_str())
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    return folder
