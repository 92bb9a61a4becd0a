"""Orders of elements."""

from __future__ import annotations

import numpy as np

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_onnx.node import Node
from gptrs_onnx.registry import converts
from gptrs_onnx.values import Known, constant, numbers


@converts("TopK", known=[1])
def top_k(node: Node, x: Tensor, count: Known | None = None) -> tuple[Tensor, Tensor]:
    """Return the largest, or smallest, elements along an axis in order, and their places."""
    most = numbers(count)[0] if count is not None else node.integer("k")
    axis = node.integer("axis", -1)
    values, places = F.top_k(x, most, axis, largest=node.flag("largest", 1))
    return values, F.cast(places, dtypes.si64)


@converts("Unique", known=[0])
def unique(node: Node, x: Known) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the distinct elements, or slices, of known data: first places, numbers, counts."""
    axis = node.integer("axis") if "axis" in node else None
    if node.flag("sorted", 1):
        found = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
        values, first, inverse, counts = found
    else:
        values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
        order = np.argsort(first, kind="stable")
        values = np.take(values, order, 0 if axis is None else axis)
        first, counts = first[order], counts[order]
        inverse = np.argsort(order, kind="stable")[inverse.reshape(-1)]
    where, numbers_, times = (
        constant(np.asarray(each, np.int64).reshape(-1)) for each in (first, inverse, counts)
    )
    return constant(values), where, numbers_, times
