"""The symbolic sizes of an executable: read off the inputs of a run, written to its words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np

from gptrs.errors import ProgramError, UsageError
from gptrs.ir.shapes import Shape
from gptrs.ir.size_guards import DerivedSize
from gptrs.ir.symbolic_dim import evaluated, symbol, symbols_of
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen.compiled import compiled
from gptrs_backend_numba.codegen.size_formulas import compute_sizes, place_sizes
from gptrs_backend_numba.memory import address_of
from gptrs_backend_numba.run.size_code import SizeCode


class Sizes:
    """The sizes of the last run. Code is added first; `finish` ends that.

    ProgramError for a symbol that is alone a dim of no input.
    """

    def __init__(self, types: Sequence[TensorType], derived: Iterable[DerivedSize]) -> None:
        self._types = types
        self._derived = tuple(derived)
        self._sources = _sources(types)
        self._code = SizeCode(self._sources, {size.number: size for size in self._derived})
        self._zero = self._code.slot(0)
        self._uses: list[int] = []
        self._known: tuple[int, ...] = ()
        """Sizes of the symbols in the order of `_sources`; () before the first run."""
        self._shapes: dict[Shape, Shape] = {}
        """Shapes of the last run, as far as they were asked for."""
        self.changes = 0
        """How often the sizes have changed."""
        self.slots = memoryview(b"")
        """The slots of all sizes, as int64."""

    def slot(self, size: int) -> int:
        """Return the slot that holds `size`."""
        return self._code.slot(size)

    def new(self) -> int:
        """Return a slot for the caller, 0 at first."""
        return self._code.new()

    def place(self, word: int, size: int, base: int | None = None) -> int:
        """Have `size` plus what is in slot `base` written to a word; return the slot of `size`."""
        slot = self._code.slot(size)
        self._uses += [word, slot, self._zero if base is None else base]
        return slot

    def finish(self, words: int) -> None:
        """Take the address of the words; no size can be added after this."""
        slots = np.array(self._code.slots, np.int64)
        code, uses = np.array(self._code.words, np.int64), np.array(self._uses, np.int64)
        self._kept = slots, code, uses
        self.slots = memoryview(cast("bytearray", slots))
        self._computing = (address_of(code), len(code), address_of(slots))
        self._placing = (address_of(uses), len(uses) // 3, address_of(slots), words)
        self._compute, self._place = compiled(compute_sizes), compiled(place_sizes)

    def fit(self, arrays: Sequence[object]) -> bool:
        """Take the sizes of the first inputs; False if they are those of the last run.

        UsageError for an input that has not the rank of its type, and for a size of 0.
        """
        known: list[int] = []
        for at, (number, (index, axis)) in enumerate(self._sources.items()):
            if index >= len(arrays):
                known.append(self._known[at])
                continue
            shape, wanted = np.shape(cast("np.ndarray", arrays[index])), self._types[index]
            if len(shape) != wanted.rank or shape[axis] < 1:
                found = TensorType.of(np.asarray(arrays[index]))
                raise UsageError(
                    f"input {index} must be `{wanted}` with ?{number} >= 1, got `{found}`"
                )
            known.append(shape[axis])
        if tuple(known) == self._known:
            return False
        self._known = tuple(known)
        self._shapes.clear()
        self.changes += 1
        for slot, size in enumerate(known):
            self.slots[slot] = size
        self._compute(*self._computing)
        self._place(*self._placing)
        return True

    def shape(self, shape: Shape) -> Shape:
        """Return what `shape` is in this run."""
        found = self._shapes.get(shape)
        if found is None:  # the pools of all layers have one
            found = self._shapes[shape] = self._evaluated(shape)
        return found

    def _evaluated(self, shape: Shape) -> Shape:
        sizes = dict(zip(self._sources, self._known, strict=True))
        if symbols_of(shape) - sizes.keys():
            for size in self._derived:
                sizes[size.number] = size.value(sizes)
        return tuple(evaluated(size, sizes) for size in shape)

    def __str__(self) -> str:
        pairs = zip(self._sources, self._known, strict=True)
        return ", ".join(f"?{number} = {size}" for number, size in pairs)


def _sources(types: Sequence[TensorType]) -> dict[int, tuple[int, int]]:
    """Return the input and the axis that each symbol is read from."""
    places: dict[int, tuple[int, int]] = {}
    symbolic = [(index, type_) for index, type_ in enumerate(types) if not type_.is_static]
    for index, type_ in symbolic:
        for axis, dim in enumerate(type_.shape):
            for number in type_.symbols:
                if dim == symbol(number):
                    places.setdefault(number, (index, axis))
    open_ = {number for _, type_ in symbolic for number in type_.symbols} - places.keys()
    if open_:
        listed = ", ".join(f"?{number}" for number in sorted(open_))
        raise ProgramError(f"sizes are read off the inputs, but none has {listed} alone as a dim")
    return places
