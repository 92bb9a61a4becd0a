"""Reductions along axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_onnx.node import Node
from gptrs_onnx.registry import converts
from gptrs_onnx.values import Known, numbers

_REDUCE: dict[str, Callable[[Tensor, Sequence[int], bool], Tensor]] = {
    "ReduceSum": F.sum,
    "ReduceProd": F.prod,
    "ReduceMax": F.max,
    "ReduceMin": F.min,
    "ReduceMean": lambda x, axes, keep: _mean(x, axes, keep),
    "ReduceL1": lambda x, axes, keep: F.sum(F.abs(x), axes, keep),
    "ReduceL2": lambda x, axes, keep: _length(x, axes, keep),
    "ReduceSumSquare": lambda x, axes, keep: F.sum(x * x, axes, keep),
    "ReduceLogSum": lambda x, axes, keep: F.log(F.sum(x, axes, keep)),
    "ReduceLogSumExp": lambda x, axes, keep: F.logsumexp(x, axes, keep),
}


@converts(*_REDUCE, known=[1])
def reduced(node: Node, x: Tensor, axes: Known | None = None) -> Tensor:
    """Reduce along `axes`, by default all, keeping them with size 1 unless told otherwise."""
    named = numbers(axes) if axes is not None else node.integers("axes", [])
    if not named and node.flag("noop_with_empty_axes"):
        if node.op_type in ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceMean"):
            return x
        return _REDUCE[node.op_type](F.expand_dims(x, 0), [0], False)
    places = named or range(x.rank)
    keep = node.flag("keepdims", 1)
    if x.dtype.is_bool:
        reduce = F.any if node.op_type == "ReduceMax" else F.all
        return reduce(x, list(places), keep)
    return _REDUCE[node.op_type](x, list(places), keep)


def _mean(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    if x.dtype.is_float:
        return F.mean(x, axes, keep)
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return F.div(F.sum(x, axes, keep), count)


def _length(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return F.sqrt(F.sum(x * x, axes, keep))


@converts("ArgMax", "ArgMin")
def argmax_or_argmin(node: Node, x: Tensor) -> Tensor:
    """Return the place of the first, or last, largest or smallest element along an axis."""
    function = F.argmax if node.op_type == "ArgMax" else F.argmin
    axis, keep = node.integer("axis", 0) % x.rank, node.flag("keepdims", 1)
    if not node.flag("select_last_index"):
        return function(x, axis, keep)
    return (x.shape[axis] - 1) - function(F.flip(x, axis), axis, keep)


@converts("CumSum", "CumProd", known=[1])
def cumulative(node: Node, x: Tensor, axis: Known) -> Tensor:
    """Return sums or products of what comes before along an axis."""
    function = F.cumsum if node.op_type == "CumSum" else F.cumprod
    along = numbers(axis)[0]
    return function(x, along, reverse=node.flag("reverse"), exclusive=node.flag("exclusive"))
