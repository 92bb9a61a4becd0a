"""Which operators of ATen are taken apart by torch before they are converted."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias, cast

import torch
from torch import _decomp
from torch._decomp import core_aten_decompositions

from gptrs_torch import ops
from gptrs_torch.conversion import converter_of
from gptrs_torch.partition import rules

assert ops  # its modules register the converters
Rules: TypeAlias = "dict[Any, Callable[..., Any]]"
_ATEN = torch.ops.aten
_MORE = (
    _ATEN.grid_sampler_2d,
    _ATEN.upsample_bilinear2d.vec,
    _ATEN.upsample_bilinear2d.default,
    _ATEN.upsample_bicubic2d.vec,
    _ATEN.upsample_bicubic2d.default,
    _ATEN.upsample_nearest1d.vec,
    _ATEN.upsample_nearest1d.default,
    _ATEN.upsample_nearest2d.vec,
    _ATEN.upsample_nearest2d.default,
    _ATEN.upsample_nearest3d.vec,
    _ATEN.upsample_nearest3d.default,
    _ATEN.upsample_linear1d.vec,
    _ATEN.upsample_trilinear3d.vec,
    _ATEN.upsample_linear1d.default,
    _ATEN.upsample_trilinear3d.default,
    _ATEN._native_batch_norm_legit_functional,
    _ATEN._native_batch_norm_legit.no_stats,
    _ATEN.native_batch_norm.default,
    _ATEN.native_dropout,
    _ATEN.split_with_sizes_copy,
)
"""Operators of the core set that no converter takes."""


@cache
def table() -> Rules:
    """Return decompositions to what is converted: those of core ATen, and of some of that.

    An operator that is converted as it is stays whole, so that a backend knows it: `silu`, `linear`
    and attention. So do recurrent layers, under names of their own.
    """
    more = cast("Rules", cast("Any", _decomp).get_decompositions(_MORE))
    found: Rules = {**core_aten_decompositions(), **more}
    taken_apart = {op: rule for op, rule in found.items() if converter_of(op) is None}
    return {**taken_apart, **rules()}
