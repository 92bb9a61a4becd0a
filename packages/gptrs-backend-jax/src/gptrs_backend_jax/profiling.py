"""The kernels of one run and their times, as the profiler of JAX tells them."""

from __future__ import annotations

import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import jax

from gptrs.api.backends import KernelRun

Result = TypeVar("Result")
Tell = Callable[[KernelRun], None]

_profiler = cast("Any", jax.profiler)
_session = threading.Lock()
"""A process has one session of the profiler at a time."""
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%([\w.-]+) = (\([^)]*\)|\S+) ([\w-]+)\(([^)]*)\)(.*)$")
_INPUT = re.compile(r'op_name="inputs\[(\d+)\]"')
_OUTER = ("while", "conditional", "call", "async-start", "async-done")
"""Instructions whose kernels are told themselves."""


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
    """Return what `work` gives, and tell of the kernels that it ran.

    While something else in this process uses the profiler of JAX, it runs without a report.
    """
    options = _profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder, _session:
        try:
            _profiler.start_trace(folder, profiler_options=options)
        except RuntimeError:
            return work()
        try:
            result = work()
            ended = time.perf_counter()
        finally:
            _profiler.stop_trace()
        events = [each for path in Path(folder).rglob("*.xplane.pb") for each in _events(path)]
    last = max((start + seconds for _, start, seconds in events), default=0.0)
    for name, start, seconds in sorted(events, key=lambda event: event[1]):
        run = kernels.run(name, seconds, ended - (last - start))
        if run is not None:
            tell(run)
    return result


def _events(path: Path) -> Iterator[tuple[str, float, float]]:
    """Return the instruction of each kernel that ran, its start and what it took, in seconds.

    Where there are devices besides the host, those that ran there.
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
    """Return the instruction that an event is a run of, None for other events."""
    if event.name.startswith("end: "):
        return None
    with suppress(ValueError, TypeError):
        stats = cast("Mapping[str, object]", dict(event.stats))
        name = stats.get("hlo_op")
        return name if isinstance(name, str) else None
    return None
