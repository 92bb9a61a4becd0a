"""Fusions of attention as exporters of other formats write it: its mask is added to the scores.

Queries and keys may be scaled before they are multiplied. What replaces the NaN of queries that see
nothing is part of it: see `gptrs_backend_numba.kernels.attention.geometry.GUARDS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.functionals.activation import softmax
from gptrs.functionals.attention import attention, attention_by
from gptrs.functionals.operands import splat
from gptrs.ir import dtypes
from gptrs.ir.attributes import Dictionary
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.elementwise import Add, Compare, Select
from gptrs.ir.symbolic_dim import SymbolicDim
from gptrs.optimizer.fusion import FoundCall
from gptrs.optimizer.pass_base import Pass
from gptrs_backend_numba.fusion.claims import claim_softmax
from gptrs_backend_numba.fusion.needed_patterns import Need, fusion, tensors
from gptrs_backend_numba.lowering.attention import TARGET

_FEWEST_QUERIES = 7
"""A panel of fewer would be mostly empty."""
_TYPES = tensors(
    query="f32[2, 3, 4, 5]",
    key="f32[2, 3, 6, 5]",
    value="f32[2, 3, 6, 7]",
    bias="f32[2, 3, 4, 6]",
)
_CALLS = [{**_TYPES, "scale": scale} for scale in (1.0, 0.25, 0.75)]


def biased_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float
) -> Tensor:
    """Return `softmax(scale * Q K^T + bias) V`."""
    return attention(query, key, value, mask=bias, scale=scale)


def plain_biased_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float
) -> Tensor:
    """Return the same, but NaN for queries whose every score is -inf."""
    return attention_by(softmax, query, key, value, mask=bias, scale=scale)


def guarded_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float
) -> Tensor:
    """Return the same with 0 for all probabilities that are NaN."""
    heads = ([0, 1], [0, 1])
    scores = primitives.dot_general(query, key, ([3], [3]), heads)
    probabilities = softmax(scores * scale + bias, axis=-1)
    unknown = primitives.compare(probabilities, probabilities, "ne")
    zeros = splat(0.0, probabilities.dtype, probabilities.shape)
    shown = primitives.select(unknown, zeros, probabilities)
    return primitives.dot_general(shown, value, ([3], [2]), heads)


def _replaced(call: FoundCall, guard: str) -> CustomCall | None:
    query, key, value, bias = (
        call.operands[name].type for name in ("query", "key", "value", "bias")
    )
    sizes = (*query.shape, *value.shape)
    scale = call.attributes["scale"]
    assert isinstance(scale, float | int)
    if any(isinstance(size, SymbolicDim) for size in sizes) or math.prod(sizes) == 0:
        return None
    if query.dtype is not dtypes.f32 or query.shape[2] < _FEWEST_QUERIES:
        return None
    if query.shape[:2] != key.shape[:2] or bias.shape != (*query.shape[:3], key.shape[2]):
        return None
    attrs = Dictionary.of(scale=float(scale), guard=guard)
    return CustomCall(TARGET, (call.result.type,), attrs)


def _fused(function: Callable[..., Tensor], guard: str, *needs: Need) -> Pass:
    replaced = partial(_replaced, guard=guard)
    return fusion(function, _CALLS, (DotGeneral, Add, *needs), replaced, claim_softmax)


FUSE_BIASED_ATTENTION: tuple[Pass, ...] = (
    _fused(biased_attention, "blind", "safe_softmax"),
    _fused(guarded_attention, "nan", "softmax", Select, Compare),
    _fused(plain_biased_attention, "none", "softmax"),
)
