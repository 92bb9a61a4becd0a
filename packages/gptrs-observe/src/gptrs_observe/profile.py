"""`--profile`: the time of programs by kernel, on any backend that reports it."""

from __future__ import annotations

import html
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from math import prod

from msgspec import Struct, field
from typing_extensions import override

from gptrs.backend.contract import InputRole, KernelRun
from gptrs.capture.events import (
    CompileEnd,
    CompileStart,
    ExecutionTraceSink,
    ImplementationChoice,
    KernelEvent,
    RunEnd,
    RunStart,
    install,
    uninstall,
)
from gptrs.fork_safe_lock import ForkSafeLock
from gptrs.ir.program import Program
from gptrs.ir.specialize import lone_symbol
from gptrs.quoting import clipped, counted
from gptrs.spans import Span, spans_told
from gptrs_observe.dump_records import choice_fields
from gptrs_observe.timeline import Interval, Kind, Timeline

# The bytes that a program takes from its caller, by role, at the sizes of its runs.

_GIVEN = (InputRole.ARGUMENT, InputRole.CONSTANT, InputRole.DONATED)
"""Roles of inputs that are no weights."""


class ProgramMemory(Struct):
    """The inputs of a program, and the peak bytes of the inputs of each role in a run."""

    program: Program | None = None
    """As captured."""
    roles: tuple[InputRole, ...] = ()
    most: Counter[InputRole] = field(default_factory=Counter[InputRole])
    sizes: dict[int, int] = field(default_factory=dict[int, int])
    """The sizes of the symbols in the last run."""

    @classmethod
    def of(cls, program: Program, roles: Sequence[InputRole]) -> ProgramMemory:
        """Return the record of a program that has not run yet."""
        return cls(program, tuple(roles))

    def see(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Take the shapes of the inputs of a run; parameters may come in another form."""
        if self.program is None:
            return
        found: Counter[InputRole] = Counter()
        params = self.program.main.body.params
        for param, role, shape in zip(params, self.roles, shapes, strict=False):
            if role not in _GIVEN:
                continue
            role = InputRole.ARGUMENT if role is InputRole.CONSTANT else role
            found[role] += prod(shape) * param.type.dtype.bits // 8
            for dim, size in zip(param.type.shape, shape, strict=False):
                if (number := lone_symbol(dim)) is not None:
                    self.sizes[number] = size
        # Counter's union takes the larger count of each role: roles peak in different runs.
        self.most |= found

    def weights(self) -> dict[str, int]:
        """Return the bytes of each weight by its name, the number of the input left out."""
        if self.program is None:
            return {}
        pairs = zip(self.program.main.body.params, self.roles, strict=False)
        return {
            (param.name or "").partition("_")[2] or str(at): param.type.nbytes
            for at, (param, role) in enumerate(pairs)
            if role not in _GIVEN
        }


# The layer of a kernel, from the names of the weights it reads.


_WEIGHT = re.compile(r"(?:derived_)*p\d+_(?P<path>.+)|(?:derived_)+(?P<derived>.+)")
_NUMBERED = re.compile(r".*?(?:^|_)\d+(?=_|$)")
_TENSOR = re.compile(r"_(?:weight|bias)$")


def layer_of(names: Iterable[str]) -> str:
    """Return the layer of the first weight among the names of inputs, "" if there is none.

    Weights are called `pNUMBER_PATH`: of `p20_transformer_h_5_attn_c_attn_weight` it is
    `transformer.h.5`, of `p2_transformer_wte_weight` `transformer_wte`.
    """
    for name in names:
        weight = _WEIGHT.fullmatch(name)
        if weight is not None:
            path = weight["path"] or weight["derived"]
            numbered = _NUMBERED.match(path)
            return _TENSOR.sub("", path) if numbered is None else numbered[0].replace("_", ".")
    return ""


MOST_ROWS = 40
"""Kernels in a table; a profile as JSON has them all."""
_WIDEST = 110
"""Characters of a kernel and its operands in a table."""


class KernelTotals(Struct):
    """The calls of one kernel on operands of the same types."""

    calls: int = 0
    seconds: float = 0.0
    nbytes: int | None = 0
    """Bytes read and written; None if unknown."""
    operations: int | None = 0
    """Operations on elements; None if unknown."""

    def add(self, other: KernelTotals) -> None:
        """Count these as well."""
        self.calls += other.calls
        self.seconds += other.seconds
        self.nbytes = _sum(self.nbytes, other.nbytes)
        self.operations = _sum(self.operations, other.operations)

    @property
    def gb_per_s(self) -> float | None:
        """Gigabytes (10^9) read and written per second; None if unknown."""
        return self.nbytes / self.seconds / 1e9 if self.nbytes and self.seconds else None

    @property
    def operations_per_byte(self) -> float | None:
        """Operations for each byte read or written; None if unknown."""
        return self.operations / self.nbytes if self.operations and self.nbytes else None

    @property
    def gflop_per_s(self) -> float | None:
        """Operations per second, 10^9; None if unknown."""
        return self.operations / self.seconds / 1e9 if self.operations and self.seconds else None


Kernels = dict[tuple[str, str], KernelTotals]
"""Totals by name of the kernel and types of its operands."""


class ProgramProfile(Struct):
    """One compiled program: how often it ran, for how long, and what of that its kernels took."""

    origin: str
    """The cause, as in trace events: "flush", "run_program", "jit NAME"."""
    backend: str
    reason: str = ""
    """Why it was compiled."""
    compile_seconds: float = 0.0
    found: bool = False
    """Whether an earlier process optimized it."""
    runs: int = 0
    seconds: float = 0.0
    kernels: Kernels = field(default_factory=Kernels)
    layers: dict[str, KernelTotals] = field(default_factory=dict[str, KernelTotals])
    """Totals by layer of the model, "" for kernels before the first one."""
    memory: ProgramMemory = field(default_factory=ProgramMemory)
    inputs: tuple[str, ...] = ()
    """The names of the inputs of the optimized program."""
    layer: str = ""
    """The layer of the last kernel."""

    @property
    def share_of_kernels(self) -> float:
        """The share of its time spent in kernels."""
        within = sum(totals.seconds for totals in self.kernels.values())
        return within / self.seconds if self.seconds else 0.0


def _shown_kernel(run: KernelRun) -> str:
    """Return the name of a kernel, with its backend if the program runs on two."""
    on_two = run.backend is not None and not run.kernel.startswith("copy to ")
    return f"{run.kernel} on {run.backend}" if on_two else run.kernel


class Profile(ExecutionTraceSink):
    """Adds up the reported events of every thread."""

    wants_kernels = True

    def __init__(self) -> None:
        self._programs: dict[int, ProgramProfile] = {}
        self._lock = ForkSafeLock()
        self.timeline = Timeline()
        self.spans: dict[str, KernelTotals] = {}
        """Calls and seconds of each kind of work outside of programs, by name."""
        self.choices: dict[ImplementationChoice, None] = {}
        """Implementations that the policy `benchmark` chose, in order."""
        self.started = time.perf_counter()
        self.date = datetime.now(UTC)
        """When it began."""
        self._ended: float | None = None
        self._begun: dict[tuple[int, int], list[float]] = defaultdict(list)
        """When compilations and runs began that have not ended, by thread and program."""

    @property
    def seconds(self) -> float:
        """How long it lasted, or has lasted so far."""
        return (self._ended or time.perf_counter()) - self.started

    def end(self) -> None:
        """Stop the clock."""
        self._ended = time.perf_counter()

    def __repr__(self) -> str:
        ran = [program for program in self.programs.values() if program.runs]
        runs = sum(program.runs for program in ran)
        return (
            f"<Profile of {self.seconds:.3g} s: {counted(len(ran), 'program')},"
            f" {counted(runs, 'run')}; print(profile.table()) lists kernels>"
        )

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return f"<pre>{html.escape(self.table())}</pre>"

    @property
    def programs(self) -> Mapping[int, ProgramProfile]:
        """The programs by their numbers; those that ran but were compiled before have no origin."""
        with self._lock:
            return dict(self._programs)

    @override
    def before_program(self, event: CompileStart) -> None:
        with self._lock:
            made = ProgramProfile(event.origin, event.backend, event.reason)
            made.memory = ProgramMemory.of(event.program, event.roles)
            self._programs[event.number] = made
            self._begin(event.number)

    @override
    def after_program(self, event: CompileEnd) -> None:
        with self._lock:
            program = self._program(event.number)
            program.compile_seconds += event.seconds
            program.found = event.found
            if event.optimized is not None:
                params = event.optimized.main.body.params
                program.inputs = tuple(param.name or "" for param in params)
            self._end("compile", "compile program", program.origin, event.number)

    @override
    def after_choice(self, choice: ImplementationChoice) -> None:
        with self._lock:
            self.choices.setdefault(choice)

    @override
    def before_run(self, event: RunStart) -> None:
        with self._lock:
            program = self._program(event.number)
            program.layer = ""
            program.memory.see(event.shapes)
            self._begin(event.number)

    @override
    def after_kernel(self, event: KernelEvent) -> None:
        run = event.run
        totals = KernelTotals(1, run.seconds, run.nbytes, run.operations)
        with self._lock:
            program = self._program(event.number)
            names = (program.inputs[at] for at in run.inputs if at < len(program.inputs))
            # Kernels without weights (norms without a scale, additions) belong to the layer around
            # them.
            program.layer = layer_of(names) or program.layer
            kernel = _shown_kernel(run)
            program.kernels.setdefault((kernel, run.operands), KernelTotals()).add(totals)
            program.layers.setdefault(program.layer, KernelTotals()).add(totals)
            # Backends that only tell a duration tell it at the end.
            began = time.perf_counter() - run.seconds if run.started is None else run.started
            thread = threading.get_ident()
            self.timeline.add(
                Interval(
                    "kernel",
                    kernel,
                    run.operands,
                    began,
                    run.seconds,
                    thread,
                    event.number,
                    program.layer,
                )
            )

    @override
    def after_run(self, event: RunEnd) -> None:
        with self._lock:
            program = self._program(event.number)
            program.runs += 1
            program.seconds += event.seconds
            self._end("run", "run program", program.origin, event.number)

    def after_span(self, span: Span) -> None:
        """Count work outside of programs."""
        with self._lock:
            self.spans.setdefault(span.name, KernelTotals()).add(KernelTotals(1, span.seconds))
            self.timeline.add(
                Interval("span", span.name, span.detail, span.started, span.seconds, span.thread)
            )

    def _begin(self, number: int) -> None:
        self._begun[threading.get_ident(), number].append(time.perf_counter())

    def _end(self, kind: Kind, name: str, detail: str, number: int) -> None:
        thread, now = threading.get_ident(), time.perf_counter()
        begun = self._begun[thread, number]
        if begun:
            began = begun.pop()
            self.timeline.add(Interval(kind, name, detail, began, now - began, thread, number))

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
                    "reason": program.reason,
                    "optimized_before": program.found,
                    "compile_s": program.compile_seconds,
                    "runs": program.runs,
                    "seconds": program.seconds,
                    "kernels": _kernel_fields(program.kernels, program.seconds),
                }
                for number, program in programs.items()
            ],
            "kernels": _kernel_fields(merged(programs.values()), _seconds(programs.values())),
            "choices": [choice_fields(each) for each in self.choices],
        }

    def table(self) -> str:
        """Return a line for each program that ran, and for the costliest kernels overall."""
        ran = {number: each for number, each in self.programs.items() if each.runs}
        lines = [f"{'program':>8}{'runs':>8}{'ms':>11}{'in kernels':>12}  asked for by"]
        for number, program in ran.items():
            share = f"{program.share_of_kernels:.1%}" if program.kernels else "-"
            lines.append(
                f"{number:8}{program.runs:8}{1000 * program.seconds:11.2f}{share:>12}"
                f"  {clipped(program.origin, 60)} on {program.backend or 'its backend'}"
            )
        lines += _kernel_lines(merged(ran.values()), _seconds(ran.values()))
        return "\n".join([*lines, *_choice_lines(self.choices)])


@contextmanager
def recording(profile: Profile) -> Generator[None]:
    """Scope in which `profile` records all programs of the process, which slows runs down."""
    install(profile)
    try:
        with spans_told(profile.after_span):
            yield
    finally:
        uninstall(profile)
        profile.end()


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _seconds(programs: Iterable[ProgramProfile]) -> float:
    return sum(program.seconds for program in programs)


def merged(programs: Iterable[ProgramProfile]) -> Kernels:
    """Return the totals over several programs."""
    sums: Kernels = {}
    for program in programs:
        for key, totals in program.kernels.items():
            sums.setdefault(key, KernelTotals()).add(totals)
    return sums


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
            "operations": totals.operations,
            "gflop_per_s": totals.gflop_per_s,
        }
        for (kernel, operands), totals in _costliest_first(kernels)
    ]


def _choice_lines(choices: Iterable[ImplementationChoice]) -> list[str]:
    lines = [
        f"  {each.functional} by {each.implementation} of {', '.join(each.operands)}: "
        + ", ".join(f"{name} {1e6 * seconds:.0f} us" for name, seconds in each.seconds)
        for each in choices
    ]
    return ["", "chosen by `benchmark`", *lines] if lines else []


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
    # Kernels of several threads may add up to more than the run took.
    outside = max(0.0, seconds - sum(totals.seconds for _, totals in ranked))
    share = outside / seconds if seconds else 0.0
    return [*lines, f"{1000 * outside:11.2f}{share:8.1%}{'':16}  outside of kernels"]
