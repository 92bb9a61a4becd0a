"""The key/value cache grows in buckets, keeps its contents, and never exceeds its limit."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs.errors import ContextLengthError
from gptrs.ir import dtypes
from gptrs.nn import CacheSpec, KVCache


def _cache(limit: int = 200) -> KVCache:
    return KVCache([CacheSpec(3, 4)] * 2, batch=1, limit=limit, dtype=dtypes.f32)


def _fill(cache: KVCache, count: int, value: float) -> None:
    """What a step does: write `count` positions into every buffer."""
    cache.reserve(count)
    layers = []
    for pair in cache.buffers:
        arrays = [tensor.numpy().copy() for tensor in pair]
        for array in arrays:
            array[:, :, cache.length : cache.length + count] = value
        layers.append((gptrs.tensor(arrays[0]), gptrs.tensor(arrays[1])))
    cache.advance(count, layers)


def test_capacity_doubles_up_to_the_limit():
    cache = _cache()
    seen = []
    for count in (1, 63, 1, 64, 71):
        _fill(cache, count, 1.0)
        seen.append((cache.length, cache.capacity))
    assert seen == [(1, 64), (64, 64), (65, 128), (129, 200), (200, 200)]
    assert cache.buffers[0][0].shape == (1, 3, 200, 4)


def test_growing_keeps_the_contents():
    cache = _cache()
    _fill(cache, 60, 2.0)
    _fill(cache, 10, 3.0)
    for keys, values in cache.buffers:
        for tensor in (keys, values):
            array = tensor.numpy()
            assert (array[:, :, :60] == 2).all()
            assert (array[:, :, 60:70] == 3).all()
            assert np.count_nonzero(array[:, :, 70:]) == 0


def test_a_large_first_step_gets_one_bucket_that_fits():
    cache = _cache()
    cache.reserve(100)
    assert cache.capacity == 128


def test_the_limit_is_an_error_and_changes_nothing():
    cache = _cache(limit=10)
    _fill(cache, 8, 1.0)
    with pytest.raises(ContextLengthError, match="11 tokens do not fit into the context of 10"):
        cache.reserve(3)
    assert (cache.length, cache.capacity) == (8, 10)
