"""Attention, its masks and its cache say exactly what they refuse."""

from __future__ import annotations

import pytest

import gptrs
from gptrs import functionals as F
from gptrs.errors import UsageError
from gptrs.ir import dtypes
from support.tensors import f32

Q, K = f32(1, 4, 3, 8), f32(1, 2, 5, 8)

REFUSALS = [
    (
        lambda: F.attention(f32(4, 3, 8), K, K),
        "`attention` needs query, key and value of rank 4 [B, H, T, D],"
        " got `f32[4, 3, 8]`, `f32[1, 2, 5, 8]`, `f32[1, 2, 5, 8]`",
    ),
    (
        lambda: F.attention(Q, f32(1, 3, 5, 8), f32(1, 3, 5, 8)),
        "`attention` needs the heads of the query to be a multiple of those of the key,"
        " got 4 and 3",
    ),
    (
        lambda: F.attention(Q, f32(1, 0, 5, 8), f32(1, 0, 5, 8)),
        "`attention` needs the heads of the query to be a multiple of those of the key,"
        " got 4 and 0",
    ),
    (
        lambda: F.attention(Q, f32(2, 2, 5, 8), K),
        "`attention` needs `key` of shape [1, 2, 5, 8], got `f32[2, 2, 5, 8]`",
    ),
    (
        lambda: F.attention(Q, K, f32(1, 4, 5, 8)),
        "`attention` needs `value` of shape [1, 2, 5, 8], got `f32[1, 4, 5, 8]`",
    ),
    (
        lambda: F.attention(Q, K, F.cast(K, dtypes.f16)),
        "`attention` needs tensors of one element type, got `f32[1, 4, 3, 8]`,"
        " `f32[1, 2, 5, 8]`, `f16[1, 2, 5, 8]`",
    ),
    (
        lambda: F.attention(Q, K, K, gptrs.tensor([[1, 0, 1, 0, 1]])),
        "`attention` of f32 needs an i1 or f32 mask, got `si64[1, 5]`",
    ),
    (
        lambda: F.attention(Q, K, K, f32(2, 1, 3, 5)),
        "`attention` needs a mask that broadcasts to [1, 4, 3, 5], got `f32[2, 1, 3, 5]`",
    ),
    (
        lambda: F.attention(Q, K, K, window=2),
        "`attention` takes `window` only with `causal=True`",
    ),
    (
        lambda: F.attention(Q, K, K, offset=2),
        "`attention` takes `offset` only with `causal=True`",
    ),
    (
        lambda: F.attention(Q, K, K, causal=True, window=0),
        "`attention` needs a window of at least 1 key, got 0",
    ),
    (
        lambda: F.attention(Q, K, K, causal=True, offset=f32()),
        "`attention` needs an integer `offset`, got `f32[]`",
    ),
    (
        lambda: F.attention(Q, K, K, causal=True, offset=gptrs.tensor([1])),
        "`attention` needs `offset` of shape [], got `si64[1]`",
    ),
    (
        lambda: F.attention(Q, K, K, scale=float("nan")),
        "`attention` needs a finite scale, got nan",
    ),
    (
        lambda: F.attention(Q, K, K, softcap=0.0),
        "`attention` needs a finite softcap above 0, got 0.0",
    ),
    (
        lambda: F.attention(*[f32(1, 2, 3, 0)] * 3),
        "`attention` with head_dim 0 has no default scale",
    ),
    (lambda: F.causal_mask(-1, 2), "`causal_mask` needs `queries` of at least 0, got -1"),
    (
        lambda: F.sliding_window_mask(2, 2, 0),
        "`sliding_window_mask` needs a window of at least 1 key, got 0",
    ),
    (
        lambda: F.padding_mask(gptrs.tensor(3), 4),
        "`padding_mask` needs `lengths` of rank 1, got `si64[]`",
    ),
    (
        lambda: F.padding_mask(gptrs.tensor([3]), 4, "top"),  # pyright: ignore
        '`padding_mask` takes side="right" or "left", got \'top\'',
    ),
    (
        lambda: F.update_cache(f32(1, 2, 4, 3), f32(1, 2, 5, 3), 0),
        "`update_cache` cannot write `f32[1, 2, 5, 3]` into `f32[1, 2, 4, 3]`",
    ),
    (
        lambda: F.update_cache(f32(1, 2, 4, 3), f32(1, 2, 2, 3), 3),
        "`update_cache` cannot write `f32[1, 2, 2, 3]` at 3 of `f32[1, 2, 4, 3]`",
    ),
    (
        lambda: F.update_cache(f32(1, 2, 4, 3), f32(1, 1, 2, 3), 0),
        "`update_cache` needs `new` of shape [1, 2, 2, 3], got `f32[1, 1, 2, 3]`",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS)
def test_refusal(call, message):
    with pytest.raises(UsageError) as caught:
        call()
    assert caught.value.message == message
