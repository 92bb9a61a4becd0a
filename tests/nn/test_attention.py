"""Attention over pages is attention over the whole text, however texts are cut and joined."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.capture.execute import use_backend
from gptrs.capture.jitting.jit import Jitted
from gptrs.capture.tensor import Tensor
from gptrs.ir import dtypes
from gptrs.nn import CacheSpec, LayerCache, PageBuffers, RaggedStep, split_heads
from gptrs.nn.page_buffers import LayerPools
from gptrs.nn.ragged_step import as_tensors, own_pages, ragged_step

HEADS, SHARED, HEAD_DIM = 4, 2, 3
WINDOW, LIMIT = 5, 120
TEXT = np.random.default_rng(3).integers(0, 50, (3, LIMIT))
SPECS = [CacheSpec(SHARED, HEAD_DIM), CacheSpec(SHARED, HEAD_DIM, WINDOW)]


def _table(heads: int, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=(50, heads, HEAD_DIM)) * 2
    return drawn.astype(np.float32)


TABLES = [_table(HEADS, 0), _table(SHARED, 1), _table(SHARED, 2)]


def _reference(text: np.ndarray, window: int | None) -> np.ndarray:
    """In f64, query by query: [B, T, H, D]."""
    q, k, v = (table[text].astype(np.float64) for table in TABLES)
    out = np.zeros(q.shape)
    for row, at, head in np.ndindex(*q.shape[:3]):
        seen = slice(0 if window is None else max(0, at - window + 1), at + 1)
        keys, values = (x[row, seen, head // (HEADS // SHARED)] for x in (k, v))
        scores = np.exp(keys @ q[row, at, head] / math.sqrt(HEAD_DIM))
        out[row, at, head] = scores @ values / scores.sum()
    return out


EXPECTED = [_reference(TEXT, spec.window) for spec in SPECS]


class Reader:
    """Two layers of attention, one with a window, over scattered pages of three texts."""

    def __init__(self) -> None:
        self._tables = [gptrs.tensor(table.reshape(50, -1)) for table in TABLES]
        self._step = Jitted(self._attend, donate=["pools"])
        # Page 0 is nobody's, as in a pool; the pages of a text are in no order.
        own = 1 + own_pages(3, LIMIT)
        self._pages = [own[:, ::-1], own[::-1]]
        self._buffers = PageBuffers(SPECS, [own.size + 1] * 2, dtypes.f32)

    def append(
        self, lengths: Sequence[int], counts: Sequence[int], texts: np.ndarray = TEXT
    ) -> list[np.ndarray]:
        """Give each text its next tokens; return what each layer finds, [N, H, D]."""
        rows = zip(texts, lengths, counts, strict=True)
        tokens = [text[length : length + count] for text, length, count in rows]
        step = ragged_step(tokens, lengths, self._pages)
        found, self._buffers.pools = self._step(as_tensors(step), self._buffers.pools)
        return [mixed.numpy() for mixed in found]

    def _attend(
        self, step: RaggedStep[Tensor], pools: list[LayerPools]
    ) -> tuple[list[Tensor], list[LayerPools]]:
        parts = [
            split_heads(F.embedding(step.tokens, table), heads)
            for table, heads in zip(self._tables, (HEADS, SHARED, SHARED), strict=True)
        ]
        caches = [
            LayerCache(pair, step, layer, spec.window)
            for layer, (spec, pair) in enumerate(zip(SPECS, pools, strict=True))
        ]
        return [cache.attend(*parts) for cache in caches], [cache.pools for cache in caches]


CUTS = {
    "whole": [[LIMIT] * 3],
    "one by one": [[1, 1, 1]] * 40,
    "unequal": [[40, 3, 70], [1, 1, 1], [1, 60, 1], [30, 1, 16], [1, 1, 1], [40, 7, 2]],
}


@pytest.mark.long
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_however_the_texts_are_cut(backend, cuts):
    with use_backend(backend):
        reader, lengths = Reader(), [0, 0, 0]
        for counts in cuts:
            found = reader.append(lengths, counts)
            for mixed, expected in zip(found, EXPECTED, strict=True):
                ends = zip(expected, lengths, counts, strict=True)
                rows = [text[length : length + count] for text, length, count in ends]
                np.testing.assert_allclose(mixed, np.concatenate(rows), rtol=1e-4, atol=2e-5)
            lengths = [length + count for length, count in zip(lengths, counts, strict=True)]


def test_what_is_written_again_replaces_what_was_there(backend):
    """A text goes back to fewer positions by saying so: what lies behind is not seen."""
    with use_backend(backend):
        reader = Reader()
        reader.append([0, 0, 0], [60, 100, 80], (TEXT + 1) % 50)
        reader.append([0, 0, 0], [20, 40, 60])
        found = reader.append([20, 40, 60], [1, 5, 20])
    for mixed, expected in zip(found, EXPECTED, strict=True):
        rows = [expected[0, 20:21], expected[1, 40:45], expected[2, 60:80]]
        np.testing.assert_allclose(mixed, np.concatenate(rows), rtol=1e-4, atol=2e-5)
