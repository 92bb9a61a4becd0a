"""`--profile`: where the time of programs goes, by kernel, on any backend that can tell."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from typing_extensions import override

from gptrs.capture.events.trace import (
    CompileEnd,
    CompileStart,
    ExecutionTraceSink,
    KernelEvent,
    RunEnd,
    install,
    uninstall,
)
from gptrs.capture.fork_safe_lock import ForkSafeLock
from gptrs.quoting import clipped

MOST_ROWS = 40
"""Kernels in a table; a profile as JSON has them all."""
_WIDEST = 110
"""Characters of a kernel and its operands in a table."""


@dataclass(slots=True)
class KernelTotals:
    """The calls of one kernel on operands of the same types."""

    calls: int = 0
    seconds: float = 0.0
    nbytes: int | None = 0
    """Bytes read and written; None if that is not known."""

    def add(self, calls: int, seconds: float, nbytes: int | None) -> None:
        """Count these as well."""
        self.calls += calls
        self.seconds += seconds
        self.nbytes = None if self.nbytes is None or nbytes is None else self.nbytes + nbytes

    @property
    def gb_per_s(self) -> float | None:
        """Gigabytes (10^9) read and written a second; None if that is not known."""
        return self.nbytes / self.seconds / 1e9 if self.nbytes and self.seconds else None


Kernels = dict[tuple[str, str], KernelTotals]
"""Totals by name of the kernel and types of its operands."""


@dataclass(slots=True)
class ProgramProfile:
    """One compiled program: how often it ran, for how long, and what of that its kernels took."""

    origin: str
    """The cause, as in trace events: "flush", "run_program", "jit NAME"."""
    backend: str
    compile_seconds: float = 0.0
    runs: int = 0
    seconds: float = 0.0
    kernels: Kernels = field(default_factory=Kernels)

    @property
    def share_of_kernels(self) -> float:
        """Which part of its time passed within kernels."""
        within = sum(totals.seconds for totals in self.kernels.values())
        return within / self.seconds if self.seconds else 0.0


class Profile(ExecutionTraceSink):
    """Adds up what it is told of, from every thread."""

    wants_kernels = True

    def __init__(self) -> None:
        self._programs: dict[int, ProgramProfile] = {}
        self._lock = ForkSafeLock()

    @property
    def programs(self) -> Mapping[int, ProgramProfile]:
        """The programs by their numbers; those that ran but were compiled before have no origin."""
        with self._lock:
            return dict(self._programs)

    @override
    def before_program(self, event: CompileStart) -> None:
        with self._lock:
            self._programs[event.number] = ProgramProfile(event.origin, event.backend)

    @override
    def after_program(self, event: CompileEnd) -> None:
        with self._lock:
            self._program(event.number).compile_seconds += event.seconds

    @override
    def after_kernel(self, event: KernelEvent) -> None:
        run = event.run
        with self._lock:
            kernels = self._program(event.number).kernels
            totals = kernels.setdefault((run.kernel, run.operands), KernelTotals())
            totals.add(1, run.seconds, run.nbytes)

    @override
    def after_run(self, event: RunEnd) -> None:
        with self._lock:
            program = self._program(event.number)
            program.runs += 1
            program.seconds += event.seconds

    def _program(self, number: int) -> ProgramProfile:
        return self._programs.setdefault(number, ProgramProfile("compiled before", ""))

    def as_json(self) -> dict[str, object]:
        """Programs in the order of their compilation, and all kernels, the costliest first."""
        programs = self.programs
        return {
            "programs": [
                {
                    "number": number,
                    "origin": program.origin,
                    "backend": program.backend,
                    "compile_s": program.compile_seconds,
                    "runs": program.runs,
                    "seconds": program.seconds,
                    "kernels": _kernel_fields(program.kernels, program.seconds),
                }
                for number, program in programs.items()
            ],
            "kernels": _kernel_fields(_merged(programs.values()), _seconds(programs.values())),
        }

    def table(self) -> str:
        """Return the programs that ran and the costliest kernels of them all, a line each."""
        ran = {number: each for number, each in self.programs.items() if each.runs}
        lines = [f"{'program':>8}{'runs':>8}{'ms':>11}{'in kernels':>12}  asked for by"]
        for number, program in ran.items():
            share = f"{program.share_of_kernels:.1%}" if program.kernels else "-"
            lines.append(
                f"{number:8}{program.runs:8}{1000 * program.seconds:11.2f}{share:>12}"
                f"  {clipped(program.origin, 60)} on {program.backend or 'its backend'}"
            )
        return "\n".join([*lines, *_kernel_lines(_merged(ran.values()), _seconds(ran.values()))])


@contextmanager
def profiling() -> Generator[Profile]:
    """Scope in which all programs of the process are profiled; runs take longer meanwhile."""
    profile = Profile()
    install(profile)
    try:
        yield profile
    finally:
        uninstall(profile)


def _seconds(programs: Iterable[ProgramProfile]) -> float:
    return sum(program.seconds for program in programs)


def _merged(programs: Iterable[ProgramProfile]) -> Kernels:
    merged: Kernels = {}
    for program in programs:
        for key, totals in program.kernels.items():
            sums = merged.setdefault(key, KernelTotals())
            sums.add(totals.calls, totals.seconds, totals.nbytes)
    return merged


def _costliest_first(kernels: Kernels) -> list[tuple[tuple[str, str], KernelTotals]]:
    return sorted(kernels.items(), key=lambda item: -item[1].seconds)


def _kernel_fields(kernels: Kernels, seconds: float) -> list[dict[str, object]]:
    return [
        {
            "kernel": kernel,
            "operands": operands,
            "calls": totals.calls,
            "seconds": totals.seconds,
            "share": totals.seconds / seconds if seconds else None,
            "bytes": totals.nbytes,
            "gb_per_s": totals.gb_per_s,
        }
        for (kernel, operands), totals in _costliest_first(kernels)
    ]


def _kernel_lines(kernels: Kernels, seconds: float) -> list[str]:
    if not kernels:
        return ["the backend does not say what its kernels take"]
    lines = ["", f"{'ms':>11}{'share':>8}{'calls':>8}{'GB/s':>8}  kernel"]
    ranked = _costliest_first(kernels)
    for (kernel, operands), totals in ranked[:MOST_ROWS]:
        rate = f"{totals.gb_per_s:8.1f}" if totals.gb_per_s is not None else f"{'-':>8}"
        share = totals.seconds / seconds if seconds else 0.0
        lines.append(
            f"{1000 * totals.seconds:11.2f}{share:8.1%}{totals.calls:8}{rate}"
            f"  {clipped(f'{kernel}: {operands}', _WIDEST)}"
        )
    rest = [totals.seconds for _, totals in ranked[MOST_ROWS:]]
    if rest:
        lines.append(f"{1000 * sum(rest):11.2f}  {len(rest)} more; --json has them all")
    outside = max(0.0, seconds - sum(totals.seconds for _, totals in ranked))
    share = outside / seconds if seconds else 0.0
    return [*lines, f"{1000 * outside:11.2f}{share:8.1%}{'':16}  outside of kernels"]
