"""Decompositions of quantization: fake quantization, and the operators that PT2E writes.

Those of `quantized_decomposed` are defined by code of torch that reads scales as numbers and checks
elements; here the same sums are made of ATen operators alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

import numpy as np
import torch
from torch.ao.quantization.fx import _decomposed  # it registers the operators

assert _decomposed
_ATEN: Any = torch.ops.aten
_OPS: Any = torch.ops.quantized_decomposed
Scale = torch.Tensor | float
Zero = torch.Tensor | int


def fake_quantized(x: torch.Tensor, scale: Scale, zero: Zero, *rest: int) -> torch.Tensor:
    """Return x rounded to codes, for a tensor or an axis, and back: torch has no decomposition."""
    *axes, least, most = rest
    # Divided in f32, as torch does: ties of codes depend on the last bit.
    factor, offset = (
        each.float()
        if isinstance(each, torch.Tensor)
        else torch.full((), float(each), dtype=torch.float32)
        for each in (scale, zero)
    )
    if axes:
        factor, offset = _along(factor, axes[0], x), _along(offset, axes[0], x)
    codes = torch.round(x.float() * (1.0 / factor)) + offset
    return ((codes.clamp(least, most) - offset) * factor).to(x.dtype)


def _along(part: torch.Tensor, axis: int, x: torch.Tensor) -> torch.Tensor:
    """Return scales or zero points, one an index of an axis, so that they broadcast to x."""
    return part.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


def _single(part: torch.Tensor | float, dtype: torch.dtype | None = None) -> Any:
    """Return a number, or a tensor of one element as one of rank 0, which promotes nothing."""
    if not isinstance(part, torch.Tensor):
        return part
    return part.reshape(()).to(dtype or part.dtype)


def _quantized(
    x: torch.Tensor, scale: Scale, zero: Zero, low: Zero, high: Zero, dtype: torch.dtype
) -> torch.Tensor:
    # The reciprocal is that of a double, as torch computes it of a number.
    codes = torch.round(x.float() * (1.0 / _single(scale, torch.float64))) + _single(zero)
    return codes.clamp(_single(low), _single(high)).to(dtype)


def _dequantized(
    x: torch.Tensor, scale: Scale, zero: Zero, *codes: object, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    del codes
    return (x.to(out_dtype or torch.float32) - _single(zero)) * _single(scale, torch.float64)


def _quantized_channels(
    x: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    axis: int,
    low: int,
    high: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    codes = torch.round(x.float() * (1.0 / _along(scales, axis, x))) + _along(zeros, axis, x)
    return codes.clamp(low, high).to(dtype)


def _dequantized_channels(
    x: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    axis: int,
    *codes: object,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    del codes
    moved = x.float() if zeros is None else x.float() - _along(zeros, axis, x)
    return (moved * _along(scales, axis, x)).to(out_dtype or torch.float32)


def _quantized_rows(
    x: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    low: int,
    high: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return codes with a scale for each row; here the zero point is added before rounding."""
    return (x * (1.0 / scales) + zeros).round().clamp(low, high).to(dtype)


def _dequantized_rows(
    x: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    low: int,
    high: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    del low, high, dtype
    return ((x.float() if zeros is None else x.float() - zeros) * scales).to(output_dtype)


def _in_groups(
    function: Callable[..., torch.Tensor],
    x: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    low: int,
    high: int,
    dtype: torch.dtype,
    group: int,
    *out: torch.dtype,
) -> torch.Tensor:
    """Return `function` of a matrix whose rows are groups of the rows of x."""
    size = x.shape[-1] if scales.shape[-1] == 1 else group
    rows = [x.reshape(-1, size), scales.reshape(-1, 1)]
    points = None if zeros is None else zeros.reshape(-1, 1)
    return function(*rows, points, low, high, dtype, *out).reshape(x.shape)


def _chosen(
    x: torch.Tensor, low: int, high: int, eps: float, dtype: torch.dtype, *, symmetric: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scale and the zero point [1] that the range of x gives; 0 is in the range."""
    # The least scale is rounded to f32, as torch holds it.
    least, most, span = x.amin().clamp(max=0.0), x.amax().clamp(min=0.0), float(high - low)
    eps = np.float32(eps).item()
    if symmetric:
        scale = (torch.maximum(-least, most) / (span / 2)).float().clamp(min=eps)
        zero = torch.full((1,), 128 if dtype is torch.uint8 else 0, dtype=torch.int64)
    else:
        scale = ((most - least) / span).float().clamp(min=eps)
        zero = (low - torch.round(least / scale).to(torch.int32)).clamp(low, high)
    return scale.reshape(1).double(), zero.reshape(1).long()


def _range_of_rows(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    del dtype  # torch refuses other types than int8
    scales = x.abs().amax(-1, keepdim=True)
    scales = (scales.float() if x.dtype is torch.float16 else scales).clamp(min=1e-5) / 127
    return scales, torch.zeros_like(scales)


def quantized_rules() -> dict[Any, Callable[..., Any]]:
    """Return decompositions of fake quantization and of `quantized_decomposed`."""
    rows, back = _quantized_rows, _dequantized_rows
    fake = dict.fromkeys(FAKE_QUANTIZED, fake_quantized)
    return {
        **cast("dict[Any, Callable[..., Any]]", fake),
        **dict.fromkeys(_overloads("quantize_per_tensor"), _quantized),
        **dict.fromkeys(_overloads("dequantize_per_tensor"), _dequantized),
        _OPS.quantize_per_channel.default: _quantized_channels,
        _OPS.dequantize_per_channel.default: _dequantized_channels,
        _OPS.quantize_per_token.default: rows,
        _OPS.dequantize_per_token.default: back,
        _OPS.quantize_per_channel_group.default: partial(_in_groups, rows),
        _OPS.dequantize_per_channel_group.default: partial(_in_groups, back),
        _OPS.choose_qparams.tensor: _chosen,
        _OPS.choose_qparams_symmetric.tensor: partial(_chosen, symmetric=True),
        _OPS.choose_qparams_per_token.default: _range_of_rows,
        _OPS.choose_qparams_per_token_asymmetric.default: _RANGE_OF_ROWS,
        _OPS.convert_element_type.no_fuse: torch.Tensor.to,
    }


def _overloads(name: str) -> list[Any]:
    packet = getattr(_OPS, name)
    return [getattr(packet, overload) for overload in packet.overloads()]


FAKE_QUANTIZED: Final = (
    _ATEN.fake_quantize_per_tensor_affine.default,
    _ATEN.fake_quantize_per_tensor_affine.tensor_qparams,
    _ATEN.fake_quantize_per_channel_affine.default,
    _OPS.fake_quant_per_channel.default,
)
_RANGE_OF_ROWS: Final = _OPS._choose_qparams_per_token_asymmetric_impl.default
"""An operator that torch computes in ATen operators alone."""
