"""Runs a program in parts on a backend and its fallback, and copies values between the two."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

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
from gptrs.capture import ports
from gptrs.capture.events import ProgramPart
from gptrs.capture.fallback.copies import Copied, Sides, TwoSided
from gptrs.capture.fallback.partition import WEIGHTS, Partition, partition
from gptrs.capture.fallback.parts import Call, Compiler, Parts, Step, Way, compiled_whole
from gptrs.errors import PluginError
from gptrs.ir import dtypes
from gptrs.ir.program import Program
from gptrs.ir.size_guards import SizeGuards, deciding
from gptrs.ir.tensor_type import TensorType

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
    # Once for each backend: every call of a compiled step asks.
    chain = [backend]
    while chain[-1].falls_back_to is not None:
        found = ports.get_backend(chain[-1].falls_back_to)
        names = [each.name for each in chain]
        chain.append(found)
        if found.name in names:
            shown = " to ".join(f"`{each.name}`" for each in chain)
            raise PluginError(
                f"backends fall back to each other: {shown}",
                hint="set `falls_back_to` to a backend that runs every op, such as `ref`",
            )
    made, shared = chain[1], backend.precision in chain[1].precisions
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
        return compiled_whole(backend, program, roles, guards)
    compiler = Compiler(backend, fallback, guards, compiled_in_parts)
    with nullcontext() if guards is None else deciding(guards):
        sizes = {} if guards is None else guards.example
        found = partition(program, roles, backend, fallback, sizes)
    if found is None:
        return compiled_whole(backend, program, roles, guards)
    return PartsExecutable(roles, found, compiler)


class PartsExecutable(Executable):
    """A program whose parts run on two backends in turn.

    A value is copied to the other side when a part there first reads it. Copies of weights live as
    long as the weights. It keeps nothing else between runs.
    """

    def __init__(
        self,
        roles: Sequence[InputRole],
        found: Partition,
        compiler: Compiler,
    ) -> None:
        """Compile the parts with the two backends of `compiler`."""
        self._roles = tuple(roles)
        self._refused = found.refused
        self._backends = compiler.home, compiler.other
        self._parts = Parts(found, compiler)
        self._note()

    @property
    def parts(self) -> tuple[ProgramPart, ...]:
        """The parts in the order in which they run."""
        return tuple(self._parts.told([frozenset({True})] * len(self._roles)))

    @property
    @override
    def nbytes(self) -> int:
        """The bytes that the parts own."""
        return self._parts.nbytes

    @override
    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """Run the parts in order; raises what the backend of a part raises."""
        return self._run(inputs, None, _call, None)

    @override
    def run_bound(self, inputs: Sequence[Buffer], bound: BoundInputs) -> list[Buffer]:
        return self._run([*inputs, *bound.buffers], bound, _call, None)

    @override
    def run_profiled(
        self, inputs: Sequence[Buffer], tell: Callable[[KernelRun], None]
    ) -> list[Buffer]:
        """Run the parts, and tell their kernels and copies; a part without kernels is one."""

        def call(
            step: Step,
            given: Sequence[Buffer],
            _: BoundInputs | None,
            sources: Sequence[int | None],
        ) -> list[Buffer]:
            return _told(step, given, sources, tell)

        def copied(target: Backend, value: TwoSided, seconds: float, buffer: Buffer) -> None:
            array_type = TensorType(dtypes.from_numpy(buffer.dtype), tuple(buffer.shape))
            tell(
                KernelRun(
                    f"copy to {target.name}",
                    f"{array_type} -> {array_type}",
                    seconds,
                    2 * array_type.nbytes,
                    inputs=() if value.source is None else (value.source,),
                    backend=target.name,
                )
            )

        return self._run(inputs, None, call, copied)

    def _run(
        self,
        inputs: Sequence[Buffer],
        bound: BoundInputs | None,
        call: Call,
        copied: Copied | None,
    ) -> list[Buffer]:
        self._note()
        sides = Sides(*self._backends, copied)
        given = [
            TwoSided(home=buffer, source=at, weight=role in WEIGHTS)
            for at, (buffer, role) in enumerate(zip(inputs, self._roles, strict=True))
        ]
        held = () if bound is None else range(len(given) - len(bound.buffers), len(given))
        results = self._parts.run(given, Way(sides, call, bound), held)
        return [sides.at(value, home=True, donated=False) for value in results]

    def _note(self) -> None:
        noted = _noted.get()
        if noted is not None:
            noted += [reason for reason in self._refused if reason not in noted]


def parts_of(executable: Executable | None) -> tuple[ProgramPart, ...]:
    """Return the parts of a program that runs on two backends, () for any other."""
    return executable.parts if isinstance(executable, PartsExecutable) else ()


def _call(
    step: Step, given: Sequence[Buffer], bound: BoundInputs | None, _: Sequence[int | None]
) -> list[Buffer]:
    if bound is None:
        return step.executable.run(given)
    return step.executable.run_bound(given, bound)


def _told(
    step: Step,
    given: Sequence[Buffer],
    sources: Sequence[int | None],
    tell: Callable[[KernelRun], None],
) -> list[Buffer]:
    """Run a part, and tell its kernels; a part that tells none is one."""
    told = 0

    def tell_part(run: KernelRun) -> None:
        nonlocal told
        told += 1
        read = tuple(found for at in run.inputs if (found := sources[at]) is not None)
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
