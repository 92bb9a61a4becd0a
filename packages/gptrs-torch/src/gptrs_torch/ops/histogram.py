"""Counts of elements between edges."""

from __future__ import annotations

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_torch.node import Node
from gptrs_torch.registry import converts
from gptrs_torch.values import Number, converted, is_number, scalar


@converts("histc")
def histogram(node: Node, x: Tensor, bins: int = 100, min: Number = 0, max: Number = 0) -> Tensor:
    """Return how many elements lie in each of the bins; the last one holds its upper edge as well.

    Edges that are equal stand for the least and the greatest element. Elements near an edge are
    where torch puts them: their bins are rounded in the same order.
    """
    if not all(is_number(size) for size in x.shape):
        node.refuse("has a free size")
    wide = dtypes.f32 if x.dtype.bits < dtypes.f32.bits else x.dtype
    flat = converted(F.reshape(x, (-1,)), wide)
    low, high = scalar(min, wide), scalar(max, wide)
    if min == max and flat.shape[0]:
        low, high = F.min(flat), F.max(flat)
    equal = F.equal(low, high)
    low, high = F.where(equal, low - 1.0, low), F.where(equal, high + 1.0, high)
    inside = F.logical_and(F.greater_equal(flat, low), F.less_equal(flat, high))
    places = F.where(inside, (flat - low) * float(bins) / (high - low), 0.0)
    found = F.minimum(F.cast(places, dtypes.si64), scalar(bins - 1, dtypes.si64))
    counts = F.scatter(F.zeros([bins], dtypes.si64), found, F.cast(inside, dtypes.si64), 0, "add")
    return converted(counts, node.dtype)
