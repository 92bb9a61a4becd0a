"""Functionals that cut tensors into parts, put them together, and repeat them.

They take every element type. Axes may be negative and then count from the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.layout import slice_axis
from gptrs.functionals.operands import axis_of, require_same_dtype


@functional
def split(x: Tensor, parts: int | Sequence[int], axis: int = -1) -> tuple[Tensor, ...]:
    """Pieces along `axis`: `parts` equal ones, or one of each size listed.

    UsageError when the size of the axis is not divisible, or not the sum of the sizes.
    """
    along = axis_of("split", axis, x)
    dim = x.shape[along]
    if isinstance(parts, int):
        if parts < 1 or dim % parts:
            raise UsageError(
                f"`split` cannot cut axis {along} of `{x.type}` into {parts} equal parts"
            )
        sizes = [dim // parts] * parts
    else:
        sizes = list(parts)
        if sum(sizes) != dim or min(sizes, default=0) < 0:
            raise UsageError(f"`split` cannot cut axis {along} of `{x.type}` into parts of {sizes}")
    starts = [sum(sizes[:part]) for part in range(len(sizes))]
    return tuple(
        slice_axis(x, along, start, size) for start, size in zip(starts, sizes, strict=True)
    )


@functional
def concat(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The parts one after another along `axis`; other dims and element types must be equal.

    UsageError for no parts, or parts of rank 0.
    """
    along = _joined_axis("concat", parts, axis, 0)
    rest = {part.shape[:along] + part.shape[along + 1 :] for part in parts}
    if len({part.rank for part in parts}) > 1 or len(rest) > 1:
        raise UsageError(
            f"`concat` needs equal dims on every axis but {along}, got {_listed(parts)}"
        )
    return primitives.concat(parts, along) if len(parts) > 1 else parts[0]


@functional
def stack(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The parts, of one type, along a new `axis` of the result (`np.stack`)."""
    along = _joined_axis("stack", parts, axis, 1)
    shape = parts[0].shape
    if any(part.shape != shape for part in parts):
        raise UsageError(f"`stack` needs tensors of one shape, got {_listed(parts)}")
    layers = [primitives.reshape(part, (*shape[:along], 1, *shape[along:])) for part in parts]
    return primitives.concat(layers, along) if len(layers) > 1 else layers[0]


@functional
def tile(x: Tensor, repeats: Sequence[int]) -> Tensor:
    """x side by side with itself, `repeats[i]` times along axis i (`np.tile`).

    The shorter of the shape and `repeats` is filled up with 1 in front.
    """
    if min(repeats, default=0) < 0:
        raise UsageError(f"`tile` of `{x.type}` needs repeats >= 0, got {list(repeats)}")
    rank = max(x.rank, len(repeats))
    shape = (1,) * (rank - x.rank) + x.shape
    times = (1,) * (rank - len(repeats)) + tuple(repeats)
    whole = x if shape == x.shape else primitives.reshape(x, shape)
    return primitives.tile(whole, times)


@functional
def repeat_interleave(x: Tensor, repeats: int, axis: int) -> Tensor:
    """Each element along `axis` `repeats` times, next to each other (`np.repeat`).

    With [B, H, S, D] and axis 1, each key or value head next to the copies for its query heads.
    """
    along = axis_of("repeat_interleave", axis, x)
    if repeats < 0:
        raise UsageError(f"`repeat_interleave` of `{x.type}` needs repeats >= 0, got {repeats}")
    before, dim, after = x.shape[:along], x.shape[along], x.shape[along + 1 :]
    apart = primitives.reshape(x, (*before, dim, 1, *after))
    copies = primitives.broadcast_to(apart, (*before, dim, repeats, *after))
    return primitives.reshape(copies, (*before, dim * repeats, *after))


@functional
def roll(x: Tensor, shift: int, axis: int) -> Tensor:
    """Moved by `shift` along `axis`; what leaves at one end enters at the other (`np.roll`)."""
    along = axis_of("roll", axis, x)
    dim = x.shape[along]
    start = -shift % dim if dim else 0
    if start == 0:
        return x
    tail, head = slice_axis(x, along, start, dim - start), slice_axis(x, along, 0, start)
    return primitives.concat([tail, head], along)


def _joined_axis(name: str, parts: Sequence[Tensor], axis: int, more: int) -> int:
    """`axis` of a result with `more` axes than the parts have, after what all joining needs."""
    if not parts:
        raise UsageError(f"`{name}` needs at least one tensor")
    require_same_dtype(name, *parts)
    rank = parts[0].rank + more
    if not -rank <= axis < rank:
        raise UsageError(f"`{name}` got axis {axis} for {_listed(parts)}, result of {rank} axes")
    return axis % rank


def _listed(parts: Sequence[Tensor]) -> str:
    return ", ".join(f"`{part.type}`" for part in parts)
