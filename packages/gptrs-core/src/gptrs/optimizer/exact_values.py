"""Constants that NumPy computes as a backend does: moves of elements, integers, some floats.

The first program of a process would otherwise wait for kernels that run once: with an empty cache,
`numba` compiled for 4 s to fold the positions `iota * 1` of the demo model. The reference backend
remains the definition: a test holds each function equal to it on all types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gptrs.errors import ProgramError
from gptrs.ir.dtypes import f32, f64
from gptrs.ir.op import Op
from gptrs.ir.ops import creation, elementwise, layout
from gptrs.ir.ops import elementwise as ops
from gptrs.ir.program import Instruction, Value
from gptrs.ir.tensor_type import TensorType

_Arrays = Sequence[np.ndarray]
_Move = Callable[[Any, _Arrays], np.ndarray]
_Function = Callable[..., np.ndarray]


def _iota(op: creation.Iota, _: _Arrays) -> np.ndarray:
    count = op.shape[op.axis]
    aligned = [count if axis == op.axis else 1 for axis in range(len(op.shape))]
    indices = np.arange(count, dtype=np.int64).astype(op.dtype.numpy)
    return np.broadcast_to(indices.reshape(aligned), op.shape)


def _slice(op: layout.Slice, x: _Arrays) -> np.ndarray:
    # NumPy clips an end past the axis; `op.infer` has checked the reads.
    spans = zip(op.starts, op.sizes, op.steps(x[0].ndim), strict=True)
    return x[0][tuple([slice(start, start + size * step, step) for start, size, step in spans])]


def _rsqrt(x: np.ndarray) -> np.ndarray:
    # Two roundings, as `Backend.ieee_floats` says: each batch norm of a file folds such a chain.
    return np.reciprocal(np.sqrt(x))


MOVES: Mapping[type[Op], _Move] = {
    creation.Constant: lambda op, _: op.value.array,
    creation.Iota: _iota,
    layout.Reshape: lambda op, x: x[0].reshape(op.shape),
    layout.Transpose: lambda op, x: x[0].transpose(op.permutation),
    layout.BroadcastTo: lambda op, x: np.broadcast_to(x[0], op.shape),
    layout.Slice: _slice,
    layout.Concat: lambda op, x: np.concatenate(x, axis=op.axis),
    layout.Tile: lambda op, x: np.tile(x[0], op.repeats),
    layout.Reverse: lambda op, x: np.flip(x[0], op.axes),
    elementwise.Select: lambda _, x: np.where(*x),
}
"""Ops whose result elements come from operands or an attribute, for any type."""

ARITHMETIC: Mapping[type[Op], _Function] = {
    elementwise.Neg: np.negative,
    elementwise.Add: np.add,
    elementwise.Sub: np.subtract,
    elementwise.Mul: np.multiply,
    elementwise.Maximum: np.maximum,
    elementwise.Minimum: np.minimum,
}
"""Ops that wrap, for integers of at least 8 bits: 4-bit integers are stored in bytes."""

IEEE_754: Mapping[type[Op], _Function] = {
    elementwise.Neg: np.negative,
    elementwise.Abs: np.absolute,
    elementwise.Add: np.add,
    elementwise.Sub: np.subtract,
    elementwise.Mul: np.multiply,
    elementwise.Div: np.divide,
    elementwise.Sqrt: np.sqrt,
    elementwise.Rsqrt: _rsqrt,
    elementwise.Reciprocal: np.reciprocal,
    elementwise.Floor: np.floor,
    elementwise.Ceil: np.ceil,
    elementwise.RoundNearestEven: np.rint,
}
"""Ops of f32 and f64 whose bits IEEE 754 fixes, for backends that follow it. Others may flush
subnormal numbers to zero, or have a faster square root."""

LOGIC: Mapping[type[Op], _Function] = {
    elementwise.Not: np.invert,
    elementwise.And: np.bitwise_and,
    elementwise.Or: np.bitwise_or,
    elementwise.Xor: np.bitwise_xor,
}
"""Ops of such integers or of bool."""

COMPARISONS: Mapping[str, _Function] = {
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "ne": np.not_equal,
}
"""The directions of `compare`, of the same types."""


def exact_values(
    instructions: Iterable[Instruction], *, ieee_floats: bool = False
) -> dict[Value, np.ndarray]:
    """Return the results of those instructions, given in order, that NumPy computes exactly.

    They depend only on each other. `ieee_floats` is that of the backend: False leaves arithmetic
    of floats to it.
    """
    known: dict[Value, np.ndarray] = {}
    with np.errstate(all="ignore"):  # PTIR defines what overflow gives
        for instruction in instructions:
            compute = _function_of(instruction, ieee_floats)
            if compute is None or not all(value in known for value in instruction.operands):
                continue
            (result,) = instruction.results
            known[result] = np.asarray(compute(*[known[value] for value in instruction.operands]))
    return known


def _function_of(instruction: Instruction, ieee_floats: bool) -> _Function | None:
    """Return a function that computes an instruction; None if NumPy may differ."""
    op = instruction.op
    kind = type(op)
    if kind in MOVES:
        return lambda *operands: MOVES[kind](op, operands)
    dtypes = [value.type.dtype for value in instruction.operands]
    integers = all(dtype.is_integer and dtype.bits >= 8 for dtype in dtypes)
    if integers or all(dtype.is_bool for dtype in dtypes):
        if isinstance(op, elementwise.Compare):
            return COMPARISONS[op.direction]
        return (ARITHMETIC.get(kind) if integers else None) or LOGIC.get(kind)
    if ieee_floats and all(dtype in (f32, f64) for dtype in dtypes):
        return (
            COMPARISONS[op.direction] if isinstance(op, elementwise.Compare) else IEEE_754.get(kind)
        )
    return None


# Ops that give the same bits wherever an element stands, and whether an op takes operands.


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
