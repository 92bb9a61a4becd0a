"""Points the calls of a program to the arrays of a run, or copies arrays to where calls read."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import cast

import numpy as np

from gptrs.backend.contract import BoundInputs, Buffer, InputRole
from gptrs.errors import UsageError
from gptrs.ir.tensor_type import TensorType
from gptrs.quick_dataclass import dataclass
from gptrs.spans import span
from gptrs_backend_numba.kept_weights.deferred_weight import DeferredWeight
from gptrs_backend_numba.memory import address_of, aligned
from gptrs_backend_numba.packing import PACKED_WEIGHTS, Arrangement
from gptrs_backend_numba.run.bound_arrays import BoundArrays, StorageAddress
from gptrs_backend_numba.run.sizes import Sizes

_STAGED = 256
"""Bytes up to which copying an argument is quicker than asking an array for its address."""


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a program: type, role, the address that calls read, packed copies."""

    type: TensorType
    role: InputRole
    location: StorageAddress
    packings: Sequence[tuple[StorageAddress, Arrangement]]
    """The addresses of copies in other arrangements."""


class InputBinding:
    """Points calls to the arrays of a run; arrays of the run before are not examined again.

    `overwritten` are the inputs that calls write to or that are returned. No array of the caller is
    kept alive. The caller holds `RUN_LOCK`.
    """

    def __init__(
        self,
        inputs: Sequence[Input],
        overwritten: Sequence[int],
        threads: int,
        sizes: Sizes | None = None,
    ) -> None:
        self._inputs = inputs
        self._sizes = sizes
        self._symbolic = [i for i, each in enumerate(inputs) if not each.type.is_static]
        self._overwritten = overwritten
        self._threads = threads
        self._expected = [(each.type.dtype.numpy, each.type.shape) for each in inputs]
        # A donated array comes back as a result, and mostly again as an input of the next run.
        self._recurring = [each.role is not InputRole.ARGUMENT for each in inputs]
        self._staged = [_stage(each, each.type) if each.type.is_static else None for each in inputs]
        self._remembered = BoundArrays(len(inputs))
        self._changing = _changing(inputs)
        self._bound: weakref.ref[BoundInputs] | None = None
        """Bound trailing inputs (weights) whose buffers need not be examined again."""

    def bind(self, inputs: Sequence[Buffer], bound: BoundInputs | None) -> list[np.ndarray]:
        """Return the arrays that the calls work on; the caller holds them until the calls are done.

        Those of `bound`, the trailing inputs, may be left out. UsageError if the number of inputs
        or the type of one differs from the program's.
        """
        if bound is not None and self._bound is not None and self._bound() is bound:
            if len(inputs) + len(bound.buffers) != len(self._inputs):
                raise self._other_count(len(inputs) + len(bound.buffers))
            return self._bind(cast("Sequence[np.ndarray]", inputs), bound.identities)
        every = inputs if bound is None else [*inputs, *bound.buffers]
        if len(every) != len(self._inputs):
            raise self._other_count(len(every))
        self._bound = None
        arrays = self._bind(cast("Sequence[np.ndarray]", every), frozenset())
        if bound is not None and self._keeps(len(inputs), every):
            self._bound = weakref.ref(bound)
        return arrays

    def _other_count(self, count: int) -> UsageError:
        return UsageError(f"the program takes {len(self._inputs)} inputs, got {count}")

    def _keeps(self, first: int, inputs: Sequence[Buffer]) -> bool:
        """Whether the inputs from `first` on are parameters, each bound to the very array given."""
        others = self._remembered.others(list(map(id, inputs)))
        return first >= self._changing and (not others or others[-1] < first)

    def _bind(self, inputs: Sequence[np.ndarray], elsewhere: frozenset[int]) -> list[np.ndarray]:
        """Bind the first inputs; `elsewhere` are the identities of the others."""
        arrays = list(inputs)
        identities = list(map(id, arrays))
        for index in self._remembered.others(identities):
            array = inputs[index]
            if not _fits(array, *self._expected[index]):
                if index in self._symbolic and self._fit_sizes(inputs):
                    return self._bind(inputs, elsewhere)
                raise self._other_type(index, array)
            stage = self._staged[index]
            if stage is None:
                arrays[index] = self._placed(index, array)
            else:
                stage[:] = array.tobytes()
        if self._overwritten:
            self._own_donated(identities, arrays, elsewhere)
        return arrays

    def _fit_sizes(self, inputs: Sequence[object]) -> bool:
        """Take the sizes of these inputs; False if they are those of the last run."""
        sizes = self._sizes
        if sizes is None or not sizes.fit(inputs):
            return False
        for index in self._symbolic:
            given = self._inputs[index]
            shape = sizes.shape(given.type.shape)
            if shape == self._expected[index][1]:
                continue  # such as the pools of a cache, when the rows of a step change
            type_ = given.type.with_shape(shape)
            self._expected[index] = type_.dtype.numpy, type_.shape
            self._staged[index] = _stage(given, type_)
            self._remembered.forget(index)
        return True

    def _other_type(self, index: int, array: object) -> UsageError:
        found, wanted = TensorType.of(np.asarray(array)), self._inputs[index].type
        sizes = f" with {self._sizes}" if index in self._symbolic else ""
        return UsageError(f"input {index} must be `{wanted}`{sizes}, got `{found}`")

    def _placed(self, index: int, array: np.ndarray) -> np.ndarray:
        """Bind an input to an array, or to a copy that is dense and aligned, as kernels need it."""
        given = self._inputs[index]
        self._remembered.forget(index)
        if isinstance(array, DeferredWeight):
            returned = index in self._overwritten
            if returned or given.location.is_used:
                given.location.move(address_of(array.elements()))
            self._pack(given, array, cache(array.passing_elements))
            if not returned:
                self._remembered.remember(index, array)
            return array.elements() if returned else array
        flags = array.flags
        usable = array if flags.c_contiguous and flags.aligned else array.copy(order="C")
        given.location.move(address_of(usable))
        self._pack(given, array, lambda: usable)
        if usable is array and self._recurring[index]:
            self._remembered.remember(index, array)
        return usable

    def _pack(self, given: Input, array: np.ndarray, contents: Callable[[], np.ndarray]) -> None:
        """Point calls to the packed copies of an array that has `contents`."""
        streamed = given.role is InputRole.STREAMED
        for location, layout in given.packings:
            with span("pack weights"):
                packed = PACKED_WEIGHTS.packed(array, contents, layout, self._threads, streamed)
            location.move(address_of(packed))

    def _own_donated(
        self, identities: Sequence[int], arrays: list[np.ndarray], elsewhere: frozenset[int]
    ) -> None:
        """Copy arrays that calls overwrite but that are read-only or passed for two inputs."""
        distinct = set(identities)
        alone = len(distinct) == len(identities) and elsewhere.isdisjoint(distinct)
        uses = None if alone else Counter((*identities, *elsewhere))
        for index in self._overwritten:
            array = arrays[index]
            shared = uses is not None and uses[id(array)] > 1
            if shared or not array.flags.writeable:
                arrays[index] = array.copy()
                self._remembered.forget(index)
                self._inputs[index].location.move(address_of(arrays[index]))


def _changing(inputs: Sequence[Input]) -> int:
    """Return the number of inputs before the trailing parameters."""
    count = len(inputs)
    while count and inputs[count - 1].role is InputRole.PARAMETER:
        count -= 1
    return count


def _stage(given: Input, type_: TensorType) -> memoryview | None:
    """Return memory for the bytes of a small argument, so that its address never changes."""
    if given.role is not InputRole.ARGUMENT or type_.nbytes > _STAGED:
        return None
    stage = aligned(type_.nbytes)
    given.location.move(address_of(stage))
    return memoryview(cast("bytearray", stage))


def _fits(buffer: object, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> bool:
    if not isinstance(buffer, np.ndarray):
        return False
    array = cast("np.ndarray", buffer)
    return array.dtype == dtype and array.shape == shape
