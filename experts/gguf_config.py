"""What a GGUF's metadata say of any model, in the words of the hub's config.json.

The rule of this file: a config says what the file says; what it would be silent about is taken from
the tensors (is there a head of its own, which layers have experts). `gguf_families` has the rest.
"""

from collections.abc import Mapping
from typing import Any

from diskmoe.experts.errors import BadModel
from diskmoe.experts.gguf_file import Metadata
from diskmoe.experts.safetensors_io import TensorInfo, shown

Tensors = Mapping[str, TensorInfo]
Config = dict[str, Any]

SOFTMAX, SIGMOID = 1, 2  # expert_gating_func
MOST_LAYERS = 1024
MOST_WIDTH = 1 << 20  # of a head, or of all heads


class Facts:
    """The entries of one model, without their architecture's name before them."""

    def __init__(self, metadata: Metadata, tensors: Tensors) -> None:
        self.metadata, self.tensors = metadata, tensors
        self.architecture: str = metadata.value("general.architecture", str)

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def has(self, name: str) -> bool:
        return self.metadata.has(self.key(name))

    def integer(self, name: str, default: int | None = None) -> int:
        return self.metadata.integer(self.key(name), default)

    def number(self, name: str, default: float | None = None) -> float:
        return self.metadata.number(self.key(name), default)

    def flag(self, name: str, default: bool) -> bool:
        return self.metadata.get(self.key(name), bool, default)

    def bad(self, name: str, what: str) -> BadModel:
        return self.metadata.bad(self.key(name), what)

    @property
    def layers(self) -> int:
        """Layers without those of an MTP head."""
        found = self.integer("block_count") - self.integer("nextn_predict_layers", 0)
        if not 1 <= found <= MOST_LAYERS:
            raise self.bad("block_count", f"leaves {found} layers, expected 1 to {MOST_LAYERS}")
        return found

    def layers_with(self, ending: str) -> list[int]:
        """The layers that have a tensor ``blk.LAYER.ending``."""
        return [i for i in range(self.layers) if f"blk.{i}.{ending}" in self.tensors]

    @property
    def head_dim(self) -> int:
        heads = self.integer("attention.head_count")
        default = self.integer("embedding_length") // max(heads, 1)
        found = self.integer("attention.key_length", default)
        if not 1 <= found <= MOST_WIDTH:
            raise self.bad("attention.key_length", f"is {found}, expected 1 to {MOST_WIDTH}")
        values = self.integer("attention.value_length", default)
        if values != found:
            raise self.bad("attention.value_length", f"is {values}, and {found} of keys: different")
        return found


def common(facts: Facts) -> Config:
    """What all families have."""
    embedding = facts.tensors.get("token_embd.weight")
    if embedding is None:
        raise BadModel(f"{facts.metadata.path}: tensor 'token_embd.weight' is missing")
    config: Config = {
        "vocab_size": embedding.shape[0],
        "hidden_size": facts.integer("embedding_length"),
        "num_hidden_layers": facts.layers,
        "num_attention_heads": facts.integer("attention.head_count"),
        "num_key_value_heads": facts.integer(
            "attention.head_count_kv", facts.integer("attention.head_count")
        ),
        "max_position_embeddings": facts.integer("context_length"),
        "rms_norm_eps": facts.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": facts.number("rope.freq_base", 10_000.0),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in facts.tensors,
        "torch_dtype": "bfloat16",
    }
    for name in ("bos", "eos"):
        key = f"tokenizer.ggml.{name}_token_id"
        if facts.metadata.has(key):
            config[f"{name}_token_id"] = facts.metadata.value(key, int)
    if facts.integer("expert_count", 0):
        config["num_experts_per_tok"] = facts.integer("expert_used_count")
    scaling = _rope_scaling(facts)
    return config if scaling is None else {**config, "rope_scaling": scaling}


def _rope_scaling(facts: Facts) -> Config | None:
    for name in ("rope.scaling.attn_factor", "rope.scale_linear"):
        if facts.number(name, 1.0) != 1.0:
            raise facts.bad(name, f"is {facts.number(name)}; only 1 is supported")
    kind = facts.metadata.get(facts.key("rope.scaling.type"), str, "none")
    factor = facts.number("rope.scaling.factor", 1.0)
    if kind == "none" and (factor == 1.0 or not facts.has("rope.scaling.factor")):
        return None
    if kind != "yarn":
        raise facts.bad(
            "rope.scaling.type", f"is {shown(kind, 40)}; plain rope and 'yarn' are supported"
        )
    scaling: Config = {"rope_type": "yarn", "factor": factor}
    trained = facts.integer("rope.scaling.original_context_length", 0)
    if trained:
        scaling["original_max_position_embeddings"] = trained
    for ours, theirs in (
        ("beta_fast", "yarn_beta_fast"),
        ("beta_slow", "yarn_beta_slow"),
        ("attention_factor", "yarn_attn_factor"),
    ):
        if facts.has(f"rope.scaling.{theirs}"):
            scaling[ours] = facts.number(f"rope.scaling.{theirs}")
    return scaling
