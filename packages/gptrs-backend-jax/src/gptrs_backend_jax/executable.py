"""A compiled program: one call of XLA a run, its results left on the device."""

from __future__ import annotations

import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

import jax
import numpy as np
from jax import Array

from gptrs.api import ExecutionError, UsageError
from gptrs.api.backends import BoundInputs, Buffer, Executable, InputRole, KernelRun, SubmittedRun
from gptrs.api.programs import Program, Value
from gptrs_backend_jax import lowering
from gptrs_backend_jax.client import (
    Device,
    InputType,
    array_type,
    deserialized,
    program_text,
    serialized,
    waited_for,
    wide_types,
)
from gptrs_backend_jax.conversion import HostValue
from gptrs_backend_jax.kept_programs import SerializedProgram
from gptrs_backend_jax.walk import Failure, Message, ProgramWalk, entered, left

# The kernels of one run and their times, from the profiler of JAX.


Result = TypeVar("Result")
Tell = Callable[[KernelRun], None]

_profiler = cast("Any", jax.profiler)
_session = threading.Lock()
"""A process has one session of the profiler at a time."""
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%([\w.-]+) = (\([^)]*\)|\S+) ([\w-]+)\(([^)]*)\)(.*)$")
_INPUT = re.compile(r'op_name="inputs\[(\d+)\]"')
_OUTER = ("while", "conditional", "call", "async-start", "async-done")
"""Instructions whose kernels are reported separately."""


class Kernels:
    """The kernels of a program, by its text in the language of XLA, which is read once."""

    def __init__(self, text: str) -> None:
        self._types: dict[str, str] = {}
        self._inputs: dict[str, int] = {}
        self._operands: dict[str, list[str]] = {}
        self._outer: set[str] = set()
        for line in text.splitlines():
            found = _INSTRUCTION.match(line)
            if found is not None:
                self._add(*cast("tuple[str, str, str, str, str]", found.groups()))

    def _add(self, name: str, type_: str, op: str, operands: str, rest: str) -> None:
        self._types[name] = type_.split("{")[0] if type_[0] != "(" else "tuple"
        self._operands[name] = re.findall(r"%([\w.-]+)", operands)
        if op in _OUTER:
            self._outer.add(name)
        number = _INPUT.search(rest) if op == "parameter" else None
        if number is not None:
            self._inputs[name] = int(number[1])

    def run(self, name: str, seconds: float, started: float) -> KernelRun | None:
        """Return a run of the kernel of an instruction; None for one that only runs others."""
        if name in self._outer:
            return None
        operands = self._operands.get(name, [])
        read = ", ".join(self._types.get(each, "?") for each in operands)
        return KernelRun(
            re.sub(r"\.\d+$", "", name),
            f"{read} -> {self._types.get(name, '?')}",
            seconds,
            None,
            inputs=tuple(self._inputs[each] for each in operands if each in self._inputs),
            started=started,
        )


def profiled(work: Callable[[], Result], kernels: Kernels, tell: Tell) -> Result:
    """Return the results of `work`, and report the kernels that it ran.

    While something else in this process uses the profiler of JAX, it runs without a report.
    """
    options = _profiler.ProfileOptions()
    # Tracing Python would slow the run that is measured, and fill the file with frames.
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder, _session:
        try:
            _profiler.start_trace(folder, profiler_options=options)
        # The user profiles with JAX: a second session is not possible, and theirs has priority.
        except RuntimeError:
            return work()
        try:
            result = work()
            ended = time.perf_counter()
        finally:
            _profiler.stop_trace()
        events = [each for path in Path(folder).rglob("*.xplane.pb") for each in _events(path)]
    # The profiler has a clock of its own: the last kernel ended when the run did.
    last = max((start + seconds for _, start, seconds in events), default=0.0)
    for name, start, seconds in sorted(events, key=lambda event: event[1]):
        run = kernels.run(name, seconds, ended - (last - start))
        if run is not None:
            tell(run)
    return result


def _events(path: Path) -> Iterator[tuple[str, float, float]]:
    """Return the instruction of each kernel that ran, its start and duration, in seconds.

    If there are devices besides the host, only kernels on those.
    """
    planes = list(_profiler.ProfileData.from_file(str(path)).planes)
    of_devices = [plane for plane in planes if plane.name.startswith("/device:")]
    for plane in of_devices or planes:
        for line in plane.lines:
            for event in line.events:
                name = _instruction(event)
                if name is not None:
                    yield name, event.start_ns / 1e9, event.duration_ns / 1e9


def _instruction(event: Any) -> str | None:
    """Return the instruction of a kernel event, None for other events."""
    if event.name.startswith("end: "):
        return None
    # Some events have statistics that the reader cannot decode.
    with suppress(ValueError, TypeError):
        stats = cast("Mapping[str, object]", dict(event.stats))
        name = stats.get("hlo_op")
        return name if isinstance(name, str) else None
    return None


Compiled: TypeAlias = Callable[..., tuple[list[Array], Failure | None]]
Maker: TypeAlias = Callable[
    [Compiled, Sequence[InputType], Sequence[int], Sequence[int | None]], Compiled
]
"""Compiles a function of inputs of these types, some of them donated, some reused by results."""


class JaxExecutable(Executable):
    """A program as one function that XLA has compiled for a device."""

    def __init__(
        self,
        program: Program,
        roles: Sequence[InputRole],
        device: Device,
        compiled_for: Maker,
        key: str,
        *,
        for_one_cpu: bool = False,
    ) -> None:
        self.key = key
        """Identifies its program and settings, see `program_key`."""
        body = program.main.body
        self._params = body.params
        self._types = [(value.type.shape, value.type.dtype.numpy) for value in body.params]
        donated = tuple(index for index, role in enumerate(roles) if role is InputRole.DONATED)
        self._recording = _Recording(program, roles, for_one_cpu)
        self._call = compiled_for(
            self._recording.record, self._types, donated, _heirs(program, donated)
        )
        self._device = device
        self._kernels: Kernels | None = None
        self._was_read = False
        self._weights = WeakKeyDictionary[BoundInputs, list[Array]]()
        self._array_type = array_type()

    def serialized(self) -> SerializedProgram | None:
        """Return the program for other processes; None if JAX cannot serialize it.

        JAX cannot write a program again that it has read: the functions of its kernels would be
        missing.
        """
        code = None if self._was_read else serialized(self._call)
        return None if code is None else SerializedProgram(code, self._recording.messages)

    @classmethod
    def of_serialized(
        cls,
        kept: SerializedProgram,
        program: Program,
        roles: Sequence[InputRole],
        device: Device,
        key: str,
    ) -> JaxExecutable | None:
        """Return the `serialized` executable, None if JAX cannot load it."""
        body = program.main.body
        results = [0] * len(body.results), (0 if kept.messages else None)
        call = deserialized(kept.code, len(body.params), results, device)
        if call is None:
            return None

        def loaded(*_: object) -> Compiled:
            return call

        made = cls(program, roles, device, loaded, key)
        made._recording.messages = list(kept.messages)
        made._was_read = True
        return made

    @property
    def count(self) -> int:
        """How many results there are."""
        return self._recording.count

    def require(self, inputs: Sequence[Buffer], bound: int) -> None:
        """Raise UsageError unless `inputs` suit a run with so many `bound` ones after them."""
        self._require(inputs, bound)

    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """Run; see `Executable`. Waits only where the program can fail."""
        return _waited_for(*self._begin(self._values(inputs), inputs))

    def run_bound(self, inputs: Sequence[Buffer], bound: BoundInputs) -> list[Buffer]:
        """Run with weights, which are put on the device when they come first."""
        return _waited_for(*self._begin_bound(inputs, bound))

    def submit(
        self, inputs: Sequence[Buffer], bound: BoundInputs | None
    ) -> tuple[list[Buffer], SubmittedRun | None]:
        """Begin a run, and do not wait."""
        if bound is None:
            return self._begin(self._values(inputs), inputs)
        return self._begin_bound(inputs, bound)

    def run_profiled(
        self, inputs: Sequence[Buffer], tell: Callable[[KernelRun], None]
    ) -> list[Buffer]:
        """Run, and report the kernels of XLA; none for a program on a mesh."""
        text = program_text(self._call)
        if text is None:
            return self.run(inputs)
        if self._kernels is None:
            self._kernels = Kernels(text)
        return profiled(lambda: waited_for(self.run(inputs)), self._kernels, tell)

    def _values(self, inputs: Sequence[Buffer]) -> list[Array | np.ndarray]:
        """Return the arguments for JAX; UsageError for buffers of other backends.

        Types and shapes are left to JAX, which looks at them anyway.
        """
        values: list[Array | np.ndarray] = []
        for given in inputs:
            if isinstance(given, HostValue):
                values.append(given.array)
            elif type(given) is self._array_type or isinstance(given, Array):
                values.append(cast("Array", given))
            else:
                self._require(inputs)
        return values

    def _placed(self, weight: Buffer) -> Array:
        if isinstance(weight, HostValue):
            return weight.on_device(self._device)
        return cast("Array", weight)

    def _begin_bound(
        self, inputs: Sequence[Buffer], bound: BoundInputs
    ) -> tuple[list[Buffer], _Run | None]:
        weights = self._weights.get(bound)
        if weights is None:
            # Once: weights on the host would be copied to the device on each run.
            weights = self._weights[bound] = [self._placed(each) for each in bound.buffers]
        return self._begin([*self._values(inputs), *weights], inputs, bound)

    def _begin(
        self,
        values: Sequence[Array | np.ndarray],
        inputs: Sequence[Buffer],
        bound: BoundInputs | None = None,
    ) -> tuple[list[Buffer], _Run | None]:
        """Start a run; return its results, and its pending check.

        `values` are the arguments for `inputs`, followed by those for the `bound` inputs.
        """
        try:
            with wide_types():
                results, failure = self._call(*values)
        # JAX looks at types anyway: only when it complains are they compared, for a better message.
        except (TypeError, ValueError):
            self._require([*inputs, *(bound.buffers if bound else ())])
            raise
        run = None if failure is None else _Run(failure, self._recording)
        return cast("list[Buffer]", results), run

    def _require(self, inputs: Sequence[Buffer], bound: int = 0) -> None:
        """Raise UsageError unless the inputs match the parameters, as our buffers.

        The last ones may be `bound`, and are not checked.
        """
        found, wanted = len(inputs) + bound, len(self._params)
        if found != wanted:
            raise UsageError(f"the program takes {wanted} inputs, got {found}")
        for number, (given, (shape, dtype)) in enumerate(zip(inputs, self._types, strict=False)):
            ours = isinstance(given, (Array, HostValue))
            if not ours or given.shape != shape or given.dtype != dtype:
                raise _wrong_input(number, self._params[number], given)


def _heirs(program: Program, donated: Sequence[int]) -> list[int | None]:
    """Return for each result the donated input of its type that it replaces."""
    body = program.main.body
    free = list(donated)
    found: list[int | None] = []
    for result in body.results:
        # Each donated buffer is reused by one result: two that share memory would overwrite each
        # other.
        heir = next((index for index in free if body.params[index].type == result.type), None)
        found.append(heir)
        if heir is not None:
            free.remove(heir)
    return found


def _waited_for(results: list[Buffer], run: _Run | None) -> list[Buffer]:
    if run is not None:
        run.check()
    return results


class _Run:
    """A run that can fail: a number on the device tells which check failed."""

    __slots__ = ("_failure", "_recording")

    def __init__(self, failure: Failure, recording: _Recording) -> None:
        self._failure = failure
        self._recording = recording

    def check(self) -> None:
        """Wait for the run; raise ExecutionError if it failed."""
        # Reading the number is what waits.
        number, value = (int(part) for part in np.asarray(self._failure))
        if number:
            raise ExecutionError(self._recording.messages[number - 1].about(value))


class _Recording:
    """The function that JAX traces: the walk over a program, and its possible errors."""

    def __init__(self, program: Program, roles: Sequence[InputRole], for_one_cpu: bool) -> None:
        self._program = program
        self._for_one_cpu = for_one_cpu
        self.messages: list[Message] = []
        """The errors of the program, by their number from 1 on."""
        body = program.main.body
        self.count = len(body.results)
        """How many results there are."""
        kept = [
            value
            for value, role in zip(body.params, roles, strict=True)
            if role is not InputRole.DONATED
        ]
        # An input that was not given away is the caller's: a result must not be the same buffer.
        seen = set(kept)
        self._copied = list[bool]()
        for value in body.results:
            self._copied.append(value in seen)
            seen.add(value)

    def record(self, *inputs: Array) -> tuple[list[Array], Failure | None]:
        """Return the results, and the first error if the program can fail."""
        walk = ProgramWalk(self._program, self._for_one_cpu)
        body = self._program.main.body
        held = [entered(value, x) for value, x in zip(body.params, inputs, strict=True)]
        results = [
            left(value, x) for value, x in zip(body.results, walk.region(body, held), strict=True)
        ]
        # A result is never an input that was not given away, nor another result.
        owned = [
            lowering.copy(x) if copied else x
            for x, copied in zip(results, self._copied, strict=True)
        ]
        self.messages = walk.messages
        return owned, walk.failure if walk.messages else None


def _wrong_input(number: int, param: Value, given: Buffer) -> UsageError:
    name = f" (`%{param.name}`)" if param.name else ""
    what = f"input {number}{name}"
    if not isinstance(given, (Array, HostValue)):
        kind = type(given).__name__
        return UsageError(f"{what} must be a buffer of JAX, got `{kind}`", hint="use `to_device`")
    return UsageError(f"{what} must be `{param.type}`, got {given.dtype}{list(given.shape)}")
