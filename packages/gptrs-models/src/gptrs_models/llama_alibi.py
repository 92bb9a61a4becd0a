"""Attention with linear biases (ALiBi, Press et al. 2022) instead of positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gptrs import functionals as F
from gptrs.api import Tensor, dtypes
from gptrs.nn import RaggedStep

ADDED = 2
"""Components that a head has beside its own."""

_HIGH = 256
"""Positions are split by it: both parts are exact in all float types up to position 65536."""


@dataclass(frozen=True)
class Alibi:
    """Adds `slope * key position` to the scores of each head, by components beside its own.

    A softmax does not change when all its scores are shifted: the distance of a key may be counted
    from the first position as well as from the query. So the bias is a product, of the position's
    parts `places` [N, 1, 2], `256 * high + low`, and of `slopes` [1, H, 2], `256 * s` and `s`.
    Queries and keys have these two components more, values two zeros; caches and kernels are those
    of other models.
    """

    places: Tensor
    slopes: Tensor

    @classmethod
    def rounded(cls, slopes: Sequence[float], step: RaggedStep[Tensor], scale: float) -> Alibi:
        """Return the biases of Falcon: products of bf16, which are scaled as the scores are.

        Here `places` [N, H, 2] are the products themselves: each head must have keys of its own.
        """
        count = step.positions.shape[0]
        positions = F.cast(F.reshape(step.positions, (count, 1, 1)), dtypes.bf16)
        rows = [F.full((1, 1, 1), slope, dtypes.bf16) for slope in slopes]
        products = F.cast(positions * F.concat(rows, axis=1), dtypes.f32)  # (N, H, 1)
        return cls(F.pad(products, [(0, 0), (0, 0), (0, 1)]), F.full((1, 1, ADDED), scale))

    @classmethod
    def at(cls, slopes: Sequence[float], step: RaggedStep[Tensor]) -> Alibi:
        """Return the biases of the tokens of a step, with the slope of each of H heads."""
        positions = F.reshape(step.positions, (step.positions.shape[0], 1, 1))
        high = positions // _HIGH
        places = F.cast(F.concat([high, positions - high * _HIGH], axis=2), dtypes.f32)
        rows = [F.full((1, 1, 1), slope * part) for slope in slopes for part in (_HIGH, 1)]
        return cls(places, F.reshape(F.concat(rows, axis=2), (1, len(slopes), ADDED)))

    def query(self, query: Tensor, scale: float) -> Tensor:
        """[N, H, D] -> [N, H, D + 2], for scores that are multiplied by `scale`."""
        return _with(query, self.slopes / scale)

    def key(self, key: Tensor) -> Tensor:
        """[N, K, D] -> [N, K, D + 2]."""
        return _with(key, self.places)

    def value(self, value: Tensor) -> Tensor:
        """[N, K, D] -> [N, K, D + 2]."""
        return F.pad(value, [(0, 0), (0, 0), (0, ADDED)])


def bloom_slopes(n_heads: int) -> tuple[float, ...]:
    """Return a slope for each head: `2 ** (-8 i / n)` for n a power of two, others between."""
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2.0 ** (-8 * i / power) for i in range(1, power + 1)]
    between = [2.0 ** (-4 * i / power) for i in range(1, 2 * (n_heads - power), 2)]
    return tuple(slopes + between)


def mpt_slopes(n_heads: int, largest: float) -> tuple[float, ...]:
    """Return a slope for each head, from `2 ** -largest` on; every second one comes first."""
    power = 2 ** math.ceil(math.log2(n_heads))
    slopes = [2.0 ** (-largest * i / power) for i in range(1, power + 1)]
    if power != n_heads:
        slopes = (slopes[1::2] + slopes[::2])[:n_heads]
    return tuple(slopes)


def _with(x: Tensor, added: Tensor) -> Tensor:
    return F.concat([x, F.cast(F.broadcast_to(added, (*x.shape[:2], ADDED)), x.dtype)], axis=2)
