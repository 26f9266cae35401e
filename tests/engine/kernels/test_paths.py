import pickle

import pytest
from numba import njit

from diskmoe.engine.kernels import paths
from diskmoe.engine.kernels.paths import (
    PORTABLE,
    Path,
    available_paths,
    host_path,
    path_named,
    resolved,
)


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch):
    """Sets the features of the processor; what was found before is forgotten before and after."""

    def become(*features: str) -> None:
        monkeypatch.setattr(paths, "cpu_features", lambda: set(features))
        available_paths.cache_clear()

    yield become
    available_paths.cache_clear()


LAPTOP = ("avx2", "fma", "f16c", "sse4.2")
SERVER = (*LAPTOP, "avx512f", "avx512bw", "avx512vl")


def test_a_processor_takes_the_best_path_that_it_has_everything_for(processor) -> None:
    for features, best in (
        ((), "portable"),
        (("avx2", "fma"), "portable"),
        (LAPTOP, "avx2"),
        (SERVER, "avx512bw"),
        ((*SERVER, "avx512vnni"), "avx512vnni"),
        (("neon", "fullfp16"), "portable"),
        (("neon", "dotprod"), "dotprod"),
    ):
        processor(*features)
        assert host_path()[0] == best
        assert resolved(None) == Path(best, True)


def test_the_reason_names_what_is_missing(processor) -> None:
    processor(*SERVER)
    assert host_path() == ("avx512bw", "the processor has no avx512vnni")
    processor(*SERVER, "avx512vnni")
    assert host_path() == ("avx512vnni", "the processor has everything")
    processor("avx2", "fma")
    assert host_path() == ("portable", "the processor has no f16c")


def test_a_path_that_the_processor_lacks_is_not_native(processor) -> None:
    processor(*LAPTOP)
    assert path_named("avx2") == Path("avx2", True)
    assert path_named("avx512vnni") == Path("avx512vnni", False)
    assert path_named("portable") == PORTABLE


def test_an_unknown_path_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match="'sse'.*avx512vnni, avx512bw, avx2, dotprod, portable"):
        path_named("sse")


def test_the_portable_path_is_always_there() -> None:
    assert available_paths()[-1] == "portable"


def test_paths_are_pickled_by_value_as_numbas_cache_wants_it() -> None:
    assert pickle.loads(pickle.dumps(PORTABLE)) == PORTABLE


def test_compiled_code_takes_a_path_as_an_argument() -> None:
    @njit
    def given(path, x):
        return x + 1

    assert given(PORTABLE, 1) == 2
    assert given(path_named("avx2"), 2) == 3
    assert len(given.signatures) == 2
