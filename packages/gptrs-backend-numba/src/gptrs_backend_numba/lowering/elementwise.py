"""Elementwise units become one generated kernel; `bitcast` and `stop_gradient` are views."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import OPS, Op
from gptrs.ir.ops import elementwise as ops
from gptrs.ir.program import Value
from gptrs_backend_numba.codegen.registers import register, rounded
from gptrs_backend_numba.kernels import elementwise as kernels
from gptrs_backend_numba.lowering.table import MOVABLE, TABLE
from gptrs_backend_numba.passes.elementwise_groups import ELEMENTWISE, Unit
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
    text = rounded(target, f"wrapped(x0, {register(target)})")
    step = kernels.Operation(
        ops.Bitcast(target), (("x0", operand.dtype),), ("y0", target), text=text
    )
    builder.elementwise([operand], out, [step])
    return out


def computed(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add the call of one kernel for all instructions of the unit."""
    inputs = unit.inputs
    registers = {value: f"x{place}" for place, value in enumerate(inputs)}
    operations: list[kernels.Operation] = []
    for place, instruction in enumerate(unit.instructions):
        registers[instruction.result] = f"y{place}"
        operands = tuple((registers[x], x.type.dtype) for x in instruction.operands)
        result = (registers[instruction.result], instruction.result.type.dtype)
        power = _small_power(builder, instruction.op, instruction.operands, inputs)
        operations.append(kernels.Operation(instruction.op, operands, result, power))
    views = [builder.view(value) for value in inputs]
    # The kernel walks over memory, not over the axes.
    order = memory_order(unit.last.result.type.shape, views)
    out = builder.define(unit.last.result, order)
    views = [view.transposed(order) for view in views]
    builder.elementwise(views, out, operations, _explain(unit))


def _explain(unit: Unit) -> Explain | None:
    divisions = [
        step for step in unit.instructions if kernels.can_fail(step.op, step.result.type.dtype)
    ]

    def explain(read: Read) -> str:
        return " or ".join(
            f"`{step.op.name}` of integers by zero, of {operand_types(step, read)}"
            for step in divisions
        )

    return explain if divisions else None


def _small_power(
    builder: ScheduleBuilder, op: Op, operands: Sequence[Value], inputs: Sequence[Value]
) -> str | None:
    """Return the exponent if it is one small constant, which products compute; None otherwise."""
    if not isinstance(op, ops.Pow) or operands[1] not in inputs:
        return None
    value = _single_constant(builder, builder.view(operands[1]))
    return str(int(value)) if value in (1.0, 2.0, 3.0) else None


def _single_constant(builder: ScheduleBuilder, view: View) -> float | None:
    if view.storage.space is not MemorySpace.CONSTANT or any(view.strides) or view.size == 0:
        return None
    if view.dtype.is_complex:
        return None
    array = builder.constants[view.storage.index].reshape(-1)
    return float(array[view.offset].astype(np.float64))


for _class in OPS.values():
    if issubclass(_class, ELEMENTWISE):
        _dtypes = [dtype for dtype in dtypes.ALL if kernels.computes(_class, dtype)]
        TABLE.register(_class, dtypes=_dtypes)(computed)
