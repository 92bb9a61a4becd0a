"""Sums of products."""

from __future__ import annotations

from gptrs.api.models import Tensor, primitives
from gptrs.api.programs import DType, dtypes
from gptrs_backend_jax.stablehlo.conversion import Node
from gptrs_backend_jax.stablehlo.ops.conversion_of_types import converted
from gptrs_backend_jax.stablehlo.registry import converts


@converts("dot_general")
def dot_general(node: Node, lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return sums of products, converted to the type of the result."""
    axes = node.numbers("dot_dimension_numbers")
    contract = axes["lhs_contracting_dimensions"], axes["rhs_contracting_dimensions"]
    batch = axes["lhs_batching_dimensions"], axes["rhs_batching_dimensions"]
    return product(lhs, rhs, contract, batch, node.dtype)


def product(
    lhs: Tensor,
    rhs: Tensor,
    contract: tuple[list[int], list[int]],
    batch: tuple[list[int], list[int]],
    result: DType,
) -> Tensor:
    """Return a contraction in `result`: operands of two types meet in it, sums are kept in it."""
    if lhs.dtype is not rhs.dtype:
        lhs, rhs = converted(lhs, result), converted(rhs, result)
    if lhs.dtype is result:
        return primitives.dot_general(lhs, rhs, contract, batch)
    if lhs.dtype.kind == result.kind and result.bits >= lhs.dtype.bits:
        total = result if result.is_integer or result.bits >= 32 else None
        return primitives.dot_general(lhs, rhs, contract, batch, total, result)
    if lhs.dtype.is_integer or result is dtypes.f64:
        lhs, rhs = converted(lhs, result), converted(rhs, result)
        return primitives.dot_general(lhs, rhs, contract, batch)
    return converted(primitives.dot_general(lhs, rhs, contract, batch), result)


@converts("dot")
def dot(node: Node, lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return the product of vectors and matrices."""
    return product(lhs, rhs, ([lhs.rank - 1], [0]), ([], []), node.dtype)
