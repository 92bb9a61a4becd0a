"""Elementwise arithmetic: operands are promoted as in torch, then broadcast."""

from __future__ import annotations

import math
from collections.abc import Callable

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import DType, dtypes
from gptrs_torch.conversion import Node, converts
from gptrs_torch.program_check import Number, Operand, converted, operand, scalar

Unary = Callable[[Tensor], Tensor]
Binary = Callable[[Tensor, Tensor], Tensor]
_ROUNDING = (F.ceil, F.floor, F.trunc)
_POWERS: dict[float, Unary] = {
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    0.5: F.sqrt,
    1: lambda x: x,
    -1: F.reciprocal,
    -0.5: F.rsqrt,
}
"""Exponents that torch computes without `pow`."""


@converts.each(
    {
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
        "_neg_view": F.neg,
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
)
def unary(function: Unary, node: Node, x: Tensor) -> Tensor:
    """Convert an operator of one operand; integers become floats if the result is one."""
    if x.dtype.is_integer and function in _ROUNDING:
        return x
    return function(converted(x, node.dtype))


@converts("abs")
def absolute(node: Node, x: Tensor) -> Tensor:
    """Return absolute values; unsigned integers are unchanged."""
    is_own = x.dtype.is_integer and x.dtype.kind != "signed"
    return x if is_own else F.abs(converted(x, node.dtype))


@converts("sign")
def sign(x: Tensor) -> Tensor:
    """Return -1, 0 or 1; in torch the sign of NaN and of -0 is 0, while PTIR keeps both."""
    found = F.sign(x)
    zero = F.full(x.shape, 0, x.dtype)
    return F.where(F.equal(F.abs(found), 1.0), found, zero) if x.dtype.is_float else found


@converts("round")
def rounded(node: Node, x: Tensor, *, decimals: int = 0) -> Tensor:
    """Return x rounded half to even, to a number of decimals."""
    if x.dtype.is_integer:
        return x if decimals >= 0 else node.refuse("rounds integers to tens")
    if decimals == 0:
        return F.round(x)
    factor = 10.0 ** abs(decimals)
    return F.round(x * factor) / factor if decimals > 0 else F.round(x / factor) * factor


@converts.each({"add": F.add, "sub": F.sub})
def added(function: Binary, node: Node, x: Operand, y: Operand, *, alpha: Number = 1) -> Tensor:
    """Return `x + alpha * y`, or `x - alpha * y`."""
    dtype = node.dtype
    left, right = operand(x, dtype), operand(y, dtype)
    if alpha != 1:
        right = right * scalar(alpha, dtype)
    if dtype.is_bool:
        return F.logical_or(left, right)
    return function(left, right)


@converts("rsub")
def subtracted_from(node: Node, x: Operand, y: Operand, *, alpha: Number = 1) -> Tensor:
    """Return `y - alpha * x`."""
    left = operand(x, node.dtype)
    return operand(y, node.dtype) - (left if alpha == 1 else left * scalar(alpha, node.dtype))


@converts("mul")
def multiplied(node: Node, x: Operand, y: Operand) -> Tensor:
    """Return `x * y`."""
    if node.dtype.is_bool:
        return F.logical_and(operand(x, node.dtype), operand(y, node.dtype))
    return _scaled(F.mul, x, y, node.dtype, has_number=_is_number(x) or _is_number(y))


@converts("prims.fma")
def multiplied_and_added(node: Node, x: Operand, y: Operand, z: Operand) -> Tensor:
    """Return `x * y + z`, which dynamo makes of `addcdiv_` and others; torch rounds twice, too."""
    return multiplied(node, x, y) + operand(z, node.dtype)


def _scaled(function: Binary, x: Operand, y: Operand, dtype: DType, *, has_number: bool) -> Tensor:
    """Return `function(x, y)` of a type; beside a number, torch computes halves in f32."""
    if has_number and dtype.is_float and dtype.bits < 32:
        return F.cast(function(operand(x, dtypes.f32), operand(y, dtypes.f32)), dtype)
    return function(operand(x, dtype), operand(y, dtype))


def _is_number(value: Operand) -> bool:
    """Return whether torch treats an operand as a number, which it does not round to a half."""
    return not isinstance(value, Tensor) or value.rank == 0


@converts("div", "true_divide", "floor_divide")
def divided(node: Node, x: Operand, y: Operand, *, rounding_mode: str | None = None) -> Tensor:
    """Return `x / y`, rounded down or towards 0 if the node says so."""
    dtype = node.dtype
    mode = "floor" if node.name == "floor_divide" else rounding_mode
    if mode == "floor":
        return _scaled(F.floor_divide, x, y, dtype, has_number=_is_number(y))
    if mode is None:
        return _scaled(F.div, x, y, dtype, has_number=_is_number(y))
    if not dtype.is_integer:
        return _scaled(
            lambda left, right: F.trunc(F.div(left, right)), x, y, dtype, has_number=True
        )
    left, right = operand(x, dtype), operand(y, dtype)
    remainder = F.fmod(left, right)
    return F.floor_divide(F.sub(left, remainder), right)


_SCALED_TAIL = (
    -0.651326859890855, 0.64196979235649, 0.0194764732041858,
    -0.00956151478680853, -0.000946595344482029, 0.000366839497852739,
    4.25233248070839e-05, -2.02785781125982e-05, -1.62429000417145e-06,
    1.30365583516824e-06, 1.56264424104252e-08, -8.52380964346649e-08,
    6.5290550226307e-09, 5.05934298545636e-09, -9.91363670063778e-10,
    -2.27365693350759e-10, 9.64688018576051e-11, 2.39334694227141e-12,
    -6.88542843473711e-12, 8.93940135175034e-13, 3.13353147579976e-13,
    -1.13114926548025e-13, 8.33208848983016e-16, 6.41660460312021e-15,
    -6.76454982429446e-16,
)  # fmt: skip
"""Coefficients of Chebyshev polynomials for `log(erfc(x) e^(x^2) / t)`, t = 2 / (2 + x) in [0, 1],
by interpolation of SciPy's `erfcx`."""


@converts("erfc")
def complementary_error(node: Node, x: Tensor) -> Tensor:
    """Return `1 - erf(x)`, which beyond 1 is computed as `e^(-x^2)` times a polynomial.

    There, the difference would keep no digit. In f64, within 1e-14 of the result.
    """
    wide = F.cast(operand(x, node.dtype), dtypes.f64)
    return F.cast(tail_of_error(wide), node.dtype)


def tail_of_error(wide: Tensor) -> Tensor:
    """Return `1 - erf(x)` of f64."""
    far = F.maximum(wide, 1.0)
    share = 2.0 / (2.0 + far)
    place = share * 4.0 - 2.0  # twice the argument of the polynomials of Chebyshev
    first, *rest = _SCALED_TAIL
    total, before = F.full(wide.shape, 0.0, dtypes.f64), F.full(wide.shape, 0.0, dtypes.f64)
    for each in reversed(rest):
        total, before = place * total - before + each, total
    tail = share * F.exp(first + place * total * 0.5 - before) * F.exp(-far * far)
    return F.where(wide > 1.0, tail, 1.0 - F.erf(wide))


@converts("erfinv", "special_erfinv")
def inverse_error(node: Node, x: Tensor) -> Tensor:
    """Return y with `erf(y) = x`: NaN beyond 1. In f64, within 1e-13 of the result."""
    wide = F.cast(operand(x, node.dtype), dtypes.f64)
    size = F.abs(wide)
    inside = F.minimum(size, 1 - 2**-53)
    # Winitzki's formula, and steps of Halley; the rest 1 - x is exact where erf is near 1.
    log = F.log1p(-inside * inside)
    middle = log * 0.5 + 2 / (math.pi * 0.147)
    found = F.sqrt(F.sqrt(middle * middle - log / 0.147) - middle)
    for _ in range(3):
        slope = F.exp(-found * found) * (2 / math.sqrt(math.pi))
        miss = F.where(inside < 0.5, F.erf(found) - inside, 1.0 - inside - tail_of_error(found))
        step = miss / slope
        found = found - step / (1.0 + found * step)
    found = F.where(F.equal(size, 1.0), float("inf"), F.where(size > 1.0, math.nan, found))
    made = F.where(F.equal(wide, 0.0), wide, F.where(wide < 0.0, -found, found))
    return F.cast(F.where(F.is_nan(wide), math.nan, made), node.dtype)


@converts("nextafter")
def next_number(x: Tensor, y: Tensor) -> Tensor:
    """Return the float next to x towards y, by the bits of its magnitude."""
    whole = dtypes.by_name(f"si{x.dtype.bits}")
    bits = primitives.bitcast(x, whole)
    grows = F.equal(x < y, x > 0.0)  # away from 0
    moved = primitives.bitcast(bits + F.where(grows, scalar(1, whole), scalar(-1, whole)), x.dtype)
    least = primitives.bitcast(F.full(x.shape, 1, whole), x.dtype)
    moved = F.where(F.equal(x, 0.0), F.where(y > 0.0, least, -least), moved)
    is_any = F.logical_or(F.is_nan(x), F.is_nan(y))
    found = F.where(is_any, math.nan, F.where(F.equal(x, y), y, moved))
    # Bits have no derivative; a float moves with its neighbour.
    moves = F.logical_and(F.is_finite(x), F.not_equal(found, 0.0))
    return F.where(moves, found + (x - F.stop_gradient(x)), found)


_FIELD = 2047 << 52
"""The bits of the exponent of an f64."""


@converts("frexp")
def mantissa_and_exponent(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a mantissa of magnitude 1/2 to 1 and the exponent of 2; 0 for 0, NaN, infinities."""
    wide, whole = F.cast(x, dtypes.f64), dtypes.si64
    is_small = F.abs(wide) < 2.0**-1000  # whose exponent may be below that of their bits
    scaled = F.where(is_small, wide * 2.0**100, wide)
    bits = primitives.bitcast(scaled, whole)
    field = F.right_shift(F.bitwise_and(bits, scalar(_FIELD, whole)), scalar(52, whole))
    exponent = field - F.where(is_small, scalar(1122, whole), scalar(1022, whole))
    rest = F.bitwise_and(bits, scalar(~_FIELD, whole))
    mantissa = primitives.bitcast(F.bitwise_or(rest, scalar(1022 << 52, whole)), dtypes.f64)
    is_plain = F.logical_and(F.not_equal(x, 0.0), F.is_finite(x))
    found = F.where(is_plain, exponent, scalar(0, whole))
    # Bits have no derivative; that of the mantissa is the power of 2 between it and x.
    held = F.stop_gradient(F.where(is_plain, scaled, 1.0))
    mantissa = mantissa + (F.where(is_plain, scaled, 1.0) - held) * (mantissa / held)
    return F.cast(F.where(is_plain, mantissa, wide), x.dtype), F.cast(found, dtypes.si32)


@converts("ldexp")
def times_power_of_two(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """Return `x * 2 ** y`."""
    return operand(x, node.dtype) * F.exp2(operand(y, node.dtype))


def _divisor(x: Tensor, y: Tensor) -> Tensor:
    def is_left(left: Tensor, right: Tensor) -> tuple[Tensor]:
        del left
        return (F.any(F.not_equal(right, 0)),)

    def step(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        is_zero = F.equal(right, 0)
        rest = F.remainder(left, F.where(is_zero, scalar(1, left.dtype), right))
        return F.where(is_zero, left, right), F.where(is_zero, right, rest)

    return primitives.while_(is_left, step, x, y)[0]


@converts("gcd", "lcm")
def common_divisor(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """Return the greatest common divisor by Euclid, or the least common multiple."""
    left, right = (F.abs(operand(each, node.dtype)) for each in (x, y))
    shape = F.add(left, right).shape
    left, right = F.broadcast_to(left, shape), F.broadcast_to(right, shape)
    found = _divisor(left, right)
    if node.name == "gcd":
        return found
    return F.floor_divide(left, F.maximum(found, scalar(1, found.dtype))) * right


_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
"""B2, B4, ... of the series of Stirling."""
_FAR = 8
"""From here on, that series is exact in f64; nearer arguments are moved by the recurrence."""


def _mirrored(x: Tensor) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Return where x is negative, an argument of at least 1/2, that moved, and its steps."""
    below = x < 0.5
    near = F.where(below, 1.0 - x, x)
    is_near = near < float(_FAR)
    # Steps of 1 leave the product as it is.
    steps = [F.where(is_near, near + float(i), 1.0) for i in range(_FAR)]
    return below, F.where(is_near, near + float(_FAR), near), is_near, steps


@converts("lgamma")
def log_gamma(node: Node, x: Tensor) -> Tensor:
    """Return `log |gamma(x)|` by the series of Stirling, with an error of 1e-14 or so."""
    wide = F.cast(operand(x, node.dtype), dtypes.f64)
    below, far, _, steps = _mirrored(wide)
    square, made = 1.0 / (far * far), (far - 0.5) * F.log(far) - far + 0.5 * math.log(2 * math.pi)
    series = F.full(wide.shape, 0.0, dtypes.f64)
    for i, number in reversed(list(enumerate(_BERNOULLI, 1))):
        series = series * square + number / (2 * i * (2 * i - 1))
    made = made + series / far - F.log(math.prod(steps[1:], start=steps[0]))
    made = F.where(F.is_inf(wide), float("inf"), made)
    # gamma(x) gamma(1 - x) = pi / sin(pi x), whose sine is that of the distance to an integer.
    sine = F.abs(F.sin((wide - F.round(wide)) * math.pi))
    mirrored = math.log(math.pi) - F.log(sine) - made
    mirrored = F.where(F.is_inf(wide), float("inf"), mirrored)
    return F.cast(F.where(below, mirrored, made), node.dtype)


@converts("digamma")
def digamma(node: Node, x: Tensor) -> Tensor:
    """Return the derivative of `lgamma`: infinite at 0, NaN at negative integers."""
    wide = F.cast(operand(x, node.dtype), dtypes.f64)
    below, far, is_near, steps = _mirrored(wide)
    square, series = 1.0 / (far * far), F.full(wide.shape, 0.0, dtypes.f64)
    for i, number in reversed(list(enumerate(_BERNOULLI, 1))):
        series = series * square + number / (2 * i)
    made = F.log(far) - 0.5 / far - series * square
    made = made - F.where(is_near, sum((1.0 / each for each in steps[1:]), 1.0 / steps[0]), 0.0)
    rest = wide - F.round(wide)
    mirrored = made - math.pi / F.tan(rest * math.pi)
    mirrored = F.where(F.equal(rest, 0.0), float("nan"), mirrored)
    pole = F.where(has_sign(wide), float("inf"), F.full(wide.shape, -float("inf"), dtypes.f64))
    mirrored = F.where(F.equal(wide, 0.0), pole, mirrored)
    return F.cast(F.where(below, mirrored, made), node.dtype)


@converts("hypot")
def hypotenuse(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """Return `sqrt(x * x + y * y)`, without overflow of the squares."""
    sides = [F.abs(operand(each, node.dtype)) for each in (x, y)]
    longer, shorter = F.maximum(*sides), F.minimum(*sides)
    # Of two zeros or two infinities the quotient is NaN, and the longer side is the result.
    share = F.where(F.equal(longer, shorter), 1.0, shorter / longer)
    return longer * F.sqrt(1.0 + share * share)


@converts.each({"atan2": F.atan2, "fmod": F.fmod, "remainder": F.remainder})
def binary(function: Binary, node: Node, x: Operand, y: Operand) -> Tensor:
    """Convert an operator of two operands in the type of the result."""
    return function(operand(x, node.dtype), operand(y, node.dtype))


_LARGER, _SMALLER = (F.maximum, F.logical_or), (F.minimum, F.logical_and)


@converts.each({"maximum": _LARGER, "minimum": _SMALLER})
def extreme(functions: tuple[Binary, Binary], node: Node, x: Tensor, y: Tensor) -> Tensor:
    """Return the larger or the smaller of two; NaN if either is NaN."""
    of_numbers, of_truths = functions
    function = of_truths if node.dtype.is_bool else of_numbers
    return function(operand(x, node.dtype), operand(y, node.dtype))


@converts.each({"fmax": _LARGER, "fmin": _SMALLER})
def extreme_number(functions: tuple[Binary, Binary], node: Node, x: Tensor, y: Tensor) -> Tensor:
    """Return the larger or the smaller of two; where one is NaN, the other."""
    found = extreme(functions, node, x, y)
    if not node.dtype.is_float:
        return found
    left, right = operand(x, node.dtype), operand(y, node.dtype)
    return F.where(F.is_nan(left), right, F.where(F.is_nan(right), left, found))


@converts("copysign")
def with_sign(node: Node, x: Operand, y: Operand) -> Tensor:
    """Return the magnitude of x with the sign of y, also that of a zero or NaN."""
    made = F.abs(operand(x, node.dtype))
    return F.where(has_sign(operand(y, node.dtype)), F.neg(made), made)


@converts("signbit")
def has_sign(x: Tensor) -> Tensor:
    """Return where the sign is negative, also that of a zero or NaN."""
    if x.dtype.is_bool or x.dtype.kind == "unsigned":
        return F.zeros(x.shape, dtypes.i1)
    bits = primitives.bitcast(x, dtypes.by_name(f"si{x.dtype.bits}")) if x.dtype.is_float else x
    return F.less(bits, 0)


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


@converts.each(
    {
        "bitwise_and": F.bitwise_and,
        "bitwise_or": F.bitwise_or,
        "bitwise_xor": F.bitwise_xor,
        "bitwise_left_shift": F.left_shift,
        "bitwise_right_shift": F.right_shift,
        "__lshift__": F.left_shift,
        "__rshift__": F.right_shift,
    }
)
def bitwise(function: Binary, node: Node, x: Operand, y: Operand) -> Tensor:
    """Convert an operator on the bits of integers, or on truth values."""
    return function(operand(x, node.dtype), operand(y, node.dtype))


@converts("bitwise_not")
def inverted(x: Tensor) -> Tensor:
    """Return the bits of x inverted."""
    return F.logical_not(x) if x.dtype.is_bool else F.bitwise_not(x)


@converts("clamp", "clamp_min", "clamp_max", "hardtanh", "relu6")
def clamped(
    node: Node, x: Tensor, low: Operand | None = None, high: Operand | None = None, **named: Operand
) -> Tensor:
    """Return x clamped to two bounds; the upper one wins if they cross."""
    dtype, name = node.dtype, node.name
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
