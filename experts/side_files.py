"""What a model directory has beside tensors."""

from pathlib import Path

# Glob patterns. config.json comes last: it makes a directory a model.
COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tiktoken.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    "generation_config.json",
    "LICENSE",
    "LICENSE.md",
    "LICENSE.txt",
    "NOTICE",
    "config.json",
)


def side_files(model: Path) -> list[str]:
    """What a model directory has beside tensors: relative paths, in the order to copy them."""
    return [
        str(source.relative_to(model))
        for pattern in COPIED
        for source in sorted(model.glob(pattern))
        if source.is_file()
    ]
