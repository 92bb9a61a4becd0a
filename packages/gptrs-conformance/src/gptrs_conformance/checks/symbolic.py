"""Generated programs with symbols: optimized for all sizes, the results equal those for each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from gptrs.backend.contract import Backend, Executable, InputRole
from gptrs.capture.compilation import compile_program, prepare
from gptrs.errors import ExecutionError
from gptrs.ir import dtypes, print_program
from gptrs.ir.literal_text import Literal
from gptrs.ir.op import Op
from gptrs.ir.program import Program
from gptrs.ir.size_guards import SizeGuards
from gptrs.ir.specialize import specialize
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.check import Check, CheckFailure
from gptrs_conformance.program_generator import random_inputs, random_program
from gptrs_conformance.program_generator.dice import Dice
from gptrs_conformance.program_generator.symbols import common_sizes, with_symbols

PROGRAMS = 80
"""Number of random programs for backends with symbols; others get one per group."""
_GROUP = 10
_SIZES_A_PROGRAM = 3


def require_all_sizes(backend: Backend, program: Program, seed: int) -> int:
    """Raise CheckFailure unless `program` with symbols gives the same results as specialized.

    It is optimized and compiled with symbols; for several sizes that the guards accept, each result
    is compared bit for bit with that of the specialized program. Returns the number of sizes
    compared; 0 for a program without a size of 2 or more.
    """
    sizes = common_sizes(program)
    # Sizes 0 and 1 are never symbols: they broadcast and vanish in other ways.
    if not sizes:
        return 0
    symbolic, guards = with_symbols(program, sizes)
    roles = [InputRole.ARGUMENT] * len(symbolic.main.body.params)
    executable = prepare(symbolic, backend, roles, guards=guards).executable
    chosen = list(_accepted(guards, Dice(seed)))
    for given in chosen:
        special = specialize(symbolic, given)
        inputs = list(random_inputs(special, seed).values())
        expected = _results(backend, compile_program(special, backend, roles), inputs)
        found = _results(backend, executable, inputs)
        problem = _difference(found, expected)
        if problem is not None:
            listed = ", ".join(f"?{number} = {size}" for number, size in given.items())
            raise CheckFailure(
                f"with {listed}, {problem} (inputs of seed {seed}):\n{print_program(symbolic)}"
            )
    return len(chosen)


def _accepted(guards: SizeGuards, dice: Dice) -> Iterator[Mapping[int, int]]:
    """Yield the example, and some other sizes, up to twice as large, that are accepted."""
    yield guards.example
    ranges = [range(1, 2 * size + 1) for size in guards.example.values()]
    others = dice.shuffled(list(itertools.product(*ranges)))
    numbered = (dict(zip(guards.example, sizes, strict=True)) for sizes in others)
    fitting = (sizes for sizes in numbered if sizes != guards.example and guards.accept(sizes))
    yield from itertools.islice(fitting, _SIZES_A_PROGRAM - 1)


def _results(
    backend: Backend, executable: Executable, inputs: Sequence[np.ndarray]
) -> list[np.ndarray] | str:
    """Return the results, or how the run failed: an index may be out of range for a size."""
    try:
        results = executable.run([backend.to_device(array) for array in inputs])
    except ExecutionError as error:
        return str(error)
    return [np.array(backend.to_host(result)) for result in results]


def _difference(found: list[np.ndarray] | str, expected: list[np.ndarray] | str) -> str | None:
    if isinstance(found, str) or isinstance(expected, str):
        both = isinstance(found, str) and isinstance(expected, str)
        return None if both else f"it gives {found}, and {expected} with these sizes"
    for position, (one, other) in enumerate(zip(found, expected, strict=True)):
        types = TensorType.of(one), TensorType.of(other)
        if types[0] != types[1] or _plain(one) != _plain(other):
            return f"result {position} is\n{one!r}, and\n{other!r} where the sizes are known before"
    return None


def _plain(array: np.ndarray) -> bytes:
    """Return the bits, with all NaNs made equal, since PTIR leaves their bits open."""
    if dtypes.from_numpy(array.dtype).is_complex:
        return _plain(np.real(array)) + _plain(np.imag(array))
    if dtypes.from_numpy(array.dtype).is_float:
        with np.errstate(invalid="ignore"):
            array = np.where(array == array, array, np.array(np.nan, array.dtype))
    return Literal.of(array).data  # without the half byte that si4 and ui4 leave open


def _claims(
    backend: Backend, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
) -> bool:
    return backend.refusal(op, operands, results) is None


def _check(first: int, backend: Backend) -> None:
    for seed in range(first, first + (_GROUP if backend.symbolic else 1)):
        program = random_program(seed, accepts=partial(_claims, backend))
        require_all_sizes(backend, program, seed)


CHECKS: list[Check] = [
    Check(f"programs for all sizes {first} to {first + _GROUP - 1}", "full",
          partial(_check, first))
    for first in range(0, PROGRAMS, _GROUP)
]  # fmt: skip
