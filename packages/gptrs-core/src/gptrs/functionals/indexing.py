"""Functionals that read or write at positions given by numbers, slices or another tensor."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import SupportsIndex, cast

from gptrs.capture import primitives
from gptrs.capture.primitives.structure import ScatterKind
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.layout import reshape
from gptrs.functionals.layout import slice as slice_by_axis
from gptrs.functionals.operands import (
    NUMBERS,
    REALS,
    Operand,
    axis_of,
    expand,
    plain_or_tensor,
    require_dtype,
    require_integer,
    require_one_of,
    require_same_dtype,
    splat,
)
from gptrs.ir.dtypes import ALL
from gptrs.ir.size_guards import broadcastable_to

Entry = SupportsIndex | slice | EllipsisType | Tensor | None
Key = Entry | tuple[Entry, ...]
"""A key of `x[...]`."""

_KINDS = {"replace": ALL, "add": NUMBERS, "mul": NUMBERS, "max": REALS, "min": REALS}


@functional
def take(x: Tensor, indices: Tensor, axis: int = 0) -> Tensor:
    """The slices of x at `indices`, of any integer type and shape, along `axis`.

    The dims of `indices` replace the axis (`np.take`): [A, V, C], int [i..], axis 1 -> [A, i.., C].
    An index outside [0, V), negative ones too, raises ExecutionError when it runs.
    """
    require_integer("take", indices=indices)
    along = axis_of("take", axis, x)
    if along == 0:
        return primitives.take(x, indices)
    others = [other for other in range(x.rank) if other != along]
    found = primitives.take(primitives.transpose(x, [along, *others]), indices)
    inner = range(indices.rank)
    before, after = range(along), range(along, x.rank - 1)
    order = [i + indices.rank for i in before], inner, [i + indices.rank for i in after]
    return primitives.transpose(found, [i for part in order for i in part])


@functional
def gather(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """`out[.., i, ..] = x[.., indices[.., i, ..], ..]` along `axis` (`torch.gather`).

    `indices`, integers, has the rank of x and is no larger on the other axes; the result has its
    shape. An index outside the axis, negative ones too, raises ExecutionError when it runs.
    """
    along = axis_of("gather", axis, x)
    _require_indices("gather", x, indices, along)
    return primitives.gather(x, indices, along)


@functional
def scatter(
    x: Tensor, indices: Tensor, updates: Operand, axis: int, kind: ScatterKind = "replace"
) -> Tensor:
    """x with `updates` combined into the elements at `indices` along `axis`
    (`torch.scatter_reduce`).

    `out[.., indices[.., i, ..], ..] = kind(that element, updates[.., i, ..])`. `indices`, integers,
    has the rank of x and is no larger on the other axes; `updates` is of the type of x and
    broadcasts to the shape of `indices`. For "replace", the last update to an element wins;
    "add" and "mul" take numbers, "max" and "min" reals. An index outside the axis, negative ones
    too, raises ExecutionError when it runs.
    """
    require_one_of("scatter", "kind", kind, tuple(_KINDS))
    # the message puts backticks around the whole name
    require_dtype(f"scatter` of kind `{kind}", _KINDS[kind], x=x)
    along = axis_of("scatter", axis, x)
    _require_indices("scatter", x, indices, along)
    spread = _updates(x, updates, indices.shape)
    return primitives.scatter_reduce(x, indices, spread, along, kind)


@functional
def index(x: Tensor, key: Key) -> Tensor:
    """`x[key]` by NumPy's rules: the entries apply to the axes from the front.

    An int drops its axis, a slice with any step keeps it, None adds one of size 1, `...` stands for
    all remaining axes. The first entry may be an integer tensor, whose dims replace axis 0 as in
    `take`. UsageError for an int outside its axis, for more entries than axes, and for other
    entries, masks among them.
    """
    entries = key if isinstance(key, tuple) else (key,)
    if entries and isinstance(entries[0], Tensor):
        rows = _indexed(x, (slice(None), *entries[1:]))
        return take(rows, entries[0], 0)
    return _indexed(x, entries)


def _indexed(x: Tensor, entries: tuple[Entry, ...]) -> Tensor:
    """`x[entries]` without tensors: one slice, then a reshape if axes are dropped or added."""
    written = _written_out(x, entries)
    axes = [entry for entry in written if entry is not None]
    bounds = [_bounds(x, axis, entry) for axis, entry in enumerate(axes)]
    whole = all(entry == slice(None) for entry in axes)
    block = x if whole else slice_by_axis(x, *zip(*bounds, strict=True))
    dims = iter(block.shape)
    shape: list[int] = []
    for entry in written:
        dim = 1 if entry is None else next(dims)
        if entry is None or isinstance(entry, slice):
            shape.append(dim)
    return block if tuple(shape) == block.shape else reshape(block, shape)


def _written_out(x: Tensor, entries: Sequence[Entry]) -> list[int | slice | None]:
    """Return one int or slice per axis, and None for new ones, with `...` expanded."""
    if sum(entry is ... for entry in entries) > 1:
        raise UsageError(f"`index` of `{x.type}` got more than one `...`")
    named = sum(entry is not None and entry is not ... for entry in entries)
    if named > x.rank:
        raise UsageError(f"`index` of `{x.type}` got {named} entries for {x.rank} axes")
    rest = [slice(None)] * (x.rank - named)
    written: list[int | slice | None] = []
    for entry in entries:
        if isinstance(entry, EllipsisType):
            written.extend(rest)
        else:
            written.append(_plain(x, entry))
    return written if any(entry is ... for entry in entries) else [*written, *rest]


def _plain(x: Tensor, entry: object) -> int | slice | None:
    if entry is None:
        return None
    if isinstance(entry, slice):
        given = cast("slice[object, object, object]", entry)
        return slice(_bound(given.start), _bound(given.stop), _bound(given.step))
    if isinstance(entry, Tensor):
        raise UsageError(
            f"`index` of `{x.type}` takes a tensor for the first axis only, got `{entry.type}`",
            hint="use `take` or `gather`, which take an axis",
        )
    try:
        if isinstance(entry, bool):
            raise TypeError
        return operator.index(cast("SupportsIndex", entry))
    except TypeError:  # NumPy arrays have `__index__`, too
        kind = type(entry).__name__
        raise UsageError(
            f"`index` takes ints, slices, None, `...` and a tensor, got `{kind}`",
            hint="`where` chooses by a mask; wrap positions with `gptrs.tensor`",
        ) from None


def _bound(bound: object) -> int | None:
    if bound is None:
        return None
    if not isinstance(bound, SupportsIndex):
        kind = type(bound).__name__
        raise UsageError(f"`index` takes slices of ints and None, got `{kind}`")
    return operator.index(bound)


def _bounds(x: Tensor, axis: int, entry: int | slice) -> tuple[int | None, int | None, int | None]:
    if isinstance(entry, slice):
        return entry.start, entry.stop, entry.step
    dim = x.shape[axis]
    if not -dim <= entry < dim:
        raise UsageError(f"`index` got {entry} for axis {axis} of `{x.type}`")
    position = entry % dim
    return position, position + 1, 1


def _require_indices(name: str, x: Tensor, indices: Tensor, axis: int) -> None:
    """UsageError unless `indices` has the rank of `x` and is no larger on every other axis."""
    require_integer(name, indices=indices)
    others = [other for other in range(x.rank) if other != axis]
    if indices.rank != x.rank or any(indices.shape[i] > x.shape[i] for i in others):
        raise UsageError(
            f"`{name}` of `{x.type}` along axis {axis} needs indices of rank {x.rank}, no larger"
            f" on the other axes, got `{indices.type}`"
        )


def _updates(x: Tensor, updates: Operand, shape: tuple[int, ...]) -> Tensor:
    """`updates` in the type of `x`, broadcast to the shape of the indices."""
    updates = plain_or_tensor(updates)
    if not isinstance(updates, Tensor):
        return splat(updates, x.dtype, shape)
    require_same_dtype("scatter", x, updates)
    if not broadcastable_to(updates.shape, shape):
        raise UsageError(
            f"`scatter` needs updates that broadcast to {list(shape)}, got `{updates.type}`"
        )
    return expand(updates, shape)


# Lookup of rows by number.


@functional
def embedding(indices: Tensor, weight: Tensor) -> Tensor:
    """Row `indices[i..]` of `weight` at each position: int [i..], [V, C] -> [i.., C].

    An index outside [0, V) raises ExecutionError when it runs.
    """
    require_integer("embedding", indices=indices)
    if weight.rank != 2:
        raise UsageError(f"`embedding` needs a weight of rank 2, got `{weight.type}`")
    return primitives.take(weight, indices)
