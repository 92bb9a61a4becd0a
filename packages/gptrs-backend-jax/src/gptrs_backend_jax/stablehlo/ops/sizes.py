"""Sizes of tensors, arithmetic on them, and operations that take them as shapes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from gptrs.api.models import Tensor, primitives
from gptrs.api.programs import dtypes
from gptrs_backend_jax.stablehlo.conversion import (
    Known,
    Node,
    Sizes,
    Value,
    converts,
    folds,
    known_sizes,
)
from gptrs_backend_jax.stablehlo.ops.layout import (
    broadcast_axes,
    indices,
    padded,
    sliced,
    static_shape,
)

_COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "LT": operator.lt, "LE": operator.le, "EQ": operator.eq,
    "GE": operator.ge, "GT": operator.gt, "NE": operator.ne,
}  # fmt: skip
_INDEX: Final = ("si32", "si64")


def _are_sizes(*values: Known) -> bool:
    return all(each.dtype.name in _INDEX for each in values)


def _truths(values: Sequence[object], shape: Sequence[int]) -> Known:
    return Known(np.array([bool(each) for each in values], np.bool_).reshape(shape), dtypes.i1)


def _quotient(a: int, b: int) -> int:
    size = (a if a >= 0 else -a) // (b if b > 0 else -b)
    return size if (a >= 0) == (b > 0) else -size


def _remainder(a: int, b: int) -> int:
    return a - _quotient(a, b) * b


def _larger(a: int, b: int) -> int:
    return a if a >= b else b


def _smaller(a: int, b: int) -> int:
    return a if a <= b else b


@folds.each(
    {
        "add": operator.add,
        "subtract": operator.sub,
        "multiply": operator.mul,
        "maximum": _larger,
        "minimum": _smaller,
        "divide": _quotient,
        "remainder": _remainder,
    }
)
def combine(function: Callable[[int, int], int], lhs: Known, rhs: Known) -> Known | None:
    """Combine sizes elementwise; quotients truncate toward zero, and division by 0 is unknown."""
    if not _are_sizes(lhs, rhs):
        return None
    pairs = list(zip(lhs.integers(), rhs.integers(), strict=True))
    if function in (_quotient, _remainder) and any(b == 0 for _, b in pairs):
        return None
    return known_sizes([function(a, b) for a, b in pairs], lhs.shape, lhs.dtype)


@folds("negate")
def negate(x: Known) -> Known | None:
    """Return negated sizes."""
    return known_sizes([-a for a in x.integers()], x.shape, x.dtype) if _are_sizes(x) else None


@folds("sign")
def sign(x: Known) -> Known | None:
    """Return -1, 0 or 1."""
    if not _are_sizes(x):
        return None
    return known_sizes([int(a > 0) - int(a < 0) for a in x.integers()], x.shape, x.dtype)


@folds("compare")
def compare(lhs: Known, rhs: Known, *, comparison_direction: str) -> Known | None:
    """Compare sizes; a guard records the decision made for the example."""
    if not _are_sizes(lhs, rhs):
        return None
    holds = _COMPARISONS[comparison_direction]
    pairs = zip(lhs.integers(), rhs.integers(), strict=True)
    return _truths([holds(a, b) for a, b in pairs], lhs.shape)


@folds.each({"and": np.logical_and, "or": np.logical_or})
def both_or_either(function: Callable[..., Any], lhs: Known, rhs: Known) -> Known | None:
    """Return the logical and, or the logical or."""
    is_truth = lhs.dtype.is_bool and rhs.dtype.is_bool
    return Known(function(lhs.array, rhs.array), dtypes.i1) if is_truth else None


@folds("select")
def select(predicate: Known, on_true: Known, on_false: Known) -> Known | None:
    """Select sizes."""
    if not _are_sizes(on_true, on_false):
        return None
    chosen = np.broadcast_to(predicate.array, on_true.shape).reshape(-1)
    triples = zip(chosen, on_true.integers(), on_false.integers(), strict=True)
    return known_sizes([a if p else b for p, a, b in triples], on_true.shape, on_true.dtype)


@folds("convert")
def convert(node: Node, x: Known) -> Known | None:
    """Return sizes in the other of their two integer types."""
    if not _are_sizes(x) or node.dtype.name not in _INDEX:
        return None
    return known_sizes(x.integers(), x.shape, node.dtype)


@folds("reshape")
def reshape(node: Node, x: Known) -> Known:
    """Return small constants in another shape."""
    return Known(x.array.reshape(static_shape(node)), x.dtype)


@folds("broadcast_in_dim")
def broadcast_in_dim(node: Node, x: Known) -> Known | None:
    """Return a known scalar as a vector of one."""
    shape = static_shape(node)
    if x.array.size != 1 or shape not in ((), (1,)):
        return None
    return Known(x.array.reshape(shape), x.dtype)


@folds("concatenate")
def concatenate(node: Node, *parts: Known) -> Known | None:
    """Concatenate sizes to a shape."""
    if not _are_sizes(*parts) or any(each.array.ndim != 1 for each in parts):
        return None
    values = [size for each in parts for size in each.integers()]
    return known_sizes(values, (len(values),), node.dtype)


@folds("slice")
def slice_(
    x: Known, *, start_indices: list[int], limit_indices: list[int], strides: list[int]
) -> Known | None:
    """Return part of a shape."""
    if x.array.ndim != 1:
        return None
    return Known(x.array[start_indices[0] : limit_indices[0] : strides[0]], x.dtype)


@converts("get_dimension_size")
def get_dimension_size(node: Node, x: Tensor, *, dimension: int) -> Value:
    """Return the size of an axis."""
    found = known_sizes([x.shape[dimension]], (), node.dtype)
    assert found is not None
    return found


@converts("dynamic_reshape")
def dynamic_reshape(x: Tensor, shape: Sizes) -> Tensor:
    """Return the elements in a computed shape."""
    return primitives.reshape(x, shape)


@converts("dynamic_broadcast_in_dim")
def dynamic_broadcast_in_dim(x: Tensor, shape: Sizes, *, broadcast_dimensions: list[int]) -> Tensor:
    """Return `x` broadcast to a computed shape."""
    return broadcast_axes(x, broadcast_dimensions, shape)


@converts("dynamic_iota")
def dynamic_iota(node: Node, shape: Sizes, *, iota_dimension: int) -> Tensor:
    """Return indices along an axis of a computed shape."""
    return indices(shape, iota_dimension, node)


@converts("dynamic_pad")
def dynamic_pad(x: Tensor, value: Value, low: Sizes, high: Sizes, interior: Sizes) -> Tensor:
    """Return `x` with computed padding."""
    return padded(x, value, low, high, interior)


@converts("real_dynamic_slice")
def real_dynamic_slice(x: Tensor, starts: Sizes, limits: Sizes, steps: Sizes) -> Tensor:
    """Return a block with computed bounds."""
    return sliced(x, start_indices=starts, limit_indices=limits, strides=steps)
