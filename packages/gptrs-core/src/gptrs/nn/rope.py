"""Rotary position embedding of the tokens of one step, for all layers of a model."""

from __future__ import annotations

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor
from gptrs.ir import dtypes
from gptrs.nn.ragged_step import RaggedStep
from gptrs.nn.recent_rows import row_texts
from gptrs.nn.rope_settings import RopeSettings
from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True)
class Rope:
    """Rotates queries and keys by angles that grow with the position: `rope(query)`.

    `cos` and `sin` are [N, R / 2] for the first R of D components. `query_factor` [N, 1, 1], if
    there is one, is multiplied with rotated queries. `interleaved` is that of `F.rotary`.
    """

    cos: Tensor
    sin: Tensor
    query_factor: Tensor | None
    interleaved: bool = False

    @classmethod
    def at(
        cls,
        settings: RopeSettings,
        head_dim: int,
        step: RaggedStep[Tensor],
        interleaved: bool = False,
    ) -> Rope:
        """Return the rotation of the tokens of a step, for heads of `head_dim`.

        The frequencies of `DynamicScaling` and `LongRopeScaling` are those of the length that a
        text has after the step. Keys in the cache keep the ones of their own step. So with the
        first it matters beyond `max_position_embeddings` which tokens came in one step, as in
        transformers; with the second the cache reads a text anew, see `short_context`.
        """
        dynamic = isinstance(settings.scaling, F.DynamicScaling | F.LongRopeScaling)
        lengths = _row_lengths(step) if dynamic else None
        cos, sin = F.rotary_tables(
            step.positions,
            settings.rotary_dim(head_dim),
            settings.theta,
            settings.scaling,
            lengths,
        )
        growth = _query_factor(settings, step.positions) if settings.query_growth else None
        return cls(cos, sin, growth, interleaved)

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate queries [N, H, D] or keys [N, K, D]."""
        rows = F.reshape(x, (1, *x.shape))
        rotated = F.rotary(rows, self.cos, self.sin, self.interleaved, heads_axis=2)
        return F.reshape(rotated, x.shape)


def _row_lengths(step: RaggedStep[Tensor]) -> Tensor:
    """Return the length of the text of each row after the step: si32 [N]."""
    return F.take(step.lengths, row_texts(step))


def _query_factor(settings: RopeSettings, positions: Tensor) -> Tensor:
    """`1 + growth * ln(1 + floor(position / period))` (Llama 4, Ministral 3), [N, 1, 1]."""
    periods = F.cast(positions // settings.query_period, dtypes.f32)
    factor = F.log1p(periods) * settings.query_growth + 1.0
    return F.reshape(factor, (positions.shape[0], 1, 1))
