"""Synthetic models: both files hold the same weights, and the same seed the same bytes."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
from tiny_synthetic import tiny_model, tiny_shape

from diskmoe.bench.gguf_out import GgufFile
from diskmoe.bench.model import Synthetic
from diskmoe.bench.routing import RESERVED
from diskmoe.bench.shapes import SHAPES, Shape
from diskmoe.bench.weights import WRITABLE, RandomWeights
from diskmoe.bench.writing import _refuse_full_disks, write_model
from diskmoe.engine.cli import main
from diskmoe.engine.errors import BadOutput, BadRequest, DiskFull, DiskMoeError, WriteFailed
from diskmoe.experts.container import Container
from diskmoe.experts.formats import FORMATS
from diskmoe.experts.packing import unpack
from diskmoe.experts.tiles import matrix_layout
from diskmoe.experts.verify import pieces_of, verify

Say = Callable[[str], None]


def gguf_tensors(path: Path) -> dict[str, np.ndarray]:
    """{name: f32, experts in front} of a GGUF."""
    reader = gguf.GGUFReader(path)
    return {
        tensor.name: np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
        for tensor in reader.tensors
    }


def assert_same_weights(model: Synthetic, directory: Path, file: Path) -> None:
    container, theirs = Container.open(directory), gguf_tensors(file)
    assert all(damage is None for _, damage in verify(pieces_of(container)))
    names = gguf.get_tensor_name_map(
        next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == architecture(file)),
        model.config.layers,
    )
    for tensor in model.plan.dense:
        renamed = tensor.name.replace("e_score_correction_bias", "e_score_correction.bias")
        renamed = renamed.replace("self_attn.sinks", "self_attn.sinks.weight")
        name = names.get_name(renamed, try_suffixes=(".weight", ".bias"))
        assert name is not None, tensor.name
        assert np.array_equal(container.f32(tensor.name), theirs[name].reshape(tensor.shape)), name
    for layer in model.config.moe_layers:
        for expert in range(model.config.experts):
            ours = container.expert_f32(layer, expert)
            for part, matrix in zip(("gate", "up", "down"), ours, strict=True):
                stacked = theirs[f"blk.{layer}.ffn_{part}_exps.weight"]
                assert np.array_equal(matrix, stacked[expert]), (layer, expert, part)


def architecture(file: Path) -> str:
    return gguf.GGUFReader(file).fields["general.architecture"].contents()


def test_container_and_gguf_hold_the_same_weights_to_the_bit(
    written: tuple[Synthetic, Path, Path],
) -> None:
    assert_same_weights(*written)


@pytest.mark.parametrize(
    ("name", "arch", "experts", "dense"),
    [
        ("olmoe", "olmoe", "q8", "q4"),
        ("glm-4.5-air", "glm4moe", "q4", "bf16"),
        ("qwen3-30b-a3b", "qwen3moe", "bf16", "f32"),
        ("gpt-oss-20b", "gpt-oss", "mxfp4", "q8"),
        ("gpt-oss-20b", "gpt-oss", "q4", "bf16"),
        ("olmoe", "olmoe", "q4_1", "q8"),
        ("olmoe", "olmoe", "int4", "q8"),
    ],
)
def test_so_do_other_families_and_formats(
    name: str, arch: str, experts: str, dense: str, tmp_path: Path, silent: Say
) -> None:
    model = tiny_model(name, experts=experts, dense=dense)
    write_model(model, tmp_path / "m", tmp_path / "m.gguf", arch, silent)
    assert_same_weights(model, tmp_path / "m", tmp_path / "m.gguf")


def test_expert_types_of_the_gguf_are_those_of_the_formats(
    written: tuple[Synthetic, Path, Path],
) -> None:
    types = {t.name: t.tensor_type.name for t in gguf.GGUFReader(written[2]).tensors}
    assert types["blk.0.ffn_gate_exps.weight"] == "Q4_0"
    assert types["token_embd.weight"] == types["blk.0.attn_q.weight"] == "Q8_0"
    assert types["blk.1.ffn_gate_inp.weight"] == types["output_norm.weight"] == "F32"


def test_the_gguf_has_a_token_for_every_id(written: tuple[Synthetic, Path, Path]) -> None:
    fields = gguf.GGUFReader(written[2]).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    assert len(tokens) == len(set(tokens)) == written[0].config.vocab


@pytest.mark.parametrize("fmt", WRITABLE)
def test_a_block_is_packed_as_the_weights_it_says(fmt: str) -> None:
    block = RandomWeights(3).block("x", fmt, 32, 128)
    layout = matrix_layout(fmt, 32, 128)
    assert np.array_equal(unpack(block.packed(layout), layout), block.f32())


@pytest.mark.parametrize("fmt", WRITABLE)
def test_weights_have_zero_mean_and_the_size_that_was_asked_for(fmt: str) -> None:
    weights = RandomWeights(0).block("x", fmt, 512, 1024, size=1.0).f32() * 1024**0.5
    assert abs(weights.mean()) < 0.01
    tolerance = 0.05 if FORMATS[fmt].quantised else 0.45  # float scales are powers of two
    assert abs(weights.std() - 1) < tolerance


@pytest.mark.parametrize("dense", ["q8", "q4", "bf16"])
def test_embeddings_are_of_unit_size(dense: str) -> None:
    model = tiny_model(dense=dense)
    table = np.concatenate([block.f32() for block in model.matrix(model.plan.dense[0])])
    ordinary, signal = table[:, :-RESERVED], table[:, -RESERVED:-32]
    assert 0.8 < ordinary.std() < 1.3 and 0.9 < signal.std() < 1.1
    assert abs(ordinary.mean()) < 0.02
    assert np.array_equal(table[:, -RESERVED:], model.signal)


def test_nothing_writes_to_the_numbers_that_the_router_reads() -> None:
    model = tiny_model("glm-4.5-air")
    for tensor in model.plan.dense:
        if tensor.name.endswith(("o_proj.weight", "down_proj.weight")):
            rows = np.concatenate([block.f32() for block in model.matrix(tensor)])
            assert not rows[-RESERVED:].any() and rows[:-RESERVED].any(), tensor.name
    down = model.expert(1, 5)[2].f32()
    assert not down[-RESERVED:].any() and down[:-RESERVED].any()


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(
    tmp_path: Path, silent: Say
) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        model = tiny_model(seed=seed, layers=1)
        gguf_path = tmp_path / "files" / f"{name}.gguf" if name != "c" else None
        if gguf_path is not None:
            gguf_path.parent.mkdir(exist_ok=True)
        write_model(model, tmp_path / name, gguf_path, "qwen3moe", silent, threads=1 + seed)
    for file in ("dense.safetensors", "experts-00000.safetensors"):
        a, b, c = ((tmp_path / name / file).read_bytes() for name in "abc")
        assert a == b != c


def test_an_output_that_is_there_is_left_alone(tmp_path: Path, silent: Say) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "mine").write_text("x")
    with pytest.raises(BadOutput, match="is there already"):
        write_model(tiny_model(), tmp_path / "m", None, "qwen3moe", silent)
    (tmp_path / "m.gguf").write_text("x")
    with pytest.raises(BadOutput, match="is there already"):
        write_model(tiny_model(), tmp_path / "n", tmp_path / "m.gguf", "qwen3moe", silent)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "m.gguf"]
    assert (tmp_path / "m.gguf").read_text() == "x"


def test_what_is_stopped_leaves_nothing_behind(
    tmp_path: Path, silent: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: GgufFile, *_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(GgufFile, "put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_model(tiny_model(), tmp_path / "m", tmp_path / "m.gguf", "qwen3moe", silent)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_is_one_line(
    tmp_path: Path, silent: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: GgufFile, *_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(GgufFile, "put", refused)
    with pytest.raises(WriteFailed, match="Input/output error"):
        write_model(tiny_model(), tmp_path / "m", tmp_path / "m.gguf", "qwen3moe", silent)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stop_at", ["partial", "room", "put", "replace"])
def test_directories_made_for_the_model_go_with_it(
    stop_at: str, tmp_path: Path, silent: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "mine").mkdir()
    out = tmp_path / "mine" / "new" / "deep" / "m"
    if stop_at == "partial":  # a name that is too long once .partial stands behind it
        out = out.with_name("m" * 250)
    elif stop_at == "room":
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    else:
        where = GgufFile if stop_at == "put" else os
        monkeypatch.setattr(where, stop_at, refused)
    with pytest.raises(DiskMoeError) as caught:
        write_model(tiny_model(), out, tmp_path / "m.gguf", "qwen3moe", silent)
    assert caught.value.exit_code == (1 if stop_at in ("put", "replace") else 2)
    assert [p.name for p in tmp_path.rglob("*")] == ["mine"]


def test_a_second_ctrl_c_does_not_stop_the_tidying(
    tmp_path: Path, silent: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: GgufFile, *_: object) -> None:
        raise KeyboardInterrupt

    def discarded(self: GgufFile) -> None:
        signal.raise_signal(signal.SIGINT)
        discard(self)

    discard = GgufFile.discard
    monkeypatch.setattr(GgufFile, "put", interrupted)
    monkeypatch.setattr(GgufFile, "discard", discarded)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        write_model(tiny_model(), tmp_path / "m", tmp_path / "m.gguf", "qwen3moe", silent)
    assert list(tmp_path.iterdir()) == [] and signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize("file", ["m", "m/x.gguf", "m.partial", "m.partial/x.gguf", "a", "m/../m"])
def test_a_gguf_that_is_not_apart_from_the_directory_is_refused(
    file: str, tmp_path: Path, silent: Say
) -> None:
    out = tmp_path / "a" / "m" if file == "a" else tmp_path / "m"
    with pytest.raises(BadOutput, match="is not apart from"):
        write_model(tiny_model(), out, tmp_path / file, "qwen3moe", silent)
    with pytest.raises(BadOutput, match="is not apart from"):
        write_model(tiny_model(), tmp_path / "x.tmp", tmp_path / "x", "qwen3moe", silent)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["m.gguf.tmp", "m.partial"])
def test_what_another_run_is_writing_is_left_alone(name: str, tmp_path: Path, silent: Say) -> None:
    (tmp_path / name).write_text("of another run")
    with pytest.raises(BadOutput, match="is in the way"):
        write_model(tiny_model(), tmp_path / "m", tmp_path / "m.gguf", "qwen3moe", silent)
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "of another run"


def test_room_is_counted_on_each_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disks = {"a": (1, 100), "b": (1, 100), "c": (2, 50)}
    monkeypatch.setattr(Path, "stat", lambda path: SimpleNamespace(st_dev=disks[path.name][0]))
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: SimpleNamespace(free=disks[path.name][1])
    )
    a, b, c = (Path(name) for name in "abc")
    _refuse_full_disks([(a, a, 100), (c, c, 50)])
    with pytest.raises(DiskFull, match="c: 51 bytes are to be written on its disk, 50 are free"):
        _refuse_full_disks([(a, a, 100), (c, c, 51)])
    with pytest.raises(DiskFull, match="b: 101 bytes"):
        _refuse_full_disks([(a, a, 60), (b, b, 41)])


@pytest.mark.parametrize("place", ["file/m", "file"])
def test_a_place_that_cannot_be_is_usage(place: str, tmp_path: Path, silent: Say) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadOutput, match="file"):
        write_model(tiny_model(), tmp_path / place, None, "qwen3moe", silent)
    with pytest.raises(BadOutput, match="file"):
        write_model(tiny_model(), tmp_path / "m", tmp_path / place, "qwen3moe", silent)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_model_can_have_another_vocabulary() -> None:
    model = Synthetic.make(tiny_shape(), 1, "uniform", "q4", "q8", 0, vocab=700)
    assert (model.raw["vocab_size"], model.signal.shape[0]) == (700, 700)


def test_the_last_of_few_layers_has_experts_whatever_the_model_begins_with() -> None:
    for layers, dense in ((1, 0), (2, 1), (5, 3)):
        raw = SHAPES["deepseek-v3"].cut(layers)
        assert (raw["num_hidden_layers"], raw["first_k_dense_replace"]) == (layers, dense)
    assert "first_k_dense_replace" not in SHAPES["olmoe"].cut(1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--like", "qwen3-30b-a3"], "did you mean qwen3-30b-a3b?"),
        (["--like", "deepseek-v3", "--gguf", "x.gguf"], "--gguf is not written for deepseek-v3"),
        (["--like", "olmoe", "--routing", "zipf"], "zipf:S"),
        (["--like", "olmoe", "--routing", "sticky:0.01"], "from 0.125"),
        (["--like", "olmoe", "--experts", "q5"], "--experts"),
        (["--like", "olmoe", "--layers", "0"], "--layers"),
        (["--like", "olmoe", "--vocab", "511"], "from 512"),
        (["--like", "olmoe", "--lyers", "1"], "did you mean --layers?"),
        (["--like", "olmoe", "--cap", "1"], "has no effect"),
        (["--like", "olmoe", "extra"], "takes no argument"),
        ([], "needs --like"),
    ],
)
def test_a_slip_is_answered_in_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m"
    assert main(["bench", "synth", *words, "--out", str(out)]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("error: ") and message in said
    assert list(tmp_path.iterdir()) == []


def test_a_hidden_size_without_room_for_the_routing_is_refused() -> None:

    real = SHAPES["olmoe"]
    with pytest.raises(BadRequest, match="no room"):
        shape = Shape("olmoe", {**real.config, "hidden_size": 128}, "olmoe")
        Synthetic.make(shape, 1, "uniform", "q4", "q8", 0)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_two_layers_of_every_shape_are_a_model_of_a_family(name: str) -> None:
    """As published, but for the layers; what runs of them take is seen by scripts/synth_shapes.py,
    and texts of small ones by the tests of decoding."""
    model = Synthetic.make(SHAPES[name], 2, "uniform", "q4", "q8", 0)
    assert model.config.layers == 2 and model.config.moe_layers[-1] == 1
    assert model.config.vocab == SHAPES[name].config["vocab_size"]
    assert model.config.hidden - RESERVED > 0 and model.plan.n_experts == model.config.experts
