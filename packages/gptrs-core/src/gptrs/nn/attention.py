"""Causal self-attention of the rows of a step over the paged key/value cache of a layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor
from gptrs.nn.module import WATCHER
from gptrs.nn.page_buffers import LayerPools
from gptrs.nn.ragged_step import RaggedStep
from gptrs.nn.recent_rows import kept_rows
from gptrs.nn.text_states import Advance, kept_states


class LayerCache:
    """The cache of one layer in one step; `attend` appends the new tokens to it, and reads it.

    `pools` are the keys and values of the layer, [P, K, S, D], `group` the number of its cache
    group. With `window` each position sees the last `window` ones up to its own.
    """

    def __init__(
        self, pools: LayerPools, step: RaggedStep[Tensor], group: int, window: int | None
    ) -> None:
        self.pools = pools
        self._step = step
        self._group = group
        self._window = window

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend to the new tokens and those before them in the same text, [N, H, D] -> the same.

        key and value are those of the new tokens, [N, K, D], for the K heads of the layer's
        `CacheSpec`; H is a multiple of K. They are rounded to the element type of the cache.
        `scale` None stands for `D ** -0.5`; `softcap` is that of `F.attention`,
        `sinks` [H] that of `F.paged_attention`.
        """
        step, slots = self._step, self._step.slots[self._group]
        watcher = WATCHER.get()
        if watcher is not None and watcher.wants_attention:
            seen = _Seen(step.positions, self._window, scale, softcap, sinks)
            watcher.attention_of(attention_weights(query, key, seen))
        keys, values = self.pools
        keys, values = F.update_pages(keys, key, slots), F.update_pages(values, value, slots)
        self.pools = keys, values
        return F.paged_attention(
            query,
            keys,
            values,
            step.page_tables[self._group],
            step.row_starts,
            step.lengths,
            scale=scale,
            window=self._window,
            softcap=softcap,
            sinks=sinks,
        )

    def recent(self, x: Tensor, count: int) -> Tensor:
        """Keep the states of the new tokens; return the last `count` of each text up to each token.

        [N, C] -> [N, count, C], the oldest first and 0 before the first position, for a layer whose
        `CacheSpec` is `convolution_cache(C, count)`. States are rounded to the element type of the
        cache.
        """
        found, self.pools = kept_rows(self.pools, x, count, self._step, self._group)
        return found

    def recurrent(self, advance: Advance, rows: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        """Advance the state of each text token by token; return the vectors of `advance`, [N, ..].

        `advance(state, *row)` takes a state f32 of `shape` and a row of each tensor of `rows`, [N,
        ..]; it returns the next state and a vector. The first state of a text is 0. For a layer
        whose `CacheSpec` is `state_cache` of as many numbers.
        """
        found, self.pools = kept_states(self.pools, advance, rows, shape, self._step, self._group)
        return found


class _Seen(NamedTuple):
    positions: Tensor
    window: int | None
    scale: float | None
    softcap: float | None
    sinks: Tensor | None = None


def attention_weights(query: Tensor, key: Tensor, seen: _Seen) -> Tensor:
    """Return the weights [H, N, N] of rows [N, H, D] to the rows [N, K, D] of the same step.

    Of texts that begin in the step; a row of another text gets 0.
    """
    rows, n_heads, head_dim = query.shape
    groups = n_heads // key.shape[1]
    keys = F.repeat_interleave(F.swap_axes(key, 0, 1), groups, 0)  # (H, N, D)
    scores = F.matmul(F.swap_axes(query, 0, 1), F.swap_axes(keys, 1, 2))  # (H, N, N)
    scores = scores * (head_dim**-0.5 if seen.scale is None else seen.scale)
    if seen.softcap is not None:
        scores = F.tanh(scores / seen.softcap) * seen.softcap
    to = F.arange(rows)  # (N,)
    of = F.reshape(to, (rows, 1))
    first = of - F.reshape(seen.positions, (rows, 1))  # the row in which its text begins
    visible = F.logical_and(to <= of, to >= first)
    if seen.window is not None:
        visible = F.logical_and(visible, to > of - seen.window)
    return _softmax(F.where(visible, scores, -math.inf), seen.sinks)


def attention_with_sinks(
    rows: Sequence[Tensor],
    sinks: Tensor,
    visible: Tensor,
    *,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attend as `F.attention` does, beside `sinks` [H], see `F.paged_attention`.

    `rows` are the query [B, H, T, D], the key and the value [B, K, S, D]; keys are seen where
    `visible` is true, i1 that broadcasts to [B, H, T, S].
    """
    query, key, value = rows
    n_heads, head_dim = query.shape[1], query.shape[3]
    groups = n_heads // key.shape[1]
    keys, values = (F.repeat_interleave(x, groups, 1) for x in (key, value))
    scores = F.matmul(query, F.swap_axes(keys, 2, 3))
    scores = scores * (head_dim**-0.5 if scale is None else scale)
    if softcap is not None:
        scores = F.tanh(scores / softcap) * softcap
    return F.matmul(_softmax(F.where(visible, scores, -math.inf), sinks), values)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Return the softmax of scores [.., H, T, S] beside one for each head, without its weight."""
    if sinks is None:
        return F.softmax(scores, axis=-1)
    sink = F.reshape(sinks, (sinks.shape[0], 1, 1))
    largest = F.maximum(F.max(scores, axis=-1, keepdims=True), sink)
    powers = F.exp(scores - largest)
    return powers / (F.sum(powers, axis=-1, keepdims=True) + F.exp(sink - largest))


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """[..., H * D] -> [..., H, D], for `n_heads` H."""
    *rows, width = x.shape
    return F.reshape(x, (*rows, n_heads, width // n_heads))


def merge_heads(x: Tensor) -> Tensor:
    """[..., H, D] -> [..., H * D]."""
    *rows, n_heads, head_dim = x.shape
    return F.reshape(x, (*rows, n_heads * head_dim))
