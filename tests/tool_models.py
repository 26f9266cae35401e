"""Text sides of models that call tools: a tiny tokenizer with a family's markers, and its template."""

import json
from collections.abc import Iterable
from pathlib import Path

from tiny_text import write_tokenizer

from diskmoe.engine.text.side import TextSide

VOCAB = 300
TEMPLATES = Path(__file__).parent / "golden" / "chat"
# per golden template: the form it is of, and the special tokens of its family
FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "deepseek_v3": (
        "DeepSeek V3.1",
        (
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁sep｜>",
            "<｜end▁of▁sentence｜>",
        ),
    ),
    "glm4_moe": ("GLM-4.5", ("<|observation|>",)),
    "gpt_oss": (
        "gpt-oss",
        (
            *("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>"),
            *("<|return|>", "<|call|>"),
        ),
    ),
    "granitemoe": ("Granite 3", ("<|tool_call|>", "<|end_of_text|>")),
    "kimi_k2": (
        "Kimi-K2",
        (
            *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
            "<|im_end|>",
        ),
    ),
    "minimax_m2": ("MiniMax-M2", ("[e~[", "<minimax:tool_call>", "</minimax:tool_call>")),
    "qwen3_coder": ("Qwen3-Coder", ("<|im_end|>",)),
    "qwen3_moe": ("Hermes", ("<|im_end|>",)),
    "mixtral": ("bare JSON", ()),
    "olmoe": ("bare JSON", ()),
    "qwen2_moe": ("bare JSON", ()),
}


def add_tokens(folder: Path, special: Iterable[str], plain: Iterable[str] = ()) -> None:
    """More tokens for a tokenizer.json: that print nothing, and that print what they are."""
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    last = data["added_tokens"][-1]
    for is_special, names in ((True, special), (False, plain)):
        for name in names:
            number = data["added_tokens"][-1]["id"] + 1
            token = {**last, "id": number, "content": name, "special": is_special}
            data["added_tokens"].append(token)
    path.write_text(json.dumps(data), encoding="utf-8")


def text_side(folder: Path, name: str) -> TextSide:
    """Of a golden template."""
    write_tokenizer(folder)
    add_tokens(folder, FAMILIES[name][1])
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    (folder / "chat_template.jinja").write_text(
        (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"), encoding="utf-8"
    )
    return TextSide.load(folder, {}, VOCAB)
