"""Memory as the schedule sees it: storages, and strided views of them."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from gptrs.ir.dtypes import DType
from gptrs.ir.size_guards import Shape, greatest
from gptrs.ir.symbolic_dim import exact_quotient


class MemorySpace(enum.Enum):
    """Where a storage lives; `Storage.index` counts within the space."""

    INPUT = "input"
    """The buffer of an input, found when the program runs."""
    CONSTANT = "constant"
    """An array that the schedule owns."""
    SCRATCH = "scratch"
    """A part of the scratch memory; `Storage.index` becomes its byte offset."""
    RESULT = "result"
    """A fresh buffer for a result, made when the program runs."""
    PACKED = "packed"
    """A packed copy of a matrix of an input, see `gptrs_backend_numba.packing`."""
    PART = "part"
    """A part of another storage, see `Storage.part`."""

    # `Enum.__hash__` runs in Python, and each run looks up the space of each tensor. Members are
    # singletons, so identity is enough.
    __hash__ = object.__hash__


class Counter(Struct, frozen=True, eq=False):
    """The number of the current step of a loop, from `first` to `last` by 1 or -1."""

    first: int
    last: int
    by: int = 1


class Storage(Struct, eq=False):
    """A contiguous piece of memory; its space may still change while a schedule is being built."""

    space: MemorySpace
    index: int
    nbytes: int
    part: Part | None = None
    """The storage that holds this one, and where; None for a storage of its own."""

    @property
    def root(self) -> Storage:
        """The storage that this is a part of, at any depth, or itself."""
        storage = self
        while storage.part is not None:
            storage = storage.part.whole
        return storage

    def become_part(self, part: Part) -> None:
        """Make this a part of another storage."""
        self.space, self.part = MemorySpace.PART, part


class Part(Struct, frozen=True):
    """Where in `whole` a part begins, in bytes; in a loop it moves by `stride` with a counter."""

    whole: Storage
    offset: int
    counter: Counter | None = None
    stride: int = 0


class View(Struct, frozen=True):
    """Elements of one storage: offset and strides count elements, strides are never negative."""

    storage: Storage
    dtype: DType
    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return _size(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements follow one another in row-major order."""
        dense = dense_strides(self.shape)
        return self.size == 0 or all(
            stride == want
            for size, stride, want in zip(self.shape, self.strides, dense, strict=True)
            if size != 1
        )

    @property
    def fills_storage(self) -> bool:
        """Whether this is the whole storage in row-major order."""
        nbytes = self.size * self.dtype.itemsize
        return self.is_contiguous and self.offset == 0 and nbytes == self.storage.nbytes

    def transposed(self, permutation: Sequence[int]) -> View:
        """Axis i of the result is axis `permutation[i]`."""
        return replace(
            self,
            shape=tuple(self.shape[axis] for axis in permutation),
            strides=tuple(self.strides[axis] for axis in permutation),
        )

    def broadcast(self, shape: Shape) -> View:
        """Repeated to `shape` by strides of 0, axes aligned at the right."""
        missing = len(shape) - len(self.shape)
        kept = zip(self.shape, self.strides, shape[missing:], strict=True)
        strides = tuple(stride if size == want else 0 for size, stride, want in kept)
        return replace(self, shape=shape, strides=(0,) * missing + strides)

    def sliced(self, starts: Shape, sizes: Shape, steps: Shape) -> View:
        """`sizes[i]` elements of axis i from `starts[i]` on, every `steps[i]`-th."""
        offset = sum(start * stride for start, stride in zip(starts, self.strides, strict=True))
        strides = tuple(step * stride for step, stride in zip(steps, self.strides, strict=True))
        start = self.offset + (offset if math.prod(sizes) else 0)
        return replace(self, shape=sizes, strides=strides, offset=start)

    def row(self, counter: Counter) -> View:
        """Without the leading axis: the elements at the number of the counter along it."""
        shape, strides, width = self.shape[1:], self.strides[1:], self.dtype.itemsize
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        nbytes = (last + 1) * width if math.prod(shape) else 0
        part = Part(self.storage, self.offset * width, counter, self.strides[0] * width)
        return View(Storage(MemorySpace.PART, 0, nbytes, part), self.dtype, shape, strides)

    def reshaped(self, shape: Shape) -> View | None:
        """Return the same elements under `shape`, None if no strides express it."""
        if self.size == 0:
            return replace(self, shape=shape, strides=dense_strides(shape))
        runs = merged_axes(self.shape, [self.strides])
        strides: list[int] = []
        axes = [size for size in reversed(shape) if size != 1]
        for size, (step,) in reversed(runs):
            left = size
            while left != 1:
                quotient = exact_quotient(left, axes[0]) if axes else None
                if quotient is None:
                    return None
                strides.append(step)
                step *= axes.pop(0)
                left = quotient
        found = iter(reversed(strides))
        return replace(
            self, shape=shape, strides=tuple(next(found) if size != 1 else 0 for size in shape)
        )


@lru_cache(maxsize=4096)
def _size(shape: Shape) -> int:
    return math.prod(shape)


@lru_cache(maxsize=4096)
def dense_strides(shape: Shape) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def merged_axes(
    shape: Shape, strides: Sequence[Sequence[int]]
) -> list[tuple[int, tuple[int, ...]]]:
    """Return the fewest axes that walk over all of several tensors of one shape in row-major order.

    Each is its size and its stride in every tensor. Axes of size 1 vanish; neighbours that every
    tensor crosses evenly become one. The shape must have no axis of size 0.
    """
    merged: list[tuple[int, tuple[int, ...]]] = []
    for size, steps in zip(shape, zip(*strides, strict=True), strict=True):
        if size == 1:
            continue
        if merged and merged[-1][1] == tuple(step * size for step in steps):
            merged[-1] = (merged[-1][0] * size, steps)
        else:
            merged.append((size, steps))
    return merged


def memory_order(shape: Shape, views: Sequence[View]) -> tuple[int, ...]:
    """Return the order of axes in which tensors of one shape lie in memory, the first dense one's.

    That of the axes themselves if one tensor is read so without gaps, or if none is dense.
    """
    plain = tuple(range(len(shape)))
    moving = [axis for axis, size in enumerate(shape) if size != 1]
    if not moving or any(view.strides[moving[-1]] == 1 for view in views):
        return plain
    found = (_dense_order(view, moving) for view in views)
    order = next((axes for axes in found if axes is not None), None)
    return plain if order is None else (*(a for a in plain if a not in moving), *order)


def _dense_order(view: View, moving: Sequence[int]) -> tuple[int, ...] | None:
    """Return these axes from the outermost to the innermost in memory, None if it has gaps."""
    order: list[int] = []
    step = 1
    while len(order) < len(moving):
        axis = next((a for a in moving if a not in order and view.strides[a] == step), None)
        if axis is None:
            return None
        order.insert(0, axis)
        step *= view.shape[axis]
    return tuple(order)


# A batch of matrix products as kernels see it: two strided operands.


class Matrix(Struct, frozen=True):
    """A batch of matrices by strides in elements: rows are free, columns contracted."""

    view: View
    rows: int
    row: int
    column: int
    batch: Shape


class Product(Struct, frozen=True):
    """lhs (m, k) times the transpose of rhs (n, k), for each of a batch."""

    lhs: Matrix
    rhs: Matrix
    k: int
    batch: Shape

    @property
    def work(self) -> int:
        """The number of multiplications."""
        return self.lhs.rows * self.rhs.rows * self.k * math.prod(self.batch)

    def geometry(self) -> list[int]:
        """Return its numbers for the kernels of `gptrs_backend_numba.kernels.contraction`."""
        lhs, rhs = self.lhs, self.rhs
        numbers = [lhs.rows, rhs.rows, self.k, lhs.row, lhs.column, rhs.row, rhs.column]
        return [*numbers, len(self.batch), *self.axes(lhs), *self.axes(rhs)]

    def axes(self, matrix: Matrix) -> list[int]:
        """(size, stride) of each batch axis in one of the operands."""
        pairs: Sequence[tuple[int, int]] = list(zip(self.batch, matrix.batch, strict=True))
        return [number for pair in pairs for number in pair]


# A tensor as lines along one of its axes, for kernels that work line by line.


_ELEMENTS_A_TASK = 16_384
"""Fewer would not be worth the microsecond that handing out a task may take."""


class Lines(Struct, frozen=True):
    """`count` lines of `length` elements, `step` apart, in row-major order of the other axes."""

    count: int
    length: int
    step: int
    axes: tuple[tuple[int, int], ...]
    """(size, stride) of the merged other axes."""
    inner: int
    """How many elements follow the axis in a contiguous tensor of this shape."""

    @property
    def block(self) -> int:
        """Lines a task; it depends on sizes alone."""
        return greatest(1, _ELEMENTS_A_TASK // greatest(1, self.length))

    @property
    def tasks(self) -> int:
        """Number of blocks."""
        return -(-self.count // self.block)

    @property
    def work(self) -> int:
        """Number of elements."""
        return self.count * self.length

    def geometry(self) -> list[int]:
        """Number of axes, then (size, stride) of each."""
        return [len(self.axes), *(number for axis in self.axes for number in axis)]


def lines(view: View, axis: int) -> Lines:
    """Return the lines of `view` along `axis`; the other axes must not be empty."""
    others = [other for other in range(len(view.shape)) if other != axis]
    sizes = tuple(view.shape[other] for other in others)
    merged = merged_axes(sizes, [[view.strides[other] for other in others]])
    return Lines(
        math.prod(sizes),
        view.shape[axis],
        view.strides[axis],
        tuple((size, stride) for size, (stride,) in merged),
        math.prod(view.shape[axis + 1 :]),
    )
