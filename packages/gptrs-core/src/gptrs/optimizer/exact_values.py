"""Constants that NumPy computes with the same bits as any backend: moves, integers, some floats.
Otherwise the first program of a process would wait for kernels that run once: with an empty cache,
`numba` compiled for 4 s to fold the positions `iota * 1` of the demo model. The reference backend
remains the definition; a test compares each function with it on all types.
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
    # Counted in si64 first: `arange` of a narrow type fails where PTIR wraps.
    indices = np.arange(count, dtype=np.int64).astype(op.dtype.numpy)
    return np.broadcast_to(indices.reshape(aligned), op.shape)


def _slice(op: layout.Slice, x: _Arrays) -> np.ndarray:
    # NumPy clips an end past the axis; `op.infer` has checked the reads.
    spans = zip(op.starts, op.sizes, op.steps(x[0].ndim), strict=True)
    return x[0][tuple([slice(start, start + size * step, step) for start, size, step in spans])]


def _rsqrt(x: np.ndarray) -> np.ndarray:
    # Two roundings, as `Backend.ieee_floats` demands. Every batch norm in an imported file folds
    # such a chain.
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
"""Ops of any type whose result elements are copied from operands or an attribute."""

ARITHMETIC: Mapping[type[Op], _Function] = {
    elementwise.Neg: np.negative,
    elementwise.Add: np.add,
    elementwise.Sub: np.subtract,
    elementwise.Mul: np.multiply,
    elementwise.Maximum: np.maximum,
    elementwise.Minimum: np.minimum,
}
"""Ops that wrap, for integers of at least 8 bits; 4-bit integers are stored in bytes, so NumPy
would not wrap them."""

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
"""Ops of f32 and f64 whose bits IEEE 754 fixes, for backends that follow it. Other backends may
flush subnormal numbers to zero, or use a faster, less exact square root."""

LOGIC: Mapping[type[Op], _Function] = {
    elementwise.Not: np.invert,
    elementwise.And: np.bitwise_and,
    elementwise.Or: np.bitwise_or,
    elementwise.Xor: np.bitwise_xor,
}
"""Ops of integers of at least 8 bits, or of bool."""

COMPARISONS: Mapping[str, _Function] = {
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "ne": np.not_equal,
}
"""The directions of `compare`, on the same types."""


def exact_values(
    instructions: Iterable[Instruction],
    given: Mapping[Value, np.ndarray] | None = None,
    *,
    ieee_floats: bool = False,
) -> dict[Value, np.ndarray]:
    """Return the results of those of the `instructions`, in order, that NumPy computes exactly.

    The instructions depend only on each other and on `given` values. `ieee_floats` is the backend's
    flag: False leaves float arithmetic to the backend.
    """
    known = dict(given or {})
    with np.errstate(all="ignore"):  # PTIR defines the results of overflow
        for instruction in instructions:
            compute = _function_of(instruction, ieee_floats)
            if compute is None or not all(value in known for value in instruction.operands):
                continue
            (result,) = instruction.results
            # `asarray`, as NumPy returns scalars for rank 0.
            known[result] = np.asarray(compute(*[known[value] for value in instruction.operands]))
    return known


def are_exact(instructions: Iterable[Instruction], *, ieee_floats: bool) -> bool:
    """Return whether `exact_values` computes all of the instructions."""
    return all(_function_of(each, ieee_floats) is not None for each in instructions)


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


# Ops whose result bits do not depend on an element's position, and a check of operand types.


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
"""Unary ops. IEEE 754 fixes their results for real types; exponentials and the like may differ in
the last bit between a backend's loops for other shapes and strides."""

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
"""Binary ops. `maximum` and `minimum` are missing: they may return either of two zeros."""


def accepts(op: Op, *operands: TensorType) -> bool:
    """Return whether `op` accepts these operands; False if symbolic dims leave that open."""
    try:
        op.result_types(operands)
    except ProgramError:
        return False
    return True
