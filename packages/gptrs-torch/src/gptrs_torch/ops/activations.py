"""Activation functions, kept whole so that backends know them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_torch.conversion import Node, converts
from gptrs_torch.ops.arithmetic import name_of
from gptrs_torch.program_check import Operand, axis_of, converted, operand, scalar

_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "silu": F.silu,
    "hardswish": F.hard_swish,
    "hardsigmoid": F.hard_sigmoid,
}


@converts(*_PLAIN)
def plain(node: Node, x: Tensor) -> Tensor:
    """Convert an activation without settings."""
    if x.dtype.is_integer:
        return F.maximum(x, scalar(0, x.dtype))
    return _PLAIN[name_of(node)](x)


@converts("gelu")
def gelu(node: Node, x: Tensor, *, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """Return `x * P(X <= x)` for a normal X, exactly or by tanh."""
    del node
    return F.gelu(x, approximate)


@converts("elu")
def elu(
    node: Node, x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Tensor:
    """Return `scale * x` above 0, `scale * alpha * (exp(input_scale * x) - 1)` below."""
    del node
    if scale == 1 and input_scale == 1:
        return F.elu(x, float(alpha))
    below = scalar(alpha * scale, x.dtype) * F.expm1(x * scalar(input_scale, x.dtype))
    return F.where(x > 0.0, x * scalar(scale, x.dtype), below)


@converts("leaky_relu")
def leaky_relu(node: Node, x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Return x above 0, `negative_slope * x` below."""
    del node
    return F.leaky_relu(x, float(negative_slope))


@converts("_softmax", "softmax.int", "_safe_softmax", "_log_softmax", "log_softmax.int")
def softmax(node: Node, x: Tensor, dim: int, _: object = None, **named: object) -> Tensor:
    """Return the softmax along an axis, or its logarithm."""
    del named
    name = name_of(node)
    function = F.safe_softmax if "safe" in name else F.log_softmax if "log" in name else F.softmax
    made = converted(x, node.dtype)
    if x.rank == 0:
        return F.reshape(function(F.reshape(made, [1]), 0), [])
    return function(made, axis_of(dim, x))


# Comparisons, truth values, and the choice between tensors.


_COMPARE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "eq": F.equal,
    "ne": F.not_equal,
    "lt": F.less,
    "le": F.less_equal,
    "gt": F.greater,
    "ge": F.greater_equal,
}
_LOGICAL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "logical_and": F.logical_and,
    "logical_or": F.logical_or,
    "logical_xor": F.logical_xor,
}


@converts(*_COMPARE)
def compared(node: Node, x: Operand, y: Operand) -> Tensor:
    """Convert a comparison, in the type to which torch promotes both."""
    dtype = node.common_dtype(0, 1)
    left, right = operand(x, dtype), operand(y, dtype)
    if dtype.is_bool and name_of(node) not in ("eq", "ne"):
        left, right = converted(left, dtypes.ui8), converted(right, dtypes.ui8)
    return _COMPARE[name_of(node)](left, right)


@converts(*_LOGICAL)
def logical(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """Convert an operator on truth values; numbers are true unless 0."""
    return _LOGICAL[name_of(node)](truth(x), truth(y))


@converts("logical_not")
def logical_not(node: Node, x: Tensor) -> Tensor:
    """Return where x is 0."""
    del node
    return F.logical_not(truth(x))


def truth(x: Tensor) -> Tensor:
    """Return where x is not 0."""
    return x if x.dtype.is_bool else F.not_equal(x, operand(0, x.dtype))


@converts("isnan", "isinf")
def not_finite(node: Node, x: Tensor) -> Tensor:
    """Return where x is not a number, or is infinite."""
    if not x.dtype.is_float:
        return F.zeros(x.shape, dtypes.i1)
    return F.is_nan(x) if name_of(node) == "isnan" else F.is_inf(x)


@converts("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(node: Node, condition: Tensor, x: Operand, y: Operand) -> Tensor:
    """Return elements of x where the condition holds, of y elsewhere."""
    return F.where(truth(condition), operand(x, node.dtype), operand(y, node.dtype))


@converts("masked_fill")
def masked_fill(node: Node, x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    """Return x with a value where the mask holds."""
    return F.where(mask, operand(value, node.dtype), x)
