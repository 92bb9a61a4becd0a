"""Rotary embeddings in the words of GGUF files."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gptrs import functionals as F
from gptrs.errors import ModelError
from gptrs.functionals.rotary_scaling import unscaled_frequencies
from gptrs.nn.rope_settings import RopeSettings
from gptrs_runtime.sources.gguf_metadata import Metadata, Rotary

_BY_DIVISORS = (1.0, 4.0, 8192)
"""The low and high factors, and the positions, of the scaling that is told by divisors only."""


def read_rotary(
    settings: Mapping[str, object], kind: str, positions: int, head_dim: int, share: float | None
) -> Rotary:
    """Return the rotary embedding of a model; ModelError for one that has no words there."""
    rope = RopeSettings.from_settings(settings, kind, positions, rotated=share)
    return Rotary(rope.theta, rope.rotated, *_scaled(rope, head_dim))


def _scaled(rope: RopeSettings, head_dim: int) -> tuple[Metadata, np.ndarray | None]:
    """Return the metadata of a rotary scaling, and the divisors of frequencies, if it has any."""
    scaling = rope.scaling
    if scaling is None:
        return {}, None
    if isinstance(scaling, F.LinearScaling):
        return {"rope.scaling.type": "linear", "rope.scaling.factor": scaling.factor}, None
    if isinstance(scaling, F.Llama3Scaling):
        own = (scaling.low_frequency_factor, scaling.high_frequency_factor)
        if (*own, scaling.original_max_position) == _BY_DIVISORS:
            exact = unscaled_frequencies(head_dim, rope.theta)
            return {}, exact / scaling.frequencies(head_dim, rope.theta, None)
    if isinstance(scaling, F.YarnScaling):
        factor, original = scaling.factor, scaling.original_max_position
        if scaling == F.YarnScaling(factor, original):
            words: Metadata = {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": factor,
                "rope.scaling.original_context_length": original,
            }
            return words, None
    raise ModelError(
        f"the rotary scaling {scaling} cannot be written as a GGUF file",
        hint="none, linear, YaRN with its own defaults, and `llama3` as it came out, can",
    )
