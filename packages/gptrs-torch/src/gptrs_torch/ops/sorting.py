"""Sorting, and the largest of a row."""

from __future__ import annotations

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_torch.node import Node
from gptrs_torch.registry import converts
from gptrs_torch.values import axis_of


@converts("sort")
def ordered(
    node: Node,
    x: Tensor,
    dim: int = -1,
    descending: bool = False,
    *,
    stable: bool | None = None,
    **named: object,
) -> tuple[Tensor, Tensor]:
    """Return elements in order along an axis, and where they were; equal ones keep theirs."""
    del node, stable
    axis = axis_of(int(str(named.get("dim", dim))), x)
    down = bool(named.get("descending", descending))
    if x.rank == 0:
        return x, F.zeros([], dtypes.si64)
    places = primitives.iota(x.shape, axis, dtypes.si64)
    keys = F.cast(x, dtypes.ui8) if x.dtype.is_bool else x
    values, found = primitives.sort([keys, places], axis, down, True)
    return (F.cast(values, x.dtype) if x.dtype.is_bool else values), found


@converts("topk")
def top_k(
    node: Node, x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the k largest or smallest elements along an axis, and where they are."""
    del node, sorted
    if x.rank == 0:
        return x, F.zeros([], dtypes.si64)
    values, places = F.top_k(x, k, axis_of(dim, x), largest)
    return values, F.cast(places, dtypes.si64)
