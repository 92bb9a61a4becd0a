"""The keys and values of all positions seen so far: buffers that grow in buckets, and rings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gptrs.capture.shape_buckets import bucket
from gptrs.capture.tensor import Tensor, tensor
from gptrs.errors import ContextLengthError, UsageError
from gptrs.ir.dtypes import DType
from gptrs.ir.tensor_type import TensorType
from gptrs.nn.attention import CachePosition, LayerBuffers
from gptrs.nn.cache_spec import CacheSpec
from gptrs.nn.left_padding import checked_left_padding

FIRST_BUCKET = 64
"""Positions that the first buffers have room for; see `gptrs.capture.shape_buckets`."""


class KVCache:
    """Buffers of all layers, one for each of `specs`, for `batch` texts of up to `limit` positions.

    `length` positions are valid; those of a text begin after its padding, `left_padding` (si64 [B])
    of them, None for no padding. Buffers double as they fill up, which keeps the number of compiled
    steps small; with `fixed` they have all their room at once. The buffers of a layer with a window
    stop growing at little more than that, however long the text is.

    A model runs its compiled step for each of the `pieces` of new tokens, with `position` and the
    donated `buffers`, and gives the new buffers to `advance`. UsageError for a batch below 1 and
    for malformed `left_padding`.
    """

    def __init__(
        self,
        specs: Sequence[CacheSpec],
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
        self._specs = tuple(specs)
        self._rings = frozenset(spec for spec in specs if spec.window is not None)
        self._left_padding = None if self.left_padding is None else tensor(self.left_padding)
        empty = [self._zeros(spec) for spec in self._specs]
        self.buffers: list[LayerBuffers] = [(Tensor.of_array(x), Tensor.of_array(x)) for x in empty]
        if fixed:
            self._grow(limit)

    @property
    def position(self) -> CachePosition:
        """Position of the next tokens."""
        return CachePosition(Tensor.of_array(np.int64(self.length)), self._left_padding)

    def reserve(self, count: int) -> None:
        """Make room for `count` more positions; ContextLengthError beyond the limit."""
        needed = self.length + count
        if needed > self.capacity or needed > self.limit:
            self._require_room(needed)
            self._grow(bucket(needed, FIRST_BUCKET, self.limit))

    def pieces(self, tokens: np.ndarray) -> list[Tensor]:
        """Make room for tokens [B, T] and cut them: one piece, unless a ring would wrap within it.

        ContextLengthError when they do not fit, UsageError for tokens of another shape.
        """
        if tokens.ndim != 2 or tokens.shape[0] != self.batch or not tokens.shape[1]:
            raise UsageError(
                f"a step takes tokens [{self.batch}, T] with T >= 1, as its cache does,"
                f" got {list(tokens.shape)}"
            )
        count = tokens.shape[1]
        self.reserve(count)
        if not self._rings:
            return [Tensor.of_array(tokens)]
        pieces: list[Tensor] = []
        done = 0
        while done < count:
            at, rest = self.length + done, count - done
            size = min(ring.step_size(at, rest, self.limit) for ring in self._rings)
            pieces.append(Tensor.of_array(tokens[:, done : done + size]))
            done += size
        return pieces

    def advance(self, count: int, buffers: Sequence[LayerBuffers]) -> None:
        """Take over the buffers that a step returned after it appended `count` positions."""
        self.buffers = list(buffers)
        self.length += count

    def rewindable(self, length: int) -> bool:
        """Whether `rewind` can go back to `length` positions; rings forget what lies too far."""
        return 0 <= length <= self.length and all(
            ring.holds(length, self.length, self.limit) for ring in self._rings
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
        """Return a cache with each row `count` times in a row: r becomes `r * count ..`."""
        return self.rows(np.repeat(np.arange(self.batch), count))

    def rows(self, indices: Sequence[int] | np.ndarray) -> KVCache:
        """Return a cache with copies of these rows, in this order; UsageError if one is missing."""
        chosen = np.asarray(indices)
        if chosen.ndim != 1 or not chosen.size or chosen.dtype.kind not in "iu":
            raise UsageError(f"`rows` needs a list of row numbers, got {indices!r}")
        if chosen.min() < 0 or chosen.max() >= self.batch:
            raise UsageError(f"`rows` needs rows of a batch of {self.batch}, got {indices!r}")
        left_padding = None if self.left_padding is None else self.left_padding[chosen]
        made = KVCache(self._specs, chosen.size, self.limit, self.dtype, left_padding)
        made.length, made.capacity = self.length, self.capacity
        made.buffers = [
            (Tensor.of_array(keys.numpy()[chosen]), Tensor.of_array(values.numpy()[chosen]))
            for keys, values in self.buffers
        ]
        return made

    def state(self) -> dict[str, np.ndarray]:
        """Return all that is kept, by name, in the order of positions, as `restore` takes it.

        `layer.<i>.keys` and `layer.<i>.values` are [B, K, P, D] for the last P positions.
        """
        arrays: dict[str, np.ndarray] = {}
        for index, buffers in enumerate(self.buffers):
            slots = self._kept_slots(self._specs[index])
            for part, buffer in zip(("keys", "values"), buffers, strict=True):
                arrays[f"layer.{index}.{part}"] = buffer.numpy()[:, :, slots]
        return arrays

    def restore(self, length: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Take over the `state` of another cache of the same specs, of `length` positions.

        Batch, limit and padding stay, and must be those of the other one. ContextLengthError if
        there is no room, UsageError for other arrays; the cache is then unchanged.
        """
        self._require_room(length)
        self._require_state(length, arrays)
        self.length = 0
        self.reserve(length)
        self.length = length
        for index, spec in enumerate(self._specs):
            slots = self._kept_slots(spec)
            parts: list[Tensor] = []
            for part in ("keys", "values"):
                buffer = self._zeros(spec)
                buffer[:, :, slots] = arrays[f"layer.{index}.{part}"]
                parts.append(Tensor.of_array(buffer))
            self.buffers[index] = (parts[0], parts[1])

    def _require_room(self, needed: int) -> None:
        if needed > self.limit:
            raise ContextLengthError(
                f"{needed} tokens do not fit into the context of {self.limit}",
                hint="shorten the prompt or ask for fewer tokens",
            )

    def _require_state(self, length: int, arrays: Mapping[str, np.ndarray]) -> None:
        for index, spec in enumerate(self._specs):
            kept = min(length, spec.slots(self.limit))
            shape = (self.batch, spec.n_kv_heads, kept, spec.head_dim)
            for name in (f"layer.{index}.keys", f"layer.{index}.values"):
                found = arrays.get(name)
                if found is None or found.shape != shape or found.dtype != self.dtype.numpy:
                    what = "nothing" if found is None else f"`{TensorType.of(found)}`"
                    wanted = f"`{TensorType(self.dtype, shape)}`"
                    raise UsageError(f"the state of a cache needs `{name}` {wanted}, got {what}")

    def _kept_slots(self, spec: CacheSpec) -> np.ndarray:
        """Slots of the last positions that the layer has, in the order of positions."""
        size = spec.slots(self.limit)
        return np.arange(max(0, self.length - size), self.length) % size

    def _grow(self, capacity: int) -> None:
        """Enlarge the buffers, layer after layer; no ring wraps before it has its last size."""
        self.capacity = capacity
        for index, (spec, (keys, values)) in enumerate(zip(self._specs, self.buffers, strict=True)):
            if keys.shape[2] < min(capacity, spec.slots(self.limit)):
                self.buffers[index] = (self._moved(spec, keys), self._moved(spec, values))

    def _moved(self, spec: CacheSpec, old: Tensor) -> Tensor:
        array = self._zeros(spec)
        if self.length:
            array[:, :, : self.length] = old.numpy()[:, :, : self.length]
        return Tensor.of_array(array)

    def _zeros(self, spec: CacheSpec) -> np.ndarray:
        slots = min(self.capacity, spec.slots(self.limit))
        return np.zeros((self.batch, spec.n_kv_heads, slots, spec.head_dim), self.dtype.numpy)
