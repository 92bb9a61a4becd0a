"""Elementwise kernels: a group of ops becomes one loop over strided operands.

Ops are functions of compiled code; `fused_loops` writes the loop that calls them.
"""

from __future__ import annotations

import cmath
import math
import operator
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct

from gptrs.ir.dtypes import DType, Kind
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise as ops
from gptrs_backend_numba.codegen import complex_numbers, machine, scalar
from gptrs_backend_numba.codegen.conversion import convert
from gptrs_backend_numba.codegen.elements import (
    Unary,
    load_of,
    memory_of,
    register_of,
    rounded_of,
    store_of,
    unchanged,
    unrounded_cast_of,
)
from gptrs_backend_numba.codegen.inlining import made, named, register_jitable
from gptrs_backend_numba.codegen.kernel import GeneratedKernel
from gptrs_backend_numba.codegen.machine import is_narrow
from gptrs_backend_numba.kernels.elementwise_tasks import OTHERS, OTHERS_OF_SEVERAL
from gptrs_backend_numba.kernels.fused_loops import Step, fused


@register_jitable
def is_finite(x):
    """Return whether a float is neither infinite nor NaN."""
    return x - x == x - x


@register_jitable
def clamped_float(x, low, high):
    """Return the float within bounds that is nearest to `x`; NaN if any of the three is."""
    return machine.float_minimum(machine.float_maximum(x, low), high)


@register_jitable
def clamped_integer(x, low, high):
    """Return the integer within bounds that is nearest to `x`."""
    return machine.integer_minimum(machine.integer_maximum(x, low), high)


@register_jitable
def first(x, exponent):
    """Return `x`."""
    return x


@register_jitable
def squared(x, exponent):
    """Return `x` squared."""
    return x * x


@register_jitable
def cubed(x, exponent):
    """Return `x` cubed, by two products."""
    return x * x * x


SMALL_POWERS: dict[int, Unary] = {1: first, 2: squared, 3: cubed}
"""Functions of a base and a constant exponent."""


@made
def _complex_of(name: str, dtype: DType) -> Unary:
    """Return a function of complex128 for operands of a complex type, its result rounded to it."""
    compute, type_ = _OF_COMPLEX[name], register_of(dtype)

    @register_jitable
    @named(f"{name}_of_{dtype}")
    def of_one(x):
        return type_(compute(np.complex128(x)))

    @register_jitable
    @named(f"{name}_of_two_{dtype}")
    def of_two(x, y):
        return type_(compute(np.complex128(x), np.complex128(y)))

    return of_two if name in ("div", "pow") else of_one


@made
def _of_truths(direction: ops.Direction) -> Unary:
    """Return the comparison of truth values, as numbers."""
    compare = _COMPARISONS[direction]

    @register_jitable
    @named(f"truths_{direction}")
    def compared(x, y):
        return compare(convert(x, np.uint8), convert(y, np.uint8))

    return compared


GELU: Unary = scalar.gelu_f32
"""GELU by the error function, of f32: a function that chains in parts have, too."""

_FLOAT: dict[str, object] = {
    "neg": operator.neg,
    "abs": machine.absolute,
    "expm1": math.expm1,
    "log": math.log,
    "log1p": math.log1p,
    "sqrt": machine.square_root,
    "rsqrt": machine.reciprocal_root,
    "reciprocal": machine.reciprocal,
    "sin": math.sin,
    "cos": math.cos,
    "floor": machine.floor,
    "ceil": machine.ceil,
    "round_nearest_even": machine.rint,
    "is_finite": is_finite,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": machine.divide,
    "rem": machine.float_remainder,
    "pow": machine.power,
    "maximum": machine.float_maximum,
    "minimum": machine.float_minimum,
    "select": machine.choose,
    "clamp": clamped_float,
}
_F64: dict[str, object] = {
    **_FLOAT,
    "exp": math.exp,
    "tanh": math.tanh,
    "erf": math.erf,
    "sign": scalar.sign_f64,
    "logistic": scalar.logistic_f64,
}
_F32: dict[str, object] = {
    **_FLOAT,
    "exp": scalar.exp_f32,
    "tanh": scalar.tanh_f32,
    "erf": scalar.erf_f32,
    "sign": scalar.sign_f32,
    "logistic": scalar.logistic_f32,
}
"""For narrow floats, too."""
_LOGIC: dict[str, object] = {
    "not": machine.complement,
    "and": machine.bit_and,
    "or": machine.bit_or,
    "xor": machine.bit_xor,
    "select": machine.choose,
}
_BOOL: dict[str, object] = {**_LOGIC, "maximum": machine.bit_or, "minimum": machine.bit_and}
_INTEGER: dict[str, object] = {
    **_LOGIC,
    "neg": machine.negated,
    "abs": machine.integer_absolute,
    "sign": machine.integer_sign,
    "add": machine.wrap_add,
    "sub": machine.wrap_sub,
    "mul": machine.wrap_mul,
    "div": machine.quotient,
    "rem": machine.remainder,
    "maximum": machine.integer_maximum,
    "minimum": machine.integer_minimum,
    "shift_left": machine.shift_left,
    "shift_right_arithmetic": machine.shift_right_arithmetic,
    "shift_right_logical": machine.shift_right_logical,
    "clamp": clamped_integer,
}
_FOUR_BITS = {**_INTEGER, "shift_right_logical": machine.shift_right_low_half}
_COMPLEX: dict[str, object] = {
    "neg": operator.neg,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "is_finite": complex_numbers.complex_is_finite,
    "select": machine.choose,
}
_OF_COMPLEX: dict[str, object] = {
    "exp": cmath.exp,
    "expm1": complex_numbers.complex_expm1,
    "log": cmath.log,
    "log1p": complex_numbers.complex_log1p,
    "sqrt": cmath.sqrt,
    "rsqrt": complex_numbers.complex_rsqrt,
    "reciprocal": complex_numbers.complex_reciprocal,
    "sin": cmath.sin,
    "cos": cmath.cos,
    "tanh": cmath.tanh,
    "div": complex_numbers.complex_divide,
    "pow": complex_numbers.complex_power,
}
"""Functions of complex128."""
_BY_KIND: dict[Kind, dict[str, object]] = {
    "complex": _COMPLEX, "signed": _INTEGER, "unsigned": _INTEGER, "bool": _BOOL,
}  # fmt: skip
_COMPARISONS: dict[ops.Direction, object] = {
    "lt": operator.lt,
    "le": operator.le,
    "eq": operator.eq,
    "ge": operator.ge,
    "gt": operator.gt,
    "ne": operator.ne,
}
DIRECTIONS = tuple(_COMPARISONS)
"""Of comparisons."""


class Operation(Struct, frozen=True):
    """One op of a group, on values by their numbers: those of the tensors read, then results.

    `power` is the exponent of a `pow` whose exponent is a constant 1, 2 or 3. `function` computes
    the result where the op has none in the tables here.
    """

    op: Op
    operands: tuple[tuple[int, DType], ...]
    result: DType
    power: int | None = None
    function: Unary | None = None


class Access(Struct, frozen=True):
    """The access of a kernel to one tensor: its element type, and innermost stride class.

    `inner` is 0 or 1 where the innermost stride has that value, None for any other.
    """

    dtype: DType
    inner: int | None
    fixed: bool = False
    """True if the tensor has one element, which is then loaded before the loops."""


def computes(op: type[Op], dtype: DType) -> bool:
    """Return whether there is a function that computes the op on operands of type `dtype`."""
    return op in (ops.Cast, ops.Compare) or _function_of(op.name, dtype) is not None


def _function_of(name: str, dtype: DType) -> object | None:
    if dtype.is_complex and name in _OF_COMPLEX:
        return _complex_of(name, dtype)
    if dtype.is_float:
        return (_F64 if dtype.bits == 64 else _F32).get(name)
    return (_FOUR_BITS if dtype.bits == 4 else _BY_KIND[dtype.kind]).get(name)


def _step(operation: Operation) -> Step:
    op, result = operation.op, operation.result
    numbers = tuple(number for number, _ in operation.operands)
    if operation.function is not None:
        return operation.function, numbers, unchanged, None
    dtype = operation.operands[op.data_operand][1]
    rounded = rounded_of(result) if result is dtype and op.name != "select" else unchanged
    if isinstance(op, ops.Cast):
        function = unrounded_cast_of(dtype, result)
        rounded = rounded_of(result) if is_narrow(result) and result is not dtype else unchanged
    elif isinstance(op, ops.Compare):
        function = _of_truths(op.direction) if dtype.is_bool else _COMPARISONS[op.direction]
    elif operation.power is not None:
        function = SMALL_POWERS[operation.power]
    else:
        function = _function_of(op.name, dtype)
    zero = register_of(dtype)(0) if can_fail(op, dtype) else None
    return function, numbers, rounded, zero


def can_fail(op: Op, dtype: DType) -> bool:
    """Return whether the op has an execution error: integer division."""
    return isinstance(op, (ops.Div, ops.Rem)) and dtype.is_integer


def copy_operation(number: int, dtype: DType) -> Operation:
    """Return the operation that gives a value as it is."""
    return cast_operation(number, dtype, dtype)


def cast_operation(number: int, dtype: DType, target: DType) -> Operation:
    """Return the conversion of a value; to its own type it is a plain copy."""
    return Operation(ops.Cast(target), ((number, dtype),), target)


# Kernels of groups.


@lru_cache(maxsize=1024)
def whole_kernel(
    rank: int, inputs: tuple[Access, ...], output: Access, operations: tuple[Operation, ...]
) -> GeneratedKernel:
    """Return a kernel of the addresses of the inputs, of the output, and of a geometry.

    The geometry has the sizes of the axes, at least one, then the strides of each input that is not
    fixed, then those of the output. The kernel returns 1 when an integer was divided by zero.
    """
    return _kernel(rank, inputs, (_result(inputs, operations, output),), operations, None)


@lru_cache(maxsize=1024)
def task_kernel(
    rank: int, inputs: tuple[Access, ...], output: Access, operations: tuple[Operation, ...]
) -> GeneratedKernel:
    """Return the kernel of `whole_kernel` as a task that computes one block.

    Its arguments are the addresses of the first two inputs, of the output and of the geometry, and
    the number of the task. Before the strides, the geometry has room for `OTHERS` addresses, of the
    inputs after the second, the sizes of the axes, and those of a block.
    """
    return _kernel(rank, inputs, (_result(inputs, operations, output),), operations, OTHERS)


def several_kernel(
    rank: int,
    inputs: tuple[Access, ...],
    outputs: Sequence[tuple[int, Access]],
    operations: tuple[Operation, ...],
) -> GeneratedKernel:
    """Return the task that computes a block of several results, given by the numbers of values.

    Its geometry has room for `OTHERS_OF_SEVERAL` addresses: those of the results before the last
    one are at the end. A result overlaps nothing, or lies exactly where an operand of it does.
    """
    return _kernel(rank, inputs, tuple(outputs), operations, OTHERS_OF_SEVERAL, apart=True)


def _result(
    inputs: Sequence[Access], operations: Sequence[Operation], access: Access
) -> tuple[int, Access]:
    return len(inputs) + len(operations) - 1, access


def _kernel(
    rank: int,
    inputs: Sequence[Access],
    outputs: Sequence[tuple[int, Access]],
    operations: Sequence[Operation],
    others: int | None,
    *,
    apart: bool = False,
) -> GeneratedKernel:
    reads = tuple((memory_of(x.dtype), x.inner, x.fixed, load_of(x.dtype)) for x in inputs)
    writes = tuple(
        (memory_of(x.dtype), x.inner, number, *_stored(x.dtype)) for number, x in outputs
    )
    return GeneratedKernel.of(
        fused, (rank, reads, writes, tuple(map(_step, operations)), others, apart)
    )


def _stored(dtype: DType) -> tuple[object, bool]:
    """Return what stores a value, and whether that rounds it."""
    return store_of(dtype), is_narrow(dtype)
