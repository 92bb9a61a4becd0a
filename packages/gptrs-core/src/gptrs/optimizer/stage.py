"""A stage of the pipeline: passes that run in rounds, and the report of each pass."""

from __future__ import annotations

import time
from collections.abc import Callable

from gptrs.errors import ProgramError
from gptrs.ir import verify as verify_program
from gptrs.ir.ops.custom_call import decompositions
from gptrs.ir.program import Program
from gptrs.optimizer.pass_base import Pass
from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class PassRun:
    """One application of a pass, for those who observe an optimization."""

    stage: str
    name: str
    round: int
    """The number of the round in its stage, from 0."""
    changed: bool
    before: int
    """Instructions before the pass, those of regions and of every function included."""
    after: int
    """Instructions after it."""
    seconds: float


Observer = Callable[[PassRun], None]


@dataclass(frozen=True)
class Stage:
    """Passes in order, again and again until a round changes nothing or `max_rounds` are over."""

    name: str
    passes: tuple[Pass, ...]
    max_rounds: int = 1

    def run(
        self, program: Program, *, verify: bool = False, observe: Observer | None = None
    ) -> Program:
        """Run the passes on `program`; return the same object if they change nothing.

        With `verify`, the program is checked after every pass, and ProgramError says which one
        broke what.
        """
        for round_ in range(self.max_rounds):
            before = program
            for pass_ in self.passes:
                program = self._apply(pass_, program, round_, observe)
                if verify:
                    _verify_after(pass_, program)
            if program is before:
                break
        return program

    def _apply(
        self, pass_: Pass, program: Program, round_: int, observe: Observer | None
    ) -> Program:
        if observe is None:
            return pass_.apply(program)
        started = time.perf_counter()
        changed = pass_.apply(program)
        seconds = time.perf_counter() - started
        sizes = instruction_count(program), instruction_count(changed)
        observe(PassRun(self.name, pass_.name, round_, changed is not program, *sizes, seconds))
        return changed


def instruction_count(program: Program) -> int:
    """Return the instructions of every function, those of nested regions included.

    A composite is one; the functions that nothing but composites refer to are left out.
    """
    inner = decompositions(program)
    functions = (each for each in program.functions if each.name not in inner)
    return sum(1 for function in functions for _ in function.body.walk())


def _verify_after(pass_: Pass, program: Program) -> None:
    try:
        verify_program(program)
    except ProgramError as error:
        raise ProgramError(f"after the pass `{pass_.name}`: {error}") from error
