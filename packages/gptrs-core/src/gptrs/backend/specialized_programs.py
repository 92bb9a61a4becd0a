"""A symbolic program on a backend without symbols: one executable per combination of sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from typing_extensions import override

from gptrs.backend.contract import (
    BoundInputs,
    Buffer,
    Executable,
    KernelRun,
    SubmittedRun,
)
from gptrs.ir.program import Program
from gptrs.ir.specialize import Specializer, specialize, symbol_sources
from gptrs.lazy_module import collector_paused
from gptrs.memory_cache import MemoryCache

MOST_SIZES = 256
"""Most executables kept, the most recently used ones."""


class SpecializedPrograms(Executable):
    """A program with symbols, compiled for the sizes of each run.

    `compile_` compiles a program without symbols and returns its number for trace sinks, 0 for the
    number of the whole program. The `most` recently used executables are kept. Without `check`,
    specialized programs are not verified: sizes accepted by guards are sound.
    """

    def __init__(
        self,
        program: Program,
        compile_: Callable[[Program], tuple[int, Executable]],
        most: int = MOST_SIZES,
        check: bool = True,
    ) -> None:
        self._program = program
        self._unchecked = None if check else Specializer(program)
        self._compile = compile_
        self._sources = symbol_sources(program.main.body.params)
        self._made = MemoryCache[tuple[int, ...], tuple[int, Executable]](most)

    @property
    @override
    def nbytes(self) -> int:
        """The bytes that its executables own."""
        return sum(executable.nbytes for _, executable in self._made.values())

    @override
    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """Run on inputs of any sizes; compile if the sizes are new."""
        return self.at(inputs)[1].run(inputs)

    @override
    def run_bound(self, inputs: Sequence[Buffer], bound: BoundInputs) -> list[Buffer]:
        return self.at(inputs)[1].run_bound(inputs, bound)

    @override
    def submit(
        self, inputs: Sequence[Buffer], bound: BoundInputs | None
    ) -> tuple[list[Buffer], SubmittedRun | None]:
        return self.at(inputs)[1].submit(inputs, bound)

    @override
    def run_profiled(
        self, inputs: Sequence[Buffer], tell: Callable[[KernelRun], None]
    ) -> list[Buffer]:
        return self.at(inputs)[1].run_profiled(inputs, tell)

    def at(self, inputs: Sequence[Buffer]) -> tuple[int, Executable, bool]:
        """Return number and executable for the sizes of `inputs`, and whether they were
        cached."""
        sizes = tuple([inputs[position].shape[axis] for position, axis in self._sources.values()])
        found = self._made.find_or_make(sizes, lambda _: self._made_for(sizes))
        return *found.value, found.hit

    def _made_for(self, sizes: tuple[int, ...]) -> tuple[int, Executable]:
        values = dict(zip(self._sources, sizes, strict=True))
        with collector_paused():  # compilation makes many objects but little garbage
            return self._compiled(values)

    def _compiled(self, values: Mapping[int, int]) -> tuple[int, Executable]:
        if self._unchecked is not None:
            return self._compile(self._unchecked.at(values))
        return self._compile(specialize(self._program, values))
