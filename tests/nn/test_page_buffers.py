"""Pools of pages: what is written stays, is copied, and moves to larger pools."""

from __future__ import annotations

import os

import numpy as np
import pytest

import gptrs
from gptrs.backend.memory import claims_when_written
from gptrs.capture.graph import Stored
from gptrs.capture.jitting.jit import jit
from gptrs.errors import UsageError
from gptrs.ir import dtypes
from gptrs.nn.cache_spec import CacheSpec
from gptrs.nn.page_buffers import PageBuffers, _copy_page

SPECS = [CacheSpec(2, 4), CacheSpec(1, 8, window=5), CacheSpec(2, 4)]


@pytest.fixture(params=[dtypes.f32, dtypes.bf16, dtypes.f16], ids=str)
def buffers(request, backend) -> PageBuffers:
    return PageBuffers(SPECS, [3, 2], request.param, backend)


def _parts(buffers: PageBuffers) -> list[np.ndarray]:
    """Keys and values of both layers without a window."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=(1, 2, 32, 4)).astype(buffers.dtype.numpy) for _ in range(4)]


def _assert_page(buffers: PageBuffers, page: int, parts: list[np.ndarray]) -> None:
    for found, expected in zip(buffers.read(0, page), parts, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_pages_begin_as_zeros_of_each_layers_shape(buffers):
    shapes = [(3, 2, 32, 4), (2, 1, 32, 8), (3, 2, 32, 4)]
    assert [(keys.shape, values.shape) for keys, values in buffers.pools] == [
        (s, s) for s in shapes
    ]
    assert not any(part.any() for part in buffers.read(1, 1))
    assert buffers.page_bytes(0) == 2 * 2 * 2 * 4 * 32 * buffers.dtype.itemsize
    assert buffers.page_bytes(1) == 2 * 8 * 32 * buffers.dtype.itemsize


def test_a_page_is_written_read_and_copied(buffers):
    parts = _parts(buffers)
    buffers.write(0, 2, parts)
    buffers.copy(0, 2, 0)
    for page in (0, 2):
        _assert_page(buffers, page, parts)
    assert not any(part.any() for part in buffers.read(0, 1))


def test_larger_pools_keep_their_pages(buffers):
    parts = _parts(buffers)
    buffers.write(0, 2, parts)
    buffers.copy(0, 2, 1)
    compiled = _copy_page.compiled
    buffers.resize([7, 2])
    assert buffers.pages == (7, 2)
    _assert_page(buffers, 2, parts)
    buffers.copy(0, 2, 5)
    _assert_page(buffers, 5, parts)
    assert _copy_page.compiled == compiled
    assert not any(part.any() for part in buffers.read(0, 6))


def _arrays(buffers: PageBuffers) -> list[np.ndarray]:
    sources = [pool.source for pair in buffers.pools for pool in pair]
    return [np.asarray(source.buffer) for source in sources if isinstance(source, Stored)]


def test_pools_grow_in_place_to_what_was_expected(buffers):
    parts = _parts(buffers)
    buffers.expect([9, 5])
    buffers.resize([4, 3])
    buffers.write(0, 2, parts)
    _assert_room_is_kept(buffers, [8, 3], parts)
    buffers.write(0, 7, parts)
    _assert_room_is_kept(buffers, [9, 5], parts)
    _assert_page(buffers, 7, parts)
    buffers.resize([12, 5])  # more than was expected
    _assert_page(buffers, 7, parts)


def _assert_room_is_kept(buffers: PageBuffers, pages: list[int], parts: list[np.ndarray]) -> None:
    """Pools that are still the beginning of larger arrays grow where they are."""
    before = _arrays(buffers)
    buffers.resize(pages)
    for old, new in zip(before, _arrays(buffers), strict=True):
        assert (old.ctypes.data == new.ctypes.data) == (old.base is not None)
    _assert_page(buffers, 2, parts)
    assert not any(part.any() for part in buffers.read(0, pages[0] - 1))


def test_numba_pools_grow_in_place():
    buffers = PageBuffers(SPECS, [1, 1], backend=gptrs.get_backend("numba"))
    buffers.expect([9, 5])
    buffers.resize([4, 3])
    buffers.write(0, 2, _parts(buffers))
    if claims_when_written():
        assert all(array.base is not None for array in _arrays(buffers))


def test_a_pool_that_is_seen_elsewhere_is_copied():
    buffers = PageBuffers(SPECS, [1, 1], backend=gptrs.get_backend("numba"))
    buffers.expect([9, 5])
    buffers.resize([4, 3])
    keys = buffers.pools[0][0]
    seen = keys.numpy()
    buffers.resize([8, 3])
    buffers.write(0, 2, _parts(buffers))
    assert not seen.any()
    assert not keys.numpy().any()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without forks")
def test_a_forked_process_has_pools_of_its_own():
    buffers = PageBuffers(SPECS, [1, 1], backend=gptrs.get_backend("numba"))
    buffers.expect([9, 5])
    buffers.resize([4, 3])
    parts = _parts(buffers)
    buffers.write(0, 2, parts)
    child = os.fork()
    if not child:
        for array in _arrays(buffers):
            array.fill(7.0)
        os._exit(0)
    os.waitpid(child, 0)
    _assert_page(buffers, 2, parts)


@pytest.mark.parametrize("pages", [[3], [3, 0], [3, 2, 1]])
def test_another_number_of_groups_is_refused(pages):
    with pytest.raises(UsageError, match="the buffers of 2 cache groups need"):
        PageBuffers(SPECS, pages)


def test_pools_that_were_donated_are_not_usable(buffers):
    assert buffers.usable
    give_away = jit(lambda pool: pool * 2, donate=[0])
    give_away(buffers.pools[1][0])
    assert not buffers.usable


def test_keys_that_hold_positions_are_not_rounded_to_8_bits(backend):
    specs = [CacheSpec(2, 4, exact=True), CacheSpec(2, 4), CacheSpec(2, 4, per_page=True)]
    found = PageBuffers(specs, [3], dtypes.si8, backend).pools
    types = [(str(keys.dtype), keys.shape[3]) for keys, _ in found]
    assert types == [("bf16", 4), ("si8", 8), ("f32", 4)]
    assert PageBuffers(specs[:1], [3], dtypes.f16, backend).pools[0][0].dtype is dtypes.f16
