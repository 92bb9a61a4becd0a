"""The work of one instruction, by rules that hold for every backend.

Arithmetic counts operations on elements of any type, one for complex numbers as well: a
multiplication and an addition for each product of a contraction, one for each element of an
elementwise result, one for each element that a reduction or window takes in, 7 for each element of
`layer_norm`, 2 for each that is quantized or dequantized, a comparison for each step of a merge
sort. Functions such as `exp` and `sqrt`, whose cost differs between machines, are counted apart.
Layout, indexing, constants and random bits are no arithmetic.

Bytes moved are those of operands and results, as if each instruction ran alone: of what it indexes,
an instruction reads as much as it gives; `reshape` and the like move nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

from gptrs.ir.op import OPS, Op
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.elementwise import Bitcast, Div, Reciprocal, Row, StopGradient
from gptrs.ir.ops.indexing import DynamicSlice, Gather, ScatterReduce, SegmentReduce, Take
from gptrs.ir.ops.layout import Reshape, Slice
from gptrs.ir.ops.sorting import Sort, TopK
from gptrs.ir.ops.window import ReduceWindow
from gptrs.ir.tensor_type import TensorType
from gptrs.quick_dataclass import dataclass

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


@dataclass(frozen=True, slots=True)
class Work:
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

    That of a `custom_call`, and of ops that do not belong to PTIR, is not.
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
