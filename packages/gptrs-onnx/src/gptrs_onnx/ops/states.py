"""Layers of com.microsoft that carry a state from step to step instead of keys and values."""

from __future__ import annotations

import math

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_onnx.node import Node, converts

_RULES = ("linear", "gated", "delta", "gated_delta")


@converts("com.microsoft.LinearAttention")
def linear_attention(
    node: Node,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    q_num_heads: int,
    kv_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
    state_window: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return what queries [B, T, Hq K] read from states [B, Hkv, K, V], and the last state.

    A step lets the state decay and adds the outer product of its key and value, or with "delta" of
    the key and what the state lacks of the value. Heads may share queries or states.
    """
    if update_rule not in _RULES or state_window:
        node.refuse(f"has the `update_rule` {update_rule[:40]!a}, or states of several steps")
    if (decay is None) == ("gated" in update_rule) or (beta is None) == ("delta" in update_rule):
        node.malformed(f"has other inputs than the rule {update_rule!a} takes")
    batch, steps = query.shape[:2]
    heads, most = kv_num_heads, max(kv_num_heads, q_num_heads)
    keys, values = key.shape[2] // heads, value.shape[2] // heads
    slices = [
        _by_step(each, count, heads if each is not query else q_num_heads)
        for each, count in ((query, keys), (key, keys), (value, values))
    ]
    rates = [each for each in (decay, beta) if each is not None]
    slices += [_by_step(each, -1, heads if each.shape[2] >= heads else 1) for each in rates]
    factor = scale or 1.0 / math.sqrt(keys)
    start = F.zeros([batch, heads, keys, values], dtypes.f32)

    def step(state: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
        asked, place, content, *rest = given
        if decay is not None:
            state = state * F.expand_dims(F.exp(rest[0]), -1)
        column = F.expand_dims(place, -1)
        if beta is not None:
            content = (content - F.sum(state * column, 2)) * rest[-1]
        state = state + column * F.expand_dims(content, 2)
        wide = F.repeat_interleave(state, most // heads, 1)
        asked = F.repeat_interleave(asked, most // q_num_heads, 1)
        return state, F.sum(wide * F.expand_dims(asked, -1), 2) * factor

    first = start if past is None else F.cast(past, dtypes.f32)
    (last,), (read,) = primitives.scan(step, [first], slices)
    joined = F.reshape(F.transpose(read, [1, 0, 2, 3]), [batch, steps, most * values])
    return F.cast(joined, query.dtype), F.cast(last, query.dtype if past is None else past.dtype)


def _by_step(x: Tensor, width: int, heads: int) -> Tensor:
    """Return x [B, T, heads * width] as f32 [T, B, heads, width]."""
    batch, steps, size = x.shape
    split = F.reshape(x, [batch, steps, heads, size // heads if width < 0 else width])
    return F.cast(F.transpose(split, [1, 0, 2, 3]), dtypes.f32)


@converts("com.microsoft.CausalConvWithState")
def causal_convolution(
    node: Node,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    past: Tensor | None = None,
    *,
    activation: str = "none",
    ndim: int = 1,
    dilation: int = 1,
    channels_last: bool = False,
    state_window: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return each channel [B, C, L] convolved with what came before, and its last elements.

    Those are the `past` of the next call, without which it is zeros.
    """
    if ndim != 1 or state_window or activation not in ("none", "silu", "swish"):
        node.refuse("has several axes, states of several steps, or another activation than `silu`")
    for name in ("input_channel_offset", "input_channels", "state_length", "state_update_capacity"):
        if node.integer(name, 0):
            node.refuse(f"has the attribute `{name}`, which CUDA alone has")
    x = x if channels_last else F.transpose(x, [0, 2, 1])
    batch, length, channels = x.shape
    reach = (weight.shape[2] - 1) * dilation
    if past is None:
        past = F.zeros([batch, reach, channels], x.dtype)
    elif not channels_last:
        past = F.transpose(past, [0, 2, 1])
    padded = F.concat([past, x], 1)
    made = F.conv(padded, weight, bias, [1], [(0, 0)], [dilation], channels)
    if activation != "none":
        made = F.silu(made)
    last = F.slice_axis(padded, 1, length, reach)
    if channels_last:
        return made, last
    return F.transpose(made, [0, 2, 1]), F.transpose(last, [0, 2, 1])
