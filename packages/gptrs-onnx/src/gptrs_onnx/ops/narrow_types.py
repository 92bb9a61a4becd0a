"""Rounding to the element types that PTIR lacks: integers of 2 bits, floats of 4 and 8."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from gptrs.api.importers import scalar
from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_onnx.element_types import HELD_IN
from gptrs_onnx.node import Narrow, Node, Numbers, cut_before, values_of
from gptrs_onnx.onnx_ir import ir


class _Format(Struct, frozen=True):
    """A narrow float: `bits` of its fraction, the exponent of its least normal number."""

    bits: int
    least: int
    largest: float
    beyond: float
    """The result for infinities and what rounds to more than `largest`, unless it saturates."""
    of_nan: float
    has_negative_zero: bool


_NAN: Final = float("nan")
_FORMATS: Final[Mapping[ir.DataType, _Format]] = MappingProxyType(
    {
        # The standard leaves open what NaN becomes; ml_dtypes, its reference, gives -0.
        ir.DataType.FLOAT4E2M1: _Format(1, 0, 6.0, 6.0, -0.0, True),
        ir.DataType.FLOAT8E4M3FNUZ: _Format(3, -7, 240.0, _NAN, _NAN, False),
        ir.DataType.FLOAT8E5M2FNUZ: _Format(2, -15, 57344.0, _NAN, _NAN, False),
    }
)


def narrowed(node: Node, x: Numbers, to: ir.DataType) -> Narrow:
    """Return numbers rounded to a type of `HELD_IN`, as `Cast` does.

    Integers wrap. Floats round to even; those that are too large become the largest number, or NaN
    where the attribute `saturate` is 0.
    """
    if isinstance(x, Narrow) and x.type == to:
        return x
    if to == ir.DataType.STRING:
        node.refuse("writes numbers as strings, which a program lacks", hint=cut_before(node))
    x = values_of(x)
    if to in (ir.DataType.INT2, ir.DataType.UINT2):
        made = _low_bits(x, signed=to == ir.DataType.INT2)
    elif to == ir.DataType.FLOAT8E8M0:
        made = _power_of_two(node, x)
    else:
        made = _rounded(x, _FORMATS[to], node.flag("saturate", True))
    return Narrow(F.cast(made, HELD_IN[to]), to)


def _low_bits(x: Tensor, signed: bool) -> Tensor:
    """Return the low 2 bits of integers; floats are truncated towards 0 first."""
    whole = x if x.dtype.is_integer and x.dtype.bits >= 8 else F.cast(x, dtypes.si32)
    low = F.bitwise_and(whole, scalar(3, whole.dtype))
    if not signed:
        return low
    code = F.cast(low, dtypes.si8)
    return F.bitwise_xor(code, scalar(2, dtypes.si8)) - scalar(2, dtypes.si8)


def _rounded(x: Tensor, form: _Format, saturates: bool) -> Tensor:
    """Return the nearest numbers of a format, ties to even."""
    wide = x if x.dtype == dtypes.f64 else F.cast(x, dtypes.f32)
    code, mask = dtypes.si32, 0x7F80_0000
    if wide.dtype == dtypes.f64:
        code, mask = dtypes.si64, 0x7FF0_0000_0000_0000
    exponent = F.bitwise_and(primitives.bitcast(wide, code), scalar(mask, code))
    power = primitives.bitcast(exponent, wide.dtype)  # 2**e: a product with it is exact
    step = F.maximum(power, scalar(2.0**form.least, wide.dtype)) * 2.0**-form.bits
    near = F.round(wide / step) * step
    largest = scalar(form.largest, wide.dtype)
    most = form.largest if saturates else form.beyond
    bound = scalar(most, wide.dtype)
    near = F.where(F.abs(near) > largest, F.where(near < 0.0, -bound, bound), near)
    # An infinity has no step: its quotient is NaN.
    near = F.where(F.is_inf(wide), F.where(wide < 0.0, -bound, bound), near)
    near = F.where(F.is_nan(wide), scalar(form.of_nan, wide.dtype), near)
    if form.has_negative_zero:
        return near
    zero = scalar(0, wide.dtype)
    return F.where(F.equal(near, zero), zero, near)


def _power_of_two(node: Node, x: Tensor) -> Tensor:
    """Return powers of 2 near the magnitudes of x, 2**-127 for 0; NaN for infinities and NaN.

    The attribute `round_mode` is `up`, `down` or `nearest`.
    """
    mode = node.text("round_mode", "up")
    if mode not in ("up", "down", "nearest"):
        node.malformed(f"rounds by `{mode}`")
    code = dtypes.si32

    def number(value: int) -> Tensor:
        return scalar(value, code)

    bits = primitives.bitcast(F.cast(x, dtypes.f32), code)
    magnitude = F.bitwise_and(bits, number(0x7FFF_FFFF))
    exponent = F.right_shift(magnitude, number(23))
    fraction = F.bitwise_and(magnitude, number(0x7F_FFFF))
    if mode != "down":
        # Halves round up, but from 0 (a denormal) to 2**-126, which is even.
        half = F.where(F.equal(exponent, number(0)), number(0x40_0000), number(0x3F_FFFF))
        goes_up = fraction > (number(0) if mode == "up" else half)
        raised = exponent + F.cast(goes_up, code)
        exponent = F.minimum(raised, number(254)) if node.flag("saturate", True) else raised
    exponent = F.where(magnitude >= number(0x7F80_0000), number(255), exponent)
    power = primitives.bitcast(F.left_shift(exponent, number(23)), dtypes.f32)
    least = scalar(2.0**-127, dtypes.f32)
    power = F.where(F.equal(exponent, number(0)), least, power)
    return F.where(F.equal(exponent, number(255)), scalar(_NAN, dtypes.f32), power)
