"""Reads tensors in the middle of a run, for the explanation of a failed call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping

import numpy as np

from gptrs.ir.shapes import Shape
from gptrs_backend_numba.run.assembly import Code, Key, locate
from gptrs_backend_numba.run.bound_arrays import StorageAddress
from gptrs_backend_numba.views import View


class Reader:
    """The memory and the sizes of a run, as `gptrs_backend_numba.schedule.Read` has them."""

    def __init__(
        self,
        code: Code,
        words: memoryview,
        locations: Mapping[Key, StorageAddress],
        shape: Callable[[Shape], Shape],
    ) -> None:
        self._code = code
        self._words = words
        self._locations = locations
        self._shape = shape

    def shape(self, shape: Shape) -> Shape:
        """Return the numbers that symbolic sizes stand for."""
        return self._shape(shape)

    def __call__(self, view: View) -> np.ndarray:
        """Return a copy of the elements behind a view, as the calls see them now."""
        found = locate(view)
        start = self._locations[found.key].address + self.shape((found.offset,))[0]
        steps = self.shape(tuple(stride for _, stride in found.moves))
        for (counter, _), step in zip(found.moves, steps, strict=True):
            start += self._words[self._code.counters[counter]] * step
        shape, strides = self.shape(view.shape), self.shape(view.strides)
        last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        count = 0 if 0 in shape else last + 1
        width = view.dtype.itemsize
        elements = np.frombuffer(ctypes.string_at(start, count * width), view.dtype.numpy)
        in_bytes = [stride * width for stride in strides]
        return np.lib.stride_tricks.as_strided(elements, shape, in_bytes)
