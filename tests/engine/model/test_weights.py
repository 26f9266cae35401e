"""Dense weights keep their precision unless asked, and are read without a second copy."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tiny_model import Tensors, as_stored, random_tensors, tiny_config, write_checkpoint
from twin_model import held

from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.embedding import ResidentEmbedding
from diskmoe.engine.model.weights import dense_bytes, load_dense
from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.errors import BadModel
from diskmoe.experts.packing import unpack

RAW = tiny_config("glm4_moe")
CONFIG = read_config(RAW, "tiny")
Q = "model.layers.1.self_attn.q_proj.weight"
ROUTER = "model.layers.1.mlp.gate.weight"


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    return random_tensors(RAW, 2)


@pytest.mark.parametrize(("dtype", "fmt"), [("f32", "f32"), ("f16", "f32"), ("bf16", "bf16")])
def test_a_matrix_keeps_its_own_precision(tmp_path: Path, tensors, dtype, fmt):
    write_checkpoint(tmp_path, RAW, tensors, dtype)
    weights = load_dense(Checkpoint.open(tmp_path), CONFIG)
    matrix = weights.matrix(Q)
    assert matrix.layout.format == fmt
    expected = as_stored(tensors, dtype)[Q]
    assert unpack(matrix.packed, matrix.layout).tobytes() == expected.tobytes()


@pytest.mark.parametrize("fmt", ["f32", "bf16", "q8", "q4"])
def test_matrices_take_the_format_that_is_asked_for(tmp_path: Path, tensors, fmt):
    write_checkpoint(tmp_path, RAW, tensors)
    checkpoint = Checkpoint.open(tmp_path)
    weights = load_dense(checkpoint, CONFIG, fmt)
    matrix = weights.matrix(Q)
    assert unpack(matrix.packed, matrix.layout).tobytes() == held(tensors[Q], fmt).tobytes()
    router = weights.matrix(ROUTER)
    assert router.layout.format == "f32"
    assert unpack(router.packed, router.layout).tobytes() == tensors[ROUTER].tobytes()
    assert set(weights.formats.values()) == {fmt, "f32"}
    assert weights.nbytes == dense_bytes(checkpoint, CONFIG, fmt)


def test_norms_and_biases_are_f32_in_every_format(tmp_path: Path, tensors):
    write_checkpoint(tmp_path, RAW, tensors, "bf16")
    weights = load_dense(Checkpoint.open(tmp_path), CONFIG, "q4")
    stored = as_stored(tensors, "bf16")
    for name in (
        "model.norm.weight",
        "model.layers.2.self_attn.q_proj.bias",
        "model.layers.2.mlp.gate.e_score_correction_bias",
    ):
        assert weights.vector(name).tobytes() == stored[name].tobytes()


def test_a_tied_head_shares_the_embedding(tmp_path: Path):
    raw = tiny_config("qwen3_moe", tie_word_embeddings=True)
    config = read_config(raw, "tiny")
    write_checkpoint(tmp_path, raw, random_tensors(raw, 0))
    weights = load_dense(Checkpoint.open(tmp_path), config)
    embedding = weights.embedding(config)
    assert isinstance(embedding, ResidentEmbedding)
    assert weights.head(config).data_address == embedding.matrix.data_address


def test_matrices_are_aligned_for_the_kernels(tmp_path: Path, tensors):
    write_checkpoint(tmp_path, RAW, tensors)
    weights = load_dense(Checkpoint.open(tmp_path), CONFIG, "q4")
    assert all(weights.matrix(name).data_address % 64 == 0 for name in weights.formats)


def test_a_large_matrix_is_packed_in_blocks_of_rows(tmp_path: Path, monkeypatch):
    raw = tiny_config("qwen3_moe", vocab_size=20_000)
    config = read_config(raw, "tiny")
    write_checkpoint(tmp_path, raw, random_tensors(raw, 0))
    checkpoint = Checkpoint.open(tmp_path)
    monkeypatch.setattr("diskmoe.experts.checkpoint.ROW_BLOCK_BYTES", 64 << 10)
    load_dense(checkpoint, config, "q8")  # compiles what is not compiled yet
    tracemalloc.start()
    load_dense(checkpoint, config, "q8")  # the weights' own block is not traced: it is mapped
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000 * 64 * 4 / 4


def test_a_weight_that_is_not_finite_is_refused_by_tensor(tmp_path: Path, tensors):
    spoiled = {**tensors, Q: tensors[Q].copy()}
    spoiled[Q][3, 5] = np.nan
    write_checkpoint(tmp_path, RAW, spoiled)
    with pytest.raises(BadModel, match=r"layers.1.self_attn.q_proj.weight.*row 3"):
        load_dense(Checkpoint.open(tmp_path), CONFIG, "q8")


def test_a_tensor_of_another_shape_is_refused_at_load_too(tmp_path: Path, tensors):
    name = "model.norm.weight"
    write_checkpoint(tmp_path, RAW, {**tensors, name: tensors[name][:32]})
    with pytest.raises(BadModel, match="model.norm.weight has shape"):
        load_dense(Checkpoint.open(tmp_path), CONFIG)
