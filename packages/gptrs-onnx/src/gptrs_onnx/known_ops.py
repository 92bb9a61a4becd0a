"""Operators on known values: what graphs compute of sizes before they reshape or slice."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, cast

import numpy as np

from gptrs.api import ModelError, ProgramError
from gptrs.api.models import Tensor
from gptrs_onnx.node import DAMAGE, Known, Node, Value, is_symbolic, numbers, settled, shown, sizes

MOST = 65_536
"""Most elements of a known value; beyond, the program computes it."""

Evaluate = Callable[..., Known]
_OPS: dict[str, Evaluate] = {}


def evaluated(node: Node, values: Sequence[Value | None]) -> Known | list[Known] | None:
    """Return the outputs of a node whose inputs are known; None where the program computes it."""
    if node.domain or node.op_type not in _OPS:
        return None
    if node.op_type in ("Shape", "Size"):
        if len(values) != 1 or values[0] is None:
            node.malformed(f"has {len(values)} inputs, it takes one")
        return _OPS[node.op_type](node, values[0])
    if any(isinstance(each, Tensor) for each in values) or not _is_small(values):
        return None
    try:
        found = _OPS[node.op_type](node, *values)
    except ProgramError:  # it depends on symbols
        return None
    except DAMAGE as error:
        raise ModelError(f"{node} cannot be computed: {shown(error)}") from error
    if found is NotImplemented:
        return None
    if isinstance(found, list):
        return [settled(np.asarray(each)) for each in cast("list[Known]", found)]
    return settled(np.asarray(found))


def _is_small(values: Sequence[Value | None]) -> bool:
    """Return whether the values are small, and would be so broadcast against one another."""
    shapes = [np.shape(cast("Known", each)) for each in values if each is not None]
    rank = max(map(len, shapes), default=0)
    aligned = [(*[1] * (rank - len(shape)), *shape) for shape in shapes]
    return math.prod(max(sizes) for sizes in zip(*aligned, strict=True)) <= MOST


def _evaluates(*names: str) -> Callable[[Evaluate], Evaluate]:
    def register(function: Evaluate) -> Evaluate:
        _OPS.update(dict.fromkeys(names, function))
        return function

    return register


@_evaluates("Shape")
def _shape(node: Node, x: Value) -> Known:
    start, end = node.integer("start", 0), node.attribute("end")
    return sizes(x.shape[start : None if end is None else end.as_int()])


@_evaluates("Size")
def _size(node: Node, x: Value) -> Known:
    del node
    return sizes([reduce(operator.mul, x.shape, 1)]).reshape(())


@_evaluates("Constant")
def _constant(node: Node) -> Known:
    if "value" in node:
        return node.array("value")
    if "value_int" in node:
        return np.asarray(node.integer("value_int"), np.int64)
    if "value_ints" in node:
        return np.asarray(node.integers("value_ints"), np.int64)
    if "value_float" in node:
        return np.asarray(node.number("value_float"), np.float32)
    if "value_floats" in node:
        return np.asarray(node.numbers("value_floats"), np.float32)
    node.refuse("is a constant of strings, or sparse, which PTIR does not have")


@_evaluates("Identity")
def _identity(node: Node, x: Known) -> Known:
    del node
    return x


@_evaluates("Gather")
def _gather(node: Node, x: Known, indices: Known) -> Known:
    axis = node.integer("axis", 0)
    if indices.size * x.size // max(x.shape[axis], 1) > MOST:
        return NotImplemented
    return np.take(x, indices.astype(np.int64), axis=axis)


@_evaluates("Concat")
def _concat(node: Node, *parts: Known) -> Known:
    return np.concatenate(parts, axis=node.integer("axis"))


@_evaluates("Unsqueeze")
def _unsqueeze(node: Node, x: Known, axes: Known | None = None) -> Known:
    places = node.integers("axes") if axes is None else numbers(axes)
    return np.expand_dims(x, tuple(places))


@_evaluates("Squeeze")
def _squeeze(node: Node, x: Known, axes: Known | None = None) -> Known:
    if axes is None and "axes" not in node:
        return np.squeeze(x)
    places = node.integers("axes") if axes is None else numbers(axes)
    return np.squeeze(x, tuple(places))


@_evaluates("Reshape")
def _reshape(node: Node, x: Known, shape: Known) -> Known:
    wanted = numbers(shape)
    if not node.flag("allowzero"):
        wanted = [x.shape[i] if size == 0 else size for i, size in enumerate(wanted)]
    return x.reshape(wanted)


@_evaluates("Transpose")
def _transpose(node: Node, x: Known) -> Known:
    return np.transpose(x, node.integers("perm", list(range(x.ndim))[::-1]))


@_evaluates("Cast")
def _cast(node: Node, x: Known) -> Known:
    dtype = node.dtype("to")
    if is_symbolic(x):
        return x if dtype.is_integer and dtype.bits >= 32 else NotImplemented
    if not (
        dtype.is_bool
        or (dtype.is_integer and dtype.bits >= 8)
        or (dtype.is_float and dtype.bits >= 32)
    ):
        return NotImplemented
    with np.errstate(all="ignore"):
        return x.astype(dtype.numpy)


@_evaluates("Slice")
def _slice(node: Node, x: Known, *bounds: Known | None) -> Known:
    given = [None if each is None else numbers(each) for each in bounds]
    given += [None] * (4 - len(given))
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
        stop = None if step < 0 and ends[i] <= -(2**31) + 1 else ends[i]
        key[axis] = slice(starts[i], stop, step)
    return x[tuple(key)]


@_evaluates("Split")
def _split(node: Node, x: Known, split: Known | None = None) -> Known:
    axis, count = node.integer("axis", 0), node.outputs
    if split is None and "split" not in node:
        each = -(-x.shape[axis] // node.integer("num_outputs", count))
        bounds = list(range(each, x.shape[axis], each))
    else:
        bounds = list(
            np.cumsum(numbers(split) if split is not None else node.integers("split"))[:-1]
        )
    return cast("Known", np.split(x, bounds, axis=axis))


@_evaluates("Range")
def _range(node: Node, start: Known, limit: Known, delta: Known) -> Known:
    if any(map(is_symbolic, (start, limit, delta))):
        return NotImplemented
    del node
    if abs(limit.item() - start.item()) > MOST * abs(delta.item()):
        return NotImplemented
    return np.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


@_evaluates("ConstantOfShape")
def _constant_of_shape(node: Node, shape: Known) -> Known:
    value = node.array("value") if "value" in node else np.zeros(1, np.float32)
    if is_symbolic(shape) or np.prod(shape.astype(np.int64)) > MOST:
        return NotImplemented
    return np.full(tuple(numbers(shape)), value.reshape(-1)[0], value.dtype)


@_evaluates("Expand")
def _expand(node: Node, x: Known, shape: Known) -> Known:
    del node
    if is_symbolic(shape):
        return NotImplemented
    target = np.broadcast_shapes(x.shape, tuple(numbers(shape)))
    return np.broadcast_to(x, target) if math.prod(target) <= MOST else NotImplemented


@_evaluates("Where")
def _where(node: Node, condition: Known, x: Known, y: Known) -> Known:
    del node
    if condition.dtype == object:
        condition = np.asarray([bool(each) for each in condition.flat]).reshape(condition.shape)
    return np.where(condition, x, y)


def _magnitude(x: Any) -> Any:
    """Return absolute values, also of sizes with symbols."""
    return np.maximum(x, -x)


def _divided(a: Any, b: Any) -> Any:
    """Return the quotient of integers truncated toward zero, as the standard has it."""
    quotient = _magnitude(a) // _magnitude(b)
    return quotient if (a >= 0) == (b >= 0) else -quotient


def _equal(a: Any, b: Any) -> bool:
    """Return whether sizes are equal; the order of those with symbols is what guards know."""
    return a == b or not (a < b or a > b)


def _binary(function: Callable[[Any, Any], Any]) -> Evaluate:
    def evaluate(node: Node, a: Known, b: Known) -> Known:
        del node
        if a.dtype == object or b.dtype == object:
            return np.vectorize(function, otypes=[object])(a, b)
        with np.errstate(all="ignore"):
            return np.asarray(np.vectorize(function, otypes=[a.dtype])(a, b), a.dtype)

    return evaluate


def _integers_only(function: Evaluate) -> Evaluate:
    """Leave floats to the program: its rounding is the backend's."""

    def evaluate(node: Node, *operands: Known) -> Known:
        if any(each.dtype.kind not in "iubO" for each in operands):
            return NotImplemented
        return function(node, *operands)

    return evaluate


def _numpy(function: Callable[..., Any]) -> Evaluate:
    def evaluate(node: Node, *operands: Known) -> Known:
        del node
        with np.errstate(all="ignore"):
            return function(*operands)

    return evaluate


def _compared(function: Callable[[Any, Any], Any]) -> Evaluate:
    """Compare sizes one by one, so that those with symbols ask the guards."""

    def holds(x: Any, y: Any) -> bool:
        return bool(function(x, y))

    def evaluate(node: Node, a: Known, b: Known) -> Known:
        del node
        return np.asarray(np.vectorize(holds, otypes=[bool])(a, b))

    return evaluate


_OPS.update(
    {
        "Add": _integers_only(_numpy(operator.add)),
        "Sub": _integers_only(_numpy(operator.sub)),
        "Mul": _integers_only(_numpy(operator.mul)),
        "Div": _integers_only(_binary(_divided)),
        "Neg": _integers_only(_numpy(operator.neg)),
        "Abs": _integers_only(_numpy(_magnitude)),
        "Equal": _integers_only(_compared(_equal)),
        "Less": _integers_only(_compared(operator.lt)),
        "LessOrEqual": _integers_only(_compared(operator.le)),
        "Greater": _integers_only(_compared(operator.gt)),
        "GreaterOrEqual": _integers_only(_compared(operator.ge)),
        "And": _numpy(np.logical_and),
        "Or": _numpy(np.logical_or),
        "Not": _numpy(np.logical_not),
    }
)


@_evaluates("Min", "Max")
def _extreme(node: Node, *operands: Known) -> Known:
    if any(each.dtype.kind not in "iuO" for each in operands):
        return NotImplemented
    function = min if node.op_type == "Min" else max
    return reduce(lambda a, b: np.vectorize(function, otypes=[a.dtype])(a, b), operands)


@_evaluates("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin")
def _reduced(node: Node, x: Known, axes: Known | None = None) -> Known:
    if x.dtype.kind not in "iuO" or x.ndim != 1 or not x.size:
        return NotImplemented
    if axes is not None and not axes.size and node.flag("noop_with_empty_axes"):
        return x
    function = {
        "ReduceProd": operator.mul,
        "ReduceSum": operator.add,
        "ReduceMax": max,
        "ReduceMin": min,
    }
    total = np.empty(1 if node.flag("keepdims", 1) else (), dtype=x.dtype)
    total[...] = reduce(function[node.op_type], x)
    return total
