"""The records of a dump: the text, origin, passes, state and runs of a program, as plain data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import cast

from msgspec import Struct, field

import gptrs
from gptrs.backend.contract import InputRole
from gptrs.capture.events import (
    CompileEnd,
    CompileStart,
    ImplementationChoice,
    PassEvent,
    ProgramPart,
)
from gptrs.capture.parameter import Parameter
from gptrs.ir import print_program
from gptrs.ir.literal_text import MAX_LISTED
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.custom_call import decompositions
from gptrs.ir.program import VERSION, Instruction, Program
from gptrs_runtime.programs import MAX_PROGRAM_BYTES

_MAX_MESSAGE = 10_000


class RunTotals(Struct):
    """Count and seconds of the runs of a program."""

    count: int = 0
    failed: int = 0
    total: float = 0.0
    least: float | None = None

    def add(self, seconds: float, *, failed: bool) -> None:
        """Count a run."""
        self.count += 1
        self.failed += failed
        self.total += seconds
        self.least = seconds if self.least is None else min(seconds, self.least)

    def fields(self) -> dict[str, object]:
        """Return the totals as `stats.json` has them."""
        return {
            "count": self.count,
            "failed": self.failed,
            "seconds": {
                "total": rounded(self.total),
                "min": None if self.least is None else rounded(self.least),
                "mean": rounded(self.total / self.count) if self.count else None,
            },
        }


class ProgramRecord(Struct):
    """A program of a dump: its number and folder there, and what happened to it so far."""

    number: int
    folder: str
    meta: dict[str, object]
    passes: list[PassEvent] = field(default_factory=list[PassEvent])
    compile_seconds: float | None = None
    runs: RunTotals = field(default_factory=RunTotals)
    inputs: tuple[str, ...] = ()
    """The names of the inputs of the optimized program."""
    has_inputs: bool = False
    """Whether the inputs of a run were written."""
    parameters: tuple[str, ...] = ()
    """The names of the parameters of the program before any pass."""
    weights: tuple[str, ...] = ()
    """Those of them that are weights."""
    bound: Mapping[str, Parameter] = field(default_factory=dict[str, Parameter])
    """The weights by name, where the program was optimized together with them."""

    @classmethod
    def of(cls, event: CompileStart, number: int, folder: str, run: str) -> ProgramRecord:
        """Return the record of a program that is about to be compiled."""
        bodies = [each.body for each in event.program.functions if each.name == "main"]
        params = [param for body in bodies for param in body.params]
        names = tuple(param.name or f"arg{position}" for position, param in enumerate(params))
        roles = zip(names, event.roles, strict=False)
        weights = tuple(name for name, role in roles if role is InputRole.PARAMETER)
        meta = meta_fields(event, number, run)
        return cls(number, folder, meta, parameters=names, weights=weights)

    def compiled(self, event: CompileEnd) -> None:
        """Record the end of the compilation."""
        self.compile_seconds = rounded(event.seconds)
        self.meta["compile_seconds"] = self.compile_seconds
        if event.optimized is not None:
            cast("dict[str, object]", self.meta["ops"])["after"] = op_counts(event.optimized)
            self.inputs = tuple(event.optimized.inputs)
        if event.parts:
            self.meta["parts"] = [part_fields(*each) for each in enumerate(event.parts)]
        self.meta["state"] = "compiled" if event.error is None else "failed"
        if event.error is not None:
            self.meta["error"] = {"while": "compile", **error_fields(event.error)}

    def run_failed(self, error: BaseException) -> None:
        """Record that a run failed; the first failure is kept."""
        # Later failures often follow from the first.
        if self.meta["error"] is None:
            self.meta["state"] = "failed"
            self.meta["error"] = {"while": "run", **error_fields(error)}

    def stats(self) -> dict[str, object]:
        """Return the content of `stats.json`."""
        return {
            "program": self.number,
            "passes": [pass_fields(event) for event in self.passes],
            "totals": {
                "passes": len(self.passes),
                "changed": sum(event.changed for event in self.passes),
                "pass_seconds": rounded(sum(event.seconds for event in self.passes)),
                "compile_seconds": self.compile_seconds,
            },
            "runs": self.runs.fields(),
        }


def meta_fields(event: CompileStart, number: int, run: str) -> dict[str, object]:
    """Return the content of `meta.json` for a program that is about to be compiled."""
    return {
        "number": number,
        "run": run,
        "time": utc_now(),
        "origin": event.origin,
        "backend": event.backend,
        "gptrs": gptrs.__version__,
        "ptir": VERSION,
        "state": "compiling",
        "error": None,
        "cache": {"hit": False, "reason": event.reason},
        "compile_seconds": None,
        "ops": {"before": op_counts(event.program), "after": None},
        "signature": _signature(event.program, event.roles),
    }


def pass_fields(event: PassEvent) -> dict[str, object]:
    """Return a pass as `passes.jsonl` and `stats.json` have it."""
    return {
        "stage": event.stage,
        "name": event.name,
        "round": event.round,
        "changed": event.changed,
        "before": event.before,
        "after": event.after,
        "seconds": rounded(event.seconds),
    }


def part_file(number: int, part: ProgramPart) -> str:
    """Return the name of the file with the program of a part."""
    return f"part-{number:02}-{part.backend}.ptir"


def part_fields(number: int, part: ProgramPart) -> dict[str, object]:
    """Return a part of a program that runs on two backends, as `meta.json` has it."""
    return {
        "backend": part.backend,
        "file": part_file(number, part),
        "ops": op_counts(part.program),
        "copied": [str(type_) for type_ in part.copied],
        **({"inside": list(part.inside)} if part.inside else {}),
        **({"once": [str(type_) for type_ in part.once]} if part.once else {}),
    }


def choice_fields(choice: ImplementationChoice) -> dict[str, object]:
    """Return a choice of the policy `benchmark` as `choices.jsonl` and profiles have it."""
    return {
        "functional": choice.functional,
        "implementation": choice.implementation,
        "operands": list(choice.operands),
        "backend": choice.backend,
        "seconds": {name: rounded(seconds) for name, seconds in choice.seconds},
    }


def error_fields(error: BaseException) -> dict[str, object]:
    """Return type and message of an error, even if its `__str__` fails."""
    try:
        message = str(error)
    # An error of a plugin may fail in its own `__str__`, and the dump is written for such cases.
    except Exception:
        message = "(its message cannot be shown)"
    return {"type": type(error).__name__, "message": message[:_MAX_MESSAGE]}


def op_counts(program: Program) -> dict[str, int]:
    """Count the instructions of a program, in total and of each op, the most frequent first.

    A composite counts as one instruction; its decomposition does not count.
    """
    inner = decompositions(program)
    counts = Counter(
        instruction.op.name
        for function in program.functions
        if function.name not in inner
        for instruction in function.body.walk()
    )
    return {"instructions": counts.total(), **dict(counts.most_common())}


def program_text(program: Program) -> str:
    """Return the text of a program; a comment if it is malformed or too long to be read again."""
    nbytes = sum(_listed_bytes(instruction) for instruction in _instructions(program))
    if 2 * nbytes > MAX_PROGRAM_BYTES:  # two digits a byte
        return f"// left out: a text with literals of {nbytes} bytes is too long to be read\n"
    try:
        return print_program(program)
    except Exception as error:  # a program that failed may be wrong in any way
        shown = error_fields(error)
        return f"// it cannot be printed: {shown['type']}: {shown['message']!r}\n"


def json_text(fields: dict[str, object]) -> str:
    """Return an object as indented JSON."""
    return f"{json.dumps(fields, indent=2)}\n"


def rounded(seconds: float) -> float:
    """Round to nanoseconds."""
    return round(seconds, 9)


def utc_now() -> str:
    """Return the time in ISO 8601, with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _signature(program: Program, roles: Sequence[InputRole]) -> dict[str, object] | None:
    """Return inputs, named as in `gptrs run`, and results; None for a program without `@main`."""
    main = next((function.body for function in program.functions if function.name == "main"), None)
    if main is None:
        return None
    named = [(param.name or f"arg{i}", param.type) for i, param in enumerate(main.params)]
    inputs = [
        {"name": name, "type": str(type_), "role": role.value}
        for (name, type_), role in zip(named, roles, strict=False)  # too few may be what fails
    ]
    return {"inputs": inputs, "results": [str(value.type) for value in main.results]}


def _instructions(program: Program) -> Iterable[Instruction]:
    return (instruction for function in program.functions for instruction in function.body.walk())


def _listed_bytes(instruction: Instruction) -> int:
    """Return the bytes of a literal that the text spells out in full, else 0."""
    if not isinstance(instruction.op, Constant):
        return 0
    literal = instruction.op.value
    if literal.type.size <= MAX_LISTED or literal.splat is not None:
        return 0
    return len(literal.data)
