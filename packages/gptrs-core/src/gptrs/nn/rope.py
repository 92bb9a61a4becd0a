"""Rotary position embedding of the tokens of one step, for all layers of a model."""

from __future__ import annotations

from dataclasses import dataclass

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor
from gptrs.ir import dtypes
from gptrs.nn.attention import CachePosition, positions
from gptrs.nn.rope_settings import RopeSettings


@dataclass(frozen=True)
class Rope:
    """Rotates queries and keys by angles that grow with the position: `rope(query)`.

    `cos` and `sin` are [T, D / 2], or [B, T, D / 2] for padded texts. `query_factor`, if there is
    one, is multiplied with rotated queries: [T, 1], or [B, 1, T, 1].
    """

    cos: Tensor
    sin: Tensor
    query_factor: Tensor | None

    @classmethod
    def at(cls, settings: RopeSettings, head_dim: int, position: CachePosition, count: int) -> Rope:
        """Return the rotation of `count` tokens at `position`, for heads of `head_dim`."""
        index = positions(position, count)  # (T,) or (B, T)
        cos, sin = _tables(settings, head_dim, position, index)
        growth = _query_factor(settings, index) if settings.query_growth else None
        return cls(cos, sin, growth)

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate queries [B, H, T, D] or keys [B, K, T, D]."""
        return F.rotary(x, self.cos, self.sin)


def _tables(
    settings: RopeSettings, head_dim: int, position: CachePosition, index: Tensor
) -> tuple[Tensor, Tensor]:
    """Cosine and sine for the positions `index`, [T] or [B, T].

    The frequencies of `DynamicScaling` are those of the length that a text has after this step.
    Keys in the cache keep the ones of their own step, as in transformers, so that beyond
    `max_position_embeddings` it matters which tokens came in one step.
    """
    theta, scaling = settings.theta, settings.scaling
    if not isinstance(scaling, F.DynamicScaling):
        return F.rotary_tables(index, head_dim, theta, scaling)
    length = position.offset + index.shape[-1]  # padding included
    if position.left_padding is None:
        return F.rotary_tables(index, head_dim, theta, scaling, length)
    tables: list[tuple[Tensor, Tensor]] = []
    for row in range(index.shape[0]):  # a text's frequencies depend on its own length
        padding = F.reshape(F.slice_axis(position.left_padding, 0, row, 1), ())
        own = F.slice_axis(index, 0, row, 1)  # (1, T)
        tables.append(F.rotary_tables(own, head_dim, theta, scaling, length - padding))
    return F.concat([cos for cos, _ in tables], 0), F.concat([sin for _, sin in tables], 0)


def _query_factor(settings: RopeSettings, index: Tensor) -> Tensor:
    """`1 + growth * ln(1 + floor(position / period))` (Llama 4, Ministral 3)."""
    periods = F.cast(index // settings.query_period, dtypes.f32)
    factor = F.log1p(periods) * settings.query_growth + 1.0
    lead = () if index.rank == 1 else (index.shape[0], 1)
    return F.reshape(factor, (*lead, index.shape[-1], 1))
