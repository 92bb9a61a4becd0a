"""Elementwise units become one generated kernel; `bitcast` and `stop_gradient` are views."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import OPS, Op
from gptrs.ir.ops import elementwise as ops
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.program import Value
from gptrs.ir.size_guards import greatest
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen.compiled import compiled_task
from gptrs_backend_numba.codegen.elements import Unary, accumulated_of
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.kernels import elementwise as elementwise_kernels
from gptrs_backend_numba.kernels import rotary as rotary_kernels
from gptrs_backend_numba.kernels.quantization import code_of
from gptrs_backend_numba.lowering.table import MOVABLE, TABLE, custom_call
from gptrs_backend_numba.passes.elementwise_groups import ELEMENTWISE, Unit, is_joinable
from gptrs_backend_numba.schedule import Explain, Read, ScheduleBuilder, operand_types, with_dtype
from gptrs_backend_numba.views import MemorySpace, View, memory_order


@TABLE.register(ops.StopGradient, ops.Bitcast, dtypes=MOVABLE)
def reinterpreted(builder: ScheduleBuilder, unit: Unit) -> None:
    """Bind the operand itself, its bits read as the result's element type."""
    operand = builder.view(unit.last.operands[0])
    target = unit.last.result.type.dtype
    if target.bits == 4 and target is not operand.dtype:
        builder.bind(unit.last.result, _other_sign(builder, operand, target))
    else:
        builder.bind(unit.last.result, with_dtype(operand, target))


def _other_sign(builder: ScheduleBuilder, operand: View, target: DType) -> View:
    """Return the 4-bit numbers copied to bytes whose other half follows the sign of `target`."""
    out = builder.fresh(target, operand.shape)
    step = elementwise_kernels.Operation(
        ops.Bitcast(target), ((0, operand.dtype),), target,
        function=accumulated_of(operand.dtype, target),
    )  # fmt: skip
    builder.elementwise([operand], out, [step])
    return out


def computed(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add the call of one kernel for all instructions of the unit."""
    plain = [_Step(step.op, step.operands, step.result) for step in unit.instructions]
    plain = _with_gelu(builder, unit, plain)
    steps = _with_codes(builder, unit, plain)
    read = {value for step in plain for value in step.operands}
    inputs = [value for value in unit.inputs if value in read]
    operations, numbers = _operations(builder, steps, inputs)
    views = [builder.view(value) for value in inputs]
    # The kernel walks over memory, not over the axes.
    order = memory_order(unit.last.result.type.shape, views)
    taken = _taken(builder, unit) if order == tuple(range(len(order))) else {}
    outs: dict[int, View] = {}
    for value in unit.results:
        if value in taken:
            builder.bind(value, taken[value])
        outs[numbers[value]] = taken.get(value) or builder.define(value, order)
    views = [view.transposed(order) for view in views]
    if len(outs) > 1 or taken:
        builder.elementwise_results(views, outs, operations)
    else:
        (out,) = outs.values()
        given = () if len(steps) == len(plain) else _operations(builder, plain, inputs)[0]
        builder.elementwise(views, out, operations, _explain(unit), given)


class _Step(Struct, frozen=True):
    """An instruction of a unit, or several that one function computes."""

    op: Op
    operands: tuple[Value, ...]
    result: Value
    function: Unary | None = None


def _operations(
    builder: ScheduleBuilder, steps: Sequence[_Step], inputs: Sequence[Value]
) -> tuple[list[elementwise_kernels.Operation], dict[Value, int]]:
    """Return the steps as operations, and the numbers of all values."""
    numbers = {value: number for number, value in enumerate(inputs)}
    operations: list[elementwise_kernels.Operation] = []
    for step in steps:
        operands = tuple((numbers[x], x.type.dtype) for x in step.operands)
        numbers[step.result] = len(numbers)
        power = _small_power(builder, step.op, step.operands, inputs)
        result = step.result.type.dtype
        operations.append(
            elementwise_kernels.Operation(step.op, operands, result, power, step.function)
        )
    return operations, numbers


# Floats that are rounded to codes of 8 bits: one function instead of five ops, and no division.


def _with_codes(builder: ScheduleBuilder, unit: Unit, steps: Sequence[_Step]) -> list[_Step]:
    """Return the steps with `cast(clamp(rint(x / step) + middle, low, high))` as one of them.

    The zero point and the limits are known whole numbers of 8 bits, the step is known too.
    """
    rounded = [step for step in steps if isinstance(step.op, ops.Cast) and step.op.dtype in _CODES]
    if not rounded:
        return [*steps]
    return _with_chains(builder, unit, steps, rounded, _code_chain)


_Makers = Mapping[Value, "_Step"]
_Numbers = Mapping[Value, float | None]


def _with_chains(
    builder: ScheduleBuilder,
    unit: Unit,
    steps: Sequence[_Step],
    ends: Sequence[_Step],
    chain_of: Callable[[_Step, _Makers, _Numbers], list[_Step] | None],
) -> list[_Step]:
    """Return the steps, each chain that ends with one of `ends` as one step.

    `chain_of` returns the steps before an end that nobody else reads, and the one for them all.
    """
    uses = Counter(value for step in steps for value in step.operands)
    uses.update(unit.results)
    makers = {step.result: step for step in steps if uses[step.result] == 1}
    numbers = {value: _number(builder, value) for value in unit.inputs}
    kept = {step.result: step for step in steps}
    for last in ends:
        chain = chain_of(last, makers, numbers)
        if chain is not None:
            *inside, kept[last.result] = chain
            for step in inside:
                del kept[step.result]
    return [*kept.values()]


_CODES = (dtypes.si8, dtypes.ui8)


def _code_chain(last: _Step, makers: _Makers, numbers: _Numbers) -> list[_Step] | None:
    """Return the steps before the cast that makes codes, and the one that replaces them all."""
    clamp = makers.get(last.operands[0])
    if clamp is None or not isinstance(clamp.op, ops.Clamp):
        return None
    x, low, high = clamp.operands
    inside, middle, step = [clamp], [], []
    made = makers.get(x)
    if made is not None and isinstance(made.op, ops.Add):
        inside.append(made)
        x, *middle = sorted(made.operands, key=lambda value: numbers.get(value) is not None)
        made = makers.get(x)
    if made is None or not isinstance(made.op, ops.RoundNearestEven):
        return None
    inside.append(made)
    (x,) = made.operands
    made = makers.get(x)
    if made is not None and isinstance(made.op, ops.Div):
        number = numbers.get(made.operands[1])
        if number is not None and 2.0**-100 <= number <= 2.0**100:
            inside.append(made)
            x, *step = made.operands
    dtype = last.result.type.dtype
    least, most = (-128, 127) if dtype is dtypes.si8 else (0, 255)
    limits = [numbers.get(value) for value in (low, high)]
    if x.type.dtype is not dtypes.f32 or not _all_whole(limits, least, most):
        return None
    if not _all_whole([numbers.get(value) for value in middle], -128, 255):
        return None
    function = code_of(bool(step), bool(middle), dtype)
    return [*inside, _Step(last.op, (x, *step, *middle, low, high), last.result, function)]


def _all_whole(numbers: Sequence[float | None], least: int, most: int) -> bool:
    return all(x is not None and x.is_integer() and least <= x <= most for x in numbers)


# GELU by the error function: one function instead of five ops.


def _with_gelu(builder: ScheduleBuilder, unit: Unit, steps: Sequence[_Step]) -> list[_Step]:
    """Return the steps with `x * 0.5 * (1 + erf(x * sqrt 0.5))` of f32 as one of them.

    Its factors may be in any order. With AVX-512, where nobody has measured it, it stays as it is.
    """
    if WIDTH == 16 or not any(isinstance(step.op, ops.Erf) for step in steps):
        return [*steps]
    products = [step for step in steps if isinstance(step.op, ops.Mul)]
    return _with_chains(builder, unit, steps, products, _gelu_chain)


def _gelu_chain(last: _Step, makers: _Makers, numbers: _Numbers) -> list[_Step] | None:
    if last.result.type.dtype is not dtypes.f32:
        return None
    inside: list[_Step] = []
    factors, waiting = list[Value](), [*last.operands]
    while waiting:
        value = waiting.pop()
        made = makers.get(value)
        if made is not None and isinstance(made.op, ops.Mul):
            inside.append(made)
            waiting += made.operands
        else:
            factors.append(value)
    sums = [value for value in factors if value in makers]
    x = [value for value in factors if value not in makers and numbers.get(value) is None]
    if len(factors) != 3 or len(sums) != 1 or len(x) != 1:
        return None
    if not any(numbers.get(value) == 0.5 for value in factors):
        return None
    found = _one_and_erf(makers[sums[0]], x[0], makers, numbers)
    if found is None:
        return None
    return [*inside, *found, _Step(last.op, (x[0],), last.result, elementwise_kernels.GELU)]


def _one_and_erf(
    last: _Step, x: Value, makers: _Makers, numbers: _Numbers
) -> tuple[_Step, ...] | None:
    """Return the steps of `1 + erf(x * sqrt 0.5)`, in any order or by division; None for others."""
    if not isinstance(last.op, ops.Add) or 1.0 not in map(numbers.get, last.operands):
        return None
    erf = next((makers[value] for value in last.operands if value in makers), None)
    if erf is None or not isinstance(erf.op, ops.Erf):
        return None
    scaled = makers.get(erf.operands[0])
    if scaled is None or x not in scaled.operands or len(scaled.operands) != 2:
        return None
    first, second = (numbers.get(value) for value in scaled.operands)
    factor = first or second
    if isinstance(scaled.op, ops.Div) and scaled.operands[0] == x and second:
        factor = 1 / second
    elif not isinstance(scaled.op, ops.Mul):
        return None
    is_root = factor is not None and abs(factor - math.sqrt(0.5)) < 1e-7
    return (last, erf, scaled) if is_root else None


def _number(builder: ScheduleBuilder, value: Value) -> float | None:
    """Return the number that all elements are known to be."""
    return _single_constant(builder, builder.view(value))


def _taken(builder: ScheduleBuilder, unit: Unit) -> dict[Value, View]:
    """Return the results that are written where a donated operand lies, which nobody reads again.

    Each element of them depends on that of the operand, so it is read before it is written. To
    write to memory that was just read spares AdamW 3 of 10 accesses.
    """
    if not is_joinable(unit):
        return {}
    views = {value: builder.view(value) for value in unit.inputs}
    uses = Counter(view.storage.root for view in views.values())
    free = [
        value
        for value, view in views.items()
        if view.storage.space is MemorySpace.INPUT
        and uses[view.storage.root] == 1
        and builder.may_overwrite(view)
    ]
    sources: dict[Value, set[Value]] = {value: {value} for value in views}
    for step in unit.instructions:
        sources[step.result] = set().union(*(sources[value] for value in step.operands))
    taken: dict[Value, View] = {}
    for result in sorted(unit.results, key=lambda value: len(sources[value].intersection(free))):
        found = [each for each in free if each in sources[result] and each.type == result.type]
        if found:
            taken[result] = views[found[0]]
            free.remove(found[0])
    return taken


def _explain(unit: Unit) -> Explain | None:
    divisions = [
        step
        for step in unit.instructions
        if elementwise_kernels.can_fail(step.op, step.result.type.dtype)
    ]

    def explain(read: Read) -> str:
        return " or ".join(
            f"`{step.op.name}` of integers by zero, of {operand_types(step, read)}"
            for step in divisions
        )

    return explain if divisions else None


def _small_power(
    builder: ScheduleBuilder, op: Op, operands: Sequence[Value], inputs: Sequence[Value]
) -> int | None:
    """Return the exponent if it is one small constant, which products compute; None otherwise."""
    if not isinstance(op, ops.Pow) or operands[1] not in inputs:
        return None
    value = _single_constant(builder, builder.view(operands[1]))
    return int(value) if value in (1.0, 2.0, 3.0) else None


def _single_constant(builder: ScheduleBuilder, view: View) -> float | None:
    if view.storage.space is not MemorySpace.CONSTANT or any(view.strides) or view.size == 0:
        return None
    if view.dtype.is_complex:
        return None
    array = builder.constants[view.storage.index].reshape(-1)
    return float(array[view.offset].astype(np.float64))


for _class in OPS.values():
    if issubclass(_class, ELEMENTWISE):
        _dtypes = [dtype for dtype in dtypes.ALL if elementwise_kernels.computes(_class, dtype)]
        TABLE.register(_class, dtypes=_dtypes)(computed)


# `gptrs.numba.rotary.<dtype>.v1`: pairs of components of each row rotated.
#
# Operands: x [A, B, C, D] of <dtype>; cosines and sines [A, B, C, R / 2] of <dtype>, or of f32
# where that has 16 bits. The attribute `interleaved` is that of the functional `rotary`. Each
# product, sum and difference is rounded to the type of the tables, the result to <dtype>.


_ELEMENTS_A_TASK = 16_384
_PARALLEL_FROM = 2 * _ELEMENTS_A_TASK
"""Elements from which it pays to share the work: those of two tasks."""


def rotary_target(dtype: DType) -> str:
    """Return the target for an x of this type."""
    return f"gptrs.numba.rotary.{dtype}.v1"


def fits_rotary(x: TensorType, table: TensorType) -> bool:
    """Return whether there is a kernel that rotates `x` by tables of the type `table`."""
    return (
        x.dtype in rotary_kernels.FLOATS
        and table.dtype in (x.dtype, x.dtype.accumulator)
        and x.rank == 4
        and table.rank == 4
        and x.shape[:3] == table.shape[:3]
        and 2 * table.shape[3] <= x.shape[3]
        and 0 not in (*x.shape, *table.shape)
    )


def _when(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    if set(op.attrs) != {"interleaved"} or not isinstance(op.attrs["interleaved"], bool):
        return False
    if len(operands) != 3 or operands[1] != operands[2]:
        return False
    x, table, _ = operands
    return op.target == rotary_target(x.dtype) and op.results == (x,) and fits_rotary(x, table)


def rotary(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one pass over blocks of rows; rows may have any strides, so transposes are free."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    x, cos, sin = (builder.with_dense_rows(builder.view(v)) for v in unit.last.operands)
    out = builder.define(unit.last.result)
    interleaved = op.attrs["interleaved"] is True
    kernel = rotary_kernels.rotary(x.dtype, cos.dtype, interleaved=interleaved)
    half, rows = cos.shape[3], x.size // x.shape[3]
    block = greatest(1, _ELEMENTS_A_TASK // x.shape[3])
    steps = [step for view in (x, cos, sin) for step in view.strides[:3]]
    sizes = [*x.shape[:3], *steps, block, half, x.shape[3] - 2 * half]
    threads = builder.threads_from(_PARALLEL_FROM, x.size)
    job = (compiled_task(kernel), -(-rows // block), threads)
    builder.add_job_of_many(job, (x, cos, sin), out, sizes)


for _dtype in rotary_kernels.FLOATS:
    custom_call(rotary_target(_dtype), when=_when)(rotary)
