"""An embedding that is no head stays on disk, and no number changes for it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import random_tensors, running, tiny_config, write_checkpoint

from diskmoe.engine.cli import main
from diskmoe.engine.kernels.matmul import take_rows
from diskmoe.engine.kernels.matrix import Matrix
from diskmoe.engine.model.config import ModelConfig, read_config
from diskmoe.engine.model.embedding import StreamedEmbedding
from diskmoe.engine.model.weights import dense_bytes, load_dense
from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.container import Container
from diskmoe.experts.errors import BadModel, ReadFailed
from diskmoe.experts.reader import FileReader
from diskmoe.experts.tiles import matrix_layout

EMBEDDING = "model.embed_tokens.weight"
VOCAB = 90  # the last tile is not full
IDS = np.array([89, 3, 3, 17, 0, 88, 16, 3], np.int32)


def made(folder: Path, dtype: str = "f32", **changes: Any) -> tuple[ModelConfig, Path]:
    raw = tiny_config("qwen3_moe", vocab_size=VOCAB, **changes)
    write_checkpoint(folder, raw, random_tensors(raw, 4), dtype)
    return read_config(raw, "tiny"), folder


def converted(checkpoint: Path, folder: Path, dense: str) -> Path:
    assert main(["convert", str(checkpoint), str(folder), "--dense", dense]) == 0
    return folder


def resident_rows(source: Checkpoint | Container, fmt: str) -> np.ndarray:
    """The rows of IDS, from the whole matrix in memory."""
    if isinstance(source, Container):
        layout, packed = source.dense_layout(EMBEDDING), source.read_dense(EMBEDDING)
        assert layout is not None
        matrix = Matrix(layout, packed.view(np.uint8))
    else:
        layout = matrix_layout(fmt, VOCAB, 64)
        matrix = Matrix(layout, source.pack(EMBEDDING, layout))
    return take_rows(matrix, IDS, np.empty((len(IDS), 64), np.float32))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("fmt", ["f32", "bf16", "q8", "q4"])
def test_rows_of_a_checkpoint_have_the_bits_of_the_matrix_in_memory(tmp_path, dtype, fmt):
    config, folder = made(tmp_path, dtype)
    source = Checkpoint.open(folder)
    found = np.empty((len(IDS), 64), np.float32)
    load_dense(source, config, fmt).embedding(config).take(IDS, found)
    assert found.tobytes() == resident_rows(source, fmt).tobytes()


@pytest.mark.parametrize("fmt", ["f32", "bf16", "fp8", "q8", "q4", "q4g64", "mxfp4"])
def test_rows_of_a_converted_model_have_the_bits_of_the_matrix_in_memory(tmp_path, fmt):
    config, folder = made(tmp_path / "a")
    source = Container.open(converted(folder, tmp_path / "b", fmt))
    found = np.empty((len(IDS), 64), np.float32)
    load_dense(source, config).embedding(config).take(IDS, found)
    assert found.tobytes() == resident_rows(source, fmt).tobytes()


def test_a_matrix_of_its_own_takes_no_memory_and_a_shared_one_is_the_head(tmp_path):
    own, own_folder = made(tmp_path / "own")
    tied, tied_folder = made(tmp_path / "tied", tie_word_embeddings=True)
    source = Checkpoint.open(own_folder)
    weights = load_dense(source, own, "q8")
    assert isinstance(weights.embedding(own), StreamedEmbedding)
    assert EMBEDDING not in weights
    assert weights.nbytes == dense_bytes(source, own, "q8")
    assert EMBEDDING in load_dense(Checkpoint.open(tied_folder), tied, "q8")


def test_a_piece_is_read_once_for_all_rows_in_it(tmp_path, monkeypatch):
    config, folder = made(tmp_path / "a")
    embedding = load_dense(
        Container.open(converted(folder, tmp_path / "b", "q8")), config
    ).embedding(config)
    reads: list[int] = []
    real = FileReader.read_into

    def counted(self: FileReader, path: Path, offset: int, view: Any, *rest: Any) -> None:
        reads.append(len(view))
        real(self, path, offset, view, *rest)

    monkeypatch.setattr(FileReader, "read_into", counted)
    embedding.take(IDS, np.empty((len(IDS), 64), np.float32))
    assert len(reads) == 2 * 3  # tiles 0, 1 and 5: weights and scales of each
    assert sum(reads) == 3 * matrix_layout("q8", 16, 64).nbytes


def test_a_file_that_was_cut_off_is_told_and_the_model_goes_on(tmp_path):
    _, folder = made(tmp_path)
    with running(folder) as model:
        before = model.forward([1, 2]).tobytes()
        model.kv.trim(0)
        file = folder / "model.safetensors"
        whole = file.read_bytes()
        info = Checkpoint.open(folder).info(EMBEDDING)
        file.write_bytes(whole[: info.offset + 64])
        with pytest.raises(ReadFailed, match="bytes early"):
            model.forward([80])
        assert model.kv.length == 0
        file.write_bytes(whole)
        assert model.forward([1, 2]).tobytes() == before


def test_a_row_that_is_not_finite_is_refused_when_it_is_quantised(tmp_path):
    raw = tiny_config("qwen3_moe", vocab_size=VOCAB)
    tensors = random_tensors(raw, 4)
    tensors[EMBEDDING][7, 3] = np.nan
    write_checkpoint(tmp_path, raw, tensors)
    with running(tmp_path, dense_format="q8") as model:
        model.forward([6])
        with pytest.raises(BadModel, match=r"embed_tokens.weight.*row 7"):
            model.forward([7])
