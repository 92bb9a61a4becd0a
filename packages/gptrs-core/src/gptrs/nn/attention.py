"""Causal self-attention of the rows of a step over the paged key/value cache of a layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

from typing_extensions import override

from gptrs import functionals as F
from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.ir import dtypes
from gptrs.nn.cache_spec import CacheSpec
from gptrs.nn.decoder_cache import kept_rows, row_texts
from gptrs.nn.layers import WATCHER
from gptrs.nn.page_buffers import LayerPools
from gptrs.nn.ragged_step import PAGE_SIZE, RaggedStep

# States of texts in pages, for layers that read a text token by token, like Mamba.
#
# A page holds the state after the last position written in it, or the last few of them: then tokens
# that were guessed wrong leave the state before them. Texts that share whole pages as a prefix
# start from the state after them; within a page they cannot diverge.


Advance = Callable[..., tuple[Tensor, Tensor]]
"""`(state, *rows) -> (next state, vector)`, for one token."""


def kept_states(
    pools: LayerPools,
    advance: Advance,
    rows: Sequence[Tensor],
    shape: Sequence[int],
    step: RaggedStep[Tensor],
    group: int,
) -> tuple[Tensor, LayerPools]:
    """Return the vectors of all rows, and pools with the new states; see `LayerCache.recurrent`.

    Each half of a state is in one of the two pools, [P, 1, R, D / 2]; the state after position p is
    number `p % R` of its page.
    """
    texts, kept = row_texts(step), pools[0].shape[2]
    begun = step.positions > 0
    last = F.cast(F.where(begun, step.positions - 1, 0), dtypes.si32)
    table = F.take(step.page_tables[group], texts)  # (N, W)
    pages = F.squeeze(F.gather(table, F.expand_dims(last // PAGE_SIZE, 1), axis=1), 1)
    before = _state_numbers(pages, last, kept)
    pages = step.slots[group] // PAGE_SIZE
    after = _state_numbers(pages, F.cast(step.positions, dtypes.si32), kept)
    # A guessed token is a text of its own that continues the row before it.
    continues = F.logical_and(begun, F.equal(before, F.pad(after, [(1, -1)], value=-1)))
    halves = [F.reshape(pool, (-1, pool.shape[3])) for pool in pools]

    def held(number: Tensor, is_begun: Tensor) -> Tensor:
        found = [primitives.take(half, number) for half in halves]
        whole = F.reshape(F.concat(found, axis=0), tuple(shape))
        return F.where(is_begun, whole, 0.0)

    def body(
        state: Tensor, goes_on: Tensor, is_begun: Tensor, number: Tensor, *row: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        new, output = advance(F.where(goes_on, state, held(number, is_begun)), *row)
        return new, output, F.reshape(new, (new.size,))

    nothing = F.zeros(tuple(shape), dtypes.f32)
    _, (found, states) = primitives.scan(body, [nothing], [continues, begun, before, *rows])
    first, second = (
        F.update_pages(pool, F.expand_dims(half, 1), after)
        for pool, half in zip(pools, F.split(states, 2), strict=True)
    )
    return found, (first, second)


def _state_numbers(pages: Tensor, positions: Tensor, kept: int) -> Tensor:
    """Return the numbers of the states after positions in pages of `kept` states, si32 [N]."""
    return pages if kept == 1 else pages * kept + positions % kept


def whole_states(
    advance: Advance, rows: Sequence[Tensor], shape: Sequence[int], positions: Tensor
) -> Tensor:
    """Return the vectors of rows of whole texts, and keep nothing."""

    def body(state: Tensor, first: Tensor, *row: Tensor) -> tuple[Tensor, Tensor]:
        return advance(F.where(first, 0.0, state), *row)

    nothing = F.zeros(tuple(shape), dtypes.f32)
    _, (found,) = primitives.scan(body, [nothing], [F.equal(positions, 0), *rows])
    return found


class Scores(TypedDict, total=False):
    """Options of attention scores: `scale` and `softcap` of `F.attention`, by default
    `D ** -0.5` and no limit, and the `sinks` [H] of `F.paged_attention`."""

    scale: float | None
    softcap: float | None
    sinks: Tensor | None


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

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **scores: Unpack[Scores]) -> Tensor:
        """Attend to the new tokens and those before them in the same text, [N, H, D] -> the same.

        `key` and `value` of the new tokens are [N, K, D], for the K heads of the layer's
        `CacheSpec`; H is a multiple of K. They are rounded to the element type of the cache.
        """
        step, slots = self._step, self._step.slots[self._group]
        watcher = WATCHER.get()
        if watcher is not None and watcher.wants_attention:
            weights = attention_weights(query, key, step.positions, self._window, scores)
            changed = watcher.attention_of(weights)
            if changed is not weights:
                return self._mixed_by(changed, value)
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
            window=self._window,
            **scores,
        )

    def _mixed_by(self, weights: Tensor, value: Tensor) -> Tensor:
        """Return the values [N, K, D] mixed by weights [H, N, N]: [N, H, D].

        NaN for texts that began in an earlier step, since the weights do not cover its tokens.
        """
        rows, n_heads, _ = value.shape
        values = F.repeat_interleave(F.swap_axes(value, 0, 1), weights.shape[0] // n_heads, 0)
        step = self._step
        first = F.cast(F.take(step.row_starts, row_texts(step)), step.positions.dtype)
        whole = F.equal(step.positions, F.arange(rows) - first)
        mixed = F.swap_axes(F.matmul(weights, values), 0, 1)
        return F.where(F.reshape(whole, (rows, 1, 1)), mixed, math.nan)

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


def attention_weights(
    query: Tensor, key: Tensor, positions: Tensor, window: int | None, how: Scores
) -> Tensor:
    """Return the weights [H, N, N] of rows [N, H, D] to the rows [N, K, D] of the same step.

    All texts start in this step; rows of other texts get weight 0.
    """
    rows, n_heads, head_dim = query.shape
    groups = n_heads // key.shape[1]
    keys = F.repeat_interleave(F.swap_axes(key, 0, 1), groups, 0)  # (H, N, D)
    scores = F.matmul(F.swap_axes(query, 0, 1), F.swap_axes(keys, 1, 2))  # (H, N, N)
    scores = _limited(scores, head_dim, how)
    to = F.arange(rows)  # (N,)
    of = F.reshape(to, (rows, 1))
    first = of - F.reshape(positions, (rows, 1))  # the row in which its text begins
    visible = F.logical_and(to <= of, to >= first)
    if window is not None:
        visible = F.logical_and(visible, to > of - window)
    return _softmax(F.where(visible, scores, -math.inf), how.get("sinks"))


def attention_with_sinks(
    rows: Sequence[Tensor], visible: Tensor, **scores: Unpack[Scores]
) -> Tensor:
    """Attend as `F.attention` does, beside the `sinks` of `Scores`.

    `rows` are the query [B, H, T, D], the key and the value [B, K, S, D]; keys are seen where
    `visible` is true, i1 that broadcasts to [B, H, T, S].
    """
    query, key, value = rows
    n_heads, head_dim = query.shape[1], query.shape[3]
    groups = n_heads // key.shape[1]
    keys, values = (F.repeat_interleave(x, groups, 1) for x in (key, value))
    found = _limited(F.matmul(query, F.swap_axes(keys, 2, 3)), head_dim, scores)
    weights = _softmax(F.where(visible, found, -math.inf), scores.get("sinks"))
    return F.matmul(weights, values)


def _limited(scores: Tensor, head_dim: int, how: Scores) -> Tensor:
    """Multiply scores by their scale, and limit them."""
    scale, softcap = how.get("scale"), how.get("softcap")
    scores = scores * (head_dim**-0.5 if scale is None else scale)
    return scores if softcap is None else F.tanh(scores / softcap) * softcap


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Return the softmax over scores [.., H, T, S] and one sink per head, dropping the sink's
    weight.
    """
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


def self_attention(
    x: Tensor,
    projections: Sequence[Callable[[Tensor], Tensor]],
    n_heads: int,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Attend from each row of x [B, T, C] to all of its text, [B, T, H * D].

    `projections` are those of queries, keys and values; `mask` and `causal` are of `F.attention`.
    """
    query, key, value = (
        F.swap_axes(split_heads(project(x), n_heads), 1, 2) for project in projections
    )  # each (B, H, T, D)
    mixed = F.attention(query, key, value, mask=mask, causal=causal)
    return merge_heads(F.swap_axes(mixed, 1, 2))


# Whole texts of one length as a step without a cache, for exports of language models.
#
# Only gptrs can fill the page tables of a paged step; without them, attention is over a batch.


def whole_texts(
    tokens: Tensor, specs: Sequence[CacheSpec], positions: Tensor | None = None
) -> tuple[RaggedStep[Tensor], list[LayerCache]]:
    """Return the step that reads texts si64 [B, T] from their start, and its layer caches.

    With `positions`, si64 [B, T], each row packs several texts: a text starts where its positions
    restart at 0, and no token sees another text.
    """
    batch, length = tokens.shape
    rows = batch * length
    packed = None if positions is None else _same_text(positions)
    if positions is None:
        positions = F.broadcast_to(F.reshape(F.arange(length), (1, length)), (batch, length))
    step = RaggedStep(
        tokens=F.reshape(tokens, (rows,)),
        positions=F.reshape(positions, (rows,)),
        row_starts=F.cast(F.arange(batch + 1) * F.sum(F.ones((length,), dtypes.si64)), dtypes.si32),
        lengths=F.cast(F.sum(F.ones((batch, length), dtypes.si64), 1), dtypes.si32),
        page_tables=(),
        slots=(),
    )
    return step, [_WholeTexts(step, spec.window, batch, length, packed) for spec in specs]


def _same_text(positions: Tensor) -> Tensor:
    """Return which tokens of a row belong to one text, i1 [B, 1, T, T]."""
    begins = F.arange(positions.shape[1]) - positions
    return F.expand_dims(F.equal(F.expand_dims(begins, 2), F.expand_dims(begins, 1)), 1)


class _WholeTexts(LayerCache):
    """Attention of a batch of texts to themselves; nothing is kept.

    `packed` says which tokens of a row are of one text, i1 [B, 1, T, T]; None: all.
    """

    def __init__(
        self,
        step: RaggedStep[Tensor],
        window: int | None,
        batch: int,
        length: int,
        packed: Tensor | None,
    ) -> None:
        self._step = step
        self._window = window
        self._sizes = batch, length
        self._packed = packed

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, **scores: Unpack[Scores]) -> Tensor:
        """Attend to the tokens before each one in its text, [N, H, D] -> the same."""
        rows = [
            F.transpose(F.reshape(x, (*self._sizes, *x.shape[1:])), (0, 2, 1, 3))
            for x in (query, key, value)
        ]
        window = self._window
        if scores.get("sinks") is not None:
            visible = _causal(self._sizes[1], window)
            if self._packed is not None:
                visible = F.logical_and(visible, self._packed)
            mixed = attention_with_sinks(rows, visible, **scores)
        else:
            scale, softcap = scores.get("scale"), scores.get("softcap")
            queries, keys, values = rows
            mixed = F.attention(
                queries,
                keys,
                values,
                self._packed,
                scale=scale,
                causal=True,
                window=window,
                softcap=softcap,
            )
        heads_last = F.transpose(mixed, (0, 2, 1, 3))
        return F.reshape(heads_last, (query.shape[0], query.shape[1], mixed.shape[3]))

    @override
    def recent(self, x: Tensor, count: int) -> Tensor:
        """Return the last `count` states of each text up to each token, [N, C] -> [N, count, C]."""
        batch, length = self._sizes
        width = x.shape[1]
        texts = F.pad(F.reshape(x, (batch, length, width)), [(0, 0), (count - 1, 0), (0, 0)])
        indices = F.reshape(F.arange(length), (length, 1)) + F.reshape(F.arange(count), (1, count))
        found = F.take(texts, F.reshape(indices, (length * count,)), axis=1)
        found = F.reshape(found, (batch * length, count, width))
        if self._packed is None:
            return found
        back = F.reshape(F.arange(count - 1, -1, -1), (1, count, 1))
        own = F.reshape(self._step.positions, (batch * length, 1, 1)) >= back
        return F.where(own, found, 0.0)

    @override
    def recurrent(self, advance: Advance, rows: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        """Return the vector of each token; the state of each text starts at 0."""
        return whole_states(advance, rows, shape, self._step.positions)


def _causal(length: int, window: int | None) -> Tensor:
    """Return which of T keys each of T queries sees, i1 [T, T]."""
    to = F.arange(length)
    of = F.reshape(to, (length, 1))
    visible = to <= of
    return visible if window is None else F.logical_and(visible, to > of - window)
