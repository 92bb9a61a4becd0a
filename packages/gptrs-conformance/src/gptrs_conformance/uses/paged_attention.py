"""Uses of attention over pages: decode steps and chunks of prompts in one flat row."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gptrs import functionals as F
from gptrs_conformance.functional_use import Use
from gptrs_conformance.running import normal
from gptrs_conformance.uses.attention import attended, seen

SIZE = 4
"""Positions of a page."""
COUNTS, LENGTHS = (5, 1, 0, 2), (7, 11, 3, 2)
"""New rows of each text and its length with them: a chunk, a decode step, nothing, a prompt."""
Arrays = tuple[np.ndarray, ...]


def ragged(
    counts: tuple[int, ...],
    lengths: tuple[int, ...],
    query_heads: int,
    key_heads: int,
    padding: int = 0,
    seed: int = 0,
) -> Arrays:
    """Query, pools, page table, row starts and lengths of texts, with D = 6 and E = 5.

    Pages are assigned in any order, except page 0, which is unused; `padding` rows follow the last
    text.
    """
    needed = [-(-length // SIZE) for length in lengths]
    pages = 1 + sum(needed)
    order = iter(np.random.default_rng(seed).permutation(np.arange(1, pages)))
    table = np.zeros((len(lengths), max(needed, default=1)), np.int32)
    for row, count in zip(table, needed, strict=True):
        row[:count] = [next(order) for _ in range(count)]
    return (
        normal(seed + 1, sum(counts) + padding, query_heads, 6),
        normal(seed + 2, pages, key_heads, SIZE, 6),
        normal(seed + 3, pages, key_heads, SIZE, 5),
        table,
        np.cumsum([0, *counts], dtype=np.int32),
        np.array(lengths, np.int32),
    )


def paged(
    query: np.ndarray,
    key_pool: np.ndarray,
    value_pool: np.ndarray,
    page_table: np.ndarray,
    row_starts: np.ndarray,
    lengths: np.ndarray,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    """Attention text by text, over keys and values put together from their pages.

    `sinks` are scores of a key of zeros behind the others, whose value is 0.
    """
    out = np.zeros((*query.shape[:2], value_pool.shape[3]))
    for keys, values, rows, mask in _texts(
        key_pool, value_pool, page_table, row_starts, lengths, window
    ):
        one = np.swapaxes(query[rows], 0, 1)[None]
        bias = np.zeros((1, query.shape[1], 1, mask.shape[1] + (sinks is not None)))
        if sinks is not None:
            keys, values = (np.pad(x, ((0, 0), (0, 1), (0, 0))) for x in (keys, values))
            mask = np.pad(mask, ((0, 0), (0, 1)), constant_values=True)
            bias[0, :, 0, -1] = sinks
        mixed = attended(one, keys[None], values[None], mask, bias, scale=scale, softcap=softcap)
        out[rows] = np.swapaxes(mixed[0], 0, 1)
    return out


def _texts(
    key_pool: np.ndarray,
    value_pool: np.ndarray,
    page_table: np.ndarray,
    row_starts: np.ndarray,
    lengths: np.ndarray,
    window: int | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray, slice, np.ndarray]]:
    """Keys and values [K, S, D], rows and mask of each text that has rows."""
    for table, begin, end, length in zip(
        page_table, row_starts[:-1], row_starts[1:], lengths, strict=True
    ):
        if begin == end:
            continue
        keys, values = (
            np.concatenate(list(pool[table]), axis=1)[:, :length] for pool in (key_pool, value_pool)
        )
        count = int(end - begin)
        yield keys, values, slice(begin, end), seen(count, int(length), int(length) - count, window)


def _torch(torch, query, *texts):  # pyright: ignore
    out = torch.zeros((*query.shape[:2], texts[1].shape[3]))
    for keys, values, rows, mask in _texts(*(x.numpy() for x in texts)):
        out[rows] = torch.nn.functional.scaled_dot_product_attention(
            query[rows].transpose(0, 1)[None],
            torch.from_numpy(keys)[None],
            torch.from_numpy(values)[None],
            attn_mask=torch.from_numpy(mask),
            enable_gqa=True,
        )[0].transpose(0, 1)
    return out


def updated(pool: np.ndarray, new: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """The pool with each row of `new` written to its slot, one after another."""
    after = pool.copy()
    for row, slot in zip(new, slots, strict=True):
        after[slot // pool.shape[2], :, slot % pool.shape[2]] = row
    return after


_SHARED = ragged(COUNTS, LENGTHS, 4, 2, padding=3)
_BLIND = ragged((5, 20, 1, 2), (7, 22, 3, 2), 4, 2)
for _text in (1, 2):
    _BLIND[0][_BLIND[4][_text] : _BLIND[4][_text + 1], :, 2] = 1
    for _page in _BLIND[3][_text][: -(-_BLIND[5][_text] // SIZE)]:
        _BLIND[1][_page, :, :, 2] = -np.inf

USES = (
    *(
        Use("paged_attention", ragged(COUNTS, LENGTHS, *sharing), F.paged_attention, paged,
            f"{sharing[0]} heads on {sharing[1]}", torch=_torch)
        for sharing in ((4, 4), (4, 2), (4, 1))
    ),
    Use("paged_attention", _SHARED, F.paged_attention, paged, "padding rows", torch=_torch),
    Use("paged_attention", ragged((5, 30, 1), (2, 7, 1), 4, 2), F.paged_attention, paged,
        "rows before the first position"),
    Use("paged_attention", _BLIND, F.paged_attention, paged, "scores of -inf alone"),
    Use("paged_attention", (*_BLIND, np.array([0, -np.inf, 1, 2], np.float32)),
        lambda *x: F.paged_attention(*x[:-1], sinks=x[-1]),
        lambda *x: paged(*x[:-1], sinks=x[-1]), "scores of -inf alone, sinks",
        small_floats=False),
    Use("paged_attention", ragged((1, 1, 1), (9, 4, 1), 4, 2), F.paged_attention, paged, "decode"),
    Use("paged_attention", ragged((9,), (9,), 3, 3), F.paged_attention, paged, "one text"),
    Use("paged_attention", _SHARED, lambda *x: F.paged_attention(*x, scale=0.3, window=3),
        lambda *x: paged(*x, scale=0.3, window=3), "window"),
    Use("paged_attention", _SHARED, lambda *x: F.paged_attention(*x, softcap=2.0),
        lambda *x: paged(*x, softcap=2.0), "softcap"),
    Use("paged_attention", (*_SHARED, normal(9, 4)),
        lambda *x: F.paged_attention(*x[:-1], sinks=x[-1], window=3, softcap=3.0),
        lambda *x: paged(*x[:-1], sinks=x[-1], window=3, softcap=3.0), "sinks",
        small_floats=False),
    Use("update_pages",
        (normal(1, 5, 2, SIZE, 3), normal(2, 4, 2, 3), np.array([6, 19, 4, 6], np.int32)),
        F.update_pages, updated),
    Use("update_pages", (normal(1, 5, 1, SIZE, 3), normal(2, 2, 1, 3), np.array([0, 7])),
        F.update_pages, updated, "one head"),
)  # fmt: skip
