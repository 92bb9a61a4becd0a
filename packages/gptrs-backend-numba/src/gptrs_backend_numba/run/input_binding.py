"""Points the calls of a program to the arrays of a run, or copies arrays to where calls read."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import compress
from operator import ne
from typing import cast

import numpy as np
from msgspec import Struct

from gptrs.backend.contract import BoundInputs, Buffer, InputRole
from gptrs.errors import UsageError
from gptrs.ir.size_guards import Shape
from gptrs.ir.symbolic_dim import SymbolicDim
from gptrs.ir.tensor_type import TensorType
from gptrs.spans import span
from gptrs_backend_numba.kept_weights.weight_store import DeferredWeight
from gptrs_backend_numba.memory import address_of, aligned, dense_address
from gptrs_backend_numba.packing import PACKED_WEIGHTS, Arrangement
from gptrs_backend_numba.run.assembly import Sizes
from gptrs_backend_numba.schedule import Result

# Memory of an executable between runs: addresses of storages, and identities of inputs.


class StorageAddress:
    """The address of a storage, written to the words of a schedule that depend on it.

    `uses` are positions among `words`, each with the bytes to add to the address. Where these are
    symbolic, `sizes` writes them too, when they change.
    """

    __slots__ = ("_base", "_sized", "_sizes", "_uses", "_words", "address")

    def __init__(
        self, words: memoryview, uses: Sequence[tuple[int, int]], sizes: Sizes | None = None
    ) -> None:
        self.address = -1
        self._words = words
        symbolic = [] if sizes is None else [u for u in uses if isinstance(u[1], SymbolicDim)]
        self._uses = [u for u in uses if not isinstance(u[1], SymbolicDim)] if symbolic else uses
        self._sizes = sizes if symbolic else None
        if sizes is not None and symbolic:
            self._base = sizes.new()
            self._sized = [(word, sizes.place(word, size, self._base)) for word, size in symbolic]

    @property
    def is_used(self) -> bool:
        """Whether any word of the schedule depends on the address."""
        return bool(self._uses) or self._sizes is not None

    def move(self, address: int) -> None:
        """Set the address, and write it to the words unless it is the same."""
        if self.address == address:
            return
        self.address = address
        for position, offset in self._uses:
            self._words[position] = address + offset
        if self._sizes is not None:
            slots = self._sizes.slots
            slots[self._base] = address
            for position, slot in self._sized:
                self._words[position] = address + slots[slot]


class BoundArrays:
    """The array that each input was bound to last, without keeping it alive.

    Comparing identities is faster than asking weak references, which takes longer than small
    kernels. The identity of an array that dies is forgotten before another array can have it.
    """

    def __init__(self, count: int) -> None:
        self._identities = [0] * count
        self._watching: list[weakref.ref[np.ndarray] | None] = [None] * count

    def others(self, identities: Sequence[int]) -> list[int]:
        """Return the inputs whose `id` differs from the one remembered, or that have none."""
        return list(compress(range(len(identities)), map(ne, identities, self._identities)))

    def remember(self, index: int, array: np.ndarray) -> None:
        """Note that an input is bound to `array`."""
        identities = self._identities  # what a reference calls must not keep its holder alive
        self._watching[index] = weakref.ref(array, lambda _: identities.__setitem__(index, 0))
        identities[index] = id(array)

    def forget(self, index: int) -> None:
        """Note that an input is bound to a private copy, which no caller can pass again."""
        self._watching[index] = None
        self._identities[index] = 0


_STAGED = 1 << 12
"""Bytes up to which copying an argument or a result is quicker than asking an array for its
address: on a Zen 3, 0.2 to 0.5 us instead of 0.7, with all that follows."""


class Input(Struct, frozen=True):
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
        self._moves = [
            None if recurs or each.packings else each.location.move
            for each, recurs in zip(inputs, self._recurring, strict=True)
        ]
        """Functions that point calls to an argument itself: no copy is packed or remembered."""
        self._remembered = BoundArrays(len(inputs))
        self._changing = _changing(inputs)
        # Arguments are bound in each run: no array of them is remembered.
        none_recurs = not any(self._recurring[: self._changing])
        self._every = range(self._changing) if none_recurs and not overwritten else None
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
        others: Sequence[int] | None = self._every
        if others is None or len(others) != len(arrays):
            others = self._remembered.others(list(map(id, arrays)))
        for index in others:
            array = inputs[index]
            dtype, shape = self._expected[index]
            if type(array) is np.ndarray and array.dtype is dtype and array.shape == shape:
                move = None if self._staged[index] else self._moves[index]
                address = move and dense_address(array)
                if move and address is not None:
                    move(address)
                    continue
            elif not _fits(array, dtype, shape):
                if index in self._symbolic and self._fit_sizes(inputs):
                    return self._bind(inputs, elsewhere)
                raise self._other_type(index, array)
            stage = self._staged[index]
            if stage is None:
                arrays[index] = self._placed(index, array)
            else:
                stage[:] = array.tobytes()
        if self._overwritten:
            self._own_donated(list(map(id, inputs)), arrays, elsewhere)
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
        if isinstance(array, DeferredWeight):
            self._remembered.forget(index)
            returned = index in self._overwritten
            if returned or given.location.is_used:
                given.location.move(address_of(array.elements()))
            self._pack(given, array, cache(array.passing_elements))
            if not returned and self._recurring[index]:
                self._remembered.remember(index, array)
            return array.elements() if returned else array
        flags = array.flags
        usable = array if flags.c_contiguous and flags.aligned else array.copy(order="C")
        given.location.move(address_of(usable))
        if given.packings:
            self._pack(given, array, lambda: usable)
        if usable is array and self._recurring[index]:
            self._remembered.remember(index, array)
        else:
            self._remembered.forget(index)
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


# The arrays that the calls of a program write results to: new ones, or donated inputs.


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
