"""The KV cache of an encoder-decoder: its texts, their sources, and the attention to both. The
texts of a batch grow in parallel and share one position: the cache of a layer is an array [B, H, C,
D] with room for C positions. Keys and values of sources are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct, field
from typing_extensions import override

from gptrs import functionals as F
from gptrs.capture import primitives
from gptrs.capture.shape_buckets import bucket
from gptrs.capture.tensor import Tensor
from gptrs.functionals.normalization import read_vectors
from gptrs.ir import dtypes
from gptrs.nn.page_buffers import LayerPools
from gptrs.nn.ragged_step import PAGE_SIZE, RaggedStep

KeysValues = tuple[Tensor, Tensor]
"""Keys and values of one layer, each [B, H, S, D]."""

_FIRST_ROOM: Final = 32
"""Initial number of positions of a cache."""


class DecoderCache:
    """The cache of one decoder layer in one step, and its view of the sources.

    `own` holds the keys and values of the texts, [B, H, C, D]; `source` those of the sources, [B,
    H, S, D], valid where `mask`, i1 [B, S], is true. The new tokens start at `position`, a rank-0
    integer.
    """

    def __init__(self, own: KeysValues, source: KeysValues, mask: Tensor, position: Tensor) -> None:
        self.own = own
        self._source = source
        self._mask = mask
        self._position = position

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Attend to the new tokens and those before them, each [B, H, T, D] -> the same.

        `bias` is added to the scores, [1, H, T, C]. `scale` None means `D ** -0.5`.
        """
        zero = self._position * 0
        start = F.stack([zero, zero, self._position, zero])
        keys, values = self.own
        keys = primitives.dynamic_update_slice(keys, key, start)
        values = primitives.dynamic_update_slice(values, value, start)
        self.own = keys, values
        return F.attention(
            query, keys, values, mask=bias, scale=scale, causal=True, offset=self._position
        )

    def attend_source(self, query: Tensor, *, scale: float | None = None) -> Tensor:
        """Attend to the source of each text, [B, H, T, D] -> the same."""
        keys, values = self._source
        batch, length = self._mask.shape
        seen = F.reshape(self._mask, (batch, 1, 1, length))
        return F.attention(query, keys, values, mask=seen, scale=scale)


class WholeText(DecoderCache):
    """Stands for the cache of a layer where all tokens [B, T] of the texts come at once."""

    def __init__(self, tokens: Tensor, source: KeysValues, mask: Tensor) -> None:
        batch, length = tokens.shape
        room = F.reshape(tokens, (batch, 1, length, 1))
        super().__init__((room, room), source, mask, Tensor.of_array(np.array(0)))

    @override
    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        return F.attention(query, key, value, mask=bias, scale=scale, causal=True)


class DecoderState(Struct, eq=False):
    """B texts between two steps: their sources and the positions so far.

    `source` and `own` have the keys and values of each layer, see `DecoderCache`; `length` is the
    number of positions of every text. `lost` is set if a step failed after consuming them.
    """

    source: list[KeysValues]
    mask: np.ndarray
    own: list[KeysValues] = field(default_factory=list[KeysValues])
    length: int = 0
    lost: bool = False

    def make_room(self, positions: int, most: int) -> None:
        """Make room for `positions` per text at least, `most` at most."""
        room = self.own[0][0].shape[2] if self.own else 0
        if positions > room:
            wanted = bucket(positions, _FIRST_ROOM, most)
            own = self.own or [
                (_without_positions(k), _without_positions(v)) for k, v in self.source
            ]
            self.own = [(_longer(keys, wanted), _longer(values, wanted)) for keys, values in own]

    def keep(self, rows: Sequence[int]) -> None:
        """Continue with the texts of these rows, in this order; rows may repeat or be dropped."""
        if list(rows) == list(range(len(self.mask))):
            return
        self.mask = self.mask[list(rows)]
        self.source = [(_rows(keys, rows), _rows(values, rows)) for keys, values in self.source]
        self.own = [(_rows(keys, rows), _rows(values, rows)) for keys, values in self.own]


def _without_positions(of_source: Tensor) -> Tensor:
    batch, heads, _, head_dim = of_source.shape
    return Tensor.of_array(np.zeros((batch, heads, 0, head_dim), np.float32))


def _longer(pool: Tensor, room: int) -> Tensor:
    """Return a copy with room for more positions; nothing is compiled for it."""
    batch, heads, before, head_dim = pool.shape
    made = np.zeros((batch, heads, room, head_dim), np.float32)
    made[:, :, :before] = pool.numpy()
    return Tensor.of_array(made)


def _rows(pool: Tensor, rows: Sequence[int]) -> Tensor:
    return Tensor.of_array(pool.numpy()[list(rows)])


# The last few states of each text, kept in pages like keys and values, for convolutions.
#
# A convolution over a text needs its inputs at the last positions. So its state is a cache with a
# window, and all features of pages - sharing, copies, chunks, rollback - apply to it.


def row_texts(step: RaggedStep[Tensor]) -> Tensor:
    """Return the number of the text of each row, si32 [N]."""
    rows, texts = step.tokens.shape[0], step.lengths.shape[0]
    row = F.reshape(F.arange(rows, dtype=dtypes.si32), (rows, 1))
    starts = F.reshape(F.take(step.row_starts, F.arange(texts)), (1, texts))
    return F.sum(F.cast(F.less_equal(starts, row), dtypes.si32), axis=1) - 1


def kept_rows(
    pools: LayerPools, x: Tensor, count: int, step: RaggedStep[Tensor], group: int
) -> tuple[Tensor, LayerPools]:
    """Write the states of new tokens; return the last `count` of each text up to each token.

    `x` is [N, C], the result [N, count, C], the oldest first; states before the first position are
    0. The halves of a state lie in the two pools, [P, 1, S, C / 2]; they are rounded to the element
    type of these.
    """
    rows, width = x.shape
    slots = step.slots[group]
    halves = [F.expand_dims(half, 1) for half in F.split(x, 2)]
    first, second = (
        F.update_pages(pool, half, slots) for pool, half in zip(pools, halves, strict=True)
    )
    ages = F.reshape(F.arange(count, dtype=dtypes.si32) * -1 + (count - 1), (1, count))
    at = F.expand_dims(F.cast(step.positions, dtypes.si32), 1) - ages  # (N, count)
    there = at >= 0
    at = F.where(there, at, 0)
    table = F.take(step.page_tables[group], row_texts(step))  # (N, W)
    pages = F.gather(table, at // PAGE_SIZE, axis=1)
    flat_slots = F.reshape(pages * PAGE_SIZE + at % PAGE_SIZE, (rows * count,))
    found = [
        F.reshape(_taken(pool, flat_slots, x), (rows, count, width // 2))
        for pool in (first, second)
    ]
    kept = F.concat(found, axis=2)
    return F.where(F.expand_dims(there, 2), kept, 0.0), (first, second)


def _taken(pool: Tensor, flat_slots: Tensor, x: Tensor) -> Tensor:
    """Return vectors of a pool, floats of the type of `x`."""
    pages, _, size, stored = pool.shape
    vectors = F.take(F.reshape(pool, (pages * size, stored)), flat_slots)
    return F.cast(read_vectors(vectors) if pool.dtype is dtypes.si8 else vectors, x.dtype)
