"""The key-value cache counts positions that are whole, and forgets on request."""

import pytest
from tiny_model import tiny_config

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.kvcache import KvCache, kv_cache_bytes

CONFIG = read_config(tiny_config("qwen3_moe"), "tiny")


def test_bytes_are_known_before_the_cache_is_made():
    assert KvCache(CONFIG, 10).nbytes == kv_cache_bytes(CONFIG, 10) == 3 * 10 * 2 * 2 * 32 * 4
    for kv_format, head in (("f32", 128), ("f16", 64), ("q8", 32 + 4)):
        cache = KvCache(CONFIG, 10, kv_format=kv_format)
        assert cache.nbytes == kv_cache_bytes(CONFIG, 10, kv_format=kv_format) == 120 * head
    assert KvCache(CONFIG, 10, layers=1).nbytes == kv_cache_bytes(CONFIG, 10, layers=1)


def test_latents_are_kept_once_for_all_heads_and_as_keys_and_values():
    config = read_config(tiny_config("deepseek_v3"), "tiny")
    for kv_format, position in (("f32", 64 * 4), ("f16", 64 * 2), ("q8", 64 + 2 * 4)):
        cache = KvCache(config, 10, kv_format=kv_format)
        assert cache.nbytes == 3 * 10 * position
        assert cache.nbytes == kv_cache_bytes(config, 10, kv_format=kv_format)
        keys, values = cache.parts(2)
        assert keys == values != cache.parts(1)[0]


def test_keys_to_choose_by_are_kept_where_there_is_a_choice():
    config = read_config(tiny_config("glm_moe_dsa"), "tiny")
    for kv_format, position in (("f32", 24 * 4), ("f16", 24 * 2), ("q8", 24 + 4)):
        small, large = (KvCache(config, n, kv_format=kv_format) for n in (8, 9))
        assert not small.indexed and small.index_keys(0) is None
        assert large.indexed and large.index_keys(1) is None
        assert large.index_keys(0) != large.index_keys(2)
        latents = small.nbytes // 8
        assert large.nbytes == 9 * (latents + 2 * position)
        for cache in (small, large):
            assert cache.nbytes == kv_cache_bytes(config, cache.capacity, kv_format=kv_format)
    alone = KvCache(config, 9, layers=1)  # of an MTP layer, which chooses nothing
    assert not alone.indexed and alone.nbytes == kv_cache_bytes(config, 9, layers=1)


def test_rows_count_only_once_they_are_advanced_over():
    cache = KvCache(CONFIG, 10)
    assert (cache.length, cache.room) == (0, 10)
    cache.advance(4)
    assert (cache.length, cache.room) == (4, 6)


def test_trim_goes_back_and_never_forward():
    cache = KvCache(CONFIG, 10)
    cache.advance(4)
    cache.trim(4)
    cache.trim(1)
    assert cache.length == 1
    for wrong in (2, -1):
        with pytest.raises(ValueError, match="cannot trim 1 positions"):
            cache.trim(wrong)


def test_too_many_rows_and_an_empty_context_are_refused():
    cache = KvCache(CONFIG, 10)
    with pytest.raises(BadRequest, match=r"0 \+ 11 positions do not fit in a context of 10"):
        cache.advance(11)
    with pytest.raises(BadRequest, match="0 positions"):
        KvCache(CONFIG, 0)
    with pytest.raises(BadRequest, match="KV is 'q4'; it must be one of f32, f16, q8"):
        KvCache(CONFIG, 10, kv_format="q4")
