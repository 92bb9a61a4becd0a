"""The program of an imported model: with symbols, or for sizes that are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from gptrs.ir.program import Program
from gptrs.ir.specialize import lone_symbol, specialize, symbols
from gptrs.ir.symbolic_dim import SymbolicDim
from gptrs.quick_dataclass import dataclass
from gptrs_runtime.imported.batch import random_batch
from gptrs_runtime.imported.loaded_import import LoadedImport
from gptrs_runtime.imported.sizes import free_sizes, usual_sizes

_EXAMPLE: Final = 8
"""A size for each free one about which nothing is known."""


@dataclass(frozen=True)
class Converted:
    """The program of a model; `sizes` are those that it was made for, where it has no symbols."""

    program: Program
    sizes: Mapping[str, int]


def converted(loaded: LoadedImport, given: Mapping[str, int]) -> Converted:
    """Return the program; where sizes are given, for these and the usual ones of others.

    UsageError for a size that the model does not leave free; UnsupportedError where it cannot be
    converted.
    """
    inputs = loaded.model.inputs
    names = free_sizes(inputs)
    sizes = {name: _EXAMPLE for name in names} | usual_sizes(inputs, given, 1, _EXAMPLE)
    arrays = random_batch(loaded.model, 0, sizes)
    program = loaded.program(arrays)
    if symbols(program):
        if not given:
            return Converted(program, {})
        program = specialize(program, _bound(program, list(arrays.values())))
    return Converted(program, {name: sizes[name] for name in names})


def _bound(program: Program, arrays: Sequence[np.ndarray]) -> dict[int, int]:
    """Return the sizes of symbols, by the parameters that arrays in this order go to."""
    found: dict[int, int] = {}
    remaining = list(arrays)
    for param in program.main.body.params:
        shape = param.type.shape
        while remaining and not _fits(remaining[0].shape, shape):
            remaining.pop(0)  # its values decided sizes: it is no parameter
        if not remaining:
            break
        for size, dim in zip(remaining.pop(0).shape, shape, strict=True):
            number = lone_symbol(dim)
            if number is not None:
                found[number] = size
    return found


def _fits(sizes: Sequence[int], shape: Sequence[object]) -> bool:
    return len(sizes) == len(shape) and all(
        isinstance(dim, SymbolicDim) or dim == size for size, dim in zip(sizes, shape, strict=True)
    )
