"""Runs a program in parts on a backend and its fallback, and copies values between the two."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial

from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import override

from gptrs.backend.contract import (
    Backend,
    BoundInputs,
    Buffer,
    Executable,
    InputRole,
    KernelRun,
)
from gptrs.backend.specialized_programs import SpecializedPrograms
from gptrs.capture import ports
from gptrs.capture.backend_calls import compiled, compiled_symbolic
from gptrs.capture.events import ProgramPart
from gptrs.capture.fallback.copies import Copied, Sides, TwoSidedValues
from gptrs.capture.fallback.partition import Partition, partition
from gptrs.capture.streaming.segments import Segment
from gptrs.errors import PluginError
from gptrs.ir import dtypes
from gptrs.ir.program import Program
from gptrs.ir.size_guards import SizeGuards, deciding
from gptrs.ir.specialize import symbols
from gptrs.ir.tensor_type import TensorType

WEIGHTS = (InputRole.PARAMETER, InputRole.CONSTANT)
"""Roles whose buffers are the same objects in every run, so that copies of them are kept."""

_noted: ContextVar[list[str] | None] = ContextVar("gptrs_fallback", default=None)


@contextmanager
def noting_fallback() -> Generator[list[str]]:
    """Scope that lists what backends refuse in programs which this thread compiles or runs in it.

    It stays empty if no program needed a fallback.
    """
    found: list[str] = []
    token = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(token)


def fallback_of(backend: Backend) -> Backend | None:
    """Return the backend that runs what `backend` refuses, None if there is none.

    It has the precision of `backend` if it supports that. PluginError if backends fall back to each
    other.
    """
    if backend.falls_back_to is None:
        return None
    names, found = [backend.name], backend
    while found.falls_back_to is not None:
        found = ports.get_backend(found.falls_back_to)
        if found.name in names:
            chain = " to ".join(f"`{name}`" for name in (*names, found.name))
            raise PluginError(
                f"backends fall back to each other: {chain}",
                hint="set `falls_back_to` to a backend that runs every op, such as `ref`",
            )
        names.append(found.name)
    made = ports.get_backend(backend.falls_back_to)
    shared = backend.precision in made.precisions
    return made.with_precision(backend.precision) if shared else made


def compiled_in_parts(
    backend: Backend,
    program: Program,
    roles: Sequence[InputRole],
    guards: SizeGuards | None = None,
) -> Executable:
    """Compile with `backend`; what it refuses, with the backend that it falls back to, if any.

    `guards` are those of a program with symbolic dims, for a symbolic backend. Raises as `compiled`
    does, UnsupportedError for what neither backend runs.
    """
    fallback = fallback_of(backend)
    if fallback is None:
        return _whole(backend, program, roles, guards)
    with nullcontext() if guards is None else deciding(guards):
        sizes = {} if guards is None else guards.example
        found = partition(program, roles, backend, fallback, sizes)
    if found is None:
        return _whole(backend, program, roles, guards)
    return PartsExecutable(program, roles, found, (backend, fallback), guards)


def _whole(
    backend: Backend, program: Program, roles: Sequence[InputRole], guards: SizeGuards | None
) -> Executable:
    if guards is None or not symbols(program):
        return compiled(backend, program, roles)
    return compiled_symbolic(backend, program, roles, guards)


def _elsewhere(
    fallback: Backend, program: Program, roles: Sequence[InputRole], guards: SizeGuards | None
) -> tuple[Program, Executable]:
    """Compile a part with the fallback, after its own passes; it may lack symbols."""
    open_dims = guards is not None and bool(symbols(program))
    with deciding(guards) if guards is not None and open_dims else nullcontext():
        optimized = ports.optimize(program, fallback, None, False, None).program
    if not open_dims:
        return optimized, compiled_in_parts(fallback, optimized, roles)
    if fallback.symbolic:
        return optimized, compiled_in_parts(fallback, optimized, roles, guards)
    make = partial(_specialized, fallback, roles)
    return optimized, SpecializedPrograms(optimized, make)


def _specialized(
    fallback: Backend, roles: Sequence[InputRole], program: Program
) -> tuple[int, Executable]:
    return 0, compiled_in_parts(fallback, program, roles)


class _Step(Struct, frozen=True):
    """A compiled part."""

    executable: Executable
    segment: Segment
    program: Program
    """As its backend got it."""
    backend: Backend
    home: bool
    """Whether it runs on the backend that refused a part of the program."""

    def copied(self, made_at_home: Sequence[bool]) -> tuple[TensorType, ...]:
        """Return the types of what it reads from the other side."""
        params = self.segment.program.main.body.params
        return tuple(
            param.type
            for param, number in zip(params, self.segment.inputs, strict=True)
            if made_at_home[number] is not self.home
        )


_Run = Callable[[_Step, Sequence[Buffer], BoundInputs | None], list[Buffer]]


class PartsExecutable(Executable):
    """A program whose parts run on two backends in turn.

    A value is copied to the other side when a part there first reads it. Copies of weights live as
    long as the weights. It keeps nothing else between runs.
    """

    def __init__(
        self,
        program: Program,
        roles: Sequence[InputRole],
        found: Partition,
        backends: tuple[Backend, Backend],
        guards: SizeGuards | None,
    ) -> None:
        """Compile the parts with `backends`: the one that refused something, and its fallback."""
        weights = frozenset(at for at, role in enumerate(roles) if role in WEIGHTS)
        self._sides = Sides(*backends, weights)
        self._pieces = found.pieces
        self._refused = found.refused
        self._inputs = len(program.main.body.params)
        self._steps = [
            self._compiled(segment, home, guards)
            for segment, home in zip(found.pieces.parts, found.home, strict=True)
        ]
        self._bound: weakref.WeakKeyDictionary[BoundInputs, list[BoundInputs | None]] = (
            weakref.WeakKeyDictionary()
        )
        self._note()

    @property
    def parts(self) -> tuple[ProgramPart, ...]:
        """The parts in the order in which they run."""
        at_home = [True] * self._pieces.count
        for step in self._steps:
            for number in step.segment.outputs:
                at_home[number] = step.home
        found = [
            ProgramPart(step.backend.name, step.program, step.copied(at_home))
            for step in self._steps
        ]
        return tuple(found)

    @property
    @override
    def nbytes(self) -> int:
        """The bytes that the parts own."""
        return sum(step.executable.nbytes for step in self._steps)

    @override
    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """Run the parts in order; raises what the backend of a part raises."""
        return self._run(inputs, None, _run, None)

    @override
    def run_bound(self, inputs: Sequence[Buffer], bound: BoundInputs) -> list[Buffer]:
        return self._run([*inputs, *bound.buffers], bound, _run, None)

    @override
    def run_profiled(
        self, inputs: Sequence[Buffer], tell: Callable[[KernelRun], None]
    ) -> list[Buffer]:
        """Run the parts, and tell their kernels and copies; a part without kernels is one."""

        def run(step: _Step, given: Sequence[Buffer], _: BoundInputs | None) -> list[Buffer]:
            return self._run_told(step, given, tell)

        def copied(target: Backend, number: int, seconds: float, buffer: Buffer) -> None:
            array_type = TensorType(dtypes.from_numpy(buffer.dtype), tuple(buffer.shape))
            inputs = (number,) if number < self._inputs else ()
            tell(
                KernelRun(
                    f"copy to {target.name}",
                    f"{array_type} -> {array_type}",
                    seconds,
                    2 * array_type.nbytes,
                    inputs=inputs,
                    backend=target.name,
                )
            )

        return self._run(inputs, None, run, copied)

    def _compiled(self, segment: Segment, home: bool, guards: SizeGuards | None) -> _Step:
        if home:
            made = _whole(self._sides.home, segment.program, segment.roles, guards)
            return _Step(made, segment, segment.program, self._sides.home, True)
        program, made = _elsewhere(self._sides.other, segment.program, segment.roles, guards)
        return _Step(made, segment, program, self._sides.other, False)

    def _run(
        self,
        inputs: Sequence[Buffer],
        bound: BoundInputs | None,
        run: _Run,
        copied: Copied | None,
    ) -> list[Buffer]:
        self._note()
        values = TwoSidedValues(inputs, self._pieces.count, self._sides, copied)
        weights = [None] * len(self._steps) if bound is None else self._bound_parts(bound, values)
        for step, part_bound in zip(self._steps, weights, strict=True):
            segment = step.segment
            held = 0 if part_bound is None else len(part_bound.buffers)
            given = [
                values.at(number, step.home, role is InputRole.DONATED)
                for number, role in zip(
                    segment.inputs[: len(segment.inputs) - held], segment.roles, strict=False
                )
            ]
            results = run(step, given, part_bound)
            values.drop(segment.dying)
            values.put(segment.outputs, results, step.home)
            del given, results  # what has died is freed before the next part runs
        return [values.at(number, True, False) for number in self._pieces.results]

    def _bound_parts(self, bound: BoundInputs, values: TwoSidedValues) -> list[BoundInputs | None]:
        """Return the weights of each part, copied to its backend, once for each `bound`."""
        found = self._bound.get(bound)
        if found is None:
            first = self._inputs - len(bound.buffers)
            found = [self._bound_part(step, first, values) for step in self._steps]
            self._bound[bound] = found
        return found

    def _bound_part(self, step: _Step, first: int, values: TwoSidedValues) -> BoundInputs | None:
        numbers: list[int] = []
        for number in reversed(step.segment.inputs):
            if not (first <= number < self._inputs and number in self._sides.weights):
                break
            numbers.insert(0, number)
        if not numbers:
            return None
        return BoundInputs(values.at(number, step.home, False) for number in numbers)

    def _run_told(
        self, step: _Step, given: Sequence[Buffer], tell: Callable[[KernelRun], None]
    ) -> list[Buffer]:
        told = 0
        numbers = step.segment.inputs

        def tell_part(run: KernelRun) -> None:
            nonlocal told
            told += 1
            read = tuple(numbers[at] for at in run.inputs if numbers[at] < self._inputs)
            tell(replace(run, inputs=read, backend=run.backend or step.backend.name))

        started = time.perf_counter()
        results = step.executable.run_profiled(given, tell_part)
        if not told:
            body = step.program.main.body
            ops = ", ".join(dict.fromkeys(made.op.name for made in body.instructions))
            types = ", ".join(str(param.type) for param in body.params)
            made = ", ".join(str(value.type) for value in body.results)
            seconds = time.perf_counter() - started
            tell_part(KernelRun(ops or "return", f"{types} -> {made}", seconds, None))
        return results

    def _note(self) -> None:
        noted = _noted.get()
        if noted is not None:
            noted += [reason for reason in self._refused if reason not in noted]


def parts_of(executable: Executable | None) -> tuple[ProgramPart, ...]:
    """Return the parts of a program that runs on two backends, () for any other."""
    return executable.parts if isinstance(executable, PartsExecutable) else ()


def _run(step: _Step, given: Sequence[Buffer], bound: BoundInputs | None) -> list[Buffer]:
    if bound is None:
        return step.executable.run(given)
    return step.executable.run_bound(given, bound)
