"""Make the fixture of tests/golden/tiktoken: a small vocabulary in Kimi's form, and its token ids.

    pip install tiktoken
    python scripts/make_tiktoken_golden.py

``tiktoken.model`` holds ranks trained on the lines below; ``tokenizer_config.json`` is written as
Kimi K2's is; ``expected.json`` has texts and the ids that tiktoken gives them with the pattern of
Kimi's own Python code.
"""

import argparse
import base64
import json
import random
from pathlib import Path
from typing import Any

import tiktoken
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from diskmoe.engine.text.spelling import byte_characters

VOCAB_SIZE = 620
TOKENS = 600  # with ranks
TEXTS = 150
# as moonshotai/Kimi-K2-Instruct's tokenization_kimi.py has it
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_BEFORE, _ENDING = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = (
    r"[\p{Han}]+"
    rf"|{_BEFORE}{_UPPER}*{_LOWER}+{_ENDING}"
    rf"|{_BEFORE}{_UPPER}+{_LOWER}*{_ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LINES = [
    "The quick brown fox jumps over the lazy dog, and it's there that they're jumping again.",
    "def forward(self, hidden_states):\n    return self.down(self.act(self.gate(x)) * self.up(x))\n",
    "我们在这里写一些中文，看看词表会怎么样。今天天气很好，我们去公园散步吧。我们的天气。",
    "日本語のテキストも少しあります。漢字とかな。 한국어도 조금 있습니다.",
    "1234567890 2025-07-11 3.14159 100,000",
    "Ünïcödé naïve café ΑΒΓ αβγ Привет мир",
    "I'LL we'll She's\n\n\n  indented\t\ttabs   spaces aaaaaaaaaaaaa",
]
SPECIAL = {
    600: ("[BOS]", True),
    601: ("[EOS]", True),
    602: ("<|im_end|>", True),
    603: ("<|im_user|>", True),
    604: ("<|im_assistant|>", True),
    606: ("<|tool_call_begin|>", False),
    607: ("<|im_system|>", True),
    608: ("<think>", False),
}


def ranks() -> dict[bytes, int]:
    """Tokens that the lines make frequent, in the order in which they are joined."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENS, min_frequency=1, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(LINES * 2, trainer)
    number = {char: byte for byte, char in enumerate(byte_characters())}
    by_id = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    return {bytes(map(number.__getitem__, token)): rank for token, rank in by_id}


def texts(count: int, seed: int) -> list[str]:
    """Pieces of the lines, odd characters and special tokens, mixed."""
    chance = random.Random(seed)
    parts = [
        *"abzA ÉßǅʰاΩ\n\r\t\u3000\u00a0中文字一二あア한.,'!?-_/\\\"(){}0123456789½²٣",
        "🙂👩\u200d💻",
        "e\u0301",
    ]
    parts += ["'s", "'LL", "'D", "  ", "\n\n", " \n ", "\r\n", "ing", " the", "我们"]
    parts += [text for text, _ in SPECIAL.values()] + ["<|reserved_token_605|>", "<|im_"]
    made = [*LINES, ""]
    while len(made) < count:
        piece = chance.choice(LINES)
        begin = chance.randrange(len(piece))
        mixed = chance.choices(parts, k=chance.randint(0, 12))
        mixed.insert(chance.randint(0, len(mixed)), piece[begin : begin + chance.randint(0, 20)])
        made.append("".join(mixed))
    return made


def reference(mergeable: dict[bytes, int]) -> tiktoken.Encoding:
    names = {f"<|reserved_token_{i}|>": i for i in range(TOKENS, VOCAB_SIZE) if i not in SPECIAL}
    names |= {text: token_id for token_id, (text, _) in SPECIAL.items()}
    return tiktoken.Encoding(
        "kimi", pat_str=PATTERN, mergeable_ranks=mergeable, special_tokens=names
    )


def tokenizer_config() -> dict[str, Any]:
    tokens = {
        str(token_id): {
            "content": text,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": special,
        }
        for token_id, (text, special) in SPECIAL.items()
    }
    return {
        "added_tokens_decoder": tokens,
        "additional_special_tokens": ["<|im_end|>", "<|im_user|>", "<|im_system|>"],
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "bos_token": "[BOS]",
        "clean_up_tokenization_spaces": False,
        "eos_token": "[EOS]",
        "tokenizer_class": "TikTokenTokenizer",
    }


def write_vocabulary(folder: Path, mergeable: dict[bytes, int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in mergeable.items()]
    (folder / "tiktoken.model").write_text("".join(lines), newline="\n")
    config = json.dumps(tokenizer_config(), indent=1, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(config, encoding="utf-8", newline="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    default = Path(__file__).resolve().parents[1] / "tests" / "golden" / "tiktoken"
    parser.add_argument("--out", type=Path, default=default, help="folder of the fixture")
    folder = parser.parse_args().out
    mergeable = ranks()
    write_vocabulary(folder, mergeable)
    encoding = reference(mergeable)
    cases = [[text, encoding.encode(text, allowed_special="all")] for text in texts(TEXTS, 0)]
    rows = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    (folder / "expected.json").write_text(f"[\n{rows}\n]\n", encoding="utf-8", newline="\n")
    print(f"{folder}: {len(mergeable)} ranks, {len(cases)} texts")


if __name__ == "__main__":
    main()
