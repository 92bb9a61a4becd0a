"""The order in which the elements of a tensor of torch lie in memory: what its strides say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch


def memory_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the axes of a dense tensor from the farthest apart in memory to the nearest.

    Free sizes count as those of the example that torch has traced. None where elements share
    memory or leave gaps.
    """
    sizes, strides = _numbers(tensor.shape), _numbers(tensor.stride())
    if sizes is None or strides is None:
        return None
    axes = sorted(range(len(sizes)), key=lambda axis: -strides[axis])
    expected = 1
    for axis in reversed(axes):
        if sizes[axis] != 1 and strides[axis] != expected:
            return None
        expected *= sizes[axis]
    moved = [axis for axis in axes if sizes[axis] != 1]
    return tuple(range(len(sizes))) if moved == sorted(moved) else tuple(axes)


def result_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the order of a result as torch computes it, None for row-major order."""
    order = memory_order(tensor)
    return None if order == tuple(range(tensor.ndim)) else order


def laid_out(tensor: torch.Tensor, order: Sequence[int] | None) -> torch.Tensor:
    """Return a row-major tensor with its elements in memory in the order of `order`."""
    if order is None:
        return tensor
    back = sorted(range(len(order)), key=lambda place: order[place])
    return tensor.permute(*order).contiguous().permute(*back)


def _numbers(values: Sequence[object]) -> list[int] | None:
    found: list[int] = []
    for value in values:
        number = getattr(cast("Any", value).node, "hint", None) if _is_free(value) else value
        if not isinstance(number, int):
            return None
        found.append(number)
    return found


def _is_free(value: object) -> bool:
    return isinstance(value, torch.SymInt)
