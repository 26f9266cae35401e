"""A conversion says how far its numbers are from those of its source, and reads back what it wrote."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diskmoe.experts import fidelity
from diskmoe.experts.container import Container
from diskmoe.experts.convert import convert
from diskmoe.experts.errors import OutOfBudget, WriteFailed
from diskmoe.experts.fidelity import deviations
from diskmoe.experts.forecast import _threads_within, forecast
from diskmoe.experts.manifest import Manifest
from diskmoe.experts.safetensors_io import SafetensorsWriter


@pytest.fixture
def model(tiny_model: Any) -> Any:
    return tiny_model(dtype="BF16", layers=8, experts=5)


def made(model: Any, experts: str | None, dense: str | None) -> Container:
    out = model.path.with_name("out")
    convert(model.open(), model.plan, out, experts, dense)
    return Container.open(out)


def relative(source: np.ndarray, ours: np.ndarray) -> float:
    return float(np.sqrt(((source - ours) ** 2).sum() / (source**2).sum()))


def test_the_error_is_that_of_all_weights_where_a_sample_has_all(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = made(model, "q4", "q8")
    monkeypatch.setattr(fidelity, "LAYERS", 8)
    monkeypatch.setattr(fidelity, "EXPERTS_OF_LAYER", 5)
    found = {one.kind: one.relative for one in deviations(model.open(), model.plan, container)}
    gates = [
        (model.weights[layer.names(e)[0]], container.expert_f32(layer.layer, e)[0])
        for layer in model.plan.experts
        for e in range(5)
    ]
    expected = relative(*(np.stack(side) for side in zip(*gates, strict=True)))
    assert found["experts' gate"] == pytest.approx(expected, rel=1e-5)
    name = "model.embed_tokens.weight"
    expected = relative(model.weights[name], container.f32(name))
    assert found["embedding"] == pytest.approx(expected, rel=1e-5)
    assert list(found) == ["embedding", "experts' gate", "experts' up", "experts' down"]


@pytest.mark.parametrize(("fmt", "low", "high"), [("q8", 1e-3, 1e-2), ("q4", 0.04, 0.1)])
def test_a_sample_is_near_it(model: Any, fmt: str, low: float, high: float) -> None:
    container = made(model, fmt, "bf16")
    found = {one.kind: one.relative for one in deviations(model.open(), model.plan, container)}
    assert found.pop("embedding") == 0
    assert all(low < error < high for error in found.values()) and len(found) == 3


def test_a_sample_has_the_first_and_the_last_and_no_more_than_was_said() -> None:
    assert fidelity._spread(range(100), 3) == [0, 50, 99]
    assert fidelity._spread(range(2), 3) == [0, 1]
    assert fidelity._spread([7], 3) == [7]


def test_the_forecast_has_the_bytes_that_are_written(model: Any) -> None:
    manifest = Manifest(model.open(), model.plan, "q8", "q4")
    needs = forecast(model.open(), model.plan, manifest, 3)
    container = made(model, "q8", "q4")
    written = sum(file.stat().st_size for file in container.path.glob("*.safetensors"))
    assert needs.nbytes == written
    assert needs.source == {"BF16": sum(w.size * 2 for w in model.weights.values())}
    assert needs.threads == 3 and needs.seconds > 0


def test_fewer_threads_where_the_budget_holds_fewer() -> None:
    assert _threads_within(8, 10, 100, 145) == 4
    assert _threads_within(3, 10, 100, 145) == 3
    assert _threads_within(8, 10, 100, None) == 8


def test_a_budget_without_room_for_one_thread_is_refused_with_the_numbers(model: Any) -> None:
    manifest = Manifest(model.open(), model.plan, "q8", "q4")
    with pytest.raises(OutOfBudget, match=r"RAM_GB allows 20.0 MiB: give it 0\.\d\d or more"):
        forecast(model.open(), model.plan, manifest, 8, 20 << 20)


@pytest.mark.parametrize("file", ["experts-00003.safetensors", "dense.safetensors"])
def test_bytes_that_did_not_reach_the_disk_are_found_and_written_again(
    model: Any, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    real = SafetensorsWriter.finish

    def forgetful(self: SafetensorsWriter, metadata: Any) -> None:
        real(self, metadata)
        if self.path.name == file:
            with open(self.path, "rb+") as written:
                written.seek(-100, 2)
                written.write(b"\x55" * 8)

    out = model.path.with_name("out")
    with monkeypatch.context() as patch:
        patch.setattr(SafetensorsWriter, "finish", forgetful)
        with pytest.raises(WriteFailed, match=f"{file}.*just after it was written"):
            convert(model.open(), model.plan, out, "q8", "q8")
    partial = Path(f"{out}.partial")
    assert not out.exists() and partial.is_dir() and not (partial / file).exists()
    done = convert(model.open(), model.plan, out, "q8", "q8")
    assert 0 < done.kept_nbytes < done.nbytes
    assert Container.open(out).layers == tuple(range(8))
