"""Primitives that read or write at positions given by another tensor."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.capture.tensor import Tensor, apply
from gptrs.ir.ops import indexing
from gptrs.ir.shapes import normalize_axis


def take(x: Tensor, indices: Tensor) -> Tensor:
    """Rows of x by number."""
    return apply(indexing.Take(), x, indices)


def gather(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Elements of x by index along axis."""
    return apply(indexing.Gather(normalize_axis(axis, x.rank, "`gather`")), x, indices)


def dynamic_slice(x: Tensor, starts: Tensor, sizes: Sequence[int]) -> Tensor:
    """A block of x at a computed place, clamped into x."""
    return apply(indexing.DynamicSlice(tuple(sizes)), x, starts)


def dynamic_update_slice(x: Tensor, update: Tensor, starts: Tensor) -> Tensor:
    """x with the block at a computed place replaced by update."""
    return apply(indexing.DynamicUpdateSlice(), x, update, starts)
