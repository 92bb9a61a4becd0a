"""Primitives that read or write at positions given by another tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal as OneOf

from gptrs.capture.tensor import Tensor, apply
from gptrs.ir.ops import indexing
from gptrs.ir.shapes import normalize_axis

ScatterKind = OneOf["add", "mul", "max", "min", "replace"]
SegmentKind = OneOf["sum", "prod", "max", "min"]


def take(x: Tensor, indices: Tensor) -> Tensor:
    """Rows of x by number."""
    return apply(indexing.Take(), x, indices)


def gather(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Elements of x by index along axis."""
    return apply(indexing.Gather(normalize_axis(axis, x.rank, "`gather`")), x, indices)


def dynamic_slice(x: Tensor, starts: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return a block of x at a computed place, clamped into x."""
    return apply(indexing.DynamicSlice(tuple(sizes)), x, starts)


def dynamic_update_slice(x: Tensor, update: Tensor, starts: Tensor) -> Tensor:
    """x with the block at a computed place replaced by update."""
    return apply(indexing.DynamicUpdateSlice(), x, update, starts)


def scatter_reduce(
    x: Tensor, indices: Tensor, updates: Tensor, axis: int, kind: ScatterKind
) -> Tensor:
    """x with updates combined into the elements that indices name along axis."""
    normal = normalize_axis(axis, x.rank, "`scatter_reduce`")
    return apply(indexing.ScatterReduce(normal, kind), x, indices, updates)


def segment_reduce(x: Tensor, segment_ids: Tensor, kind: SegmentKind, num_segments: int) -> Tensor:
    """Return the rows of x with the same id combined."""
    return apply(indexing.SegmentReduce(kind, num_segments), x, segment_ids)
