"""The costs of a program: its ops, their work, and the memory of its values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, cast

import numpy as np
from msgspec import Struct, field, to_builtins
from typing_extensions import override

from gptrs.backend.contract import Backend
from gptrs.backend.memory import program_peak_bytes
from gptrs.backend.op_table import refusals_of
from gptrs.capture.compilation import compile_program
from gptrs.capture.events import CompileEnd, ExecutionTraceSink, ProgramPart, tracing
from gptrs.capture.execute import chosen_backend
from gptrs.capture.fallback.partition import cuts_inside
from gptrs.capture.fallback.parts_executable import fallback_of
from gptrs.capture.optimization import claim_of, own_pass
from gptrs.errors import UsageError
from gptrs.ir.ops.control_flow import Cond, Scan
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.custom_call import Composite, Declined
from gptrs.ir.program import Instruction, Program, Region
from gptrs.ir.specialize import symbols
from gptrs.optimizer import recording
from gptrs.optimizer.fusion import FusionPass
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs.optimizer.pipeline import find_pass, instruction_count
from gptrs.quoting import counted
from gptrs_observe.programs.op_work import Work, op_work


class NamedType(Struct, frozen=True):
    """A parameter or result: its name, and its type in IR syntax."""

    name: str
    type: str


class OpUse(Struct, frozen=True):
    """An op: its count in the program, and its work in one run, loops multiplied out."""

    op: str
    count: int
    arithmetic: int
    transcendental: int
    bytes_moved: int


class ProgramWork(Struct, frozen=True):
    """The costs of one run of a program with known shapes.

    `ops` are the ops reachable from `@main`, the most frequent first. Bytes cover `@main`'s
    parameters, all constants, and the results; `peak_bytes` is the peak of live values, by
    `gptrs.backend.memory`. `lower_bounds` says why work is more than was counted.
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
        """Bytes that instructions read and write in one run, each separately."""
        return sum(use.bytes_moved for use in self.ops)


class ProgramReport(Struct, frozen=True):
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
        fields: dict[str, Any] = to_builtins(self)
        work = self.work
        if work is not None:
            totals = {
                name: getattr(work, name)
                for name in ("arithmetic", "transcendental", "bytes_moved")
            }
            fields["work"] = {**totals, **to_builtins(work)}
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


class _WorkCounter(Struct):
    """Adds up the work of regions by op; the work of called functions is already known."""

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
            self.lower_bounds[f"`{op.name}` has unknown work"] = None
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
    """Return the cost for comparing two branches."""
    return (
        sum(work.arithmetic + work.transcendental for work in body.values()),
        sum(work.bytes_moved for work in body.values()),
    )


# Explain a pass of the optimizer, or the claims of a backend: declined matches, and the reasons.


FALLBACK = "fallback"
"""The name by which `explain` reports the parts of a program."""


class DeclinedRewrite(Struct, frozen=True):
    """A rewrite whose pattern fits and that was not applied all the same."""

    rewrite: str
    instruction: str
    """The op and the types of its operands."""
    reason: str
    times: int


class PassReport(Struct, frozen=True):
    """One pass, applied to a program."""

    name: str
    before: int
    """Instructions of the program, including those of regions and of all functions."""
    after: int
    """Instructions that the pass left."""
    equations: dict[str, str]
    """Summaries of the rewrites of the pass, by name; empty for a pass without rewrites."""
    fired: dict[str, int]
    """Applications by rewrite, omitting rewrites never applied."""
    declined: Sequence[DeclinedRewrite]


def explain(program: Program, name: str) -> PassReport:
    """Report on a pass, on the composites of a functional in `program`, or on its parts: who
    computes them?

    Passes are those of gptrs and of the backend in scope. `fallback` stands for the parts that run
    on this backend and on the one that it falls back to. UsageError for any other name.
    """
    if name == FALLBACK:
        return _explain_parts(program)
    composites = [
        made.op
        for function in program.functions
        for made in function.body.walk()
        if isinstance(made.op, Composite)
    ]
    kinds = {op.kind for op in composites if name in (op.title, op.kind)}
    if kinds:
        return _explain_claims(program, name, kinds)
    try:
        return explain_pass(program, name)
    except UsageError as error:
        if not composites:
            raise
        calls = ", ".join(sorted({op.title for op in composites}))
        raise UsageError(error.message, hint=f"this program calls {calls}; {error.hint}") from None


def _explain_claims(program: Program, name: str, kinds: Collection[str]) -> PassReport:
    """Report which composites of `kinds` the backend claims, and why it declines others."""
    backend = chosen_backend()
    claim = claim_of(backend)
    fired: Counter[str] = Counter()
    declined: Counter[tuple[str, str, str]] = Counter()
    for made in (made for function in program.functions for made in function.body.walk()):
        op = made.op
        if not isinstance(op, Composite) or op.kind not in kinds:
            continue
        types = [value.type for value in made.operands]
        claimed = claim(op, types, [value.type for value in made.results])
        if claimed is None or isinstance(claimed, Declined):
            none = f"`{backend.name}` has no kernel of this kind"
            reason = none if claimed is None else claimed.reason
            declined[op.kind, f"composite of {', '.join(map(str, types))}", reason] += 1
        else:
            fired[op.kind] += 1
    return PassReport(
        f"claims of `{backend.name}` for `{name}`",
        instruction_count(program),
        instruction_count(Inlining(claim).apply(program)),
        {kind: f"a kernel of `{backend.name}` computes it" for kind in sorted(kinds)},
        dict(fired),
        [DeclinedRewrite(*each, times) for each, times in declined.items()],
    )


class _Parts(ExecutionTraceSink):
    """Keeps the end of the compilation of the whole program."""

    end: CompileEnd | None = None

    @override
    def after_program(self, event: CompileEnd) -> None:
        self.end = event


def _explain_parts(program: Program) -> PassReport:
    """Compile `program` for the backend in scope; report what runs where, and why."""
    backend, sink = chosen_backend(), _Parts()
    with tracing(sink):
        compile_program(program, backend)
    assert sink.end is not None
    assert sink.end.optimized is not None
    optimized = sink.end.optimized
    declined: Counter[tuple[str, str]] = Counter()
    for made in optimized.main.body.instructions:
        types = ", ".join(str(value.type) for value in made.operands)
        inside = _taken_along(backend, optimized, made)
        for reason in refusals_of(backend, optimized, [made]):
            declined[f"`{made.op.name}` of {types}", reason + inside] += 1
    parts: dict[str, str] = {}
    counts: dict[str, int] = {}
    for number, part in enumerate(sink.end.parts):
        ops = dict.fromkeys(made.op.name for made in part.program.main.body.instructions)
        within = "".join(f", {name}" for name in part.inside)
        name = f"part {number} on {part.backend}{within}"
        parts[name] = f"{', '.join(ops)}; {_copies(part)}"
        counts[name] = instruction_count(part.program)
    whole = {f"whole on {backend.name}": "it refuses nothing"}
    return PassReport(
        FALLBACK,
        instruction_count(optimized),
        sum(counts.values()) or instruction_count(optimized),
        parts or whole,
        counts or dict.fromkeys(whole, instruction_count(optimized)),
        [DeclinedRewrite(backend.name, *each, times) for each, times in declined.items()],
    )


def _copies(part: ProgramPart) -> str:
    """Return what is copied before a part, inside a loop before each run of it."""
    nbytes = sum(type_.nbytes for type_ in part.copied)
    text = f"{len(part.copied)} copies of {nbytes} bytes before it"
    if not all(name.endswith("`cond`") for name in part.inside):
        text += " in each step"
    if part.once:
        once = sum(type_.nbytes for type_ in part.once)
        text += f", {len(part.once)} of {once} bytes once a loop"
    return text


def _taken_along(backend: Backend, program: Program, made: Instruction) -> str:
    """Return what falls back with a loop or branch, though the backend has the ops of it."""
    inner = [each for region in made.regions for each in region.walk()]
    able = sum(not refusals_of(backend, program, [each]) for each in inner)
    fallback = fallback_of(backend)
    if not able or fallback is None or cuts_inside(program, made, backend, fallback, {}):
        return ""
    return f"; the whole `{made.op.name}` falls back, with {counted(able, 'op')} that could run"


def explain_pass(program: Program, name: str) -> PassReport:
    """Apply the pass called `name` to `program`, and report; UsageError for an unknown pass.

    A pass of the backend in scope gets what the passes before it in the pipeline make of a program
    with composites, in which it would find nothing.
    """
    own = own_pass(program, chosen_backend(), name)
    pass_, before = own or (find_pass(name), program)
    captured = any(
        isinstance(made.op, Composite)
        for function in program.functions
        for made in function.body.walk()
    )
    program = before if captured else program
    with recording() as journal:
        changed = pass_.apply(program)
    rewrites = pass_.rewrites if isinstance(pass_, RewritePass) else ()
    equations = {rewrite.name: rewrite.equation for rewrite in rewrites}
    if isinstance(pass_, FusionPass):
        equations = {name: f"one instruction for each call of `{pass_.pattern.name}`"}
    return PassReport(
        name,
        instruction_count(program),
        instruction_count(changed),
        equations,
        dict(journal.fired),
        [
            DeclinedRewrite(refusal.rewrite, refusal.instruction, refusal.reason, times)
            for refusal, times in journal.refused.items()
        ],
    )


# Values of results for people and for other programs.


MAX_JSON_ELEMENTS = 64
"""Most elements that `json_values` lists."""
_MAX_SHOWN = 64
_LINE_WIDTH = 96


def shown_values(array: np.ndarray) -> str:
    """Print elements as NumPy does, large arrays abbreviated, the more so the more axes."""
    ends = 3 if array.ndim <= 2 else 2 if array.ndim == 3 else 1
    return np.array2string(array, max_line_width=_LINE_WIDTH, threshold=_MAX_SHOWN, edgeitems=ends)


def json_values(array: np.ndarray) -> object:
    """Return the elements as nested lists that JSON can hold.

    Floats are exact; NaN and infinities are the strings `nan`, `inf` and `-inf`, a complex number
    is the list of its parts.
    """
    if array.dtype == object:  # strings of imported models
        return array.tolist()
    if array.ndim:
        return [json_values(part) for part in array]
    value: object = array.item()
    if isinstance(value, complex):
        return [_number(value.real), _number(value.imag)]
    if isinstance(value, bool | int):
        return value
    # The scalars of ml_dtypes, too; 4-bit integers among them.
    number = float(cast("float", value))
    return int(number) if array.dtype.name in ("int4", "uint4") else _number(number)


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
