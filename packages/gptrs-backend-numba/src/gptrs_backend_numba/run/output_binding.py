"""The arrays that the calls of a program write results to: new ones, or donated inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptrs.backend.protocol import Buffer
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.memory import address_of
from gptrs_backend_numba.run.bound_arrays import StorageAddress
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
    ) -> None:
        placed = enumerate(zip(results, locations, strict=True))
        self._sources = [
            _Fresh(index, result, location) if result.donated is None else result.donated
            for index, (result, location) in placed
        ]
        """For each result a fresh array, or the index of the donated input that holds it."""
        self._staged = [
            each for each in self._sources if isinstance(each, _Fresh) and each.stage is not None
        ]
        self._recast = [
            (index, result.view.shape, result.view.dtype.numpy)
            for index, result in enumerate(results)
            if result.donated is not None and inputs[result.donated] != _type_of(result)
        ]
        """Results of another type than the donated inputs that hold them."""

    def bind(self, inputs: Sequence[np.ndarray]) -> list[Buffer]:
        """Return the arrays that the calls of a run on `inputs` write results to."""
        results: list[Buffer] = [
            inputs[each] if isinstance(each, int) else each.array() for each in self._sources
        ]
        for index, shape, dtype in self._recast:
            results[index] = np.asarray(results[index]).reshape(shape).view(dtype)
        return results

    def finish(self, results: list[Buffer]) -> None:
        """Replace staged results, once the calls are done, by copies that the caller owns."""
        for each in self._staged:
            results[each.index] = np.array(each.stage)


class _Fresh:
    """A result in new memory; a small one is copied out of a stage, whose address stays."""

    def __init__(self, index: int, result: Result, location: StorageAddress) -> None:
        self.index = index
        type_ = _type_of(result)
        self._shape, self._dtype = type_.shape, type_.dtype.numpy
        self._location = location
        self.stage: np.ndarray | None = None
        if type_.nbytes <= _STAGED:
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
