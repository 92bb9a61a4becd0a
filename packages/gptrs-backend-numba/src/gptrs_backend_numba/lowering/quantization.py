"""Quantization ops are elementwise kernels: strides of 0 repeat scales, zero points and biases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from msgspec.structs import replace

from gptrs.ir import dtypes
from gptrs.ir.ops import quantization as ops
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.codegen.elements import Unary
from gptrs_backend_numba.kernels import quantization as functions
from gptrs_backend_numba.kernels.elementwise import Operation
from gptrs_backend_numba.kernels.matmul import quantized as quantized_kernels
from gptrs_backend_numba.kernels.matmul.gemm import PANELS_A_TASK, K, M, N, numbers
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.lowering import quantized_linear as one
from gptrs_backend_numba.lowering.linear import wrong_group
from gptrs_backend_numba.lowering.product_calls import PARALLEL_FROM, enough_panels
from gptrs_backend_numba.lowering.table import TABLE, custom_call
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import View


@TABLE.register(ops.Quantize, dtypes=dtypes.FLOATS)
def quantize(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one elementwise kernel."""
    op = cast("ops.Quantize", unit.last.op)
    x, scale, _ = (value.type.dtype for value in unit.last.operands)
    compute = ops.computing_dtype(x, scale)
    _emit(builder, unit, functions.quantized_of(x, scale, compute, op.dtype))


@TABLE.register(ops.Dequantize, dtypes=ops.QUANTIZED)
def dequantize(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one elementwise kernel."""
    op = cast("ops.Dequantize", unit.last.op)
    scale = unit.last.operands[1].type.dtype
    compute = ops.computing_dtype(scale, op.dtype)
    _emit(builder, unit, functions.dequantized_of(scale, compute, op.dtype))


@TABLE.register(ops.DequantizeAffine, dtypes=ops.QUANTIZED)
def dequantize_affine(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one elementwise kernel."""
    op = cast("ops.DequantizeAffine", unit.last.op)
    scale, bias = (value.type.dtype for value in unit.last.operands[1:])
    compute = ops.computing_dtype(scale, bias, op.dtype)
    _emit(builder, unit, functions.dequantized_affine_of(scale, bias, compute, op.dtype))


@TABLE.register(ops.UnpackBits, dtypes=(dtypes.ui8,))
def unpack_bits(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one elementwise kernel for each position that an integer can have in the bytes."""
    op = cast("ops.UnpackBits", unit.last.op)
    packed, out = builder.view(unit.last.operands[0]), builder.define(unit.last.result)
    period = 8 // math.gcd(8, op.bits)  # so many integers fill whole bytes
    count = out.shape[op.axis] // period
    for position in range(period):
        byte, shift = divmod(position * op.bits, 8)
        spans = (byte, byte + 1) if shift + op.bits > 8 else (byte,)
        bytes_ = [_every(packed, op.axis, at, period * op.bits // 8, count) for at in spans]
        operands = tuple((number, dtypes.ui8) for number in range(len(bytes_)))
        step = Operation(op, operands, dtypes.ui8, function=functions.unpacked_of(shift, op.bits))
        builder.elementwise(bytes_, _every(out, op.axis, position, period, count), [step])


@TABLE.register(ops.Requantize, dtypes=ops.QUANTIZED)
def requantize(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one elementwise kernel."""
    op = cast("ops.Requantize", unit.last.op)
    _, scale_in, _, scale_out, _ = (value.type.dtype for value in unit.last.operands)
    compute = ops.computing_dtype(scale_in, scale_out)
    _emit(builder, unit, functions.requantized_of(scale_in, scale_out, compute, op.dtype))


def _emit(builder: ScheduleBuilder, unit: Unit, function: Unary) -> None:
    """Add the kernel that computes a function of the operands."""
    op = cast("ops.Quantization", unit.last.op)
    first, *others = (builder.view(value) for value in unit.last.operands)
    x = _in_groups(first, op)
    views = [x, *(_spread(view, x.shape, op) for view in others)]
    out = builder.define(unit.last.result)
    operands = tuple((number, view.dtype) for number, view in enumerate(views))
    step = Operation(op, operands, out.dtype, function=function)
    builder.elementwise(views, _in_groups(out, op), [step])


def _every(view: View, axis: int, start: int, step: int, count: int) -> View:
    """Return `count` indices of `axis`: `start` and every `step`-th from there."""
    rank = len(view.shape)
    starts = tuple(start if each == axis else 0 for each in range(rank))
    steps = tuple(step if each == axis else 1 for each in range(rank))
    return view.sliced(starts, _replaced(view.shape, axis, (count,)), steps)


def _in_groups(view: View, op: ops.Quantization) -> View:
    """Return the view with the axis of the groups split into one over groups and one within."""
    if op.axis is None or op.group_size is None:
        return view
    axis, size, stride = op.axis, op.group_size, view.strides[op.axis]
    return replace(
        view,
        shape=_replaced(view.shape, axis, (view.shape[axis] // size, size)),
        strides=_replaced(view.strides, axis, (stride * size, stride)),
    )


def _spread(parameter: View, shape: Sequence[int], op: ops.Quantization) -> View:
    """Return a scale or zero point as a view with one element for each of `shape`."""
    if op.axis is None or not parameter.shape:
        return parameter.broadcast(tuple(shape))
    if op.group_size is not None:
        sizes = (*parameter.shape[: op.axis + 1], 1, *parameter.shape[op.axis + 1 :])
        strides = (*parameter.strides[: op.axis + 1], 0, *parameter.strides[op.axis + 1 :])
    else:
        sizes = tuple(n if axis == op.axis else 1 for axis, n in enumerate(shape))
        strides = tuple(int(axis == op.axis) * parameter.strides[0] for axis in range(len(shape)))
    return replace(parameter, shape=sizes, strides=strides).broadcast(tuple(shape))


def _replaced(numbers: tuple[int, ...], position: int, others: tuple[int, ...]) -> tuple[int, ...]:
    return (*numbers[:position], *others, *numbers[position + 1 :])


# `gptrs.numba.quantized_grouped.v1`: each row times a quantized matrix of its own choice.
#
# Operands: those of `gptrs.numba.quantized_linear.v1` with x [R, K] and parts of G matrices, such
# as codes [G, N, K * bits / 8], without a bias or residual; then groups si64 [R]. N is a multiple
# of the columns of a panel. The result is f32 [R, N], of the same bits as the linear layer gives
# for each row. The attributes are those of the layer. R may be symbolic.


QUANTIZED_GROUPED = "gptrs.numba.quantized_grouped.v1"
_RANKS = 3
"""The rank of the parts of all matrices."""
_TASKS_A_THREAD = 4
_LEFT_BYTES = 7 << 16
"""Most bytes of the rows that pass by a panel together: they stay in the L2 cache."""


def fits(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    """Return whether there is a kernel for a call with operands of these types."""
    *layer, groups = operands
    if len(layer) < _RANKS or groups.dtype is not dtypes.si64 or layer[0].rank != len("RK"):
        return False
    x, codes = layer[:2]
    if any(part.rank != _RANKS or not part.is_static for part in layer[1:]):
        return False
    matrices, outputs, _ = codes.shape
    if any(part.shape[:2] != (matrices, outputs) for part in layer[1:]):
        return False
    if outputs % PANEL or groups.shape != x.shape[:1]:
        return False
    flat = [x, *(part.with_shape(_flat_shape(part.shape)) for part in layer[1:])]
    whole = CustomCall(
        op.target, (TensorType(dtypes.f32, (x.shape[0], matrices * outputs)),), op.attrs
    )
    return (
        one.fits(whole, flat)
        and op.attrs["activation"] == "none"
        and not (op.attrs["bias"] or op.attrs["residual"])
        and op.results == (TensorType(dtypes.f32, (x.shape[0], outputs)),)
    )


def _flat_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a part of all matrices, one below another."""
    return (shape[0] * shape[1], *shape[2:])


@custom_call(QUANTIZED_GROUPED, when=fits)
def quantized_grouped(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add the order of rows, their rounding, and the product."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    x, *parts, groups = (builder.contiguous(builder.view(each)) for each in unit.last.operands)
    out = builder.define(unit.last.result)
    if out.size == 0:
        return
    matrices, outputs, _ = parts[0].shape
    rows, k = x.shape
    weight = one.PanelWeight.of(op, [x, *map(_flat, parts)], k)
    form, threads = weight.form, builder.context.threads
    panels, row_bytes = outputs // PANEL, k // form.block * form.record
    together = max(1, _LEFT_BYTES // row_bytes)
    a_task = max(enough_panels(1, PANEL, k), -(-panels // (_TASKS_A_THREAD * threads)))
    fields = numbers({M: rows, N: outputs, K: k, PANELS_A_TASK: a_task})
    geometry = [*fields, *weight.numbers, 0, matrices, together]
    order = builder.fresh(dtypes.si64, (quantized_kernels.order_length(rows, matrices),))
    builder.call(
        compiled(quantized_kernels.row_ordering()),
        (groups,),
        order,
        geometry,
        wrong_group(groups, matrices),
    )
    left = builder.fresh(dtypes.ui8, (rows * row_bytes,))
    builder.call_tasks(
        compiled_task(quantized_kernels.row_rounding(form)),
        -(-rows // quantized_kernels.ROUNDED_A_TASK),
        (x, order),
        left,
        geometry,
        builder.threads_from(PARALLEL_FROM, left.size),
    )
    codes, *values = [part and one.panels_of(builder, *part) for part in weight.parts]
    assert codes is not None, "there are always codes"
    reads = (left, codes, *(codes if view is None else view for view in values), order)
    job = (
        compiled_task(quantized_kernels.grouped_product(form)),
        -(-panels // a_task),
        builder.threads_from(PARALLEL_FROM, x.size * outputs),
    )
    builder.add_job(compiled(quantized_kernels.run_quantized_grouped), job, reads, out, geometry)


def _flat(view: View) -> View:
    found = view.reshaped(_flat_shape(view.shape))
    assert found is not None, "a contiguous tensor takes any shape"
    return found
