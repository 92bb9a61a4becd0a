"""Comparison, logic and choice."""

from __future__ import annotations

from collections.abc import Callable

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_onnx.node import Node
from gptrs_onnx.registry import converts

_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "And": F.logical_and,
    "Equal": F.equal,
    "Greater": F.greater,
    "GreaterOrEqual": F.greater_equal,
    "Less": F.less,
    "LessOrEqual": F.less_equal,
    "Or": F.logical_or,
    "Xor": F.logical_xor,
}


@converts(*_BINARY)
def compare(node: Node, lhs: Tensor, rhs: Tensor) -> Tensor:
    """Convert a comparison, or an operator of truths."""
    return _BINARY[node.op_type](lhs, rhs)


@converts("Not")
def negation(node: Node, x: Tensor) -> Tensor:
    """Return where x is false."""
    del node
    return F.logical_not(x)


@converts("Where")
def where(node: Node, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return x where the condition holds, y elsewhere."""
    del node
    return F.where(condition, x, y)
