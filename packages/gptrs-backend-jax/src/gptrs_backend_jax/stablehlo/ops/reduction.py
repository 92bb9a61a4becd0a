"""Reductions: those that PTIR has by what their region computes, others by a loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from gptrs.api.models import Tensor, primitives
from gptrs.api.programs import DType, SymbolicDim, dtypes
from gptrs_backend_jax.stablehlo.conversion import Node
from gptrs_backend_jax.stablehlo.ops.regions import (
    Expression,
    call,
    combined_by,
    compared,
    expressions,
    param,
)
from gptrs_backend_jax.stablehlo.registry import converts
from gptrs_backend_jax.stablehlo.values import Known, Value, as_tensor, filled, spread

_JOINED: Final = {
    "add": primitives.add,
    "mul": primitives.mul,
    "max": primitives.maximum,
    "min": primitives.minimum,
    "and": primitives.bit_and,
    "or": primitives.bit_or,
}


@converts("reduce", knows=True)
def reduce(node: Node, *operands: Value) -> Sequence[Tensor]:
    """Return each combination of the elements along some axes."""
    count = len(operands) // 2
    inputs = [as_tensor(each) for each in operands[:count]]
    firsts = operands[count:]
    axes = sorted(node.integers("dimensions"))
    kinds = combined_by(node.conversion.module, node.operation.regions[0])
    if all(_is_reduced(kind, x.dtype) for kind, x in zip(kinds, inputs, strict=True)):
        return [
            _reduced(x, str(kind), axes, first)
            for x, kind, first in zip(inputs, kinds, firsts, strict=True)
        ]
    extreme = _extreme(node, inputs, firsts, axes)
    return _by_loop(node, inputs, firsts, axes) if extreme is None else extreme


def _is_reduced(kind: str | None, dtype: DType) -> bool:
    return kind in _JOINED and (kind not in ("max", "min") or not dtype.is_complex)


def bool_kind(kind: str, dtype: DType) -> str:
    """Return a kind of numbers as that of truth values."""
    return (
        {"add": "or", "max": "or", "mul": "and", "min": "and"}.get(kind, kind)
        if dtype.is_bool
        else kind
    )


def _reduced(x: Tensor, kind: str, axes: Sequence[int], first: Value) -> Tensor:
    kind = bool_kind(kind, x.dtype)
    match kind:
        case "add" | "mul":
            made = primitives.reduce(x, "sum" if kind == "add" else "prod", axes)
        case "max" | "min" | "and" | "or":
            made = primitives.reduce(x, kind, axes)
        case _:
            raise AssertionError(kind)
    if is_identity(kind, first, x.dtype):
        return made
    return _JOINED[kind](filled(as_tensor(first), made), made)


def is_identity(kind: str, value: Value, dtype: DType) -> bool:
    """Return whether combining with a value changes nothing."""
    if not isinstance(value, Known) or value.is_symbolic or value.array.ndim:
        return False
    held = value.array.astype(dtype.numpy)[()]
    match kind:
        case "add" | "or":
            return not held
        case "mul":
            return bool(held == 1)
        case "and":
            return bool(held == True) if dtype.is_bool else bool(np.invert(held) == 0)  # noqa: E712
        case _:
            return bool(held == identity(kind, dtype))


def identity(kind: str, dtype: DType) -> float:
    """Return what changes nothing: 0, 1, and the least or greatest value of a type."""
    if kind in ("add", "mul"):
        return 0 if kind == "add" else 1
    if dtype.is_float:
        return -np.inf if kind == "max" else np.inf
    signed = dtype.kind == "signed"
    least = -(2 ** (dtype.bits - 1)) if signed else 0
    return least if kind == "max" else 2 ** (dtype.bits - signed) - 1


def _extreme(
    node: Node, inputs: Sequence[Tensor], firsts: Sequence[Value], axes: Sequence[int]
) -> list[Tensor] | None:
    """Return the greatest or least elements and their indices, None for other regions.

    The region is that of JAX's argmax and argmin: the first of equals wins, NaN before all.
    """
    if len(inputs) != 2 or len(axes) != 1 or not _counts(node, axes[0]):
        return None
    dtype = inputs[0].dtype
    found = expressions(node.conversion.module, node.operation.regions[0])
    kind = next((k for k in ("max", "min") if found in _extreme_regions(k)), None)
    if kind is None or dtype.is_bool or dtype.is_complex:
        return None
    if not (is_identity(kind, firsts[0], dtype) and is_identity("add", firsts[1], dtypes.si64)):
        return None
    x, numbers = inputs
    size = x.shape[axes[0]]
    if isinstance(size, SymbolicDim) or size == 0:
        return None
    choose = primitives.argmax if kind == "max" else primitives.argmin
    values = primitives.reduce(x, "max" if kind == "max" else "min", axes)
    places = choose(x, axes[0])
    return [values, primitives.cast(places, numbers.dtype)]


def _counts(node: Node, axis: int) -> bool:
    """Return whether the second operand is the index along `axis`."""
    made = node.definition(1)
    if made is None or made.name not in ("stablehlo.iota", "stablehlo.dynamic_iota"):
        return False
    return made.attributes.get("iota_dimension") == axis


def _extreme_regions(kind: str) -> list[list[Expression | None]]:
    """Return the regions of JAX: for floats, where NaN wins, and for integers."""
    a, i, b, j = (param(number) for number in range(4))
    better = compared("GT" if kind == "max" else "LT", a, b)
    regions: list[list[Expression | None]] = []
    for wins in (call("or", better, compared("NE", a, a)), better):
        ties = call("and", compared("EQ", a, b), compared("LT", i, j))
        first = call("or", wins, ties)
        regions.append([call("select", wins, a, b), call("select", first, i, j)])
    return regions


def _by_loop(
    node: Node, inputs: Sequence[Tensor], firsts: Sequence[Value], axes: Sequence[int]
) -> list[Tensor]:
    """Return any reduction: the region is applied to whole slices, one step along the axes."""
    rank = inputs[0].rank
    others = [axis for axis in range(rank) if axis not in axes]
    shape = [inputs[0].shape[axis] for axis in others]
    steps = 1
    for axis in axes:
        steps = inputs[0].shape[axis] * steps
    lines = [
        primitives.reshape(primitives.transpose(x, [*axes, *others]), [steps, *shape])
        for x in inputs
    ]
    count = len(inputs)

    def body(*values: Tensor) -> tuple[Tensor, ...]:
        return node.lifted(0, values, shape)

    first = [spread(as_tensor(each), shape) for each in firsts]
    carried, _ = primitives.scan(body, first, lines)
    return list(carried[:count])
