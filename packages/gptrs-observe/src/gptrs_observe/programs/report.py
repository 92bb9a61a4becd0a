"""The costs of a program: its ops, their work, and the memory of its values."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, field
from typing import Any

from gptrs.backend.memory import program_peak_bytes
from gptrs.ir.ops.control_flow import Cond, Scan
from gptrs.ir.ops.creation import Constant
from gptrs.ir.program import Instruction, Program, Region
from gptrs.ir.specialize import symbols
from gptrs.quick_dataclass import dataclass
from gptrs_observe.programs.op_work import Work, op_work


@dataclass(frozen=True, slots=True)
class NamedType:
    """A parameter or result: its name, and its type in IR syntax."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class OpUse:
    """An op: its count in the program, and its work in one run, loops multiplied out."""

    op: str
    count: int
    arithmetic: int
    transcendental: int
    bytes_moved: int


@dataclass(frozen=True, slots=True)
class ProgramWork:
    """The costs of one run of a program with known shapes.

    `ops` are those that `@main` reaches, the most frequent first. Bytes are those of `@main`'s
    parameters, of all constants, and of the results; `peak_bytes` is the most that is live at one
    time, by `gptrs.backend.memory`. `lower_bounds` says why work is more than was counted.
    """

    ops: tuple[OpUse, ...]
    parameter_bytes: int
    constant_bytes: int
    result_bytes: int
    peak_bytes: int
    lower_bounds: tuple[str, ...]

    @property
    def arithmetic(self) -> int:
        """Arithmetic operations of one run; see `gptrs_observe.programs.op_work`."""
        return sum(use.arithmetic for use in self.ops)

    @property
    def transcendental(self) -> int:
        """Transcendental functions of one run."""
        return sum(use.transcendental for use in self.ops)

    @property
    def bytes_moved(self) -> int:
        """Bytes that instructions read and write in one run, each by itself."""
        return sum(use.bytes_moved for use in self.ops)


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """A verified program: its interface, its functions and, with known shapes, its work.

    `functions` maps the name of each function that `@main` reaches to the number of its
    instructions, those in regions included; `unused` names the others.
    """

    inputs: tuple[NamedType, ...]
    results: tuple[NamedType, ...]
    symbols: tuple[str, ...]
    functions: dict[str, int]
    unused: tuple[str, ...]
    work: ProgramWork | None

    @property
    def instructions(self) -> int:
        """Instructions of all functions that `@main` reaches."""
        return sum(self.functions.values())

    def as_json(self) -> dict[str, Any]:
        """Return the object of `gptrs inspect --json`; `work` is null for unknown shapes."""
        fields: dict[str, Any] = asdict(self)
        work = self.work
        if work is not None:
            totals = {
                name: getattr(work, name)
                for name in ("arithmetic", "transcendental", "bytes_moved")
            }
            fields["work"] = {**totals, **asdict(work)}
        return {"instructions": self.instructions, **fields}


def report_program(program: Program) -> ProgramReport:
    """Describe a verified program."""
    reached = program.reachable()
    unknown = tuple(f"?{number}" for number in symbols(program))
    return ProgramReport(
        inputs=tuple(NamedType(name, str(param.type)) for name, param in program.inputs.items()),
        results=tuple(NamedType(name, type_) for name, type_ in result_types(program).items()),
        symbols=unknown,
        functions={f.name: sum(1 for _ in f.body.walk()) for f in reached},
        unused=tuple(f.name for f in program.functions if f not in reached),
        work=None if unknown else _work(program),
    )


def result_types(program: Program) -> dict[str, str]:
    """Return the types of the results, in IR syntax, by name: `result0`, ..."""
    results = program.main.body.results
    return {f"result{position}": str(value.type) for position, value in enumerate(results)}


def _work(program: Program) -> ProgramWork:
    counter = _WorkCounter()
    for function in program.reachable():  # each after those that it refers to
        counter.functions[function.name] = counter.region(function.body)
    done = counter.functions[program.main.name]
    counts = Counter(
        instruction.op.name
        for function in program.reachable()
        for instruction in function.body.walk()
    )
    uses = (
        OpUse(name, count, work.arithmetic, work.transcendental, work.bytes_moved)
        for name, count in counts.most_common()
        for work in (done.get(name, Work()),)
    )
    main = program.main.body
    return ProgramWork(
        ops=tuple(uses),
        parameter_bytes=sum(param.type.nbytes for param in main.params),
        constant_bytes=_constant_bytes(program),
        result_bytes=sum(value.type.nbytes for value in main.results),
        peak_bytes=program_peak_bytes(program),
        lower_bounds=tuple(counter.lower_bounds),
    )


def _constant_bytes(program: Program) -> int:
    return sum(
        instruction.result.type.nbytes
        for function in program.reachable()
        for instruction in function.body.walk()
        if isinstance(instruction.op, Constant)
    )


@dataclass()
class _WorkCounter:
    """Adds up the work of regions by op; that of the functions they call is known already."""

    functions: dict[str, dict[str, Work]] = field(default_factory=dict[str, dict[str, Work]])
    lower_bounds: dict[str, None] = field(default_factory=dict[str, None])
    """Reasons why the work is a lower bound, in the order found."""

    def region(self, region: Region) -> dict[str, Work]:
        """Return the work of one run."""
        total: dict[str, Work] = {}
        for instruction in region.instructions:
            for name, work in self._instruction(instruction).items():
                total[name] = total.get(name, Work()) + work
        return total

    def _instruction(self, instruction: Instruction) -> dict[str, Work]:
        op = instruction.op
        operands = [operand.type for operand in instruction.operands]
        bodies = [self.region(region) for region in instruction.regions]
        bodies += [self.functions[name] for name in op.callees()]
        if isinstance(op, Scan):
            steps = op.steps(operands)
            return {name: work * steps for name, work in bodies[0].items()}
        if isinstance(op, Cond):
            return max(bodies, key=_weight)
        if bodies:
            return self._each_once(instruction, bodies)
        work, is_known = op_work(op, operands, [result.type for result in instruction.results])
        if not is_known:
            self.lower_bounds[f"`{op.name}` does not say what it computes"] = None
        return {op.name: work}

    def _each_once(
        self, instruction: Instruction, bodies: list[dict[str, Work]]
    ) -> dict[str, Work]:
        if instruction.regions:
            reason = f"the regions of `{instruction.op.name}` are counted once"
            self.lower_bounds[reason] = None
        total: dict[str, Work] = {}
        for body in bodies:
            for name, work in body.items():
                total[name] = total.get(name, Work()) + work
        return total


def _weight(body: dict[str, Work]) -> tuple[int, int]:
    """Return the cost by which two branches are compared."""
    return (
        sum(work.arithmetic + work.transcendental for work in body.values()),
        sum(work.bytes_moved for work in body.values()),
    )
