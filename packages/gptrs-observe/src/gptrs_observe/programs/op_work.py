"""The work of one instruction, by rules that hold for every backend.

Arithmetic counts operations on elements of any type, one for complex numbers as well: a
multiplication and an addition for each product of a contraction, one for each element of an
elementwise result, one for each element that a reduction or window takes in, 7 for each element of
`layer_norm`, 2 for each that is quantized or dequantized, a comparison for each step of a merge
sort. Functions such as `exp` and `sqrt`, whose cost differs between machines, are counted apart.
Layout, indexing, constants and random bits are no arithmetic.

Bytes moved are those of operands and results, as if each instruction ran alone: from an indexed
operand, an instruction reads as much as its result; `reshape` and the like move nothing.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, cast

from msgspec import Struct

from gptrs.errors import UsageError
from gptrs.ir.op import OPS, Op
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.control_flow import Call
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.elementwise import Bitcast, Div, Reciprocal, Row, StopGradient
from gptrs.ir.ops.indexing import DynamicSlice, Gather, ScatterReduce, SegmentReduce, Take
from gptrs.ir.ops.layout import Reshape, Slice
from gptrs.ir.ops.sorting import Sort, TopK
from gptrs.ir.ops.window import ReduceWindow
from gptrs.ir.program import Instruction, Program
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import quoted
from gptrs.strict_json import parse_object, record_of

Types = Sequence[TensorType]
TRANSCENDENTAL = frozenset(
    name
    for name, op in OPS.items()
    if issubclass(op, Row) and op.ulps and op not in (Div, Reciprocal)
)
"""Elementwise ops that are counted apart from arithmetic."""
_FAMILIES = "gptrs.ir.ops."
_VIEWS = (Bitcast, StopGradient, Reshape)
_PARTIAL_READS = (Take, Gather, DynamicSlice, Slice)


class Work(Struct, frozen=True):
    """Arithmetic operations, transcendental functions, and bytes read and written."""

    arithmetic: int = 0
    transcendental: int = 0
    bytes_moved: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.arithmetic + other.arithmetic,
            self.transcendental + other.transcendental,
            self.bytes_moved + other.bytes_moved,
        )

    def __mul__(self, times: int) -> Work:
        return Work(self.arithmetic * times, self.transcendental * times, self.bytes_moved * times)


def op_work(op: Op, operands: Types, results: Types) -> tuple[Work, bool]:
    """Return the work of one instruction without regions, and whether its arithmetic is known.

    The work of a `custom_call`, and of ops outside of PTIR, is unknown.
    """
    arithmetic = _arithmetic(op, operands, results)
    moved = _bytes_moved(op, operands, results)
    if arithmetic is None:
        return Work(bytes_moved=moved), False
    if op.name in TRANSCENDENTAL:
        return Work(transcendental=arithmetic, bytes_moved=moved), True
    return Work(arithmetic=arithmetic, bytes_moved=moved), True


def _arithmetic(op: Op, operands: Types, results: Types) -> int | None:
    for kind, rule in _BY_OP.items():
        if isinstance(op, kind):
            return rule(op, operands, results)
    module = type(op).__module__
    family = module.removeprefix(_FAMILIES)
    if family == module or family not in _BY_FAMILY:
        return None
    per_result, per_operand = _BY_FAMILY[family]
    read = operands[0].size if operands else 0
    return per_result * results[0].size + per_operand * read


def _bytes_moved(op: Op, operands: Types, results: Types) -> int:
    if isinstance(op, _VIEWS):
        return 0
    read = [operand.nbytes for operand in operands]
    written = sum(result.nbytes for result in results)
    if isinstance(op, _PARTIAL_READS):
        read[0] = min(read[0], written)
    return sum(read) + written


def _contraction(op: Op, operands: Types, results: Types) -> int:
    lhs, axes = operands[0], cast("DotGeneral", op).contract_lhs
    return 2 * results[0].size * math.prod(lhs.shape[axis] for axis in axes)


def _window(op: Op, operands: Types, results: Types) -> int:
    return results[0].size * math.prod(cast("ReduceWindow", op).window)


def _sort(op: Op, operands: Types, results: Types) -> int:
    return _comparisons(operands[0], operands[0].shape[cast("Sort", op).axis])


def _top_k(op: Op, operands: Types, results: Types) -> int:
    return _comparisons(operands[0], cast("TopK", op).k + 1)


def _comparisons(x: TensorType, ways: int) -> int:
    return x.size * math.ceil(math.log2(ways)) if ways else 0


def _nothing(op: Op, operands: Types, results: Types) -> int:
    return 0


def _updates(op: Op, operands: Types, results: Types) -> int:
    return operands[2].size


def _operand(op: Op, operands: Types, results: Types) -> int:
    return operands[0].size


_BY_OP: dict[type[Op], Callable[[Op, Types, Types], int]] = {
    DotGeneral: _contraction,
    ReduceWindow: _window,
    Sort: _sort,
    TopK: _top_k,
    ScatterReduce: _updates,
    SegmentReduce: _operand,
    Bitcast: _nothing,
    StopGradient: _nothing,
}
_BY_FAMILY = {
    "elementwise": (1, 0),
    "reduction": (0, 1),
    "normalization": (7, 0),
    "quantization": (2, 0),
    "creation": (0, 0),
    "indexing": (0, 0),
    "layout": (0, 0),
    "random": (0, 0),
    "window": (0, 0),
}
"""Operations for each element of the first result, and of the first operand, by module of ops."""


# Names of ops and kernels by function: `linear`, not `custom_call`.


_TARGET = re.compile(r"(?:[A-Za-z_]\w*\.){2}(?P<name>\w+)(?:\.\w+)*\.v\d+")
"""`VENDOR.BACKEND.NAME.DTYPE.vVERSION`: how targets of custom calls are called."""


def target_name(target: str) -> str:
    """Return the name in the target of a custom call, or the target itself."""
    found = _TARGET.fullmatch(target)
    return target if found is None else found["name"]


def kernel_name(kernel: str) -> str:
    """Return the name of a kernel, ops joined by ` + `, with the names of targets in it."""
    return " + ".join(target_name(part) for part in kernel.split(" + "))


def op_title(op: Op) -> str:
    """Return the name of an op: of a composite the functional, of a custom call its target.

    The attributes `bias`, `activation` and `residual` describe the fused parts of a custom call:
    `linear + bias + gelu_tanh`.
    """
    if not isinstance(op, CustomCall):
        return op.title
    given = dict(op.attrs.items)
    flags = [key for key in ("bias", "residual") if given.get(key) is True]
    activation = given.get("activation")
    if isinstance(activation, str) and activation != "none":
        flags.insert("bias" in flags, activation)
    return " + ".join([target_name(op.target), *flags])


# The time of each instruction of a program, from the profile of a run.


_MOST_BYTES = 64 << 20
_HINT = "`--profile-out DIR` writes one: DIR/profile.json"


class InstructionTimes(Struct, frozen=True):
    """Shares of the time in kernels, 0 to 1: of each instruction, and of kernels without one.

    A call has the share of its function; several calls of one function divide it.
    """

    shares: dict[Instruction, float]
    elsewhere: float


def read_times(path: Path, program: Program) -> InstructionTimes:
    """Return the times in a profile.json; UsageError if it is not one, or of other programs.

    A kernel belongs to the instructions with its last op and its result type; several such
    instructions share its time. Symbols match any size.
    """
    kernels = _kernels(path)
    total = sum(seconds for _, _, seconds in kernels) or 1.0
    indices: dict[str, list[tuple[re.Pattern[str], Instruction]]] = defaultdict(list)
    for function in program.reachable():
        for each in function.body.walk():
            if each.results:
                pattern = _pattern(str(each.results[0].type))
                indices[_name(each.op)].append((pattern, each))
    shares: dict[Instruction, float] = defaultdict(float)
    elsewhere = 0.0
    for kernel, type_, seconds in kernels:
        last = kernel.rsplit(" + ", 1)[-1]
        found = [each for pattern, each in indices[last] if pattern.fullmatch(type_)]
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


class _Kernel(Struct, frozen=True):
    kernel: str
    operands: str
    seconds: float


class _Profile(Struct, frozen=True):
    """The fields that are read of a profile.json."""

    format: Literal["gptrs-profile"]
    kernels: list[_Kernel]


def _kernels(path: Path) -> list[tuple[str, str, float]]:
    """Return names, the types that are written, and seconds."""
    shown = quoted(str(path))
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES)
    except OSError as error:
        raise UsageError(f"cannot read {shown}: {error.strerror}") from error
    document = parse_object(data, shown, UsageError, hint=_HINT)
    profile = record_of(document, _Profile, f"the profile {shown}", UsageError, hint=_HINT)
    return [(k.kernel, k.operands.rpartition(" -> ")[2], k.seconds) for k in profile.kernels]


def _name(op: Op) -> str:
    return op.target if isinstance(op, CustomCall) else op.name


def _pattern(type_: str) -> re.Pattern[str]:
    """Return a pattern that matches a type with numbers for its symbols."""
    head, bracket, rest = type_.partition("[")
    dims = [r"\d+" if "?" in dim else re.escape(dim.strip()) for dim in rest.rstrip("]").split(",")]
    shape = r",\s*".join(dims)
    return re.compile(re.escape(head) + (rf"\[{shape}\]" if bracket else ""))
