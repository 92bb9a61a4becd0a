"""Trigonometric and hyperbolic functions and their inverses."""

from __future__ import annotations

from gptrs.api import Tensor, dtypes
from gptrs.api import functionals as F
from gptrs_torch.node import Node
from gptrs_torch.ops.arithmetic import name_of
from gptrs_torch.registry import converts
from gptrs_torch.values import converted, operand

_FUNCTIONS = {
    "tan": F.tan,
    "sinh": F.sinh,
    "cosh": F.cosh,
    "asinh": F.asinh,
    "acosh": F.acosh,
    "atanh": F.atanh,
    "asin": F.asin,
    "acos": F.acos,
    "atan": F.atan,
}


@converts(*_FUNCTIONS)
def trigonometric(node: Node, x: Tensor) -> Tensor:
    """Convert a function of one operand, computed in f64 and rounded once."""
    return converted(_FUNCTIONS[name_of(node)](converted(x, dtypes.f64)), node.dtype)


@converts("atan2")
def atan2(node: Node, y: Tensor, x: Tensor) -> Tensor:
    """Return the angle of the point (x, y), from -pi to pi."""
    return converted(F.atan2(operand(y, dtypes.f64), operand(x, dtypes.f64)), node.dtype)
