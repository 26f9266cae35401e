"""GGUFs of all types say the same in llama.cpp, where it is importable (llama-cpp-python)."""

from pathlib import Path

import numpy as np
import pytest
from tiny_gguf import NAMES, golden_facts, golden_gguf, rewrite
from tiny_model import running

from diskmoe.engine.converting import convert_model
from diskmoe.engine.text.tokenizer import load_tokenizer

pytestmark = pytest.mark.oracle
llama_cpp = pytest.importorskip("llama_cpp")

TOLERANCE = 5e-4  # llama.cpp's latent attention rounds to f16 on its way; others have 1e-5


def theirs(path: Path):
    return llama_cpp.Llama(
        str(path), n_ctx=128, n_threads=1, type_k=0, type_v=0, logits_all=True, verbose=False
    )


def logits_of(path: Path, ids: list[int]) -> np.ndarray:
    model = theirs(path)
    model.eval(ids)
    logits = np.array(model.scores[: len(ids)])
    model.close()
    return logits


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_those_of_llama_cpp(tmp_path, name):
    facts = golden_facts(name)
    ids = facts["prompt"] + facts["greedy"]
    convert_model(golden_gguf(name), tmp_path / "out", "f32", "f32", lambda line: None)
    with running(tmp_path / "out") as model:
        found = model.forward(ids, "all")
    difference = np.abs(found - logits_of(golden_gguf(name), ids)).max()
    print(f"{name}: {difference:.1e}")
    assert difference < TOLERANCE


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "F16", "BF16"])
def test_a_quantised_model_is_near_what_llama_cpp_makes_of_it(tmp_path, kind):
    """llama.cpp rounds activations to 8 bits (or to 16 for the 16-bit types) and we do not in f32:
    what is left is that rounding, and a row or two that it sends to another expert. A wrong nibble or
    scale is many times more, in all rows."""
    facts = golden_facts("olmoe")
    types = {part: kind for part in ("_exps.weight", "attn_", "output.weight", "token_embd")}
    path = rewrite(golden_gguf("olmoe"), tmp_path / "m.gguf", types={"norm": "F32", **types})
    convert_model(path, tmp_path / "out", "f32", "f32", lambda line: None)
    with running(tmp_path / "out") as model:
        found = model.forward(facts["prompt"], "all")
    expected = logits_of(path, facts["prompt"])
    rows = np.abs(found - expected).max(axis=1) / np.abs(expected).max()
    print(f"{kind}: {np.median(rows):.1e}")
    assert np.median(rows) < 0.05


@pytest.mark.parametrize("name", NAMES)
def test_texts_have_the_tokens_that_llama_cpp_gives_them(tmp_path, name):
    convert_model(golden_gguf(name), tmp_path / "out", "q4", "q8", lambda line: None)
    ours = load_tokenizer(tmp_path / "out", 264)
    assert ours is not None
    model = theirs(golden_gguf(name))
    for text in ("Hi the  other\n\n naïve 🙂 they're 123", "<|user|>the<|endoftext|> the"):
        found = model.tokenize(text.encode(), add_bos=False, special=True)
        assert ours.encode(text) == found
    model.close()
