"""A symbolic program on a backend that compiles numbers only: an executable for each sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from gptrs.backend.bound_inputs import BindingExecutable, BoundInputs
from gptrs.backend.profiled import KernelRun, ProfiledExecutable
from gptrs.backend.protocol import Buffer, Executable
from gptrs.backend.submitting import SubmittedRun, SubmittingExecutable
from gptrs.ir.program import Program
from gptrs.ir.specialize import specialize, symbol_places
from gptrs.memory_cache import MemoryCache

MOST_SIZES = 256
"""Executables that are kept: those used last."""


class SpecializedPrograms:
    """An `Executable` of a program with symbols: compiles it for the sizes of each run.

    `compile_` compiles a program without symbols, and gives it a number for trace sinks.
    """

    def __init__(
        self, program: Program, compile_: Callable[[Program], tuple[int, Executable]]
    ) -> None:
        self._program = program
        self._compile = compile_
        self._places = symbol_places(program.main.body.params)
        self._made = MemoryCache[tuple[int, ...], tuple[int, Executable]](MOST_SIZES)

    @property
    def nbytes(self) -> int:
        """The bytes that its executables hold of their own."""
        return sum(getattr(executable, "nbytes", 0) for _, executable in self._made.values())

    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """Run on inputs of any sizes; compile for these if they are new."""
        return self._at(inputs).run(inputs)

    def run_bound(self, inputs: Sequence[Buffer], bound: BoundInputs) -> list[Buffer]:
        """Run on inputs and on bound ones after them, see `BindingExecutable`."""
        return _run_bound(self._at(inputs), inputs, bound)

    def submit(
        self, inputs: Sequence[Buffer], bound: BoundInputs | None
    ) -> tuple[list[Buffer], SubmittedRun | None]:
        """Begin a run if the backend can, see `SubmittingExecutable`, else run."""
        executable = self._at(inputs)
        if hasattr(executable, "submit"):  # a check of the protocol takes longer than the rest
            return cast("SubmittingExecutable", executable).submit(inputs, bound)
        results = executable.run(inputs) if bound is None else _run_bound(executable, inputs, bound)
        return results, None

    def run_profiled(
        self, inputs: Sequence[Buffer], tell: Callable[[KernelRun], None]
    ) -> list[Buffer]:
        """Run, and `tell` about kernels if the backend can."""
        executable = self._at(inputs)
        if isinstance(executable, ProfiledExecutable):
            return executable.run_profiled(inputs, tell)
        return executable.run(inputs)

    def at(self, inputs: Sequence[Buffer]) -> tuple[int, Executable, bool]:
        """Return the program for the sizes of `inputs`: its number, and whether it was there."""
        sizes = tuple([inputs[position].shape[axis] for position, axis in self._places.values()])
        values = dict(zip(self._places, sizes, strict=True))
        found = self._made.find_or_make(
            sizes, lambda _: self._compile(specialize(self._program, values))
        )
        return *found.value, found.hit

    def _at(self, inputs: Sequence[Buffer]) -> Executable:
        return self.at(inputs)[1]


def _run_bound(
    executable: Executable, inputs: Sequence[Buffer], bound: BoundInputs
) -> list[Buffer]:
    if hasattr(executable, "run_bound"):
        return cast("BindingExecutable", executable).run_bound(inputs, bound)
    return executable.run([*inputs, *bound.buffers])
