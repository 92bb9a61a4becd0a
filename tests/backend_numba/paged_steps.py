"""Texts over pages, and a part of a layer, for tests of attention over pages."""

from __future__ import annotations

from functools import cache

import numpy as np

import gptrs
from gptrs import functionals as F
from gptrs.ir import dtypes
from gptrs_backend_numba.backend import NumbaBackend, create
from gptrs_backend_numba.kernels.attention.paged_geometry import BLOCK

KINDS = {
    "f32": (4, 2, 64, 64, 32, "f32", {}),
    "bf16 pool, window": (4, 1, 40, 24, 16, "bf16", {"window": BLOCK + 9}),
    "f32, sinks": (4, 2, 16, 16, 32, "f32", {"window": BLOCK + 9, "sinks": [0.5, -3.0, 9.0, 40.0]}),
    "f16 pool, softcap, odd sizes": (3, 3, 13, 7, 5, "f16", {"softcap": 3.0, "window": 40}),
}
"""H, K, D, E, S, the type of the pools, and settings."""
LENGTH = 2 * BLOCK + 50
"""The length of the longest text."""


@cache
def backend(threads: int = 1) -> NumbaBackend:
    return create(threads)


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    return F.cast(gptrs.tensor(array), getattr(dtypes, dtype)).numpy().copy()


class Texts:
    """Queries, pools and page tables of three texts of `LENGTH` tokens."""

    def __init__(self, kind: str) -> None:
        heads, kv_heads, head_dim, value_dim, size, pool, self.settings = KINDS[kind]
        random = np.random.default_rng(5)
        self.width = -(-LENGTH // size)
        pages = 3 * self.width + 1
        shape = (pages, kv_heads, size)
        self.queries = random.standard_normal((3, LENGTH, heads, head_dim)).astype(np.float32)
        self.keys, self.values = (
            rounded(random.standard_normal((*shape, dim)).astype(np.float32), pool)
            for dim in (head_dim, value_dim)
        )
        self.tables = 1 + random.permutation(pages - 1).reshape(3, -1)
        self.tables = self.tables[:, : self.width].astype(np.int32)

    def arrays(self, parts: list[tuple[int, int, int]]) -> list[np.ndarray]:
        """Operands for parts of texts: the number of the text, its first row and the next."""
        rows = [self.queries[text, begin:end] for text, begin, end in parts]
        starts = np.cumsum([0, *(end - begin for _, begin, end in parts)])
        return [
            np.concatenate(rows),
            self.keys,
            self.values,
            self.tables[[text for text, _, _ in parts]],
            starts.astype(np.int32),
            np.array([end for _, _, end in parts], np.int32),
        ]

    def attend(self, parts: list[tuple[int, int, int]], threads: int = 1) -> list[np.ndarray]:
        """The results of each part."""
        arrays = self.arrays(parts)
        with gptrs.use_backend(backend(threads)):
            settings = self.settings
            if "sinks" in settings:
                settings = {**settings, "sinks": gptrs.tensor(settings["sinks"])}
            found = F.paged_attention(*map(gptrs.tensor, arrays), **settings).numpy()
        return np.split(found, arrays[4][1:-1])


AXES = {
    "pool": ("P", None, None, None),
    "new": ("N", None),
    "slots": ("N",),
    "query": ("N", None, None),
    "values": ("P", None, None, None),
    "page_table": ("B", "W"),
    "row_starts": ("B+1",),
    "lengths": ("B",),
}


def step(
    pool: gptrs.Tensor, new: gptrs.Tensor, slots: gptrs.Tensor, query: gptrs.Tensor,
    values: gptrs.Tensor, page_table: gptrs.Tensor, row_starts: gptrs.Tensor,
    lengths: gptrs.Tensor, sinks: gptrs.Tensor | None = None,
) -> tuple[gptrs.Tensor, gptrs.Tensor]:  # fmt: skip
    """Part of a layer: keys are written, values are there already."""
    pool = F.update_pages(pool, F.reshape(new, (new.shape[0], 2, 8)), slots)
    found = F.paged_attention(query, pool, values, page_table, row_starts, lengths, sinks=sinks)
    return pool, F.reshape(found, (found.shape[0], 32))


def step_arrays(counts: list[int], lengths: list[int], width: int) -> list[np.ndarray]:
    random = np.random.default_rng(len(counts) + width)
    rows, texts = sum(counts), len(counts)
    table = np.arange(1, texts * width + 1).reshape(texts, width)
    position = np.concatenate([np.arange(n - c, n) for c, n in zip(counts, lengths, strict=True)])
    text = np.repeat(np.arange(texts), counts)
    integers = (
        table[text, position // 4] * 4 + position % 4,
        table,
        np.cumsum([0, *counts]),
        lengths,
    )
    slots, table, starts, ends = (np.asarray(x, np.int32) for x in integers)
    cached = (texts * width + 1, 2, 4, 8)
    pool, new, query, values = (
        random.standard_normal(shape).astype(np.float32)
        for shape in (cached, (rows, 16), (rows, 4, 8), cached)
    )
    return [pool, new, slots, query, values, table, starts, ends]


STEPS = [
    ([5], [5], 2), ([1], [6], 2), ([1, 1, 1], [7, 1, 9], 3), ([30, 1], [33, 2], 9), ([1], [1], 1)
]  # fmt: skip
