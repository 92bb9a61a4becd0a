"""Positions in the Llama family: none, rotary embeddings, or linear biases."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api.models import Tensor
from gptrs.api.programs import dtypes
from gptrs.nn import RaggedStep, Rope

ADDED = 2
"""Components that linear biases add to each head."""

_HIGH = 256
"""Positions are split into multiples of it and a rest: both are exact in all float types up to
position 65536."""


class Positions(Struct, frozen=True):
    """No positions (NoPE): a layer only knows the causal order of tokens."""

    def apply(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [N, H, D], keys and values [N, K, D] with their positions encoded."""
        return query, key, value

    def rotate(self, x: Tensor) -> Tensor:
        """Rotate parts of heads, [N, H, R] -> [N, H, R], for kinds that rotate only a part."""
        return x

    def own(self, mixed: Tensor, head_dim: int) -> Tensor:
        """Cut mixed values to their original components, [N, H, ..] -> [N, H, D]."""
        del head_dim
        return mixed


class Rotary(Positions, frozen=True):
    """Rotary embeddings (Su et al. 2021): rotates queries and keys by their positions."""

    rope: Rope

    @override
    def apply(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key = self.rope(query), self.rope(key)
        if self.rope.query_factor is not None:
            query = query * self.rope.query_factor
        return query, key, value

    @override
    def rotate(self, x: Tensor) -> Tensor:
        return self.rope(x)


class Alibi(Positions, frozen=True):
    """Linear biases (ALiBi, Press et al. 2022): adds `slope * key position` to each score.

    A softmax is invariant under a shift of its scores, so the distance of a key may be counted from
    the first position instead of from the query. The bias thus is a product of two vectors: the
    position's `parts` [N, 1, 2] (`256 * high + low`) and `slopes` [1, H, 2] (`256 * s` and `s`).
    They extend keys and queries by two components, and values by two zeros, so caches and kernels
    are those of other models. `slopes` are divided by the factor of the scores in attention.
    """

    parts: Tensor
    slopes: Tensor

    @classmethod
    def rounded(cls, slopes: Sequence[float], step: RaggedStep[Tensor]) -> Alibi:
        """Return the biases of Falcon: products in bf16, scaled like the scores.

        Here `parts` [N, H, 2] are the products themselves, so each head needs its own keys.
        """
        count = step.positions.shape[0]
        positions = F.cast(F.reshape(step.positions, (count, 1, 1)), dtypes.bf16)
        rows = [F.full((1, 1, 1), slope, dtypes.bf16) for slope in slopes]
        products = F.cast(positions * F.concat(rows, axis=1), dtypes.f32)  # (N, H, 1)
        return cls(F.pad(products, [(0, 0), (0, 0), (0, 1)]), F.full((1, 1, ADDED), 1.0))

    @classmethod
    def at(cls, slopes: Sequence[float], step: RaggedStep[Tensor], scale: float) -> Alibi:
        """Return the biases of a step for H heads; `scale` is the factor of the scores."""
        positions = F.reshape(step.positions, (step.positions.shape[0], 1, 1))
        high = positions // _HIGH
        parts = F.cast(F.concat([high, positions - high * _HIGH], axis=2), dtypes.f32)
        rows = [F.full((1, 1, 1), slope * part) for slope in slopes for part in (_HIGH, 1)]
        row = F.reshape(F.concat(rows, axis=2), (1, len(slopes), ADDED))
        return cls(parts, row / scale)

    @override
    def apply(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value = F.pad(value, [(0, 0), (0, 0), (0, ADDED)])
        return _with(query, self.slopes), _with(key, self.parts), value

    @override
    def own(self, mixed: Tensor, head_dim: int) -> Tensor:
        return F.slice_axis(mixed, 2, 0, head_dim)


def bloom_slopes(n_heads: int) -> tuple[float, ...]:
    """Return a slope for each head: `2 ** (-8 i / n)` for n a power of two, else interleaved."""
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2.0 ** (-8 * i / power) for i in range(1, power + 1)]
    between = [2.0 ** (-4 * i / power) for i in range(1, 2 * (n_heads - power), 2)]
    return tuple(slopes + between)


def mpt_slopes(n_heads: int, largest: float) -> tuple[float, ...]:
    """Return a slope for each head, down to `2 ** -largest`; every second one comes first."""
    power = 2 ** math.ceil(math.log2(n_heads))
    slopes = [2.0 ** (-largest * i / power) for i in range(1, power + 1)]
    if power != n_heads:
        slopes = (slopes[1::2] + slopes[::2])[:n_heads]
    return tuple(slopes)


def _with(x: Tensor, added: Tensor) -> Tensor:
    return F.concat([x, F.cast(F.broadcast_to(added, (*x.shape[:2], ADDED)), x.dtype)], axis=2)
