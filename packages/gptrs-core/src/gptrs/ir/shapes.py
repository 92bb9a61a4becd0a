"""Arithmetic on shapes and axes that op checks, functionals and backends share."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.errors import ProgramError

Shape = tuple[int, ...]


def normalize_axis(axis: int, rank: int, what: str) -> int:
    """Return `axis` in [0, rank), negative ones counted from the end.

    `what` names the op in the error.
    """
    if not -rank <= axis < rank:
        raise ProgramError(f"{what}: axis {axis} is out of range for rank {rank}")
    return axis % rank


def normalize_axes(axes: Sequence[int], rank: int, what: str) -> tuple[int, ...]:
    """Return each axis normalized, in ascending order; ProgramError when one is repeated."""
    normal = sorted(normalize_axis(axis, rank, what) for axis in axes)
    if len(set(normal)) != len(normal):
        raise ProgramError(f"{what}: axes {list(axes)} name an axis twice")
    return tuple(normal)


def broadcast_shapes(shapes: Sequence[Shape], what: str) -> Shape:
    """Return the right-aligned common shape.

    Dims are compatible if equal or 1, else ProgramError.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[int] = []
    for position in range(-rank, 0):
        dims = {shape[position] for shape in shapes if -position <= len(shape)} - {1}
        if len(dims) > 1:
            listed = ", ".join(str(list(shape)) for shape in shapes)
            raise ProgramError(f"{what}: shapes {listed} do not broadcast together")
        result.append(dims.pop() if dims else 1)
    return tuple(result)


def broadcastable_to(shape: Shape, target: Shape) -> bool:
    """Return whether `shape` broadcasts to `target` (right-aligned, each dim equal or 1)."""
    if len(shape) > len(target):
        return False
    aligned = target[len(target) - len(shape) :]
    return all(have in (1, want) for have, want in zip(shape, aligned, strict=True))
