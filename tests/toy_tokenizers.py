"""Toy tokenizers, made with the tokenizers library."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

LINES = [
    "The capital of France is Paris.",
    "What is the capital of Spain? It is Madrid.",
    "<|user|> is written by templates, naïve café by people.",
    "for i in range(10):\n    total += i\n",
]


def byte_level_tokenizer() -> Tokenizer:
    """GPT-2's kind. Ids 0 to 2 are <|endoftext|>, <|im_start|>, <|im_end|>; 3 is <think>."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        min_frequency=1,
        special_tokens=[
            "<|endoftext|>",
            "<|im_start|>",
            "<|im_end|>",
            "<think>",
        ],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES * 2, trainer)
    return tokenizer


def sentencepiece_tokenizer() -> Tokenizer:
    """Llama-2's and Mixtral's kind: ▁ for a space, <0xHH> for unknown bytes, <s> before a text."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    pieces += sorted(set("HelowrdParis,!caté"))
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = [("P", "a"), ("Pa", "r"), ("Par", "i"), ("Pari", "s"), ("▁", "Paris"), ("l", "l")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer
