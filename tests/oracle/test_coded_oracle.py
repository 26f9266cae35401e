"""Checkpoints whose matrices are codes and scales say what transformers says of them.

It reads FP8 by blocks, MXFP4 and packed int4 itself, on the CPU too; what codes stand for, written
as plain numbers, is asked beside that.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_codes import with_codes, with_fp8, with_fp8_factors, with_int4
from tiny_configs import KIMI
from tiny_model import Stored, Tensors, random_tensors, running, tiny_config, write_checkpoint
from tiny_runs import converted, greedy, recorded_routing, repeat_routing

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore:.*MXFP4")]

PROMPT = [5, 9, 33, 2, 50, 7, 8, 41, 3, 77, 20, 6]
TOKENS = 32
TOLERANCE = 1e-4

Coder = Callable[[dict[str, Any], Tensors], tuple[dict[str, Any], Stored, Tensors]]
# matrices of one block and of two, whole ones and smaller ones: what transformers makes of a matrix
# whose last block is cut is another one
BLOCKS = {"hidden_size": 256, "num_hidden_layers": 2}
INNER = {"moe_intermediate_size": 128, "intermediate_size": 128}
LATENT = {**INNER, "qk_nope_head_dim": 16}
INT4 = {"moe_intermediate_size": 64, "num_hidden_layers": 2}
int4: Coder = partial(with_int4, scale_bits=5)  # exact in bf16, as transformers holds them
by_row: Coder = partial(with_fp8_factors, strategy="channel")
by_tensor: Coder = partial(with_fp8_factors, strategy="tensor")
CASES: dict[str, tuple[str, dict[str, Any], Coder]] = {
    "fp8-qwen3": ("qwen3_moe", BLOCKS | INNER, with_fp8),
    "fp8-glm4": ("glm4_moe", BLOCKS | INNER, with_fp8),
    "fp8-minimax": ("minimax_m2", BLOCKS | {"intermediate_size": 128}, with_fp8),
    "fp8-deepseek-v3": ("deepseek_v3", BLOCKS | LATENT, with_fp8),
    "fp8-deepseek-v3.2": ("deepseek_v32", BLOCKS | LATENT | {"index_head_dim": 32}, with_fp8),
    "fp8-by-row-qwen3": ("qwen3_moe", {"num_hidden_layers": 2}, by_row),
    "fp8-by-tensor-mixtral": ("mixtral", {"num_hidden_layers": 2}, by_tensor),
    "int4-qwen3": ("qwen3_moe", INT4, int4),
    "int4-kimi": ("deepseek_v3", INT4 | KIMI, int4),
}
# transformers does not read these, or rounds what the matrices are multiplied with
NOT_READ = ("fp8-by-row-qwen3", "fp8-by-tensor-mixtral")


@pytest.mark.parametrize("case", CASES)
def test_codes_equal_transformers(tmp_path, oracle_of, case):
    """Logits and greedy tokens: as the files are, converted with the codes kept where their kernels
    round nothing, and converted to the numbers that they stand for."""
    family, changes, coder = CASES[case]
    for seed in range(20):
        raw = tiny_config(family, **changes)
        coded, stored, exact = coder(raw, random_tensors(raw, seed))
        plain = write_checkpoint(tmp_path / f"plain-{seed}", raw, exact, "f32")
        oracle = oracle_of(plain)
        expected, margin = oracle.greedy(PROMPT, TOKENS)
        if margin > 10 * TOLERANCE:
            break
    else:
        pytest.fail("every model has a near tie")
    whole = PROMPT + expected
    logits = oracle.logits(whole)
    codes = write_checkpoint(tmp_path / "codes", coded, stored, "f32")
    if case not in NOT_READ:
        np.testing.assert_array_equal(oracle_of(codes).logits(whole), logits)
    ways: list[tuple[Path, dict[str, Any]]] = [
        (codes, {"expert_format": "f32"}),
        (converted(codes, "f32"), {}),
        (plain, {}),
    ]
    if coder is with_fp8 or coder is by_tensor:
        ways += [(codes, {}), (converted(codes, None), {})]
    found = []
    for folder, options in ways:
        with running(folder, slots=3, **options) as model:
            found.append(model.forward(whole, "all"))
        assert np.abs(found[-1] - logits).max() < TOLERANCE
        for slots, at_once in ((1, True), (2, False), (8, True)):  # of three for a row
            assert greedy(folder, PROMPT, TOKENS, at_once, slots=slots, **options) == expected
    assert found[1].tobytes() == found[2].tobytes()
    if len(found) > 3:
        assert found[3].tobytes() == found[4].tobytes()


@pytest.mark.parametrize("case", ["int4-qwen3", "int4-kimi"])
@pytest.mark.parametrize("experts", [None, "q4"])
def test_kept_int4_is_near_transformers(tmp_path, oracle_of, case, experts):
    """What is left is the int8 rounding of activations, and of steps in q4."""
    family, changes, coder = CASES[case]
    raw = tiny_config(family, **changes)
    coded, stored, _ = coder(raw, random_tensors(raw, 1))
    folder = write_checkpoint(tmp_path / "codes", coded, stored, "bf16")
    expected = oracle_of(folder).logits(PROMPT)
    with running(folder, expert_format="f32") as model:
        chosen = recorded_routing(model)
        model.forward(PROMPT, "all")
    with running(converted(folder, experts, "bf16"), slots=2) as model:
        repeat_routing(model, chosen)
        found = model.forward(PROMPT, "all")
    assert 0 < np.abs(found - expected).max() < 2e-2 * np.abs(expected).max()


def test_experts_in_mxfp4_equal_transformers(tmp_path, oracle_of):
    """As the hub has gpt-oss. In floats they are the same numbers; kept as they are, what is left is
    the int8 rounding of activations."""
    raw = tiny_config("gpt_oss", intermediate_size=96, num_hidden_layers=2)
    coded, stored, exact = with_codes(raw, random_tensors(raw, 1))
    folder = write_checkpoint(tmp_path / "codes", coded, stored, "bf16")
    expected = oracle_of(folder).logits(PROMPT)
    plain = write_checkpoint(tmp_path / "plain", raw, exact, "bf16")
    np.testing.assert_allclose(oracle_of(plain).logits(PROMPT), expected, atol=1e-5)
    with running(folder, expert_format="bf16", slots=2) as model:
        chosen = recorded_routing(model)
        assert np.abs(model.forward(PROMPT, "all") - expected).max() < TOLERANCE
    kept = converted(folder, None, "bf16")
    found = []
    for path in (folder, kept):
        with running(path, slots=3) as model:
            repeat_routing(model, chosen)
            found.append(model.forward(PROMPT, "all"))
    assert found[0].tobytes() == found[1].tobytes()
    assert 0 < np.abs(found[0] - expected).max() < 2e-2 * np.abs(expected).max()
