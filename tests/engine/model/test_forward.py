"""The forward computes what its plain NumPy twin computes, and keeps its promises on the way."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import as_stored, random_tensors, running, tiny_config, write_checkpoint
from twin_model import Twin

from diskmoe.engine.errors import BadRequest, ReadFailed
from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.forward import scratch_bytes
from diskmoe.experts.tiles import record_layout

PROMPT = [5, 9, 33, 2, 50, 7, 8]
SAFE_MARGIN = 5e-5  # int8 steps; see twin_model

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("qwen3_moe", {}),
    "qwen3 with dense layers and biases": (
        "qwen3_moe",
        {"attention_bias": True, "mlp_only_layers": [1], "norm_topk_prob": False},
    ),
    "qwen3 tied": ("qwen3_moe", {"tie_word_embeddings": True}),
    "olmoe": ("olmoe", {}),
    "olmoe clipped": ("olmoe", {"clip_qkv": 0.3, "norm_topk_prob": True}),
    "glm4": ("glm4_moe", {}),
    "glm4 with groups": (
        "glm4_moe",
        {"n_group": 4, "topk_group": 2, "use_qk_norm": False, "n_shared_experts": 2},
    ),
    "glm4 without shared experts": (
        "glm4_moe",
        {"n_shared_experts": 0, "attention_bias": False, "first_k_dense_replace": 0},
    ),
    "qwen2": ("qwen2_moe", {"mlp_only_layers": [0]}),
    "mixtral with windows": ("mixtral", {"sliding_window": 3}),
    "minimax": ("minimax_m2", {}),
    "granite": ("granitemoe", {}),
    "gpt-oss": ("gpt_oss", {}),
    "gpt-oss plain": (
        "gpt_oss",
        {
            "attention_bias": False,
            "sliding_window": 1,
            "rope_scaling": {"rope_type": "default"},
            "swiglu_limit": 7.0,
            "swiglu_alpha": 1.0,
            "tie_word_embeddings": True,
        },
    ),
    "gpt-oss in widths that fill no tile": (
        "gpt_oss",
        {"vocab_size": 51, "hidden_size": 40, "head_dim": 20, "intermediate_size": 24},
    ),
    "deepseek-v2 lite": ("deepseek_v2", {}),
    "deepseek-v2 with groups and biases": (
        "deepseek_v2",
        {
            "q_lora_rank": 20,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "attention_bias": True,
        },
    ),
    "deepseek-v3": ("deepseek_v3", {}),
    "deepseek-v3 in widths that fill no tile": (
        "deepseek_v3",
        {
            "vocab_size": 51,
            "hidden_size": 40,
            "kv_lora_rank": 45,
            "qk_rope_head_dim": 6,
            "rope_interleave": False,
        },
    ),
    "glm4 lite": ("glm4_moe_lite", {}),
    "glm dsa": ("glm_moe_dsa", {"index_topk": 2}),
    "glm dsa with one key and odd heads": (
        "glm_moe_dsa",
        {"index_topk": 1, "index_n_heads": 5, "indexer_types": ["full", "full", "shared"]},
    ),
    "qwen3-next": ("qwen3_next", {}),
    "qwen3-next with dense layers, biases and a head per key": (
        "qwen3_next",
        {
            "attention_bias": True,
            "mlp_only_layers": [1],
            "norm_topk_prob": False,
            "linear_num_value_heads": 2,
            "linear_conv_kernel_dim": 2,
        },
    ),
    "qwen3.5": ("qwen3_5_moe", {}),
    "qwen3.5 in widths that fill no tile": (
        "qwen3_5_moe_text",
        {
            "vocab_size": 51,
            "hidden_size": 40,
            "head_dim": 24,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 20,
            "linear_num_value_heads": 6,
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
        },
    ),
    "widths that fill no tile": (
        "qwen3_moe",
        {
            "vocab_size": 51,
            "hidden_size": 40,
            "head_dim": 20,
            "moe_intermediate_size": 24,
            "num_experts_per_tok": 8,
        },
    ),
}


@pytest.fixture
def make(tmp_path: Path):
    """Writes a tiny checkpoint and returns (folder, its twin's tensors, config)."""

    def write(family: str = "glm4_moe", seed: int = 1, dtype: str = "f32", **changes: Any):
        raw = tiny_config(family, **changes)
        tensors = random_tensors(raw, seed)
        folder = write_checkpoint(tmp_path / "model", raw, tensors, dtype)
        return folder, as_stored(tensors, dtype), read_config(raw, "tiny")

    return write


def assert_equals_twin(
    folder: Path, raw: dict[str, Any], dense: str, experts: str, prompt: list[int]
) -> None:
    """For the first random model whose activations keep clear of rounding ties."""
    for seed in range(100):
        tensors = random_tensors(raw, seed)
        twin = Twin(read_config(raw, "tiny"), tensors, dense, experts)
        expected = twin.logits(prompt)
        if twin.margin > SAFE_MARGIN:
            break
    else:
        pytest.fail("no model without a near tie")
    write_checkpoint(folder, raw, tensors)
    with running(folder, dense_format=dense, expert_format=experts, slots=2) as model:
        found = model.forward(prompt, "all")
    assert np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("formats", [("f32", "f32"), ("q8", "q4")], ids="-".join)
def test_logits_of_every_row_equal_the_numpy_twin(tmp_path, variant, formats):
    family, changes = VARIANTS[variant]
    dense, experts = formats
    prompt = PROMPT if dense == "f32" else PROMPT[:3]
    assert_equals_twin(tmp_path, tiny_config(family, **changes), dense, experts, prompt)


@pytest.mark.parametrize("dense", ["f32", "bf16", "q8", "q4"])
@pytest.mark.parametrize("experts", ["f32", "bf16", "q8", "q4"])
def test_every_pair_of_formats_equals_the_twin(tmp_path, dense, experts):
    assert_equals_twin(tmp_path, tiny_config("glm4_moe"), dense, experts, PROMPT[:3])


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_without_a_format_a_checkpoint_runs_in_its_own_precision(make, dtype):
    folder, tensors, config = make("qwen3_moe", dtype=dtype)
    with running(folder) as model:
        found = model.forward(PROMPT, "all")
    assert np.abs(found - Twin(config, tensors).logits(PROMPT)).max() < 1e-5


def test_last_all_and_none_are_rows_of_the_same_logits(make):
    folder, *_ = make()
    with running(folder) as model:
        every = model.forward(PROMPT, "all")
        model.kv.trim(0)
        last = model.forward(PROMPT, "last")
        model.kv.trim(0)
        none = model.forward(PROMPT, "none")
    assert every.shape == (7, 96) and every.dtype == np.float32
    assert last.tobytes() == every[-1:].tobytes()
    assert none.shape == (0, 96)


def test_logits_belong_to_the_caller(make):
    folder, *_ = make()
    with running(folder) as model:
        first = model.forward(PROMPT)
        kept = first.copy()
        model.forward([1])
    assert first.tobytes() == kept.tobytes()


def test_hidden_has_every_row_whatever_logits_were_asked(make):
    folder, *_ = make()
    with running(folder) as model:
        logits = model.forward(PROMPT, "all")
        assert model.hidden.shape == (7, 64)
        again = model.head(model.hidden.copy())
        model.kv.trim(0)
        model.forward(PROMPT, "none")
        assert model.head(model.hidden).tobytes() == logits.tobytes()
    assert again.tobytes() == logits.tobytes()


def test_no_rows_change_nothing(make):
    folder, *_ = make()
    with running(folder) as model:
        assert model.forward([], "all").shape == (0, 96)
        assert model.kv.length == 0
        assert model.hidden.shape == (0, 64)


def test_a_trimmed_position_is_as_if_it_had_never_been(make):
    folder, *_ = make()
    with running(folder) as model:
        model.forward(PROMPT, "none")
        expected = model.forward([11, 12], "all")
        model.kv.trim(7)
        model.forward([50, 51, 52], "none")
        model.kv.trim(7)
        assert model.forward([11, 12], "all").tobytes() == expected.tobytes()


def test_more_rows_than_the_context_has_are_refused_with_both_numbers(make):
    folder, *_ = make()
    with running(folder, context=8) as model:
        model.forward(PROMPT, "none")
        with pytest.raises(BadRequest, match=r"7 \+ 2 positions .* context of 8"):
            model.forward([1, 2])
        assert model.kv.length == 7
        model.forward([1])


@pytest.mark.parametrize("wrong", [[96], [-1], [3, 1 << 40]])
def test_an_id_outside_the_vocabulary_is_refused(make, wrong):
    folder, *_ = make()
    with running(folder) as model:
        with pytest.raises(BadRequest, match="outside the vocabulary of 96"):
            model.forward(wrong)
        assert model.kv.length == 0


@pytest.mark.parametrize("wrong", [[0.5], [[1, 2]], "text"])
def test_what_is_no_list_of_ids_is_refused(make, wrong):
    folder, *_ = make()
    with running(folder) as model, pytest.raises(BadRequest, match="whole numbers"):
        model.forward(wrong)


def test_a_read_error_leaves_the_cache_as_it_was_and_a_retry_works(make):
    folder, *_ = make()
    with running(folder, slots=1) as model:
        model.forward(PROMPT, "none")
        expected = model.forward([11], "all")
        model.kv.trim(7)
        store: Any = model._store
        load, left = store._source.load, 2

        def failing(layer: int, expert: int, slot: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise ReadFailed(f"layer {layer} expert {expert}: the disk is gone")
            load(layer, expert, slot)

        store._source.load = failing
        with pytest.raises(ReadFailed, match="the disk is gone"):
            model.forward([11], "all")
        assert model.kv.length == 7
        store._source.load = load
        assert model.forward([11], "all").tobytes() == expected.tobytes()


def test_selections_count_rows_times_top_k_of_layers_with_experts(make):
    folder, *_ = make(first_k_dense_replace=1)
    with running(folder) as model:
        model.forward(PROMPT, "none")
        assert model.selections == 7 * 3 * 2
        assert model.counters.hits + model.counters.misses <= 2 * 8


def test_each_unique_expert_is_fetched_once_for_all_rows(make):
    folder, *_ = make()
    with running(folder, slots=1) as model:
        model.forward(PROMPT * 4, "none")
        assert model.counters.misses <= 2 * 8


@pytest.mark.parametrize(
    "family", ["glm4_moe", "deepseek_v3", "glm_moe_dsa", "qwen3_next", "qwen3_5_moe"]
)
@pytest.mark.parametrize("dense", ["f32", "q8"])
def test_scratch_that_was_planned_covers_what_is_taken(make, family, dense):
    folder, _, config = make(family)
    with running(folder, context=100, dense_format=dense) as model:
        model.forward(PROMPT * 14, "all")
        taken = model._scratch.nbytes + model._attention.nbytes
    layout = record_layout("f32", 64, 48)
    planned = scratch_bytes(config, 98, 98, 100, layout, ("f32", dense))
    assert taken <= planned < 4 * taken + 1_000_000


def test_a_context_that_fits_in_the_choice_has_the_bits_of_attention_to_all_keys(make):
    folder, *_ = make("glm_moe_dsa", index_topk=40)
    ids = np.arange(40) % 96
    found = []
    for context in (40, 41):
        with running(folder, context=context) as model:
            assert model.kv.indexed == (context > 40)
            found.append(model.forward(ids, "all").tobytes())
    assert found[0] == found[1]


def test_keys_that_were_not_chosen_do_not_count(make):
    """The rows behind the first eight see other keys, and so say something else."""
    folder, *_ = make("glm_moe_dsa")
    ids = np.arange(20) % 96
    with running(folder) as model:
        chosen = model.forward(ids, "all")
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(raw | {"index_topk": 64}), encoding="utf-8")
    with running(folder) as model:
        every = model.forward(ids, "all")
    same = [ours.tobytes() == theirs.tobytes() for ours, theirs in zip(chosen, every, strict=True)]
    assert same == [True] * 8 + [False] * 12
