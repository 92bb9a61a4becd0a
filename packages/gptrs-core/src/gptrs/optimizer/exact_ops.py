"""Ops that give the same bits wherever an element stands, and whether an op takes operands."""

from __future__ import annotations

from gptrs.errors import ProgramError
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise as ops
from gptrs.ir.tensor_type import TensorType

EXACT_UNARY: tuple[type[Op], ...] = (
    ops.Neg,
    ops.Abs,
    ops.Sign,
    ops.Sqrt,
    ops.Reciprocal,
    ops.Floor,
    ops.Ceil,
    ops.RoundNearestEven,
    ops.Not,
    ops.IsFinite,
    ops.Cast,
    ops.Bitcast,
)
"""Of one operand. Of real types IEEE 754 fixes the results; exponentials and the like may differ in
the last bit between the loops that a backend runs for other shapes and strides."""

EXACT_BINARY: tuple[type[Op], ...] = (
    ops.Add,
    ops.Sub,
    ops.Mul,
    ops.Div,
    ops.Rem,
    ops.And,
    ops.Or,
    ops.Xor,
    ops.ShiftLeft,
    ops.ShiftRightArithmetic,
    ops.ShiftRightLogical,
    ops.Compare,
)
"""Of two operands. `maximum` and `minimum` may give either of two zeros."""


def accepts(op: Op, *operands: TensorType) -> bool:
    """Return whether `op` takes these operands; it does not where symbolic dims leave that open."""
    try:
        op.result_types(operands)
    except ProgramError:
        return False
    return True
