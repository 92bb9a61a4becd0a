"""Compile a captured program: the only module that knows both optimizer and backend."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, field

from gptrs.backend.contract import (
    Backend,
    BoundInputs,
    Buffer,
    Executable,
    InputRole,
)
from gptrs.backend.memory import MemoryNeed
from gptrs.backend.op_table import require_static
from gptrs.backend.specialized_programs import SpecializedPrograms
from gptrs.backend.weight_identity import identity_of_computed
from gptrs.capture import events, ports
from gptrs.capture.backend_calls import to_device, to_host, without_exit
from gptrs.capture.caching.optimized_programs import SMALLEST_KEPT, optimized_programs
from gptrs.capture.caching.program_key import optimization_key
from gptrs.capture.fallback.parts_executable import compiled_in_parts, fallback_of, parts_of
from gptrs.capture.graph import Leaf
from gptrs.capture.outcome import Outcome, outcome_after
from gptrs.capture.parameter import Parameter, Streaming
from gptrs.capture.streaming.streamed_executable import streamed_executable
from gptrs.ir.printer import print_program
from gptrs.ir.program import Program
from gptrs.ir.size_guards import SizeGuards, deciding
from gptrs.ir.specialize import Specializer, symbol_sources, symbols
from gptrs.optimizer.exact_values import are_exact, exact_values
from gptrs.optimizer.rounds import pipeline_settings
from gptrs.optimizer.split import Recipe, Split
from gptrs.spans import span

if TYPE_CHECKING:
    from gptrs.optimizer.pipeline import PassRun


_OUTCOME: Callable[[Leaf], Outcome | None] = attrgetter("outcome")
_SMALL = 1 << 18
"""Elements that NumPy transposes in a millisecond."""


class Computation(Struct, frozen=True, dict=True):
    """The program of derived parameters on a backend, compiled when it is first needed."""

    program: Program
    backend: Backend

    @cached_property
    def digest(self) -> bytes:
        """A digest of its content."""
        text = print_program(self.program)
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    def run(self, buffers: Sequence[Buffer]) -> Buffer:
        """Return the parameter derived from these buffers."""
        if not self._is_exact or events.sinks():
            (result,) = self._executable.run(buffers)
            return result
        body, backend = self.program.main.body, self.backend
        arrays = [to_host(backend, buffer) for buffer in buffers]
        given = dict(zip(body.params, arrays, strict=True))
        known = exact_values(body.instructions, given, ieee_floats=backend.ieee_floats)
        return to_device(backend, np.array(known[body.results[0]], order="C"))

    @cached_property
    def _is_exact(self) -> bool:
        """Whether NumPy computes the same bits, and sooner than the program would be compiled.

        For a transposed weight of a convolution, that takes 7 ms in a process that finds all of its
        kernels.
        """
        body, backend = self.program.main.body, self.backend
        values = [*body.params, *(value for made in body.instructions for value in made.results)]
        return (
            not backend.own_memory
            and all(value.type.size <= _SMALL for value in values)
            and are_exact(body.instructions, ieee_floats=backend.ieee_floats)
        )

    @cached_property
    def _executable(self) -> Executable:
        """The compiled program."""
        roles = [InputRole.ARGUMENT] * len(self.program.main.body.params)
        return compile_program(self.program, self.backend, roles, origin="parameter")


class Derivation(Struct, frozen=True):
    """The recipe of a derived parameter on a backend; equal layers share its computation."""

    recipe: Recipe
    computation: Computation

    def derive(self, leaves: Sequence[Leaf], held: Collection[Leaf]) -> Parameter:
        """Return the parameter that the recipe derives from `leaves`, computed on first use.

        The first source stores it under a key of the recipe and all sources, so every program that
        needs it finds it. Sources not in `held` are released once it is computed.
        """
        sources = [leaves[number] for number in self.recipe.inputs]
        parents = [source for source in sources if isinstance(source, Parameter)]
        assert len(parents) == len(sources), "only parameters are folded"
        # By content, not by identity: two programs over the same weights share the derived one.
        content = b"".join(parent.key.to_bytes(16, "little") for parent in parents)
        key = int.from_bytes(
            hashlib.blake2b(self.computation.digest + content, digest_size=16).digest(), "little"
        )
        return parents[0].derived(key, lambda: self._made(key, parents, held))

    def _made(self, key: int, parents: Sequence[Parameter], held: Collection[Leaf]) -> Parameter:
        backend = self.computation.backend

        def compute() -> Buffer:
            buffers = [parent.buffer(keep=parent in held) for parent in parents]
            result = self.computation.run(buffers)
            for parent, buffer in zip(parents, buffers, strict=True):
                # A mapped source was read only for this; its pages would count as memory of the
                # process.
                if not parent.loaded:
                    parent.release_pages(buffer)
            return result

        def load() -> np.ndarray:
            return to_host(backend, compute())

        (result,) = self.recipe.program.main.body.results
        name = "_".join(("derived", *(parent.name for parent in parents)))
        streamer = parents[0].streamer
        recipe = f"{self.computation.digest.hex()} {settings_for(backend)}"
        identity = identity_of_computed(recipe, [parent.identity for parent in parents])
        return Parameter(
            result.type, key, name, load, backend, streamer, parents,
            identity=identity, compute=compute,
        )  # fmt: skip


class Prepared(Struct, frozen=True):
    """A compiled program and the origin of its inputs."""

    number: int
    executable: Executable
    backend: Backend
    inputs: tuple[int | Derivation, ...]
    """For each input: the index of a leaf of the captured graph, or a derived parameter."""
    roles: tuple[InputRole, ...]
    """One role per input."""
    memory: MemoryNeed | None = None
    """Prepares the program for other sizes, if it has symbols."""
    kept: tuple[str, tuple[int, ...]] | None = None
    """The file of the optimized program, if it is on disk, and its guards."""

    def leaves(self, captured: Sequence[Leaf]) -> list[Leaf]:
        """Return the inputs of the executable, derived from the leaves of the captured graph."""
        listening = events.sinks()
        if listening:
            weights = {at: leaf for at, leaf in enumerate(captured) if isinstance(leaf, Parameter)}
            for sink in listening:
                sink.after_binding(events.WeightsBound(self.number, weights))
        held = {captured[source] for source in self.inputs if isinstance(source, int)}
        return [
            captured[source] if isinstance(source, int) else source.derive(captured, held)
            for source in self.inputs
        ]

    @property
    def nbytes(self) -> int:
        """The bytes that the executable owns."""
        return self.executable.nbytes

    def run(
        self, buffers: Sequence[Buffer], cached: bool = True, bound: BoundInputs | None = None
    ) -> list[Buffer]:
        """Run it on `buffers` followed by those of `bound`.

        Notifies trace sinks; `cached`: an earlier call compiled it.
        """
        if events.sinks():
            return self._run_traced(_joined(buffers, bound), cached)
        if bound is not None:
            return self.executable.run_bound(buffers, bound)
        return self.executable.run(buffers)

    def _run_traced(self, buffers: Sequence[Buffer], cached: bool) -> list[Buffer]:
        number, executable = self.number, self.executable
        if isinstance(executable, SpecializedPrograms):
            # Sinks are told before the run, since deriving a weight runs a separate program.
            own, executable, was_there = executable.at(buffers)
            number, cached = own or number, cached and was_there

        def read() -> tuple[np.ndarray | None, ...]:
            return tuple(
                None if role is InputRole.PARAMETER else to_host(self.backend, buffer)
                for role, buffer in zip(self.roles, buffers, strict=True)
            )

        def weight(index: int) -> np.ndarray:
            buffer = buffers[index]  # a `Parameter` if weights are streamed
            if isinstance(buffer, Parameter):
                return buffer.host_value(keep=False)
            return to_host(self.backend, buffer)

        with events.told_run(number, buffers, cached, read, weight) as tell:
            if tell is not None:
                return executable.run_profiled(buffers, tell)
            return executable.run(buffers)

    def submit(
        self,
        leaves: Iterable[Leaf],
        buffers: Sequence[Buffer],
        cached: bool,
        bound: BoundInputs | None = None,
    ) -> tuple[list[Buffer], Outcome | None]:
        """Like `run`, but wait only if the executable must.

        Returns the results and an outcome to check before reading them, None if the run succeeded.
        It covers this run and those that computed `leaves`, which are passed as `buffers`.
        """
        if events.sinks():
            results, run = self._run_traced(_joined(buffers, bound), cached), None
        else:
            results, run = self.executable.submit(buffers, bound)
        read = list(map(_OUTCOME, leaves))
        # Nearly always there is nothing to wait for, and no call for that.
        return results, outcome_after(run, read) if run is not None or any(read) else None


def _joined(buffers: Sequence[Buffer], bound: BoundInputs | None) -> Sequence[Buffer]:
    return buffers if bound is None else [*buffers, *bound.buffers]


def settings_for(backend: Backend) -> Hashable:
    """Return all settings that affect how `prepare` compiles a program for `backend`.

    They are part of every key of a compiled program.
    """
    settings = pipeline_settings(), backend.compile_settings()
    if backend.falls_back_to is None:  # asked for every call
        return settings
    fallback = fallback_of(backend)
    return settings if fallback is None else (*settings, fallback, fallback.compile_settings())


def prepare(
    program: Program,
    backend: Backend,
    roles: Sequence[InputRole],
    origin: str = "program",
    reason: str = "not cached",
    streaming: Streaming | None = None,
    guards: SizeGuards | None = None,
    keeps: bool = False,
) -> Prepared:
    """Optimize `program`, fold its parameters, and compile the rest on `backend`.

    Unless the backend shares functions it sees only `@main`: calls, and composites that it does not
    claim, are inlined. Raises ExecutionError for a program that needs too much memory,
    UnsupportedError for one with symbolic dims. `origin` and `reason` are for trace sinks. With
    `streaming` the program runs in parts and takes streamed weights as `Parameter`s.

    With `guards` it may have symbols, each a plain dim of some parameter: the result serves all
    sizes that the guards accept in the end. `keeps`: the optimized program is kept on disk even if
    it is small.
    """
    request = _CompileRequest(origin, reason, True, streaming, guards, keeps)
    return _compile(program, backend, tuple(roles), request)


def prepare_optimized(
    split: Split,
    backend: Backend,
    roles: Sequence[InputRole],
    origin: str,
    streaming: Streaming | None,
    guards: SizeGuards | None,
) -> Prepared:
    """`prepare` for a program that an earlier process optimized; not traced."""
    request = _CompileRequest(origin, "not cached", fold=True, streaming=streaming, guards=guards)
    with without_exit(backend):
        return _Compiler(backend, tuple(roles), request).finish(split)


def compile_program(
    program: Program,
    backend: Backend,
    roles: Sequence[InputRole] | None = None,
    origin: str = "program",
) -> Executable:
    """`prepare` without folding: the executable takes the inputs of `program`.

    Without `roles`, all inputs are arguments.
    """
    given = tuple(roles or [InputRole.ARGUMENT] * len(program.main.body.params))
    return _compile(
        program, backend, given, _CompileRequest(origin, "not cached", fold=False)
    ).executable


class _CompileRequest(Struct, frozen=True):
    origin: str
    reason: str
    fold: bool
    streaming: Streaming | None = None
    guards: SizeGuards | None = None
    keeps: bool = False
    number: int = field(default_factory=events.next_number)


def _compile(
    program: Program, backend: Backend, roles: tuple[InputRole, ...], request: _CompileRequest
) -> Prepared:
    events.install_if_asked()
    ports.load_trace_sinks()
    sinks = events.sinks()
    if not sinks:
        with without_exit(backend):
            return _Compiler(backend, roles, request).compile(program)
    start = events.CompileStart(
        request.number, request.origin, program, roles, backend.name, request.reason
    )
    compiler = _Compiler(backend, roles, request, _teller(request.number, sinks))
    made = lambda: (compiler.optimized, compiler.found, parts_of(compiler.made))  # noqa: E731
    with _told(sinks, start, made), without_exit(backend):
        return compiler.compile(program)


@contextmanager
def _told(
    sinks: Sequence[events.ExecutionTraceSink],
    start: events.CompileStart,
    made: Callable[[], tuple[Program | None, bool, tuple[events.ProgramPart, ...]]],
) -> Generator[None]:
    """Scope of a compilation: notify sinks at its start, and of the result at its end.

    `made` returns the optimized program, whether it was on disk, and its parts if it has several.
    """
    for sink in sinks:
        sink.before_program(start)
    started, failure = time.perf_counter(), None
    try:
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        seconds = time.perf_counter() - started
        optimized, found, parts = made()
        end = events.CompileEnd(start.number, optimized, seconds, failure, found, parts)
        for sink in sinks:
            sink.after_program(end)


def _teller(
    number: int, sinks: Sequence[events.ExecutionTraceSink]
) -> Callable[[PassRun], None] | None:
    """Return a function that notifies sinks of passes; None if there are no sinks."""
    ignored = events.ExecutionTraceSink.after_pass
    listeners = [sink for sink in sinks if type(sink).after_pass is not ignored]
    if not listeners:
        return None

    def tell(run: PassRun) -> None:
        event = events.PassEvent(
            number, run.stage, run.name, run.round, run.changed, run.before, run.after, run.seconds
        )
        for sink in listeners:
            sink.after_pass(event)

    return tell


class _Compiler(Struct):
    backend: Backend
    roles: tuple[InputRole, ...]
    request: _CompileRequest
    observe: Callable[[PassRun], None] | None = None
    optimized: Program | None = None
    """The program for the backend, after the passes."""
    found: bool = False
    """Whether an earlier process optimized it."""
    kept: str | None = None
    """The file of the optimized program."""
    made: Executable | None = None
    captured: Program | None = None
    """The program before any pass; None if an earlier process optimized it."""

    def compile(self, program: Program) -> Prepared:
        guards, self.captured = self.request.guards, program
        if guards is None:
            require_static(self.backend, program)
            split = self._optimized(program)
        else:
            with deciding(guards):
                split = self._optimized(program)
        return self.finish(split)

    def finish(self, split: Split) -> Prepared:
        """Compile an optimized program."""
        guards = self.request.guards
        inputs = self._inputs(split)
        roles = [
            self.roles[source] if isinstance(source, int) else InputRole.PARAMETER
            for source in inputs
        ]
        need = MemoryNeed(split.program, roles)
        # Before the backend compiles, which may take seconds.
        need.require(guards.example if guards else {})
        kept = None if self.kept is None else (self.kept, guards.guards if guards else ())
        with span("compile", self.request.origin):
            executable = self.made = self._executable(split.program, roles)
        return Prepared(
            self.request.number,
            executable,
            self.backend,
            inputs,
            tuple(roles),
            need if guards else None,
            kept,
        )

    def _inputs(self, split: Split) -> tuple[int | Derivation, ...]:
        shared: dict[bytes, Computation] = {}
        inputs: list[int | Derivation] = []
        for source in split.inputs:
            if isinstance(source, int):
                inputs.append(source)
                continue
            made = Computation(source.program, self.backend)
            inputs.append(Derivation(source, shared.setdefault(made.digest, made)))
        return tuple(inputs)

    def _optimized(self, program: Program) -> Split:
        """Return `program` optimized: from disk, unless a sink watches the passes."""
        settings, fold = settings_for(self.backend), self.request.fold
        key = None
        size = sum(len(function.body.instructions) for function in program.functions)
        if self.observe is None and (size >= SMALLEST_KEPT or self.request.keeps):
            shared = settings, self._share
            key = optimization_key(program, self.backend, self.roles, shared, fold=fold)
        if key is None:
            return self._optimized_anew(program)
        guards, store = self.request.guards, optimized_programs()
        with span("find optimized program", self.request.origin):
            found = store.find(key, guards)
        self.found = found is not None
        if found is not None:
            self.kept, split = found
        else:
            split = self._optimized_anew(program)
            self.kept = store.keep(key, split, guards)
        self.optimized = split.program
        return split

    def _optimized_anew(self, program: Program) -> Split:
        parameters = [role is InputRole.PARAMETER for role in self.roles]
        folded = parameters if self.request.fold else None
        with span("optimize", self.request.origin):
            split = ports.optimize(program, self.backend, folded, self._share, self.observe)
        self.optimized = split.program
        return split

    @property
    def _share(self) -> bool:
        """Return whether the backend may see functions; not when streaming or a fallback cuts
        `@main` into parts."""
        whole = self.request.streaming is None and self.backend.falls_back_to is None
        return self.request.fold and whole

    def _executable(self, program: Program, roles: Sequence[InputRole]) -> Executable:
        guards, streaming = self.request.guards, self.request.streaming
        if guards is None:
            return self._for_sizes(program, roles)
        if self.backend.symbolic:
            compile_ = partial(compiled_in_parts, self.backend, guards=guards)
            if streaming is None:
                return compile_(program, roles)
            return streamed_executable(program, roles, compile_, streaming)
        return SpecializedPrograms(program, lambda special: self._for_new_sizes(special, roles))

    def _for_new_sizes(
        self, special: Program, roles: Sequence[InputRole]
    ) -> tuple[int, Executable]:
        """Compile for a run with new sizes, a separate program to trace sinks."""
        program = self._captured_at(special)
        start = events.CompileStart(
            events.next_number(),
            self.request.origin,
            program or special,
            tuple(roles) if program is None else self.roles,
            self.backend.name,
            "new sizes",
            self.request.number,
        )
        executable: Executable | None = None
        with _told(events.sinks(), start, lambda: (special, False, parts_of(executable))):
            executable = self._for_sizes(special, roles)
        return start.number, executable

    def _captured_at(self, special: Program) -> Program | None:
        """Return the captured program for the sizes of an optimized one; None if not known.

        Only for sinks: it has the composites that the backend claimed, which run anywhere.
        """
        if self.captured is None or self.optimized is None or not events.sinks():
            return None
        wanted = symbol_sources(self.optimized.main.body.params)
        params = special.main.body.params
        sizes = {symbol: params[at].type.shape[axis] for symbol, (at, axis) in wanted.items()}
        if not sizes.keys() >= set(symbols(self.captured)):
            return None
        return Specializer(self.captured).at(sizes)

    def _for_sizes(self, program: Program, roles: Sequence[InputRole]) -> Executable:
        if self.request.streaming is None:
            return compiled_in_parts(self.backend, program, roles)
        compile_ = partial(compiled_in_parts, self.backend)
        return streamed_executable(program, roles, compile_, self.request.streaming)
