"""The keys and values of all positions seen so far, in buffers that grow in buckets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptrs.capture.shape_buckets import bucket
from gptrs.capture.tensor import Tensor
from gptrs.errors import ContextLengthError
from gptrs.ir.dtypes import DType

LayerCache = tuple[Tensor, Tensor]
"""Keys and values of one layer, each [batch, heads, capacity, depth]."""

FIRST_BUCKET = 64
"""Positions that the first buffers have room for; see `gptrs.capture.shape_buckets`."""


class KVCache:
    """Keys and values of `layers` layers; doubling buckets keep the number of compiled steps small.

    `length` positions of each buffer are valid. Call `reserve` before a step, give `layers` to the
    step as donated input, and hand its results to `advance`.
    """

    def __init__(
        self, layers: int, batch: int, heads: int, depth: int, limit: int, dtype: DType
    ) -> None:
        self.length = 0
        self.limit = limit
        self.batch = batch
        self.capacity = 0
        self._row = (heads, depth)
        self._dtype = dtype
        empty = Tensor.of_array(self._zeros())
        self.layers: list[LayerCache] = [(empty, empty) for _ in range(layers)]

    def reserve(self, count: int) -> None:
        """Make room for `count` more positions; ContextLengthError beyond the limit."""
        needed = self.length + count
        if needed > self.limit:
            raise ContextLengthError(
                f"{needed} tokens do not fit into the context of {self.limit}",
                hint="shorten the prompt or ask for fewer tokens",
            )
        if needed > self.capacity:
            self._grow(bucket(needed, FIRST_BUCKET, self.limit))

    def advance(self, count: int, layers: Sequence[LayerCache]) -> None:
        """Take over the buffers that a step returned after it appended `count` positions."""
        self.layers = list(layers)
        self.length += count

    def _grow(self, capacity: int) -> None:
        self.capacity = capacity
        self.layers = [(self._moved(keys), self._moved(values)) for keys, values in self.layers]

    def _moved(self, old: Tensor) -> Tensor:
        array = self._zeros()
        if self.length:
            array[:, :, : self.length] = old.numpy()[:, :, : self.length]
        return Tensor.of_array(array)

    def _zeros(self) -> np.ndarray:
        heads, depth = self._row
        return np.zeros((self.batch, heads, self.capacity, depth), self._dtype.numpy)
