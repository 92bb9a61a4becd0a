"""Operators on known values: what graphs compute from sizes before they reshape or slice."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any, Final, cast

import numpy as np

from gptrs.api import ProgramError
from gptrs.api.importers import Converters
from gptrs.api.models import Tensor
from gptrs.ir.symbolic_dim import SymbolicDim
from gptrs_onnx.element_types import DTYPES
from gptrs_onnx.node import (
    Bound,
    Items,
    Known,
    Narrow,
    Node,
    Value,
    is_symbolic,
    numbers,
    settled,
    sizes,
)
from gptrs_onnx.onnx_ir import ir

MOST: Final = 65_536
"""Most elements of a known value; beyond, the program computes it."""

ZERO: Final = np.zeros(1, np.float32)
"""The value that `ConstantOfShape` repeats by default."""
_evaluates = Converters("gptrs-onnx", "gptrs_onnx.supported_operators()")


def is_known(name: str) -> bool:
    """Return whether an operator on known values is computed while a graph is converted."""
    return name in _evaluates


def evaluated(node: Node, values: Sequence[Bound | None]) -> Known | list[Known] | None:
    """Return the outputs of a node whose inputs are known; None where the program computes it."""
    evaluate = _evaluates.get(node.name)
    if evaluate is None or any(isinstance(each, Items) for each in values):
        return None
    # These two read types alone, so that a tensor of the program has a known answer, too.
    values = [each.values if isinstance(each, Narrow) else each for each in values]
    if node.name not in ("Shape", "Size") and (
        any(isinstance(each, Tensor) for each in values) or not _is_small(values)
    ):
        return None
    try:
        found = evaluate(node, values)
    except ProgramError:  # it depends on symbols
        return None
    if found is NotImplemented:
        return None
    if isinstance(found, list):
        return [settled(np.asarray(each)) for each in cast("list[Known]", found)]
    return settled(np.asarray(found))


def _is_small(values: Sequence[object]) -> bool:
    """Return whether the values are small, and remain so when broadcast together."""
    shapes = [np.shape(cast("Known", each)) for each in values if each is not None]
    rank = max(map(len, shapes), default=0)
    # Two small vectors may broadcast to a large matrix, which then belongs into the program.
    aligned = [(*[1] * (rank - len(shape)), *shape) for shape in shapes]
    return math.prod(max(sizes) for sizes in zip(*aligned, strict=True)) <= MOST


@_evaluates("Shape")
def _shape(x: Value, *, start: int = 0, end: int | None = None) -> Known:
    return sizes(x.shape[start:end])


@_evaluates("Size")
def _size(x: Value) -> Known:
    return sizes([reduce(operator.mul, x.shape, 1)]).reshape(())


@_evaluates("Constant")
def _constant(node: Node) -> Known:
    if any(each in node for each in ("value_string", "value_strings")) or _is_of_strings(node):
        return NotImplemented
    for name, kind, dtype in _CONSTANTS:
        if name in node:
            return np.asarray(node.attribute(name, kind), dtype)
    node.malformed("has no value")


def _is_of_strings(node: Node) -> bool:
    held = node.given.get("value")
    return held is not None and getattr(held.value, "dtype", None) == ir.DataType.STRING


_CONSTANTS: Final = (
    ("value", "Known", None),
    ("value_int", "int", np.int64),
    ("value_ints", "list[int]", np.int64),
    ("value_float", "float", np.float32),
    ("value_floats", "list[float]", np.float32),
)


@_evaluates("Identity")
def _identity(x: Known) -> Known:
    return x


@_evaluates("Gather")
def _gather(x: Known, indices: Known, *, axis: int = 0) -> Known:
    # The product of both sizes: small inputs can still ask for a large result.
    if indices.size * x.size // max(x.shape[axis], 1) > MOST:
        return NotImplemented
    return np.take(x, indices.astype(np.int64), axis=axis)


@_evaluates("Concat")
def _concat(*parts: Known, axis: int) -> Known:
    return np.concatenate(parts, axis=axis)


@_evaluates.each({"Unsqueeze": np.expand_dims, "Squeeze": np.squeeze})
def _squeezed(
    function: Callable[..., Known],
    node: Node,
    x: Known,
    given: Known | None = None,
    *,
    axes: list[int] | None = None,
) -> Known:
    axes = axes if given is None else numbers(given)
    if axes is None:
        return np.squeeze(x) if function is np.squeeze else node.malformed("lacks its axes")
    return function(x, tuple(axes))


@_evaluates("Reshape")
def _reshape(x: Known, shape: Known, *, allowzero: bool = False) -> Known:
    wanted = numbers(shape)
    if not allowzero:
        wanted = [x.shape[i] if size == 0 else size for i, size in enumerate(wanted)]
    return x.reshape(wanted)


@_evaluates("Transpose")
def _transpose(x: Known, *, perm: list[int] | None = None) -> Known:
    return np.transpose(x, perm)


@_evaluates("Cast")
def _cast(x: Known, *, to: int) -> Known:
    dtype = DTYPES.get(ir.DataType(to))
    if dtype is None:
        return NotImplemented
    if is_symbolic(x):
        # Sizes fit into 32 bits; narrower integers would wrap, and a float of a symbol is no size.
        return x if dtype.is_integer and dtype.bits >= 32 else NotImplemented
    # Narrow floats and integers of 4 bits are rounded by the backend, by PTIR's rules, not NumPy's.
    if dtype.is_complex or dtype.bits < (32 if dtype.is_float else 8 if dtype.is_integer else 0):
        return NotImplemented
    with np.errstate(all="ignore"):
        return x.astype(dtype.numpy)


@_evaluates("Slice")
def _slice(node: Node, x: Known, *bounds: Known | None) -> Known:
    given = [None if each is None else numbers(each) for each in bounds]
    given += [None] * (4 - len(given))
    # Before opset 10 the bounds were attributes.
    if node.version < 10:
        given = [node.integers("starts"), node.integers("ends"), None, None]
        if "axes" in node:
            given[2] = node.integers("axes")
    starts, ends, axes, steps = given
    assert starts is not None
    assert ends is not None
    key = [slice(None)] * x.ndim
    for i, axis in enumerate(axes or range(len(starts))):
        step = steps[i] if steps else 1
        # Exporters write the least number for "to the very beginning"; NumPy would count it from
        # the end.
        stop = None if step < 0 and ends[i] <= -(2**31) + 1 else ends[i]
        key[axis] = slice(starts[i], stop, step)
    return x[tuple(key)]


@_evaluates("Split")
def _split(
    node: Node,
    x: Known,
    lengths: Known | None = None,
    *,
    axis: int = 0,
    split: list[int] | None = None,
    num_outputs: int | None = None,
) -> Known:
    split = split if lengths is None else numbers(lengths)
    if split is None:
        # Rounded up: the last part may be shorter, as opset 18 says.
        each = -(-x.shape[axis] // (num_outputs or node.outputs))
        bounds = list(range(each, x.shape[axis], each))
    else:
        bounds = list(accumulate(split))[:-1]
    return cast("Known", np.split(x, bounds, axis=axis))


@_evaluates("Range", "com.microsoft.Range")
def _range(start: Known, limit: Known, delta: Known) -> Known:
    if any(map(is_symbolic, (start, limit, delta))):
        return NotImplemented
    # Without a division, so that a step of 0 is left to the program, and its error.
    if abs(limit.item() - start.item()) > MOST * abs(delta.item()):
        return NotImplemented
    return np.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


@_evaluates("ConstantOfShape")
def _constant_of_shape(shape: Known, *, value: Known = ZERO) -> Known:
    if is_symbolic(shape) or np.prod(shape.astype(np.int64)) > MOST:
        return NotImplemented
    return np.full(tuple(numbers(shape)), value.reshape(-1)[0], value.dtype)


@_evaluates("Expand")
def _expand(x: Known, shape: Known) -> Known:
    if is_symbolic(shape):
        return NotImplemented
    target = np.broadcast_shapes(x.shape, tuple(numbers(shape)))
    return np.broadcast_to(x, target) if math.prod(target) <= MOST else NotImplemented


@_evaluates("Where")
def _where(condition: Known, x: Known, y: Known) -> Known:
    if condition.dtype == object:
        condition = np.asarray([bool(each) for each in condition.flat]).reshape(condition.shape)
    return np.where(condition, x, y)


def _magnitude(x: Any) -> Any:
    """Return absolute values, including those of sizes with symbols."""
    # Not `abs`, which polynomials over symbols lack: the greater one is decided by the guards.
    return np.maximum(x, -x)


def _divided(a: Any, b: Any) -> Any:
    """Return the quotient of integers truncated toward zero, as the standard has it."""
    quotient = _magnitude(a) // _magnitude(b)
    return quotient if (a >= 0) == (b >= 0) else -quotient


def _equal(a: Any, b: Any) -> bool:
    """Return whether sizes are equal; the order of those with symbols is what guards know."""
    return a == b or not (a < b or a > b)


Both = Callable[[Any, Any], Any]


@_evaluates.each({"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul})
def _arithmetic(function: Both, a: Known, b: Known) -> Known:
    return _quietly(function, a, b) if _are_integers(a, b) else NotImplemented


@_evaluates.each({"Neg": operator.neg, "Abs": _magnitude})
def _signed(function: Callable[[Any], Any], x: Known) -> Known:
    return _quietly(function, x) if _are_integers(x) else NotImplemented


@_evaluates.each({"And": np.logical_and, "Or": np.logical_or})
def _logical(function: Both, a: Known, b: Known) -> Known:
    return function(a, b)


@_evaluates("Not")
def _not(x: Known) -> Known:
    return np.logical_not(x)


@_evaluates("Div")
def _div(a: Known, b: Known) -> Known:
    if not _are_integers(a, b):
        return NotImplemented
    dtype = np.dtype(object) if object in (a.dtype, b.dtype) else a.dtype
    return np.asarray(_quietly(np.vectorize(_divided, otypes=[dtype]), a, b), dtype)


def _shifted(x: Any, size: Any, fmod: bool) -> Any:
    """Return the remainder of a number by a free size that is above it, as of a shift of `roll`."""
    if 0 <= x < size or (fmod and -size < x < 0):
        return x
    if -size <= x < 0:
        return x + size
    raise ProgramError(f"the remainder of {x} by {size} depends on the size")


@_evaluates("Mod")
def _modulo(a: Known, b: Known, *, fmod: bool = False) -> Known:
    if not _are_integers(a, b) or not (is_symbolic(b) or b.all()):
        return NotImplemented

    def remainder(x: Any, y: Any) -> Any:
        if isinstance(y, SymbolicDim):
            return _shifted(x, y, fmod)
        return x - (_divided(x, y) if fmod else x // y) * y

    dtype = np.dtype(object) if object in (a.dtype, b.dtype) else a.dtype
    return np.asarray(_quietly(np.vectorize(remainder, otypes=[dtype]), a, b), dtype)


@_evaluates.each(
    {
        "Equal": _equal,
        "Less": operator.lt,
        "LessOrEqual": operator.le,
        "Greater": operator.gt,
        "GreaterOrEqual": operator.ge,
    }
)
def _compared(function: Both, a: Known, b: Known) -> Known:
    """Compare sizes one by one, so that those with symbols ask the guards."""
    if not _are_integers(a, b):
        return NotImplemented

    def holds(x: Any, y: Any) -> bool:
        return bool(function(x, y))

    return np.vectorize(holds, otypes=[bool])(a, b)


def _are_integers(*operands: Known) -> bool:
    """Return whether there are no floats, which the backend rounds."""
    return all(each.dtype.kind in "iubO" for each in operands)


def _quietly(function: Callable[..., Any], *operands: Known) -> Known:
    with np.errstate(all="ignore"):
        return function(*operands)


@_evaluates.each({"Min": min, "Max": max})
def _extreme(function: Both, *operands: Known) -> Known:
    if any(each.dtype.kind not in "iuO" for each in operands):
        return NotImplemented
    return reduce(lambda a, b: np.vectorize(function, otypes=[a.dtype])(a, b), operands)


@_evaluates.each(
    {"ReduceProd": operator.mul, "ReduceSum": operator.add, "ReduceMax": max, "ReduceMin": min}
)
def _reduced(
    function: Both,
    x: Known,
    axes: Known | None = None,
    *,
    noop_with_empty_axes: bool = False,
    keepdims: bool = True,
) -> Known:
    # Sizes are vectors; anything else is data, which the program may as well reduce.
    if x.dtype.kind not in "iuO" or x.ndim != 1 or not x.size:
        return NotImplemented
    if noop_with_empty_axes and (axes is None or not axes.size):
        return x
    total = np.empty(1 if keepdims else (), dtype=x.dtype)
    total[...] = reduce(function, x)
    return total
