"""Comparisons, truth values, and the choice between tensors."""

from __future__ import annotations

from collections.abc import Callable

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_torch.node import Node
from gptrs_torch.ops.arithmetic import name_of
from gptrs_torch.registry import converts
from gptrs_torch.values import Operand, converted, operand

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
