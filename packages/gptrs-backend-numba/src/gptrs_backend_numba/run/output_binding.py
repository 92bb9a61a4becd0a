"""Where the calls of a program leave its results: in new arrays, or in what was given away."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptrs.backend.protocol import Buffer
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.memory import address_of
from gptrs_backend_numba.run.bound_arrays import Location
from gptrs_backend_numba.schedule import Result

_STAGED = 1 << 14
"""Bytes up to which a new result is copied, which is quicker than to ask for its address."""


class OutputBinding:
    """Tells locations where the results of a run go; to be used by who holds the engine."""

    def __init__(
        self, results: Sequence[Result], locations: Sequence[Location], inputs: Sequence[TensorType]
    ) -> None:
        placed = enumerate(zip(results, locations, strict=True))
        self._sources = [
            _Fresh(index, result, location) if result.donated is None else result.donated
            for index, (result, location) in placed
        ]
        """What is new, and the numbers of inputs in whose memory the other results are."""
        self._staged = [
            each for each in self._sources if isinstance(each, _Fresh) and each.stage is not None
        ]
        self._recast = [
            (index, result.view.shape, result.view.dtype.numpy)
            for index, result in enumerate(results)
            if result.donated is not None and inputs[result.donated] != _type_of(result)
        ]
        """The results that have another type than the inputs in whose memory they are."""

    def bind(self, inputs: Sequence[np.ndarray]) -> list[Buffer]:
        """The arrays of all results, to which the calls of a run on `inputs` write."""
        results: list[Buffer] = [
            inputs[each] if isinstance(each, int) else each.array() for each in self._sources
        ]
        for index, shape, dtype in self._recast:
            results[index] = np.asarray(results[index]).reshape(shape).view(dtype)
        return results

    def finish(self, results: list[Buffer]) -> None:
        """Put into `results`, once the calls are done, what belongs to the caller alone."""
        for each in self._staged:
            results[each.index] = np.array(each.stage)


class _Fresh:
    """A result that is no input; a small one is copied out of memory that stays where it is."""

    def __init__(self, index: int, result: Result, location: Location) -> None:
        self.index = index
        type_ = _type_of(result)
        self._shape, self._dtype = type_.shape, type_.dtype.numpy
        self._location = location
        self.stage: np.ndarray | None = None
        if type_.nbytes <= _STAGED:
            self.stage = self.array()

    def array(self) -> np.ndarray:
        """Memory for it, where calls write to from now on."""
        if self.stage is not None:
            return self.stage
        array = np.empty(self._shape, self._dtype)
        self._location.move(address_of(array))
        return array


def _type_of(result: Result) -> TensorType:
    return TensorType(result.view.dtype, result.view.shape)
