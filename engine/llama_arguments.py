"""Arguments of llama-cpp-python that this engine has no use for, with the values that ask for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diskmoe.engine.errors import BadRequest

# arguments that ask for nothing while they have one of these values
LOADING: Mapping[str, tuple[Any, ...]] = {
    "n_gpu_layers": (0,),
    "split_mode": (1,),
    "main_gpu": (0,),
    "tensor_split": (None,),
    "vocab_only": (False,),
    "use_mmap": (True, False),  # experts are never mapped, weights are always read
    "use_mlock": (False,),
    "kv_overrides": (None,),
    "n_ubatch": (512,),
    "n_threads_batch": (None,),
    "rope_scaling_type": (-1, None),
    "pooling_type": (-1,),
    "attention_type": (-1,),
    "rope_freq_base": (0.0,),
    "rope_freq_scale": (0.0,),
    "logits_all": (True, False),  # log-probabilities can be had either way
    "embedding": (False,),
    "offload_kqv": (True, False),
    "flash_attn": (True, False),
    "op_offload": (None,),
    "swa_full": (None,),
    "no_perf": (True, False),
    "last_n_tokens_size": (64,),
    "lora_base": (None,),
    "lora_scale": (1.0,),
    "lora_path": (None,),
    "numa": (False, 0),
    "chat_format": (None,),
    "chat_handler": (None,),
    "draft_model": (None,),
    "tokenizer": (None,),
    "type_k": (None,),
    "type_v": (None,),
    "spm_infill": (False,),
}
CHOOSING: Mapping[str, tuple[Any, ...]] = {
    "typical_p": (1.0,),
    "tfs_z": (1.0,),
    "frequency_penalty": (0.0,),
    "presence_penalty": (0.0,),
    "repeat_penalty": (1.0,),
    "mirostat_mode": (0,),
    "mirostat_tau": (5.0,),
    "mirostat_eta": (0.1,),
    "stopping_criteria": (None,),
}


def refuse_unsupported(
    where: str, given: Mapping[str, Any], allowed: Mapping[str, tuple[Any, ...]]
) -> None:
    """BadRequest: an argument that nobody knows, or one that asks for what is not built."""
    for name, value in given.items():
        if name not in allowed:
            raise BadRequest(f"{where} has no argument {name}")
        if not any(value is each or value == each for each in allowed[name]):
            raise BadRequest(f"{name}={value!r:.60} is not supported by {where}: leave it out")
