"""How fast pairs turn, against pair-by-pair twins."""

import naive
import numpy as np
import pytest

from diskmoe.engine.model.rope import Llama3, Yarn, rope_frequencies


@pytest.mark.parametrize("dims", [8, 64, 128])
def test_pairs_turn_as_llama_3_stretches_them(dims):
    scaling = Llama3(factor=8.0, trained=8192, slow=1.0, fast=4.0)
    found = rope_frequencies(5e5, dims, scaling)
    np.testing.assert_allclose(found, naive.llama3_frequencies(5e5, dims, scaling), rtol=1e-12)
    plain = rope_frequencies(5e5, dims, None)
    assert found[0] == plain[0] and found[-1] == pytest.approx(plain[-1] / 8)
    assert (np.diff(found) < 0).all()


@pytest.mark.parametrize("truncate", [True, False])
def test_pairs_turn_as_yarn_stretches_them(truncate):
    yarn = Yarn(40.0, 4096, 32.0, 1.0, truncate, 1.0)
    found = rope_frequencies(1e4, 64, yarn)
    np.testing.assert_allclose(found, naive.yarn_frequencies(1e4, 64, yarn), rtol=1e-12)
