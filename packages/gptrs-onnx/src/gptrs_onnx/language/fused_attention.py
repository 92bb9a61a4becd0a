"""Operators that attend to a past themselves, converted to use the pages of the runtime."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_onnx.language.cached_conversion import FUSED, CachedConversion
from gptrs_onnx.language.trials import UnrecognizedError
from gptrs_onnx.node import Node, as_tensor
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.ops.transformers import (
    grouped_heads,
    refuse_settings,
    rotated,
    with_normed_heads,
)

_INPUTS = 16
"""Inputs of `GroupQueryAttention` with the optional ones."""


def group_query_attention(conversion: CachedConversion, source: ir.Node) -> Sequence[Tensor | None]:
    """Return attention [1, N, H * D] of new tokens, and None for the carried keys and values."""
    node = conversion.node_of(source)
    inputs = [*source.inputs, *[None] * (_INPUTS - len(source.inputs))]
    query, key, value, past_key, past_value, last, total, cosines, sines, positions, bias, sinks = (
        each if each is not None and each.name else None for each in inputs[:12]
    )
    more = [each if each is not None and each.name else None for each in inputs[12:]]
    refuse_settings(node, tuple(None if each is None else F.zeros([]) for each in more))
    if past_key is None or past_value is None or last is None or total is None:
        raise UnrecognizedError(f"{node} has no past")
    if bias is not None or not node.flag("causal", True):
        raise UnrecognizedError(f"{node} has a bias, or attends to later tokens")
    conversion.require_count(last, 1)
    conversion.require_count(total, 0)
    layer = conversion.layer_of(past_key, past_value)
    heads = node.integer("num_heads"), node.integer("kv_num_heads")
    parts = grouped_heads(
        node,
        _tensor(conversion, query),
        _optional(conversion, key),
        _optional(conversion, value),
        *heads,
    )
    parts = with_normed_heads(node, parts, [_optional(conversion, each) for each in more])
    if node.flag("do_rotary"):
        if positions is not None and conversion.is_of_tokens(positions):
            raise UnrecognizedError(f"{node} rotates by positions that depend on tokens")
        parts = _turned(conversion, node, parts, cosines, sines)
    sink = _sinks(conversion, node, sinks, heads[0])
    window = node.integer("local_window_size", -1)
    found = conversion.cache_of(layer, window if window > 0 else None).attend(
        *(F.transpose(F.squeeze(x, 0), (1, 0, 2)) for x in parts),
        scale=node.number("scale", 0.0) or None,
        softcap=node.number("softcap", 0.0) or None,
        sinks=sink,
    )
    rows, count, width = found.shape
    made = F.cast(F.reshape(found, (1, rows, count * width)), parts[0].dtype)
    return [made, *[None] * (len(source.outputs) - 1)]


def _turned(
    conversion: CachedConversion,
    node: Node,
    parts: Sequence[Tensor],
    cosines: ir.Value | None,
    sines: ir.Value | None,
) -> Sequence[Tensor]:
    """Return query, key and value, the first two rotated by the positions of their tokens."""
    angles = F.expand_dims(conversion.step.positions, 0)
    cos, sin = _tensor(conversion, cosines), _tensor(conversion, sines)
    interleaved = node.flag("rotary_interleaved")
    query, key, value = parts
    return [*(rotated(x, angles, cos, sin, interleaved) for x in (query, key)), value]


def _sinks(
    conversion: CachedConversion, node: Node, sinks: ir.Value | None, heads: int
) -> Tensor | None:
    """Return the scores of one more key without a value, 0 for a smooth softmax; None for none."""
    if sinks is not None:
        return F.cast(_tensor(conversion, sinks), dtypes.f32)
    return F.zeros([heads]) if node.integer("smooth_softmax", -1) == 1 else None


def _tensor(conversion: CachedConversion, value: ir.Value | None) -> Tensor:
    held = None if value is None else conversion.held(value)
    if held is None:
        raise UnrecognizedError("an input of attention depends on the past")
    return as_tensor(held)


def _optional(conversion: CachedConversion, value: ir.Value | None) -> Tensor | None:
    return None if value is None else _tensor(conversion, value)


FUSED["com.microsoft", "GroupQueryAttention"] = group_query_attention
