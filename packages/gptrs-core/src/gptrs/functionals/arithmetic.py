"""Arithmetic with NumPy's broadcasting rules; also what Python's operators on tensors mean."""

from __future__ import annotations

from gptrs.capture import primitives
from gptrs.capture.operators import bind
from gptrs.capture.tensor import Tensor
from gptrs.functionals.operands import Operand, broadcast_pair
from gptrs.functionals.registry import functional


@functional
def add(lhs: Operand, rhs: Operand) -> Tensor:
    """`lhs + rhs` over their broadcast shape; both of one element type, integers wrap."""
    return primitives.add(*broadcast_pair("add", lhs, rhs))


@functional
def sub(lhs: Operand, rhs: Operand) -> Tensor:
    """`lhs - rhs` over their broadcast shape; both of one element type, integers wrap."""
    return primitives.sub(*broadcast_pair("sub", lhs, rhs))


@functional
def mul(lhs: Operand, rhs: Operand) -> Tensor:
    """`lhs * rhs` over their broadcast shape; both of one element type, integers wrap."""
    return primitives.mul(*broadcast_pair("mul", lhs, rhs))


@functional
def div(lhs: Operand, rhs: Operand) -> Tensor:
    """`lhs / rhs` over their broadcast shape; integers truncate toward zero.

    Integer division by zero raises ExecutionError when it runs.
    """
    return primitives.div(*broadcast_pair("div", lhs, rhs))


@functional
def neg(x: Tensor) -> Tensor:
    """`-x`; integers wrap."""
    return primitives.neg(x)


bind("+", add)
bind("-", sub)
bind("*", mul)
bind("/", div)
bind("neg", neg)
