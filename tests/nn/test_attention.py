"""Attention with a cache is attention over the whole text, however it is cut or padded."""

from __future__ import annotations

import math

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.capture.backend_choice import use_backend
from gptrs.ir import dtypes
from gptrs.nn import (
    CachePosition,
    CacheSpec,
    KVCache,
    LayerCache,
    causal_attention,
    positions,
    split_heads,
)

HEADS, SHARED, HEAD_DIM = 4, 2, 3
WINDOW, RING, LIMIT = 5, 32, 120
TEXT = np.random.default_rng(3).integers(0, 50, (3, LIMIT))
LEFT_PADDING = np.array([0, 7, 40])


def _table(heads: int, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=(50, heads, HEAD_DIM)) * 2
    return drawn.astype(np.float32)


TABLES = [_table(HEADS, 0), _table(SHARED, 1), _table(SHARED, 2)]


def _reference(text: np.ndarray, window: int | None, left_padding: np.ndarray) -> np.ndarray:
    """In f64, query by query: [B, H, T, D]."""
    q, k, v = (np.swapaxes(table[text].astype(np.float64), 1, 2) for table in TABLES)
    out = np.zeros(q.shape)
    for row, head, at in np.ndindex(*q.shape[:3]):
        first = max(left_padding[row], 0 if window is None else at - window + 1)
        seen = slice(first, at + 1) if at >= left_padding[row] else slice(at, at + 1)
        keys, values = (x[row, head // (HEADS // SHARED), seen] for x in (k, v))
        scores = np.exp(keys @ q[row, head, at] / math.sqrt(HEAD_DIM))
        out[row, head, at] = scores @ values / scores.sum()
    return out


EXPECTED = {
    (window, padded): _reference(TEXT, window, LEFT_PADDING if padded else np.zeros(3, int))
    for window in (None, WINDOW)
    for padded in (False, True)
}


class Reader:
    """Two layers of attention, one with a window, and what they gave for each token."""

    def __init__(self) -> None:
        self.tables = [gptrs.tensor(table.reshape(50, -1)) for table in TABLES]
        self.compiled = gptrs.jit(self.attend, donate=[2])
        self.whole = gptrs.jit(self.attend)
        self.seen: list[list[np.ndarray]] = []

    def attend(self, tokens, position, buffers):
        query, key, value = (
            split_heads(F.embedding(tokens, table), heads)
            for table, heads in zip(self.tables, (HEADS, SHARED, SHARED), strict=True)
        )
        caches = [
            LayerCache(position, window, pair)
            for pair, window in zip(buffers, (None, WINDOW), strict=True)
        ]
        found = [causal_attention(query, *cache.update(key, value), cache) for cache in caches]
        return tuple(found), [cache.buffers for cache in caches]

    def append(self, cache, tokens):
        for piece in cache.pieces(tokens):
            found, buffers = self.compiled(piece, cache.position, cache.buffers)
            cache.advance(piece.shape[1], buffers)
            self.seen.append([mixed.numpy() for mixed in found])

    def results(self) -> list[np.ndarray]:
        """Of each layer, the steps joined: [B, H, T, D]."""
        return [np.concatenate(parts, axis=2) for parts in zip(*self.seen, strict=True)]


@pytest.fixture(scope="module")
def reader(backend):
    return Reader()


def _cache(padded: bool) -> KVCache:
    layers = [CacheSpec(SHARED, HEAD_DIM), CacheSpec(SHARED, HEAD_DIM, WINDOW)]
    return KVCache(layers, 3, LIMIT, dtypes.f32, LEFT_PADDING if padded else None)


def _assert_as_expected(found: list[np.ndarray], padded: bool) -> None:
    for mixed, window in zip(found, (None, WINDOW), strict=True):
        expected = EXPECTED[window, padded][:, :, : mixed.shape[2]]
        np.testing.assert_allclose(mixed, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("padded", [False, True])
def test_without_a_cache(reader, backend, padded):
    with use_backend(backend):
        position = CachePosition.at(0, LEFT_PADDING if padded else None)
        found, updated = reader.whole(gptrs.tensor(TEXT), position, [None, None])
        assert updated == [None, None]
        _assert_as_expected([mixed.numpy() for mixed in found], padded)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("sizes", [[LIMIT], [1] * LIMIT, [16] * 7, [40, 1, 1, 30, 1, 16]], ids=len)
def test_however_the_text_is_cut(reader, backend, padded, sizes):
    cache, end = _cache(padded), 0
    reader.seen.clear()
    with use_backend(backend):
        for size in sizes:
            reader.append(cache, TEXT[:, end : end + size])
            end += size
            assert cache.buffers[1][0].shape[2] <= RING
    assert cache.length == end
    _assert_as_expected(reader.results(), padded)


@pytest.mark.parametrize("back", [0, 94, 99])
def test_what_was_wound_back_is_not_seen(reader, backend, back):
    cache = _cache(padded=False)
    with use_backend(backend):
        reader.append(cache, (TEXT[:, :100] + 1) % 50)
        cache.rewind(0)
        reader.append(cache, TEXT[:, :back]) if back else None
        reader.append(cache, TEXT[:, back:100] * 0)
        cache.rewind(back)
        reader.seen.clear()
        reader.append(cache, TEXT[:, back : back + 16])
    for mixed, window in zip(reader.results(), (None, WINDOW), strict=True):
        expected = EXPECTED[window, False][:, :, back : back + 16]
        np.testing.assert_allclose(mixed, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("padded", [False, True])
def test_copied_rows_go_on_as_their_own(reader, backend, padded):
    cache = _cache(padded)
    order = [2, 0, 2]
    with use_backend(backend):
        reader.append(cache, TEXT[:, :48])
        copy = cache.rows(order)
        reader.seen.clear()
        reader.append(copy, TEXT[order, 48:64])
    for mixed, window in zip(reader.results(), (None, WINDOW), strict=True):
        expected = EXPECTED[window, padded][order, :, 48:64]
        np.testing.assert_allclose(mixed, expected, rtol=1e-4, atol=2e-5)


def test_positions_begin_after_the_padding(backend):
    with use_backend(backend):
        plain = positions(CachePosition.at(4), 3)
        padded = positions(CachePosition.at(4, np.array([0, 5, 9])), 3)
        np.testing.assert_array_equal(plain.numpy(), [4, 5, 6])
        np.testing.assert_array_equal(padded.numpy(), [[4, 5, 6], [0, 0, 1], [0, 0, 0]])
        assert padded.dtype is dtypes.si64


def test_texts_without_padding_have_no_mask():
    reader = Reader()
    cache = _cache(padded=False)
    cache.reserve(3)
    tokens = gptrs.tensor(TEXT[:, :3])
    plain = reader.compiled.lower(tokens, CachePosition.at(0, np.zeros(3, int)), cache.buffers)
    padded = reader.compiled.lower(tokens, CachePosition.at(0, LEFT_PADDING), cache.buffers)
    assert len(plain.main.body.instructions) < len(padded.main.body.instructions)
