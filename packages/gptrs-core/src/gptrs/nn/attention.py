"""Causal self-attention of the rows of a step over the paged key/value cache of a layer."""

from __future__ import annotations

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor
from gptrs.nn.page_buffers import LayerPools
from gptrs.nn.ragged_step import RaggedStep


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
    ) -> Tensor:
        """Attend to the new tokens and those before them in the same text, [N, H, D] -> the same.

        key and value are those of the new tokens, [N, K, D], for the K heads of the layer's
        `CacheSpec`; H is a multiple of K. They are rounded to the element type of the cache.
        `scale` None stands for `D ** -0.5`; `softcap` is that of `F.attention`.
        """
        step, slots = self._step, self._step.slots[self._group]
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
        )


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """[..., H * D] -> [..., H, D], for `n_heads` H."""
    *rows, width = x.shape
    return F.reshape(x, (*rows, n_heads, width // n_heads))


def merge_heads(x: Tensor) -> Tensor:
    """[..., H, D] -> [..., H * D]."""
    *rows, n_heads, head_dim = x.shape
    return F.reshape(x, (*rows, n_heads * head_dim))
