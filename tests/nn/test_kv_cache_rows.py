"""A cache is copied row by row, saved in the order of positions, restored, and wound back."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs.errors import ContextLengthError, UsageError
from gptrs.ir import dtypes
from gptrs.nn import CacheSpec, KVCache

LAYERS = [CacheSpec(2, 3), CacheSpec(1, 4, window=5)]
RING = 32


def _cache(batch: int = 2, limit: int = 200, **settings) -> KVCache:
    return KVCache(LAYERS, batch, limit, dtypes.f32, **settings)


def _append(cache, tokens):
    """Run steps that write 1000 * row + position, as keys; the negative, as values."""
    for piece in cache.pieces(tokens):
        cache.advance(piece.shape[1], _step(piece, cache.position, cache.buffers))


def _step(tokens, position, buffers):
    count, updated = tokens.shape[1], []
    at = int(position.offset)
    for keys, _ in buffers:
        array = keys.numpy().copy()
        batch, _, slots, _ = array.shape
        first = at % slots
        assert first + count <= slots
        written = 1000 * np.arange(batch)[:, None] + np.arange(at, at + count)
        array[:, :, first : first + count] = written[:, None, :, None]
        updated.append((gptrs.tensor(array), gptrs.tensor(-array)))
    return updated


def _filled(count: int, chunk: int = 7, **settings) -> KVCache:
    cache = _cache(**settings)
    for start in range(0, count, chunk):
        size = min(chunk, count - start)
        _append(cache, np.zeros((cache.batch, size), np.int64))
    return cache


def test_a_ring_stops_growing():
    sizes = []
    for count in (1, 31, 64, 65, 200):
        cache = _filled(count)
        sizes.append([keys.shape[2] for keys, _ in cache.buffers])
    assert sizes == [[64, RING], [64, RING], [64, RING], [128, RING], [200, RING]]


def test_fixed_room_is_there_at_once():
    cache = _cache(fixed=True)
    assert [keys.shape[2] for keys, _ in cache.buffers] == [200, RING]
    before = [id(keys) for keys, _ in cache.buffers]
    cache.reserve(200)
    assert [id(keys) for keys, _ in cache.buffers] == before


@pytest.mark.parametrize("count", [0, 20, 32, 33, 100])
def test_the_state_is_in_the_order_of_positions(count):
    state = _filled(count).state()
    assert set(state) == {f"layer.{i}.{part}" for i in (0, 1) for part in ("keys", "values")}
    for index, kept in enumerate((count, min(count, RING))):
        last = np.arange(count - kept, count)
        expected = np.stack([last, 1000 + last])[:, None, :, None]
        keys, values = state[f"layer.{index}.keys"], state[f"layer.{index}.values"]
        assert keys.shape == (2, LAYERS[index].n_kv_heads, kept, LAYERS[index].head_dim)
        assert (keys == expected).all()
        assert (values == -expected).all()


@pytest.mark.parametrize("count", [1, 33, 100])
def test_a_restored_cache_goes_on_as_the_other_does(count):
    original, copy = _filled(count), _cache()
    copy.restore(count, original.state())
    for cache in (original, copy):
        _append(cache, np.zeros((2, 40), np.int64))
    assert copy.length == original.length == count + 40
    theirs = original.state()
    for name, array in copy.state().items():
        np.testing.assert_array_equal(array, theirs[name])


def test_another_state_is_refused_and_changes_nothing():
    state, cache = _filled(20).state(), _cache()
    for broken in (
        {**state, "layer.1.keys": state["layer.1.keys"][:, :, 1:]},
        {**state, "layer.0.values": state["layer.0.values"].astype(np.float64)},
        {name: array for name, array in state.items() if name != "layer.1.values"},
    ):
        with pytest.raises(UsageError, match=r"the state of a cache needs `layer\.\d\.\w+` `f32\["):
            cache.restore(20, broken)
    assert (cache.length, cache.capacity) == (0, 0)
    with pytest.raises(ContextLengthError, match="40 tokens do not fit into the context of 30"):
        _cache(limit=30).restore(40, _filled(40).state())


def test_rows_are_copies():
    cache = _filled(40, left_padding=np.array([0, 3]))
    chosen = cache.rows([1, 1, 0])
    np.testing.assert_array_equal(chosen.left_padding, [3, 3, 0])
    assert (chosen.batch, chosen.length, chosen.capacity) == (3, 40, 64)
    for index, (keys, values) in enumerate(cache.buffers):
        for ours, theirs in zip(chosen.buffers[index], (keys, values), strict=True):
            np.testing.assert_array_equal(ours.numpy(), theirs.numpy()[[1, 1, 0]])
            assert ours is not theirs
    _append(chosen, np.zeros((3, 5), np.int64))
    assert (cache.length, chosen.length) == (40, 45)


def test_rows_without_padding_need_no_mask():
    cache = _filled(10, left_padding=np.array([0, 3]))
    assert cache.rows([0, 0]).left_padding is None
    assert cache.rows([0, 0]).position.left_padding is None
    assert cache.position.left_padding is not None


def test_repeated_keeps_the_copies_of_a_row_together():
    cache = _filled(9, left_padding=np.array([0, 3])).repeated(2)
    np.testing.assert_array_equal(cache.left_padding, [0, 0, 3, 3])
    keys = cache.state()["layer.0.keys"]
    np.testing.assert_array_equal(keys[:, 0, 0, 0], [0, 0, 1000, 1000])


@pytest.mark.parametrize("indices", [[2], [-1], [], [0.5], [[0]]])
def test_rows_that_are_not_there_are_refused(indices):
    with pytest.raises(UsageError, match="`rows` needs"):
        _cache().rows(indices)


def test_winding_back():
    cache = _filled(100)
    assert [n for n in range(-1, 102) if cache.rewindable(n)] == [0, *range(72, 101)]
    with pytest.raises(UsageError, match="a cache of 100 positions cannot go back to 50"):
        cache.rewind(50)
    cache.rewind(80)
    assert cache.length == 80
    _append(cache, np.zeros((2, 3), np.int64))
    assert cache.length == 83


def test_padding_is_counted_for_each_row():
    for left_padding in (np.array([1]), np.array([[0, 1]]), np.array([0.0, 1.0])):
        with pytest.raises(UsageError, match=r"`left_padding` needs integers \[2\]"):
            _cache(left_padding=left_padding)
    with pytest.raises(UsageError, match="`left_padding` counts padding, got -1"):
        _cache(left_padding=np.array([0, -1]))
    assert _cache(left_padding=np.array([0, 0])).left_padding is None


def test_tokens_must_be_those_of_the_batch():
    cache = _cache()
    for shape in ((1, 3), (2, 0), (2,)):
        with pytest.raises(UsageError, match=r"a step takes tokens \[2, T\] with T >= 1"):
            _append(cache, np.zeros(shape, np.int64))
    with pytest.raises(UsageError, match="a batch of at least 1, got 0"):
        _cache(batch=0)


def test_what_does_not_fit_is_refused_before_any_step():
    cache = _filled(190)
    with pytest.raises(ContextLengthError, match="201 tokens do not fit"):
        _append(cache, np.zeros((2, 11), np.int64))
    assert cache.length == 190
