"""Operators on complex numbers: a tensor of them is two real ones in a program.

Most operators move elements, or are linear: they are those of real tensors, on each part. Products
are four products of parts. At the borders of a program, a complex tensor is what
`torch.view_as_real` gives, with both parts as its last axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, cast

from gptrs.api.importers import real_signal, transformed
from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import DType
from gptrs_torch.conversion import Complex, Node, converter_of, converts, of_complex, pair
from gptrs_torch.ops.activations import truth
from gptrs_torch.ops.arithmetic import hypotenuse
from gptrs_torch.ops.layout import checked_type
from gptrs_torch.ops.reduction import vector_norm
from gptrs_torch.program_check import Operand, converted, operand

Value: TypeAlias = "Complex | Operand | complex"
Function = Callable[..., Any]

# Both parts alike.


_BY_PARTS = (
    *("alias", "clone", "detach", "contiguous", "lift_fresh_copy", "detach_copy", "lift_fresh"),
    *("alias_copy", "copy", "reshape", "_unsafe_view", "view", "view_copy", "_reshape_alias"),
    *("permute", "permute_copy", "transpose.int", "t", "expand", "expand_copy", "unsqueeze"),
    *("unsqueeze_copy", "squeeze", "squeeze_copy", "cat", "stack", "narrow_copy", "split.Tensor"),
    *("split_with_sizes", "split_with_sizes_copy", "unbind", "unbind_copy", "repeat", "flip"),
    *("diagonal", "diagonal_copy", "roll", "unfold", "unfold_copy", "as_strided", "resize"),
    *("as_strided_copy", "tril", "triu", "slice", "slice_copy", "select", "select_copy"),
    *("slice_scatter", "select_scatter", "diagonal_scatter", "embedding", "index_select"),
    *("gather", "index", "_unsafe_index", "index_put", "_unsafe_index_put", "scatter_add"),
    *("neg", "sum", "mean", "cumsum", "zeros", "zeros_like", "new_zeros", "empty", "empty_like"),
    *("empty_strided", "new_empty", "new_empty_strided", "unfold_backward", "scatter.src"),
    *(f"{kind}_pad{rank}d" for kind in ("reflection", "replication") for rank in (1, 2, 3)),
)
_INDEXED = frozenset(
    {
        *("embedding", "index_select", "gather", "index", "_unsafe_index", "index_put"),
        *("_unsafe_index_put", "scatter_add", "scatter"),
    }
)
"""Those whose operands of integers and truths are indices, which are no numbers with parts."""
_FILLED = ("full", "full_like", "fill", "new_full", "scalar_tensor", "constant_pad_nd")


@of_complex(*_BY_PARTS)
def by_parts(node: Node, *given: Any, **named: Any) -> Any:
    """Return what the operator of real tensors gives for each part."""
    if node.name.startswith("view") and not isinstance(given[1], list):
        node.refuse("reads the bits of complex numbers")
    if node.name not in _INDEXED:
        given = tuple(map(_with_parts, given))
    real = _of_real(node, [_part(each, "real") for each in given], named)
    if not node.result.is_complex():  # `zeros_like` of a real type
        return real
    return _joined(real, _of_real(node, [_part(each, "imaginary") for each in given], named))


def _with_parts(value: Any) -> Any:
    """Return a tensor, or those in a list, as complex values; others as they are."""
    if isinstance(value, list):
        return [_with_parts(each) for each in cast("list[Any]", value)]
    return pair(value) if isinstance(value, Tensor) else value


def _of_real(node: Node, given: list[Any], named: dict[str, Any]) -> Any:
    """Return what the operator gives for real tensors."""
    converter = converter_of(node.source.target)
    assert converter is not None
    return converter(node, given, named)


def _part(value: Any, name: str) -> Any:
    """Return a part of a complex value, and in lists; other floats have zeros as imaginary part."""
    if isinstance(value, list):
        return [_part(each, name) for each in cast("list[Any]", value)]
    is_float = isinstance(value, Tensor) and value.dtype.is_float
    return getattr(pair(value), name) if is_float or isinstance(value, Complex) else value


def _joined(real: Any, imaginary: Any) -> Any:
    if isinstance(real, (list, tuple)):
        return [_joined(*both) for both in zip(cast("Any", real), imaginary, strict=True)]
    return Complex(real, imaginary)


@of_complex(*_FILLED)
def filled(node: Node, *given: Any, **named: Any) -> Complex | Tensor:
    """Return a constant tensor, or one with a constant around it; the last operand is a number."""
    *rest, value = [*given, 0] if node.name == "constant_pad_nd" and len(given) == 2 else given
    number = complex(value)
    real = _of_real(node, [*(_part(each, "real") for each in rest), number.real], named)
    if not node.result.is_complex():
        return real
    parts = [*(_part(each, "imaginary") for each in rest), number.imag]
    return Complex(real, _of_real(node, parts, named))


@of_complex("ones", "ones_like", "new_ones", "eye")
def ones(node: Node, *given: Any, **named: Any) -> Complex | Tensor:
    """Return ones, or those of a unit matrix."""
    made = _of_real(node, [_part(each, "real") for each in given], named)
    return pair(made) if node.result.is_complex() else made


# From real tensors, and to them.


@of_complex("view_as_complex")
def of_last_axis(x: Tensor) -> Complex:
    """Return the complex numbers whose parts are the last axis."""
    return Complex.of(x)


@of_complex("view_as_real")
def as_last_axis(x: Complex) -> Tensor:
    """Return both parts as a new last axis."""
    return x.stacked()


@of_complex("complex")
def of_parts(node: Node, real: Tensor, imaginary: Tensor) -> Complex:
    """Return the complex numbers with these parts."""
    return _broadcast(node, real, imaginary)


@of_complex("polar")
def polar(node: Node, magnitude: Tensor, angle: Tensor) -> Complex:
    """Return the complex numbers of these magnitudes and angles."""
    return _broadcast(node, magnitude * F.cos(angle), magnitude * F.sin(angle))


def _broadcast(node: Node, real: Tensor, imaginary: Tensor) -> Complex:
    both = (operand(each, node.dtype) for each in (real, imaginary))
    shape = list(F.add(*both).shape) if real.shape != imaginary.shape else list(real.shape)
    return Complex(
        *(F.broadcast_to(operand(each, node.dtype), shape) for each in (real, imaginary))
    )


@of_complex("_to_copy", "to.dtype", "to.dtype_layout")
def to_copy(node: Node, x: Value, *rest: object, **named: object) -> Complex | Tensor:
    """Return x in another type; a real one keeps the real parts, as torch warns."""
    del rest, named
    found = pair(x)
    if node.result.is_complex():
        return found.converted(node.dtype)
    if node.dtype.is_bool:
        return is_true(found)
    return converted(found.real, node.dtype)


def is_true(x: Value) -> Tensor:
    """Return where a part is not 0."""
    if not isinstance(x, Complex):
        return truth(cast("Tensor", x))
    return F.logical_or(truth(x.real), truth(x.imaginary))


@of_complex("any", "all", "logical_and", "logical_or", "logical_xor", "logical_not")
def logical(node: Node, *given: Any, **named: Any) -> Tensor:
    """Return what the operator gives for the truths of complex numbers."""
    is_tensor = (Complex, Tensor)
    truths = [is_true(each) if isinstance(each, is_tensor) else each for each in given]
    return _of_real(node, truths, named)


@of_complex("abs")
def magnitude(node: Node, x: Complex) -> Tensor:
    """Return the magnitudes, without overflow of squares."""
    return hypotenuse(node, x.real, x.imaginary)


@of_complex("angle")
def angle(x: Complex) -> Tensor:
    """Return the angles in [-pi, pi]."""
    return F.atan2(x.imaginary, x.real)


@of_complex("linalg_vector_norm")
def norm(node: Node, x: Complex, *rest: Any, **named: Any) -> Tensor:
    """Return the norm of the magnitudes."""
    return vector_norm(node, magnitude(node, x), *rest, **named)


@of_complex.each({"isnan": F.is_nan, "isinf": F.is_inf})
def not_finite(function: Function, x: Complex) -> Tensor:
    """Return where a part is NaN, or infinite."""
    return F.logical_or(function(x.real), function(x.imaginary))


of_complex("_assert_tensor_metadata")(checked_type)


@of_complex.each({"eq": (F.equal, F.logical_and), "ne": (F.not_equal, F.logical_or)})
def compared(functions: tuple[Function, Function], x: Value, y: Value) -> Tensor:
    """Return where both parts are equal, or where one is not."""
    function, join = functions
    left, right = _promoted(x, y)
    return join(function(left.real, right.real), function(left.imaginary, right.imaginary))


# Arithmetic.


def _promoted(*values: Value) -> list[Complex]:
    """Return values in the type of the widest complex one among them."""
    dtype = max((x.real.dtype for x in values if isinstance(x, Complex)), key=lambda d: d.bits)
    return [pair(value, dtype) for value in values]


@of_complex("_conj", "_conj_physical", "conj_physical", "resolve_conj")
def conjugate(x: Complex) -> Complex:
    """Return x with the opposite imaginary parts."""
    return Complex(x.real, F.neg(x.imaginary))


@of_complex("_neg_view", "resolve_neg")
def negative_view(node: Node, x: Complex) -> Complex:
    """Return -x; torch keeps no views here."""
    return Complex(F.neg(x.real), F.neg(x.imaginary)) if node.name == "_neg_view" else x


@of_complex.each({"add": 1, "sub": -1})
def added(sign: int, node: Node, x: Value, y: Value, *, alpha: complex = 1) -> Complex:
    """Return `x + alpha * y`, or `x - alpha * y`."""
    left, right = pair(x, node.dtype), pair(y, node.dtype)
    if alpha != 1:
        right = _product(F.mul, right, pair(alpha, node.dtype))
    function = F.add if sign > 0 else F.sub
    return Complex(function(left.real, right.real), function(left.imaginary, right.imaginary))


@of_complex("rsub")
def subtracted_from(node: Node, x: Value, y: Value, *, alpha: complex = 1) -> Complex:
    """Return `y - alpha * x`."""
    return added(-1, node, y, x, alpha=alpha)


@of_complex("mul")
def multiplied(node: Node, x: Value, y: Value) -> Complex:
    """Return the products."""
    return _product(F.mul, *(_narrow(each, node.dtype) for each in (x, y)))


def _narrow(value: Value, dtype: DType) -> Complex | Tensor:
    """Return a complex or real value in the type of its parts."""
    if isinstance(value, (Complex, complex)):
        return pair(value, dtype)
    return operand(value, dtype)


def _product(function: Function, x: Complex | Tensor, y: Complex | Tensor) -> Complex:
    """Return a product of complex numbers by those of their parts; one may be real."""
    if isinstance(x, Tensor):
        assert isinstance(y, Complex)
        return Complex(function(x, y.real), function(x, y.imaginary))
    if isinstance(y, Tensor):
        return Complex(function(x.real, y), function(x.imaginary, y))
    return Complex(
        F.sub(function(x.real, y.real), function(x.imaginary, y.imaginary)),
        F.add(function(x.real, y.imaginary), function(x.imaginary, y.real)),
    )


@of_complex("div")
def divided(node: Node, x: Value, y: Value) -> Complex:
    """Return the quotients, without overflow of squares."""
    left, right = pair(x, node.dtype), _narrow(y, node.dtype)
    if isinstance(right, Tensor):
        return Complex(F.div(left.real, right), F.div(left.imaginary, right))
    scale = F.maximum(F.abs(right.real), F.abs(right.imaginary))
    c, d = F.div(right.real, scale), F.div(right.imaginary, scale)
    made = _product(F.mul, left, Complex(c, F.neg(d)))
    square = (c * c + d * d) * scale
    return Complex(F.div(made.real, square), F.div(made.imaginary, square))


@of_complex("reciprocal")
def reciprocal(node: Node, x: Complex) -> Complex:
    """Return `1 / x`."""
    return divided(node, 1.0, x)


@of_complex("sgn")
def direction(node: Node, x: Complex) -> Complex:
    """Return `x / |x|`, and 0 for 0."""
    size = magnitude(node, x)
    safe = F.where(F.equal(size, 0.0), 1.0, size)
    return Complex(F.div(x.real, safe), F.div(x.imaginary, safe))


@of_complex("exp")
def exponential(x: Complex) -> Complex:
    """Return `e^x`."""
    size, turn = F.exp(x.real), x.imaginary
    # Of an infinite size, too, no turn gives no imaginary part.
    rise = F.where(F.equal(turn, 0.0), turn, size * F.sin(turn))
    return Complex(size * F.cos(turn), rise)


@of_complex("log")
def logarithm(x: Complex) -> Complex:
    """Return the principal logarithms."""
    sides = [F.abs(part) for part in x.parts]
    longer, shorter = F.maximum(*sides), F.minimum(*sides)
    share = F.where(F.equal(longer, shorter), 1.0, shorter / longer)  # also of zeros, infinities
    return Complex(F.log(longer) + F.log1p(share * share) * 0.5, angle(x))


@of_complex("sqrt")
def root(node: Node, x: Complex) -> Complex:
    """Return the roots whose real part is not negative."""
    # Twice the root of a fourth, whose magnitude is finite. The larger part comes first: the other
    # one, as a difference, would lose its digits.
    fourth = _scaled(x, 0.25)
    larger = F.sqrt((magnitude(node, fourth) + F.abs(fourth.real)) * 0.5) * 2.0
    smaller = F.abs(x.imaginary) / F.where(F.equal(larger, 0.0), 1.0, larger) * 0.5
    is_right = F.greater_equal(x.real, 0.0)
    real = F.where(is_right, larger, smaller)
    below = F.logical_or(x.imaginary < 0.0, F.less(F.div(1.0, x.imaginary), 0.0))
    rest = F.where(is_right, smaller, larger)
    return Complex(real, F.where(below, F.neg(rest), rest))


@of_complex.each(
    {
        "sin": (F.sin, F.cosh, F.cos, F.sinh, 1),
        "cos": (F.cos, F.cosh, F.sin, F.sinh, -1),
    }
)
def wave(functions: tuple[Function, Function, Function, Function, int], x: Complex) -> Complex:
    """Return sines or cosines by those of the parts."""
    f, g, h, k, sign = functions
    imaginary = h(x.real) * k(x.imaginary)
    return Complex(f(x.real) * g(x.imaginary), imaginary if sign > 0 else F.neg(imaginary))


@of_complex("tanh")
def hyperbolic_tangent(x: Complex) -> Complex:
    """Return the hyperbolic tangents, whose real part is that of infinity from 40 on."""
    turn = F.tan(x.imaginary)
    rise = F.sinh(F.clamp(x.real, -40.0, 40.0))
    beta = turn * turn + 1.0
    below = beta * rise * rise + 1.0
    return Complex(beta * F.sqrt(rise * rise + 1.0) * rise / below, turn / below)


@of_complex("sigmoid")
def sigmoid(node: Node, x: Complex) -> Complex:
    """Return `1 / (1 + e^-x)`."""
    made = exponential(_scaled(x, -1.0))
    return reciprocal(node, Complex(made.real + 1.0, made.imaginary))


@of_complex("prod", "cumprod")
def running_product(
    node: Node, x: Value, dim: int | None = None, keepdim: bool = False, **named: object
) -> Complex:
    """Return the products along an axis, or of all elements, or the running ones."""
    del named
    given = pair(x, node.dtype)
    if given.rank == 0:
        return given
    parts = given.parts if dim is not None else [F.reshape(part, (-1,)) for part in given.parts]
    axis = 0 if dim is None else dim % given.rank
    order = [axis, *(i for i in range(parts[0].rank) if i != axis)]
    rows = [F.transpose(part, order) for part in parts]

    def step(*both: Tensor) -> tuple[Tensor, ...]:
        made = _product(F.mul, Complex(*both[:2]), Complex(*both[2:]))
        return (*made.parts, *made.parts)

    one = F.ones(rows[0].shape[1:], node.dtype)
    last, whole = primitives.scan(step, [one, F.zeros(one.shape, node.dtype)], rows)
    if node.name == "cumprod":
        back = [order.index(i) for i in range(len(order))]
        return Complex(*(F.transpose(part, back) for part in whole))
    return Complex(*(F.expand_dims(part, axis) if keepdim else part for part in last))


@of_complex("pow")
def power(node: Node, x: Value, exponent: Value) -> Complex:
    """Return `x ** exponent`: small natural numbers by products, others by the logarithm."""
    if exponent == 0.5:
        return root(node, pair(x, node.dtype))
    if isinstance(exponent, (int, float)) and float(exponent).is_integer() and abs(exponent) <= 8:
        base = pair(x, node.dtype)
        if exponent == 0:
            return pair(F.ones(base.real.shape, node.dtype))
        found = base
        for _ in range(abs(int(exponent)) - 1):
            found = _product(F.mul, found, base)
        return reciprocal(node, found) if exponent < 0 else found
    base, raised = pair(x, node.dtype), _narrow(exponent, node.dtype)
    made = exponential(_product(F.mul, logarithm(base), raised))
    is_zero = F.logical_and(F.equal(base.real, 0.0), F.equal(base.imaginary, 0.0))
    at_zero = pair(raised).real
    nothing = F.zeros(at_zero.shape, at_zero.dtype)
    zero = F.where(F.equal(at_zero, 0.0), 1.0, F.where(at_zero > 0.0, nothing, math.nan))
    return Complex(F.where(is_zero, zero, made.real), F.where(is_zero, 0.0, made.imaginary))


@of_complex("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar", "masked_fill")
def where(node: Node, condition: Value, x: Value, y: Value) -> Complex:
    """Return elements of x where the condition holds, of y elsewhere."""
    if node.name == "masked_fill":
        condition, x, y = x, y, condition
    left, right = pair(x, node.dtype), pair(y, node.dtype)
    holds = truth(cast("Tensor", condition))
    return Complex(
        F.where(holds, left.real, right.real), F.where(holds, left.imaginary, right.imaginary)
    )


# Products of matrices.


@of_complex.each({name: F.matmul for name in ("mm", "bmm", "matmul", "mv", "dot")})
def matrix_product(function: Function, node: Node, x: Value, y: Value) -> Complex:
    """Return the product of matrices or vectors; nothing is conjugated."""
    return _product(function, *(_narrow(each, node.dtype) for each in (x, y)))


@of_complex("linear")
def linear(node: Node, x: Value, weight: Value, bias: Value | None = None) -> Complex:
    """Return `x weight^T + bias`."""
    made = matrix_product(F.linear, node, x, weight)
    return made if bias is None else added(1, node, made, bias)


@of_complex("addmm", "baddbmm", "addmv")
def addmm(
    node: Node, bias: Value, x: Value, y: Value, *, beta: complex = 1, alpha: complex = 1
) -> Complex:
    """Return `beta * bias + alpha * x y`."""
    made = matrix_product(F.matmul, node, x, y)
    made = made if alpha == 1 else multiplied(node, made, alpha)
    if beta == 0:
        return made
    return added(1, node, made, bias if beta == 1 else multiplied(node, bias, beta))


@of_complex("convolution")
def convolution(node: Node, x: Value, weight: Value, bias: Value | None, *rest: Any) -> Complex:
    """Return the cross-correlation of x [N, C, spatial..] with a weight, or its transpose."""

    def of_real(real: Tensor, by: Tensor) -> Tensor:
        return converts["convolution"](node, [real, by, None, *rest])

    left, right = _narrow(x, node.dtype), _narrow(weight, node.dtype)
    made = _product(of_real, left, right)
    if bias is None:
        return made
    spread = pair(bias, node.dtype)
    shape = [-1, *[1] * (right.rank - 2)]
    return added(1, node, made, Complex(*(F.reshape(part, shape) for part in spread.parts)))


# Fourier transforms.


def _scale(node: Node, sizes: list[int], norm: int) -> float:
    """Return the factor of a transform: 1, or by the number of elements or its root."""
    count = math.prod(sizes)
    return {0: 1.0, 1: count**-0.5 if count else 0.0, 2: 1 / count if count else 0.0}[norm]


def _scaled(x: Complex, factor: float) -> Complex:
    return x if factor == 1 else Complex(x.real * factor, x.imaginary * factor)


def _along(
    function: Callable[..., tuple[Tensor, Tensor]], real: Tensor, rest: Tensor | None, axis: int
) -> Complex:
    turned = (None if each is None else F.swap_axes(each, axis, -1) for each in (real, rest))
    return Complex(*(F.swap_axes(each, axis, -1) for each in function(*turned)))


def _complex_transform(x: Complex, axes: list[int], *, inverse: bool) -> Complex:
    for axis in axes:
        bins = x.real.shape[axis]
        x = _along(partial(transformed, bins=bins, inverse=inverse), *x.parts, axis)
    return x


@of_complex("_fft_r2c")
def of_real_signal(
    node: Node, x: Tensor, dim: list[int], normalization: int, onesided: bool
) -> Complex:
    """Return the transform of real signals along axes, of the last one perhaps half of it."""
    sizes = [x.shape[axis] for axis in dim]
    last = sizes[-1]
    function = partial(transformed, bins=last // 2 + 1 if onesided else last)
    made = _along(function, converted(x, node.dtype), None, dim[-1])
    made = _complex_transform(made, dim[:-1], inverse=False)
    return _scaled(made, _scale(node, sizes, normalization))


@of_complex("_fft_c2c")
def of_complex_signal(
    node: Node, x: Complex, dim: list[int], normalization: int, forward: bool
) -> Complex:
    """Return the transform of complex signals along axes, or its inverse."""
    made = _complex_transform(x, dim, inverse=not forward)
    sizes = [x.real.shape[axis] for axis in dim]
    return _scaled(made, _scale(node, sizes, normalization))


@of_complex("_fft_c2r")
def to_real_signal(
    node: Node, x: Complex, dim: list[int], normalization: int, last_dim_size: int
) -> Tensor:
    """Return the real signals whose transform is x, of the last axis half of it."""
    sizes = [*(x.real.shape[axis] for axis in dim[:-1]), last_dim_size]
    made = _complex_transform(x, dim[:-1], inverse=True)
    axis = dim[-1]
    real, imaginary = (F.swap_axes(each, axis, -1) for each in made.parts)
    found = F.swap_axes(real_signal(real, imaginary, last_dim_size), axis, -1)
    factor = _scale(node, sizes, normalization)
    return found if factor == 1 else found * factor
