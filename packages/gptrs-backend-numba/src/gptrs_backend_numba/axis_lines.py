"""A tensor as lines along one of its axes, for kernels that work line by line."""

from __future__ import annotations

import math

from gptrs.ir.size_guards import greatest
from gptrs.quick_dataclass import dataclass
from gptrs_backend_numba.views import View, merged_axes

_ELEMENTS_A_TASK = 16_384
"""Fewer would not be worth the microsecond that handing out a task may take."""


@dataclass(frozen=True, slots=True)
class Lines:
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
