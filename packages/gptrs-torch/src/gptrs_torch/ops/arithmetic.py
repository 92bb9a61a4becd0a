"""Elementwise arithmetic: operands are promoted as torch does, then broadcast."""

from __future__ import annotations

from collections.abc import Callable

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_torch.conversion import Node, converts
from gptrs_torch.program_check import Number, Operand, converted, operand, scalar

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": F.abs,
    "acos": F.acos,
    "acosh": F.acosh,
    "asin": F.asin,
    "asinh": F.asinh,
    "atan": F.atan,
    "atanh": F.atanh,
    "ceil": F.ceil,
    "cos": F.cos,
    "cosh": F.cosh,
    "erf": F.erf,
    "exp": F.exp,
    "exp2": F.exp2,
    "expm1": F.expm1,
    "floor": F.floor,
    "log": F.log,
    "log10": F.log10,
    "log1p": F.log1p,
    "log2": F.log2,
    "neg": F.neg,
    "reciprocal": F.reciprocal,
    "rsqrt": F.rsqrt,
    "sigmoid": F.sigmoid,
    "sin": F.sin,
    "sinh": F.sinh,
    "sqrt": F.sqrt,
    "tan": F.tan,
    "tanh": F.tanh,
    "trunc": F.trunc,
}
_ROUNDING = ("ceil", "floor", "round", "trunc")
_POWERS: dict[float, Callable[[Tensor], Tensor]] = {
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    0.5: F.sqrt,
    1: lambda x: x,
    -1: F.reciprocal,
    -0.5: F.rsqrt,
}
"""Powers that torch computes without `pow`."""
_BITWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "bitwise_and": F.bitwise_and,
    "bitwise_or": F.bitwise_or,
    "bitwise_xor": F.bitwise_xor,
}


def name_of(node: Node) -> str:
    """Return the name of the operator without its overload."""
    return str(node.source.target).split(".")[1]


@converts(*_UNARY)
def unary(node: Node, x: Tensor) -> Tensor:
    """Convert an operator of one operand; integers become floats where the result is one."""
    name = name_of(node)
    if x.dtype.is_integer and (name in _ROUNDING or (name == "abs" and x.dtype.kind != "signed")):
        return x
    return _UNARY[name](converted(x, node.dtype))


@converts("sign")
def sign(node: Node, x: Tensor) -> Tensor:
    """Return -1, 0 or 1; torch has 0 for NaN, PTIR NaN."""
    del node
    found = F.sign(x)
    return F.where(F.is_nan(x), 0.0, found) if x.dtype.is_float else found


@converts("round")
def rounded(node: Node, x: Tensor, *, decimals: int = 0) -> Tensor:
    """Return x rounded to even, at a number of decimals."""
    if x.dtype.is_integer:
        return x if decimals >= 0 else node.refuse("rounds integers to tens")
    if decimals == 0:
        return F.round(x)
    factor = 10.0 ** abs(decimals)
    return F.round(x * factor) / factor if decimals > 0 else F.round(x / factor) * factor


@converts("add", "sub")
def added(node: Node, x: Operand, y: Operand, *, alpha: Number = 1) -> Tensor:
    """Return `x + alpha * y`, or `x - alpha * y`."""
    dtype = node.dtype
    left, right = operand(x, dtype), operand(y, dtype)
    if alpha != 1:
        right = right * scalar(alpha, dtype)
    if dtype.is_bool:
        return F.logical_or(left, right)
    return F.add(left, right) if name_of(node) == "add" else F.sub(left, right)


@converts("rsub")
def subtracted_from(node: Node, x: Operand, y: Operand, *, alpha: Number = 1) -> Tensor:
    """Return `y - alpha * x`."""
    left = operand(x, node.dtype)
    return operand(y, node.dtype) - (left if alpha == 1 else left * scalar(alpha, node.dtype))


@converts("mul")
def multiplied(node: Node, x: Operand, y: Operand) -> Tensor:
    """Return `x * y`."""
    dtype = node.dtype
    left, right = operand(x, dtype), operand(y, dtype)
    return F.logical_and(left, right) if dtype.is_bool else F.mul(left, right)


@converts("div", "true_divide", "floor_divide")
def divided(node: Node, x: Operand, y: Operand, *, rounding_mode: str | None = None) -> Tensor:
    """Return `x / y`, rounded down or towards 0 where the node says so."""
    dtype = node.dtype
    mode = "floor" if name_of(node) == "floor_divide" else rounding_mode
    left, right = operand(x, dtype), operand(y, dtype)
    if mode is None:
        return F.div(left, right)
    if mode == "floor":
        return F.floor_divide(left, right)
    if not dtype.is_integer:
        return F.trunc(F.div(left, right))
    remainder = F.fmod(left, right)
    return F.floor_divide(F.sub(left, remainder), right)


@converts("remainder", "fmod")
def remaining(node: Node, x: Operand, y: Operand) -> Tensor:
    """Return what is left of a division, with the sign of the divisor, or of the dividend."""
    left, right = operand(x, node.dtype), operand(y, node.dtype)
    return F.remainder(left, right) if name_of(node) == "remainder" else F.fmod(left, right)


@converts("atan2")
def atan2(node: Node, y: Tensor, x: Tensor) -> Tensor:
    """Return the angle of the point (x, y), from -pi to pi."""
    return F.atan2(operand(y, node.dtype), operand(x, node.dtype))


@converts("maximum", "minimum")
def extreme(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """Return the larger or the smaller of two, NaN if any is."""
    left, right = operand(x, node.dtype), operand(y, node.dtype)
    is_max = name_of(node) == "maximum"
    if node.dtype.is_bool:
        return F.logical_or(left, right) if is_max else F.logical_and(left, right)
    return F.maximum(left, right) if is_max else F.minimum(left, right)


@converts("pow")
def power(node: Node, x: Operand, exponent: Operand) -> Tensor:
    """Return `x ** exponent`: small integers by products, as torch does."""
    dtype = node.dtype
    if dtype.is_integer:
        if not isinstance(exponent, int):
            node.refuse("has integer exponents that are computed")
        if exponent < 0:
            node.refuse(f"has the exponent {exponent} of integers")
        return F.pow(operand(x, dtype), exponent)
    if isinstance(exponent, (int, float)) and exponent in _POWERS:
        return _POWERS[exponent](operand(x, dtype))
    return F.pow(operand(x, dtype), operand(exponent, dtype))


@converts(*_BITWISE)
def bitwise(node: Node, x: Operand, y: Operand) -> Tensor:
    """Convert an operator on the bits of integers, or on truth values."""
    return _BITWISE[name_of(node)](operand(x, node.dtype), operand(y, node.dtype))


@converts("bitwise_not")
def inverted(node: Node, x: Tensor) -> Tensor:
    """Return the bits of x inverted."""
    del node
    return F.logical_not(x) if x.dtype.is_bool else F.bitwise_not(x)


@converts("clamp", "clamp_min", "clamp_max", "hardtanh", "relu6")
def clamped(
    node: Node, x: Tensor, low: Operand | None = None, high: Operand | None = None, **named: Operand
) -> Tensor:
    """Return x between two bounds; where they cross, the upper one."""
    dtype, name = node.dtype, name_of(node)
    low, high = named.get("min", low), named.get("max", high)
    if name == "clamp_max":
        low, high = None, low
    if name == "hardtanh":
        low = named.get("min_val", -1.0 if low is None else low)
        high = named.get("max_val", 1.0 if high is None else high)
    if name == "relu6":
        low, high = 0.0, 6.0
    made = converted(x, dtype)
    made = made if low is None else F.maximum(made, operand(low, dtype))
    return made if high is None else F.minimum(made, operand(high, dtype))
