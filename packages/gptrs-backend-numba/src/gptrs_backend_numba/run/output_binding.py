"""The arrays that the calls of a program write results to: new ones, or donated inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gptrs.backend.contract import Buffer
from gptrs.ir.shapes import Shape
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.memory import address_of
from gptrs_backend_numba.run.bound_arrays import StorageAddress
from gptrs_backend_numba.run.sizes import Sizes
from gptrs_backend_numba.schedule import Result

_STAGED = 1 << 14
"""Bytes up to which copying a result is quicker than asking a new array for its address."""


class OutputBinding:
    """Points the results of a run to arrays. The caller holds `RUN_LOCK`."""

    def __init__(
        self,
        results: Sequence[Result],
        locations: Sequence[StorageAddress],
        inputs: Sequence[TensorType],
        sizes: Sizes | None = None,
    ) -> None:
        placed = enumerate(zip(results, locations, strict=True))
        self._sources = [
            _Fresh(index, result, location) if result.donated is None else result.donated
            for index, (result, location) in placed
        ]
        """For each result a fresh array, or the index of the donated input that holds it."""
        self._results = results
        self._recast_results = [
            (index, result.view.dtype.numpy)
            for index, result in enumerate(results)
            if result.donated is not None and inputs[result.donated] != _type_of(result)
        ]
        """Results of another type than the donated inputs that hold them."""
        self._sizes = sizes
        self._changes = 0
        if sizes is None:
            self._fit([result.view.shape for result in results])

    def _fit(self, shapes: Sequence[Shape]) -> None:
        fresh = [each for each in self._sources if isinstance(each, _Fresh)]
        for each in fresh:
            each.fit(shapes[each.index])
        self._staged = [each for each in fresh if each.stage is not None]
        self._recast = [(index, shapes[index], dtype) for index, dtype in self._recast_results]

    def bind(self, inputs: Sequence[np.ndarray]) -> list[Buffer]:
        """Return the arrays that the calls of a run on `inputs` write results to."""
        if self._sizes is not None and self._sizes.changes != self._changes:
            self._fit([self._sizes.shape(result.view.shape) for result in self._results])
            self._changes = self._sizes.changes
        results: list[Buffer] = [
            inputs[each] if isinstance(each, int) else each.array() for each in self._sources
        ]
        for index, shape, dtype in self._recast:
            results[index] = np.asarray(results[index]).reshape(shape).view(dtype)
        return results

    def fill(self, results: Sequence[Buffer], byte: int) -> None:
        """Overwrite those of the arrays that `bind` returned which are new."""
        for source, result in zip(self._sources, results, strict=True):
            if isinstance(source, _Fresh):
                np.asarray(result).reshape(-1).view(np.uint8).fill(byte)

    def finish(self, results: list[Buffer]) -> None:
        """Replace staged results, once the calls are done, by copies that the caller owns."""
        for each in self._staged:
            results[each.index] = np.array(each.stage)


class _Fresh:
    """A result in new memory; a small one is copied out of a stage, whose address stays."""

    def __init__(self, index: int, result: Result, location: StorageAddress) -> None:
        self.index = index
        self._shape: Shape = ()
        self._dtype = result.view.dtype.numpy
        self._location = location
        self.stage: np.ndarray | None = None

    def fit(self, shape: Shape) -> None:
        """Make results of this shape from now on."""
        self._shape = shape
        self.stage = None
        if math.prod(shape) * self._dtype.itemsize <= _STAGED:
            self.stage = self.array()

    def array(self) -> np.ndarray:
        """Return memory for the result, and make calls write to it."""
        if self.stage is not None:
            return self.stage
        array = np.empty(self._shape, self._dtype)
        self._location.move(address_of(array))
        return array


def _type_of(result: Result) -> TensorType:
    return TensorType(result.view.dtype, result.view.shape)
