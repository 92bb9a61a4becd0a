"""Elementwise operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from gptrs.api.importers import scalar, wrapped
from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import DType, dtypes
from gptrs_backend_jax.stablehlo.conversion import (
    Known,
    Node,
    Value,
    as_tensor,
    converts,
    elementwise,
    filled,
    spread,
)

elementwise.rows(
    {
        "chlo.erf": primitives.erf,
        "is_finite": primitives.is_finite,
        "ceil": primitives.ceil,
        "cosine": primitives.cos,
        "exponential": primitives.exp,
        "exponential_minus_one": primitives.expm1,
        "floor": primitives.floor,
        "log": primitives.log,
        "log_plus_one": primitives.log1p,
        "logistic": primitives.logistic,
        "negate": primitives.neg,
        "not": primitives.logical_not,
        "round_nearest_even": primitives.round_nearest_even,
        "rsqrt": primitives.rsqrt,
        "sign": primitives.sign,
        "sine": primitives.sin,
        "sqrt": primitives.sqrt,
        "tanh": primitives.tanh,
        "and": primitives.bit_and,
        "maximum": primitives.maximum,
        "minimum": primitives.minimum,
        "or": primitives.bit_or,
        "shift_left": primitives.shift_left,
        "shift_right_logical": primitives.shift_right_logical,
        "subtract": primitives.sub,
        "xor": primitives.bit_xor,
    }
)
Binary = Callable[[Tensor, Tensor], Tensor]


@elementwise("abs")
def absolute(node: Node, x: Tensor) -> Tensor:
    """Return absolute values; complex parts are scaled first, so that no square overflows."""
    if not x.dtype.is_complex:
        return primitives.abs(x)
    parts = [primitives.abs(complex_part(node, x, shift)) for shift in (0, 32)]
    large, small = primitives.maximum(*parts), primitives.minimum(*parts)
    zero, one = filled(0, large), filled(1, large)
    ratio = primitives.div(
        # Of 0 + 0i the quotient would be 0 / 0.
        small,
        primitives.select(primitives.compare(large, zero, "eq"), one, large),
    )
    root = primitives.sqrt(primitives.add(one, primitives.mul(ratio, ratio)))
    # Infinity over infinity is NaN, while the magnitude is infinite whatever the other part.
    is_infinite = primitives.compare(large, filled(float("inf"), large), "eq")
    return primitives.select(is_infinite, large, primitives.mul(large, root))


@elementwise("shift_right_arithmetic")
def shift_right_arithmetic(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return integers shifted right with sign extension, in unsigned types, too."""
    if lhs.dtype.kind == "signed":
        return primitives.shift_right_arithmetic(lhs, rhs)
    whole = signed_of(lhs.dtype)
    pair = (primitives.bitcast(each, whole) for each in (lhs, rhs))
    return primitives.bitcast(primitives.shift_right_arithmetic(*pair), lhs.dtype)


@elementwise.each(
    {"add": (primitives.add, primitives.bit_or), "multiply": (primitives.mul, primitives.bit_and)}
)
def add_or_multiply(functions: tuple[Binary, Binary], lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return the sum or product; for i1, logical or and logical and."""
    return functions[lhs.dtype.is_bool](lhs, rhs)


@elementwise.each({"divide": primitives.div, "remainder": primitives.rem})
def divide(computed: Binary, lhs: Value, rhs: Value) -> Tensor:
    """Return the quotient or remainder; for integers by 0 as XLA does, -1 and `lhs`."""
    left, right = as_tensor(lhs), as_tensor(rhs)
    if not left.dtype.is_integer or _has_no_zero(rhs):
        return computed(left, right)
    zero = filled(0, right)
    # In PTIR, an integer division by 0 is an error: zeros are replaced before it.
    is_zero = primitives.compare(right, zero, "eq")
    made = computed(left, primitives.select(is_zero, filled(1, right), right))
    beyond = primitives.logical_not(zero) if computed is primitives.div else left
    return primitives.select(is_zero, beyond, made)


def _has_no_zero(value: Value) -> bool:
    return isinstance(value, Known) and not value.is_symbolic and bool(np.all(value.array != 0))


@elementwise("power")
def power(node: Node, base: Tensor, exponent: Tensor) -> Tensor:
    """Return powers of floats; integers are refused."""
    if base.dtype.is_integer:
        node.refuse(f"of integers, `{base.type}`, is not converted")
    return primitives.pow(base, exponent)


@elementwise("compare")
def compare(
    node: Node, lhs: Tensor, rhs: Tensor, *, comparison_direction: str, compare_type: str = ""
) -> Tensor:
    """Return the result of a comparison; the total order of floats compares their bits."""
    if compare_type == "TOTALORDER" and lhs.dtype.is_float:
        lhs, rhs = total_order(lhs), total_order(rhs)
    match direction := comparison_direction.lower():
        case "lt" | "le" | "eq" | "ge" | "gt" | "ne":
            return primitives.compare(lhs, rhs, direction)
        case _:
            node.refuse(f"has no direction `{direction}`")


def total_order(x: Tensor) -> Tensor:
    """Return integers ordered like the floats: -NaN, -inf, .., -0.0, 0.0, .., inf, NaN."""
    whole = signed_of(x.dtype)
    bits = primitives.bitcast(x, whole)
    most = filled(2 ** (whole.bits - 1) - 1, bits)
    is_negative = primitives.compare(bits, filled(0, bits), "lt")
    # Negative floats are ordered backwards by their bits: all but the sign are turned over.
    return primitives.select(is_negative, primitives.bit_xor(bits, most), bits)


def signed_of(dtype: DType) -> DType:
    """Return the signed integers of a width."""
    return dtypes.by_name(f"si{dtype.bits}")


def unsigned_of(dtype: DType) -> DType:
    """Return the unsigned integers of a width."""
    return dtypes.by_name(f"ui{dtype.bits}")


@elementwise("select")
def select(predicate: Tensor, on_true: Tensor, on_false: Tensor) -> Tensor:
    """Select elements; a scalar predicate applies to all of them."""
    return primitives.select(spread(predicate, on_true.shape), on_true, on_false)


@elementwise("clamp")
def clamp(low: Tensor, x: Tensor, high: Tensor) -> Tensor:
    """Return `x` between limits, which may be scalars."""
    return primitives.clamp(x, spread(low, x.shape), spread(high, x.shape))


@elementwise("round_nearest_afz")
def round_half_away(x: Tensor) -> Tensor:
    """Return the nearest integral value, halves away from zero; keeps the sign of zeros."""
    size = primitives.abs(x)
    whole = primitives.floor(size)
    is_up = primitives.compare(primitives.sub(size, whole), filled(0.5, x), "ge")
    rounded = primitives.select(is_up, primitives.add(whole, filled(1, x)), whole)
    signed = primitives.select(
        primitives.compare(x, filled(0, x), "lt"), primitives.neg(rounded), rounded
    )
    is_zero = primitives.compare(x, filled(0, x), "eq")
    return primitives.select(is_zero, x, signed)


@elementwise("cbrt")
def cube_root(x: Tensor) -> Tensor:
    """Return the real cube root, computed in f64."""
    wide = primitives.cast(x, dtypes.f64)
    root = primitives.pow(primitives.abs(wide), filled(1 / 3, wide))
    signed = primitives.mul(primitives.sign(wide), root)
    is_zero = primitives.compare(wide, filled(0, wide), "eq")
    return primitives.cast(primitives.select(is_zero, wide, signed), x.dtype)


@elementwise.each({"popcnt": False, "count_leading_zeros": True})
def count_bits(leads: bool, x: Tensor) -> Tensor:
    """Return the number of 1 bits, or of leading zeros."""
    bits = primitives.bitcast(x, unsigned_of(x.dtype)) if x.dtype.kind == "signed" else x
    width = x.dtype.bits
    if leads:
        for step in (1, 2, 4, 8, 16, 32):
            if step < width:
                shifted = primitives.shift_right_logical(bits, filled(step, bits))
                bits = primitives.bit_or(bits, shifted)
        bits = primitives.logical_not(bits)
    total = filled(0, bits)
    for bit in range(width):
        moved = primitives.shift_right_logical(bits, filled(bit, bits))
        total = primitives.add(total, primitives.bit_and(moved, filled(1, bits)))
    return primitives.bitcast(total, x.dtype) if total.dtype is not x.dtype else total


_FORMATS: Final = {
    (5, 2): dtypes.f8e5m2,
    (8, 7): dtypes.bf16,
    (5, 10): dtypes.f16,
    (8, 23): dtypes.f32,
    (11, 52): dtypes.f64,
}
_WIDER: Final = ((dtypes.f32, dtypes.f64), (dtypes.bf16, dtypes.f32), (dtypes.f16, dtypes.f32))


@elementwise("reduce_precision")
def reduce_precision(node: Node, x: Tensor, *, exponent_bits: int, mantissa_bits: int) -> Tensor:
    """Return floats rounded to a type of fewer bits; refused if PTIR has no such type."""
    narrow = _FORMATS.get((exponent_bits, mantissa_bits))
    if narrow is None:
        node.refuse(f"to {exponent_bits} and {mantissa_bits} bits is not converted")
    if (x.dtype, narrow) in _WIDER:
        return x
    return primitives.cast(primitives.cast(x, narrow), x.dtype)


@elementwise.each({"real": 0, "imag": 32})
def part(shift: int, node: Node, x: Tensor) -> Tensor:
    """Return a part of complex numbers, by their bits."""
    if not x.dtype.is_complex:
        return filled(0, x) if shift else x
    return complex_part(node, x, shift)


def complex_part(node: Node, x: Tensor, shift: int) -> Tensor:
    """Return the real part (`shift` 0) or the imaginary one (32)."""
    if x.dtype is not dtypes.cf32:
        node.refuse(f"of `{x.type}` is not converted")
    bits = primitives.bitcast(x, dtypes.ui64)
    moved = primitives.shift_right_logical(bits, filled(shift, bits))
    low = primitives.bit_and(moved, filled(2**32 - 1, bits))
    return primitives.bitcast(primitives.cast(low, dtypes.ui32), dtypes.f32)


@elementwise("complex")
def complex_number(node: Node, real: Tensor, imaginary: Tensor) -> Tensor:
    """Return complex numbers of two floats, by their bits."""
    if real.dtype is not dtypes.f32:
        node.refuse(f"of `{real.type}` is not converted")
    low, high = (
        primitives.cast(primitives.bitcast(each, dtypes.ui32), dtypes.ui64)
        for each in (real, imaginary)
    )
    bits = primitives.bit_or(primitives.shift_left(high, filled(32, high)), low)
    return primitives.bitcast(bits, dtypes.cf32)


@converts("optimization_barrier")
def barrier(*values: Tensor) -> tuple[Tensor, ...]:
    """Return the operands: optimization changes no results of PTIR programs."""
    return values


@converts("map")
def map_elements(node: Node, *values: Tensor) -> tuple[Tensor, ...]:
    """Apply a region of scalars to each element."""
    return node.lifted(0, values, values[0].shape)


@converts("batch_norm_inference")
def batch_norm(
    x: Tensor,
    scale: Tensor,
    offset: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    feature_index: int,
    epsilon: float,
) -> Tensor:
    """Return `(x - mean) / sqrt(variance + epsilon) * scale + offset` along the feature axis."""
    least = filled(scalar(epsilon, x.dtype), variance)
    root = primitives.sqrt(primitives.add(variance, least))

    def along(vector: Tensor) -> Tensor:
        dims = [1] * x.rank
        dims[feature_index] = vector.shape[0]
        return primitives.broadcast_to(primitives.reshape(vector, dims), x.shape)

    normal = primitives.div(primitives.sub(x, along(mean)), along(root))
    return primitives.add(primitives.mul(normal, along(scale)), along(offset))


# Trigonometric functions, composed of PTIR ops.


@elementwise("tan")
def tangent(node: Node, x: Tensor) -> Tensor:
    """Return the tangent."""
    return F.tan(_real(node, x))


@elementwise("atan2")
def atan2(node: Node, y: Tensor, x: Tensor) -> Tensor:
    """Return the angle of the point (x, y), from -pi to pi."""
    return F.atan2(_real(node, y), _real(node, x))


def _real(node: Node, x: Tensor) -> Tensor:
    """Return x; UnsupportedError for complex numbers."""
    if not x.dtype.is_float:
        node.refuse(f"of `{x.type}` is not converted")
    return x


# Conversion between element types: integers wrap, floats truncate and saturate; bit casts.


@elementwise("convert")
def convert(node: Node, x: Tensor) -> Tensor:
    """Return `x` as another type: integers keep their low bits, complex numbers the real part."""
    target = node.dtype
    if x.dtype.is_complex and not (target.is_complex or target.is_bool):
        x = complex_part(node, x, 0)
    return converted(x, target)


def converted(x: Tensor, target: DType) -> Tensor:
    """Return `x` as another type; integers wrap, where `cast` of PTIR saturates."""
    if x.dtype.is_integer and target.is_integer:
        return wrapped(x, target)
    return x if x.dtype is target else primitives.cast(x, target)


@converts("bitcast_convert")
def bitcast(node: Node, x: Tensor) -> Tensor:
    """Return the bits of `x` as another type: wider elements become several on a new last axis."""
    source, target = x.dtype, node.dtype
    if source is target:
        return x
    if source.is_bool or target.is_bool or source.is_complex or target.is_complex:
        node.refuse(f"of `{x.type}` to {target} is not converted")
    if source.bits == target.bits:
        return primitives.bitcast(x, target)
    narrow, wide = sorted((source, target), key=lambda each: each.bits)
    count = wide.bits // narrow.bits
    bits = primitives.bitcast(x, unsigned_of(source)) if source is not unsigned_of(source) else x
    shifts = [shift * narrow.bits for shift in range(count)]
    made = _split(bits, target, shifts) if source is wide else _joined(bits, target, shifts)
    return made if made.dtype is target else primitives.bitcast(made, target)


def _split(bits: Tensor, target: DType, shifts: list[int]) -> Tensor:
    """Return the parts of integers, low bits first, on a new last axis."""
    parts = [
        converted(primitives.shift_right_logical(bits, filled(shift, bits)), unsigned_of(target))
        for shift in shifts
    ]
    return primitives.concat(
        [primitives.reshape(each, (*bits.shape, 1)) for each in parts], bits.rank
    )


def _joined(bits: Tensor, target: DType, shifts: list[int]) -> Tensor:
    """Return integers of the parts on the last axis, low bits first."""
    total: Tensor | None = None
    lead = bits.shape[:-1]
    for number, shift in enumerate(shifts):
        column = primitives.slice(bits, [0] * len(lead) + [number], [*lead, 1])
        one = primitives.cast(primitives.reshape(column, lead), unsigned_of(target))
        moved = primitives.shift_left(one, filled(shift, one))
        total = moved if total is None else primitives.bit_or(total, moved)
    assert total is not None
    return total
