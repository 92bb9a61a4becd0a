"""The operators that torch's encoder layers call in inference, as the layers that they fuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_ATEN: Any = torch.ops.aten
_OURS: Any = torch.ops.gptrs
Tensor = torch.Tensor


def encoder_rules() -> dict[Any, Callable[..., Any]]:
    """Return decompositions of an encoder layer and of its attention."""
    return {
        _ATEN._transformer_encoder_layer_fwd.default: _layer,
        _ATEN._native_multi_head_attention.default: _attention,
    }


def _layer(
    x: Tensor,
    width: int,
    heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    *rest: Any,
) -> Tensor:
    """Return the layer of x [B, T, width]: each norm is before or after its part."""
    norms, (up, up_bias, down, down_bias), masked = (rest[:2], rest[2:4]), rest[4:8], rest[8:]
    projections = qkv_weight, qkv_bias, out_weight, out_bias

    def attention(y: Tensor) -> Tensor:
        mask, kind = (*masked, None, None)[:2]
        return _attention(y, y, y, width, heads, *projections, mask, False, True, kind)[0]

    def forward(y: Tensor) -> Tensor:
        inner = _OURS.linear(y, up, up_bias)
        inner = torch.nn.functional.gelu(inner) if use_gelu else inner.relu()
        return _OURS.linear(inner, down, down_bias)

    for part, norm in zip((attention, forward), norms, strict=True):
        scale, shift = norm
        before = torch.layer_norm(x, [width], scale, shift, eps) if norm_first else x
        x = part(before) + x
        x = x if norm_first else torch.layer_norm(x, [width], scale, shift, eps)
    return x


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    width: int,
    heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average: bool = True,
    kind: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return attention and its weights, by head or their mean; elements of the mask are left out.

    A row that leaves out all is NaN, as in the kernel.
    """
    given = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    projected = (_OURS.linear(*each).unflatten(-1, (heads, -1)).transpose(1, 2) for each in given)
    q, k, v = projected
    if mask is None and not need_weights:
        made, weights = torch.nn.functional.scaled_dot_product_attention(q, k, v), None
    else:
        scores = q * (width // heads) ** -0.5 @ k.mT
        if mask is not None:
            scores = scores.masked_fill(_spread(mask, kind), float("-inf"))
        weights = scores.softmax(-1)
        made = weights @ v
    out = _OURS.linear(made.transpose(1, 2).flatten(2), out_weight, out_bias)
    if not need_weights or weights is None:
        return out, query.new_empty(0)
    return out, weights.mean(1) if average else weights


def _spread(mask: Tensor, kind: int | None) -> Tensor:
    """Return a mask for all heads: one of the steps (kind 0), of the keys (1), or of all (2)."""
    left_out = mask.bool()
    return left_out[:, None, None] if kind == 1 else left_out
