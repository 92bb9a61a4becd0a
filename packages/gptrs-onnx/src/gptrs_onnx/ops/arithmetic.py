"""Elementwise arithmetic with NumPy's broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

from gptrs.api.importers import eliminated, scalar, solved, unit_of, wrapped
from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import DType, dtypes
from gptrs_onnx.element_types import HELD_IN, dtype_of
from gptrs_onnx.node import (
    Bound,
    Narrow,
    Node,
    Numbers,
    as_tensor,
    codes_of,
    converts,
    cut_before,
    is_strings,
    values_of,
)
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.ops.narrow_types import narrowed

Binary = Callable[[Tensor, Tensor], Tensor]

converts.rows(
    {
        "Abs": F.abs,
        "Acos": F.acos,
        "Acosh": F.acosh,
        "Add": F.add,
        "And": F.logical_and,
        "Asin": F.asin,
        "Asinh": F.asinh,
        "Atan": F.atan,
        "Atanh": F.atanh,
        "BitwiseAnd": F.bitwise_and,
        "BitwiseNot": F.bitwise_not,
        "BitwiseOr": F.bitwise_or,
        "BitwiseXor": F.bitwise_xor,
        "Cos": F.cos,
        "Cosh": F.cosh,
        "Div": F.div,
        "Erf": F.erf,
        "Exp": F.exp,
        "Greater": F.greater,
        "GreaterOrEqual": F.greater_equal,
        "IsNaN": F.is_nan,
        "Less": F.less,
        "LessOrEqual": F.less_equal,
        "Log": F.log,
        "Mul": F.mul,
        "Neg": F.neg,
        "Not": F.logical_not,
        "Or": F.logical_or,
        "Reciprocal": F.reciprocal,
        "Sigmoid": F.sigmoid,
        "Sign": F.sign,
        "Sin": F.sin,
        "Sinh": F.sinh,
        "Sqrt": F.sqrt,
        "Sub": F.sub,
        "Tan": F.tan,
        "Tanh": F.tanh,
        "Where": F.where,
        "Xor": F.logical_xor,
    }
)


@converts.each({"Ceil": F.ceil, "Floor": F.floor, "Round": F.round})
def rounded(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return integral values; integers are unchanged."""
    return x if x.dtype.is_integer else function(x)


@converts.each({"Max": F.maximum, "Min": F.minimum, "Sum": F.add})
def combined(function: Binary, *operands: Tensor) -> Tensor:
    """Return the largest, the smallest or the sum of any number of operands."""
    return reduce(function, operands)


@converts("Mean")
def mean(*operands: Tensor) -> Tensor:
    """Return the mean of any number of operands."""
    return reduce(F.add, operands) / len(operands)


@converts("Pow")
def power(base: Tensor, exponent: Tensor) -> Tensor:
    """Return `base ** exponent` in the type of the base; the exponent may have another type."""
    if base.dtype.is_integer and exponent.dtype.is_integer:
        return _integer_power(base, F.cast(exponent, base.dtype))
    if base.dtype == exponent.dtype:
        return F.pow(base, exponent)
    if base.dtype.is_integer:
        # f32 holds integers to 2^24 only: 3 ** 20 would already be rounded.
        wide = exponent.dtype if exponent.dtype.bits > 32 else dtypes.f64
        return F.cast(F.pow(F.cast(base, wide), F.cast(exponent, wide)), base.dtype)
    return F.pow(base, F.cast(exponent, base.dtype))


def _integer_power(base: Tensor, exponent: Tensor) -> Tensor:
    """Return powers of integers by squaring; they wrap as products do.

    Exponents below 0 and from 64 on give powers of 1 and -1, and 0 for other bases.
    """
    result, square = F.broadcast_to(scalar(1, base.dtype), F.add(base, exponent).shape), base
    zero, one = scalar(0, base.dtype), scalar(1, base.dtype)
    left = exponent
    # Six bits: exponents to 63. Any larger one overflows 64 bits for bases other than 0, 1 and -1.
    for _ in range(6):
        odd = F.equal(F.bitwise_and(left, one), one)
        result = F.where(odd, result * square, result)
        square, left = square * square, F.right_shift(left, one)
    odd = F.equal(F.bitwise_and(exponent, one), one)
    unit = F.where(odd, base, base * base)
    beyond = F.where(F.equal(F.abs(base), one), unit, zero)
    is_beyond = F.logical_or(F.greater(left, zero), F.less(exponent, zero))
    return F.where(is_beyond, beyond, result)


@converts("Mod")
def modulo(lhs: Tensor, rhs: Tensor, *, fmod: bool = False) -> Tensor:
    """Return the remainder: with the sign of the divisor, or, with `fmod`, of the dividend."""
    return F.fmod(lhs, rhs) if fmod else F.remainder(lhs, rhs)


@converts("BitShift")
def shift(x: Tensor, bits: Tensor, *, direction: str) -> Tensor:
    """Shift unsigned integers, filling with zeros."""
    return F.left_shift(x, bits) if direction == "LEFT" else F.right_shift(x, bits)


@converts("IsInf")
def is_infinite(x: Tensor, *, detect_positive: bool = True, detect_negative: bool = True) -> Tensor:
    """Return where x is infinite, of either sign or of one."""
    infinite = F.is_inf(x)
    if not detect_positive:
        infinite = infinite & (x < 0.0)
    if not detect_negative:
        infinite = infinite & (x > 0.0)
    return infinite


@converts("Clip")
def clip(node: Node, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Return x clipped to two bounds; if they cross, the upper one."""
    if node.version < 11:
        low = scalar(node.number("min"), x.dtype) if "min" in node else None
        high = scalar(node.number("max"), x.dtype) if "max" in node else None
    # Lower bound first: the standard gives the upper one precedence where the two cross.
    x = x if low is None else F.maximum(x, low)
    return x if high is None else F.minimum(x, high)


@converts("Equal")
def equal(node: Node, x: Numbers, y: Numbers) -> Tensor:
    """Compare numbers, or strings by their codes."""
    if is_strings(x) != is_strings(y):
        node.malformed("compares strings with numbers")
    return F.equal(codes_of(x), codes_of(y))


@converts("BitCast")
def bit_cast(x: Tensor, *, to: DType) -> Tensor:
    """Return the bits of x read as another type of the same width."""
    return F.cast(x, to) if x.dtype.is_bool else primitives.bitcast(x, to)


# Conversions of element types as ONNX defines them.


_LARGEST = {dtypes.f8e4m3: 448.0, dtypes.f8e5m2: 57344.0}


@converts("Cast")
def cast(node: Node, x: Numbers, *, to: int) -> Numbers:
    """Convert to the type that the node names."""
    if is_strings(x) and to != ir.DataType.STRING:
        node.refuse("reads numbers out of strings that a program computes", hint=cut_before(node))
    if to in HELD_IN:
        return narrowed(node, x, ir.DataType(to))
    return converted(node, values_of(x), dtype_of(to, f"the attribute `to` of {node}"))


@converts("CastLike")
def cast_like(node: Node, x: Numbers, target: Bound) -> Numbers:
    """Convert to the type of another tensor."""
    if isinstance(target, Narrow):
        return narrowed(node, x, target.type)
    return converted(node, values_of(x), as_tensor(target).dtype)


def converted(node: Node, x: Tensor, dtype: DType) -> Tensor:
    """Return x as `dtype`: integers wrap, 8-bit floats saturate by default."""
    if x.dtype == dtype:
        return x
    if x.dtype.is_complex and not dtype.is_complex:
        node.refuse("converts complex numbers to real ones")
    if x.dtype.is_integer and dtype.is_integer:
        return wrapped(x, dtype)
    if dtype in _LARGEST and node.flag("saturate", True) and not x.dtype.is_bool:
        return _saturated(x, dtype)
    if x.dtype.is_float and dtype.is_integer and dtype not in (dtypes.si32, dtypes.si64):
        return _truncated(x, dtype)
    return F.cast(x, dtype)


def _truncated(x: Tensor, dtype: DType) -> Tensor:
    """Return floats as integers of another type than si32 or si64, by the low bits of one of these.

    The standard leaves open what numbers out of range give; ONNX Runtime and torch wrap them so,
    and give 0 for those that are out of that range, too.
    """
    wide = dtypes.si64 if dtype.bits >= 32 else dtypes.si32
    x = x if x.dtype.bits >= 32 else F.cast(x, dtypes.f32)
    within = F.where(F.abs(x) < 2.0 ** (wide.bits - 1), x, 0.0)
    low = wrapped(F.cast(within, wide), dtype)
    # Numbers from 2^63 on fit into unsigned ones alone.
    return low if dtype.bits < 64 else F.where(x < 0.0, low, F.cast(x, dtype))


def _saturated(x: Tensor, dtype: DType) -> Tensor:
    """Return x as a float of 8 bits; too large values, including infinities, become the largest."""
    wide = x if x.dtype.is_float and x.dtype.bits >= 32 else F.cast(x, dtypes.f32)
    bound = scalar(_LARGEST[dtype], wide.dtype)
    kept = F.where(F.is_nan(wide), wide, F.minimum(F.maximum(wide, -bound), bound))
    return F.cast(kept, dtype)


# Products of matrices.


@converts("MatMul")
def product(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return `np.matmul` of two tensors."""
    if lhs.rank >= 2 and rhs.rank == 2:
        return primitives.dot_general(lhs, rhs, ([lhs.rank - 1], [0]))
    if lhs.rank == rhs.rank == 1:
        return primitives.dot_general(lhs, rhs, ([0], [0]))
    return F.matmul(lhs, rhs)


@converts("Gemm")
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: bool = False,  # noqa: N803
    transB: bool = False,  # noqa: N803
) -> Tensor:
    """Return `alpha * A B + beta * C`, with A and B transposed where asked for."""
    result = primitives.dot_general(a, b, ([0 if transA else 1], [1 if transB else 0]))
    if alpha != 1.0:
        result = result * alpha if result.dtype.is_float else result * int(alpha)
    if c is None or beta == 0.0:
        return result
    return result + (c if beta == 1.0 else c * beta if c.dtype.is_float else c * int(beta))


@converts("MatMulInteger")
def matmul_integer(
    a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    """Return the si32 product of integers without their zero points."""
    left, right = F.cast(a, dtypes.si32), F.cast(b, dtypes.si32)
    if a_zero is not None:
        zero = F.cast(a_zero, dtypes.si32)
        left = left - (F.expand_dims(zero, -1) if zero.rank == 1 and zero.size > 1 else zero)
    if b_zero is not None:
        right = right - F.cast(b_zero, dtypes.si32)
    return product(left, right)


@converts("Det")
def determinant(node: Node, x: Tensor) -> Tensor:
    """Return the determinants of matrices [.., N, N]."""
    if x.rank < 2 or x.shape[-1] != x.shape[-2]:
        node.malformed(f"takes square matrices, and got `{x.type}`")
    _, pivots, sign = eliminated(x)
    return F.prod(pivots, 0) * sign


@converts("com.microsoft.Inverse")
def inverse(x: Tensor) -> Tensor:
    """Return the inverses of matrices [.., N, N]; NaN for one that has none."""
    found, fault = solved(x, unit_of(x))
    is_singular = F.expand_dims(F.expand_dims(fault > 0, -1), -1)
    return F.where(is_singular, scalar(math.nan, x.dtype), found)
