"""The cache of a decoder: the texts that it writes, their sources, and its attention to both.

The texts of a batch grow in step, so that one place is that of all: the cache of a layer is an
array [B, H, C, D] with room for C positions. Keys and values of the sources are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Final

import numpy as np

from gptrs import functionals as F
from gptrs.capture import primitives
from gptrs.capture.shape_buckets import bucket
from gptrs.capture.tensor import Tensor
from gptrs.quick_dataclass import dataclass

KeysValues = tuple[Tensor, Tensor]
"""Keys and values of one layer, each [B, H, S, D]."""

_FIRST_ROOM: Final = 32
"""Positions that a cache has room for at first."""


class DecoderCache:
    """The cache of one layer of a decoder in one step, and what the layer sees of the sources.

    `own` are the keys and values of the texts, [B, H, C, D]; `source` those of the sources,
    [B, H, S, D], where `mask`, i1 [B, S], is true. The new tokens come at the position `place`, a
    rank-0 integer.
    """

    def __init__(self, own: KeysValues, source: KeysValues, mask: Tensor, place: Tensor) -> None:
        self.own = own
        self._source = source
        self._mask = mask
        self._place = place

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

        `bias` is added to the scores, [1, H, T, C]. `scale` None stands for `D ** -0.5`.
        """
        zero = self._place * 0
        start = F.stack([zero, zero, self._place, zero])
        keys, values = self.own
        keys = primitives.dynamic_update_slice(keys, key, start)
        values = primitives.dynamic_update_slice(values, value, start)
        self.own = keys, values
        return F.attention(
            query, keys, values, mask=bias, scale=scale, causal=True, offset=self._place
        )

    def attend_source(self, query: Tensor, *, scale: float | None = None) -> Tensor:
        """Attend to the source of each text, [B, H, T, D] -> the same."""
        keys, values = self._source
        batch, length = self._mask.shape
        seen = F.reshape(self._mask, (batch, 1, 1, length))
        return F.attention(query, keys, values, mask=seen, scale=scale)


@dataclass(eq=False)
class DecoderState:
    """B texts between two steps: their sources and the positions so far.

    `source` and `own` have the keys and values of each layer, see `DecoderCache`; `length` is the
    number of positions of every text. `lost` says that a step failed that had been given them.
    """

    source: list[KeysValues]
    mask: np.ndarray
    own: list[KeysValues] = field(default_factory=list[KeysValues])
    length: int = 0
    lost: bool = False

    def make_room(self, positions: int, most: int) -> None:
        """Let each text grow to `positions` at least, `most` at most."""
        room = self.own[0][0].shape[2] if self.own else 0
        if positions > room:
            wanted = bucket(positions, _FIRST_ROOM, most)
            own = self.own or [
                (_without_positions(k), _without_positions(v)) for k, v in self.source
            ]
            self.own = [(_longer(keys, wanted), _longer(values, wanted)) for keys, values in own]

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with the texts of these rows, in this order; a row may come twice, or not."""
        if list(rows) == list(range(len(self.mask))):
            return
        self.mask = self.mask[list(rows)]
        self.source = [(_rows(keys, rows), _rows(values, rows)) for keys, values in self.source]
        self.own = [(_rows(keys, rows), _rows(values, rows)) for keys, values in self.own]


def _without_positions(of_source: Tensor) -> Tensor:
    batch, heads, _, head_dim = of_source.shape
    return Tensor.of_array(np.zeros((batch, heads, 0, head_dim), np.float32))


def _longer(pool: Tensor, room: int) -> Tensor:
    """Return the same positions with room for more; nothing is compiled for it."""
    batch, heads, before, head_dim = pool.shape
    made = np.zeros((batch, heads, room, head_dim), np.float32)
    made[:, :, :before] = pool.numpy()
    return Tensor.of_array(made)


def _rows(pool: Tensor, rows: Sequence[int]) -> Tensor:
    return Tensor.of_array(pool.numpy()[list(rows)])
