"""The time of each instruction of a program, by the profile of a run of it."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any, cast

from gptrs.errors import UsageError
from gptrs.ir.op import Op
from gptrs.ir.ops.control_flow import Call
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.program import Instruction, Program
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import quoted
from gptrs.strict_json import parse_object

_MOST_BYTES = 64 << 20
_HINT = "`--profile-out DIR` writes one: DIR/profile.json"


@dataclass(frozen=True, slots=True)
class InstructionTimes:
    """Shares of the time in kernels, 0 to 1: of each instruction, and of kernels without one.

    A call has the share of its function; several calls of one function divide it.
    """

    shares: dict[Instruction, float]
    elsewhere: float


def read_times(path: Path, program: Program) -> InstructionTimes:
    """Return the times in a profile.json; UsageError if it is none, or of other programs.

    A kernel belongs to the instructions whose op it ends with, and whose result has the type that
    it writes; several of them share its time. Symbols stand for any size.
    """
    kernels = _kernels(path)
    total = sum(seconds for _, _, seconds in kernels) or 1.0
    places: dict[str, list[tuple[re.Pattern[str], Instruction]]] = defaultdict(list)
    for function in program.reachable():
        for each in function.body.walk():
            if each.results:
                pattern = _pattern(str(each.results[0].type))
                places[_name(each.op)].append((pattern, each))
    shares: dict[Instruction, float] = defaultdict(float)
    elsewhere = 0.0
    for kernel, type_, seconds in kernels:
        last = kernel.rsplit(" + ", 1)[-1]
        found = [each for pattern, each in places[last] if pattern.fullmatch(type_)]
        for each in found:
            shares[each] += seconds / total / len(found)
        if not found:
            elsewhere += seconds / total
    if not shares:
        raise UsageError(
            f"none of the kernels in {quoted(str(path))} is of this program",
            hint="take optimized.ptir of a dump of the run that was profiled, by the same backend",
        )
    _add_calls(program, shares)
    return InstructionTimes(dict(shares), elsewhere)


def _add_calls(program: Program, shares: dict[Instruction, float]) -> None:
    """Give the calls of a function equal parts of its time."""
    calls: dict[str, list[Instruction]] = defaultdict(list)
    for function in program.functions:
        for each in function.body.walk():
            if isinstance(each.op, Call):
                calls[each.op.function].append(each)
    for function in program.functions:  # each after those that it calls
        within = sum(shares.get(each, 0.0) for each in function.body.walk())
        for call in calls[function.name]:
            shares[call] = within / len(calls[function.name])


def _kernels(path: Path) -> list[tuple[str, str, float]]:
    """Return names, the types that are written, and seconds."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES)
        document = cast("Any", parse_object(data, quoted(str(path)), UsageError, hint=_HINT))
        if document["format"] != "gptrs-profile":
            raise KeyError
        return [
            (
                str(each["kernel"]),
                str(each["operands"]).rpartition(" -> ")[2],
                float(each["seconds"]),
            )
            for each in document["kernels"]
        ]
    except OSError as error:
        raise UsageError(f"cannot read {quoted(str(path))}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{quoted(str(path))} is no profile", hint=_HINT) from error


def _name(op: Op) -> str:
    return op.target if isinstance(op, CustomCall) else op.name


def _pattern(type_: str) -> re.Pattern[str]:
    """Return what matches a type with numbers in the place of its symbols."""
    head, bracket, rest = type_.partition("[")
    dims = [r"\d+" if "?" in dim else re.escape(dim.strip()) for dim in rest.rstrip("]").split(",")]
    shape = r",\s*".join(dims)
    return re.compile(re.escape(head) + (rf"\[{shape}\]" if bracket else ""))
