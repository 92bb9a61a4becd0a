"""The keys and values of all positions seen so far: buffers that grow in buckets, and rings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gptrs.capture.shape_buckets import bucket
from gptrs.capture.tensor import Tensor, tensor
from gptrs.errors import ContextLengthError, UsageError
from gptrs.ir.dtypes import DType
from gptrs.ir.tensor_type import TensorType
from gptrs.nn.cache_layer import CacheLayer
from gptrs.nn.cache_position import CachePosition, checked_left_padding

LayerCache = tuple[Tensor, Tensor]
"""Keys and values of one layer, each [batch, heads, slots, head_dim]."""

Step = Callable[[Tensor, CachePosition, Sequence[LayerCache]], tuple[Tensor, Sequence[LayerCache]]]
"""A compiled step: tokens [B, T], position, donated buffers -> a result, the new buffers."""

FIRST_BUCKET = 64
"""Positions that the first buffers have room for; see `gptrs.capture.shape_buckets`."""


class KVCache:
    """Keys and values of `layers`, for `batch` texts of at most `limit` positions each.

    `length` positions are valid; those of a text begin after its padding, `left_padding` (si64 [B])
    of them, None for no padding. Buffers double as they fill up, which keeps the number of compiled
    steps small; with `fixed` they have all their room at once. The buffers of a layer with a window
    stop growing at little more than that, however long the text is.

    A model hands tokens to `append`. By hand: `reserve` room, cut the tokens into `pieces`, give
    each with `position` and the donated `layers` to a step, and its buffers to `advance`.
    UsageError for a batch below 1 and other `left_padding`.
    """

    def __init__(
        self,
        layers: Sequence[CacheLayer],
        batch: int,
        limit: int,
        dtype: DType,
        left_padding: np.ndarray | None = None,
        *,
        fixed: bool = False,
    ) -> None:
        if batch < 1:
            raise UsageError(f"a cache needs a batch of at least 1, got {batch}")
        self.length = 0
        self.limit = limit
        self.batch = batch
        self.left_padding = checked_left_padding(left_padding, batch)
        self.dtype = dtype
        self.capacity = 0
        self._plan = tuple(layers)
        self._rings = frozenset(layer for layer in layers if layer.window is not None)
        self._left_padding = None if self.left_padding is None else tensor(self.left_padding)
        empty = [self._zeros(layer) for layer in self._plan]
        self.layers: list[LayerCache] = [(Tensor.of_array(x), Tensor.of_array(x)) for x in empty]
        if fixed:
            self._grow(limit)

    @property
    def position(self) -> CachePosition:
        """Where the next tokens stand."""
        return CachePosition(Tensor.of_array(np.int64(self.length)), self._left_padding)

    def append(self, tokens: np.ndarray, step: Step) -> Tensor:
        """Run `step` on tokens [B, T], in as many pieces as rings need; its last result.

        ContextLengthError when they do not fit, UsageError for tokens of another shape, both before
        any work.
        """
        if tokens.ndim != 2 or tokens.shape[0] != self.batch or not tokens.shape[1]:
            raise UsageError(
                f"a step takes tokens [{self.batch}, T] with T >= 1, as its cache does,"
                f" got {list(tokens.shape)}"
            )
        self.reserve(tokens.shape[1])
        end, result = 0, None
        for count in self.pieces(tokens.shape[1]):
            end += count
            piece = Tensor.of_array(tokens[:, end - count : end])
            result, layers = step(piece, self.position, self.layers)
            self.advance(count, layers)
        assert result is not None, "there is at least one piece"
        return result

    def reserve(self, count: int) -> None:
        """Make room for `count` more positions; ContextLengthError beyond the limit."""
        needed = self.length + count
        if needed > self.capacity or needed > self.limit:
            self._require_room(needed)
            self._grow(bucket(needed, FIRST_BUCKET, self.limit))

    def pieces(self, count: int) -> list[int]:
        """The lengths of the steps for `count` more positions: one, unless a ring would wrap."""
        if count and not self._rings:
            return [count]
        lengths: list[int] = []
        end = self.length + count
        while (at := self.length + sum(lengths)) < end:
            steps = [layer.step(at, end - at, self.limit) for layer in self._rings]
            lengths.append(min(steps))
        return lengths

    def advance(self, count: int, layers: Sequence[LayerCache]) -> None:
        """Take over the buffers that a step returned after it appended `count` positions."""
        self.layers = list(layers)
        self.length += count

    def rewindable(self, length: int) -> bool:
        """Whether `rewind` can go back to `length` positions; rings forget what lies too far."""
        return 0 <= length <= self.length and all(
            layer.holds(length, self.length, self.limit) for layer in self._rings
        )

    def rewind(self, length: int) -> None:
        """Forget all positions but the first `length`; UsageError where that is not possible."""
        if not self.rewindable(length):
            raise UsageError(
                f"a cache of {self.length} positions cannot go back to {length}",
                hint="a layer with a window keeps the last positions only: begin a new cache",
            )
        self.length = length

    def repeated(self, count: int) -> KVCache:
        """A new cache with each row `count` times, one after another: row r becomes r * count .."""
        return self.rows(np.repeat(np.arange(self.batch), count))

    def rows(self, indices: Sequence[int] | np.ndarray) -> KVCache:
        """A new cache with copies of these rows, in this order; UsageError if one is missing."""
        chosen = np.asarray(indices)
        if chosen.ndim != 1 or not chosen.size or chosen.dtype.kind not in "iu":
            raise UsageError(f"`rows` needs a list of row numbers, got {indices!r}")
        if chosen.min() < 0 or chosen.max() >= self.batch:
            raise UsageError(f"`rows` needs rows of a batch of {self.batch}, got {indices!r}")
        left_padding = None if self.left_padding is None else self.left_padding[chosen]
        made = KVCache(self._plan, chosen.size, self.limit, self.dtype, left_padding)
        made.length, made.capacity = self.length, self.capacity
        made.layers = [
            (Tensor.of_array(keys.numpy()[chosen]), Tensor.of_array(values.numpy()[chosen]))
            for keys, values in self.layers
        ]
        return made

    def state(self) -> dict[str, np.ndarray]:
        """All that is kept, by name, in the order of positions: what `restore` takes.

        `layer.<i>.keys` and `layer.<i>.values` are [B, K, P, D] for the last P positions.
        """
        arrays: dict[str, np.ndarray] = {}
        for index, buffers in enumerate(self.layers):
            slots = self._kept_slots(self._plan[index])
            for part, buffer in zip(("keys", "values"), buffers, strict=True):
                arrays[f"layer.{index}.{part}"] = buffer.numpy()[:, :, slots]
        return arrays

    def restore(self, length: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Take over the `state` of another cache for such layers, of `length` positions.

        The cache keeps its batch, limit and padding, which must be those of the other one.
        ContextLengthError if it has no room, UsageError for other arrays; it is then unchanged.
        """
        self._require_room(length)
        self._require_state(length, arrays)
        self.length = 0
        self.reserve(length)
        self.length = length
        for index, layer in enumerate(self._plan):
            slots = self._kept_slots(layer)
            parts: list[Tensor] = []
            for part in ("keys", "values"):
                buffer = self._zeros(layer)
                buffer[:, :, slots] = arrays[f"layer.{index}.{part}"]
                parts.append(Tensor.of_array(buffer))
            self.layers[index] = (parts[0], parts[1])

    def _require_room(self, needed: int) -> None:
        if needed > self.limit:
            raise ContextLengthError(
                f"{needed} tokens do not fit into the context of {self.limit}",
                hint="shorten the prompt or ask for fewer tokens",
            )

    def _require_state(self, length: int, arrays: Mapping[str, np.ndarray]) -> None:
        for index, layer in enumerate(self._plan):
            kept = min(length, layer.slots(self.limit))
            shape = (self.batch, layer.heads, kept, layer.head_dim)
            for name in (f"layer.{index}.keys", f"layer.{index}.values"):
                found = arrays.get(name)
                if found is None or found.shape != shape or found.dtype != self.dtype.numpy:
                    what = "nothing" if found is None else f"`{TensorType.of(found)}`"
                    wanted = f"`{TensorType(self.dtype, shape)}`"
                    raise UsageError(f"the state of a cache needs `{name}` {wanted}, got {what}")

    def _kept_slots(self, layer: CacheLayer) -> np.ndarray:
        """Where the last positions lie that the layer has, in their order."""
        size = layer.slots(self.limit)
        return np.arange(max(0, self.length - size), self.length) % size

    def _grow(self, capacity: int) -> None:
        """Larger buffers, layer after layer; no ring wraps before it has its last size."""
        self.capacity = capacity
        for index, (layer, (keys, values)) in enumerate(zip(self._plan, self.layers, strict=True)):
            if keys.shape[2] < min(capacity, layer.slots(self.limit)):
                self.layers[index] = (self._moved(layer, keys), self._moved(layer, values))

    def _moved(self, layer: CacheLayer, old: Tensor) -> Tensor:
        array = self._zeros(layer)
        if self.length:
            array[:, :, : self.length] = old.numpy()[:, :, : self.length]
        return Tensor.of_array(array)

    def _zeros(self, layer: CacheLayer) -> np.ndarray:
        slots = min(self.capacity, layer.slots(self.limit))
        return np.zeros((self.batch, layer.heads, slots, layer.head_dim), self.dtype.numpy)
