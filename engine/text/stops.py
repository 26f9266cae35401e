"""Which tokens end a text: those that a model's files name, and in a chat those that end a turn.

The rule of this file: an answer ends where its turn ends, and not before. So a marker is here only
if no family writes it within an answer. `<|end|>` is not: gpt-oss ends its thinking with it, and says
what it has to say behind that.
"""

from collections.abc import Mapping
from typing import Any

from diskmoe.engine.errors import BadModel
from diskmoe.engine.text.files import one_line

# What ends an answer, or begins the turn of somebody else, in the family that has a token for it.
TURN_ENDS = frozenset(
    [
        *("<|im_end|>", "<|endoftext|>"),  # ChatML: Qwen, SmolLM
        *("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),  # Llama 3; the last one Granite too
        *("<|user|>", "<|observation|>", "<|system|>"),  # GLM, OLMoE
        *("<|return|>", "<|call|>"),  # gpt-oss
        *("<|im_user|>", "<|im_system|>", "[EOS]", "[EOT]"),  # Kimi
        *("<｜end▁of▁sentence｜>", "<｜User｜>"),  # DeepSeek
        *("[e~[", "]~b]"),  # MiniMax
        *("<|start_of_role|>", "<end_of_turn>", "<start_of_turn>"),  # Granite, Gemma
    ]
)


def turn_ends(special_text: Mapping[int, str]) -> dict[int, str]:
    """The tokens of a vocabulary that end a turn: {id: how it is written}.

    special_text: the special tokens; an ordinary token that is spelled like a marker is text.
    """
    return {token: text for token, text in special_text.items() if text in TURN_ENDS}


def collect_stop_ids(
    vocab_size: int,
    generation_config: Mapping[str, Any] | None,
    config: Mapping[str, Any] | None,
    more: Mapping[str, int | None] | None = None,
) -> tuple[frozenset[int], dict[int, str]]:
    """Union of the stop ids that a model's files name: (ids, {id: sources in words}).

    Each file alone is known to miss some: instruct models often list their end of turn only in
    generation_config, base models only in config. Ids outside the vocabulary cannot be produced;
    they are in the dictionary, marked as ignored, and not in the set. Works without a tokenizer.
    The config of a model that sees has those of its text half in a part of its own.
    """
    sources: dict[int, list[str]] = {}
    half = (config or {}).get("text_config")
    named = [("generation_config", generation_config), ("config", config)]
    if isinstance(half, Mapping):
        named.append(("config", half))
    for name, values in named:
        eos = (values or {}).get("eos_token_id")
        for token_id in eos if isinstance(eos, list) else [eos]:
            if token_id is None:
                continue
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise BadModel(
                    f"{name}.json: eos_token_id holds {one_line(repr(token_id), 40)}, "
                    "not a token id or a list of them"
                )
            names = sources.setdefault(token_id, [])
            if name not in names:
                names.append(name)
    for name, token_id in (more or {}).items():
        if token_id is not None:
            sources.setdefault(token_id, []).append(name)
    outside = {i for i in sources if not 0 <= i < vocab_size}
    told = {
        i: ", ".join(names) + (f" (ignored: the model has {vocab_size} ids)" * (i in outside))
        for i, names in sorted(sources.items())
    }
    return frozenset(sources.keys() - outside), told
