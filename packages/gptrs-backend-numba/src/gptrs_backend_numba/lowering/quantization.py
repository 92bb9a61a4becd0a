"""Quantization ops are elementwise kernels: strides of 0 repeat scales, zero points and biases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from gptrs.ir import dtypes
from gptrs.ir.ops import quantization as ops
from gptrs_backend_numba.codegen import registers
from gptrs_backend_numba.kernels import quantization as kernels
from gptrs_backend_numba.kernels.elementwise import Operation
from gptrs_backend_numba.lowering.table import TABLE
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import View


@TABLE.register(ops.Quantize, dtypes=dtypes.FLOATS)
def quantize(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one elementwise kernel."""
    op = cast("ops.Quantize", unit.last.op)
    x, scale, _ = (value.type.dtype for value in unit.last.operands)
    compute = ops.computing_dtype(x, scale)
    _emit(builder, unit, kernels.quantized(("x0", x), ("x1", scale), "x2", compute, op.dtype))


@TABLE.register(ops.Dequantize, dtypes=ops.QUANTIZED)
def dequantize(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one elementwise kernel."""
    op = cast("ops.Dequantize", unit.last.op)
    scale = unit.last.operands[1].type.dtype
    compute = ops.computing_dtype(scale, op.dtype)
    product = kernels.dequantized("x0", ("x1", scale), "x2", compute)
    _emit(builder, unit, registers.cast(f"({product})", compute, op.dtype))


@TABLE.register(ops.DequantizeAffine, dtypes=ops.QUANTIZED)
def dequantize_affine(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one elementwise kernel."""
    op = cast("ops.DequantizeAffine", unit.last.op)
    scale, bias = (value.type.dtype for value in unit.last.operands[1:])
    compute = ops.computing_dtype(scale, bias, op.dtype)
    product = kernels.scaled("x0", ("x1", scale), compute)
    total = f"({product}) + {registers.cast('x2', bias, compute)}"
    _emit(builder, unit, registers.cast(f"({total})", compute, op.dtype))


@TABLE.register(ops.UnpackBits, dtypes=(dtypes.ui8,))
def unpack_bits(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one elementwise kernel for each place that an integer can have in the bytes."""
    op = cast("ops.UnpackBits", unit.last.op)
    packed, out = builder.view(unit.last.operands[0]), builder.define(unit.last.result)
    period = 8 // math.gcd(8, op.bits)  # so many integers fill whole bytes
    count = out.shape[op.axis] // period
    for place in range(period):
        byte, shift = divmod(place * op.bits, 8)
        spans = (byte, byte + 1) if shift + op.bits > 8 else (byte,)
        bytes_ = [_every(packed, op.axis, at, period * op.bits // 8, count) for at in spans]
        names = [f"x{number}" for number in range(len(bytes_))]
        text = kernels.unpacked(names[0], names[1] if names[1:] else None, shift, op.bits)
        operands = tuple((name, dtypes.ui8) for name in names)
        step = Operation(op, operands, ("y0", dtypes.ui8), text=text)
        builder.elementwise(bytes_, _every(out, op.axis, place, period, count), [step])


@TABLE.register(ops.Requantize, dtypes=ops.QUANTIZED)
def requantize(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one elementwise kernel."""
    op = cast("ops.Requantize", unit.last.op)
    _, scale_in, _, scale_out, _ = (value.type.dtype for value in unit.last.operands)
    compute = ops.computing_dtype(scale_in, scale_out)
    value = f"({kernels.dequantized('x0', ('x1', scale_in), 'x2', compute)})"
    text = kernels.quantized((value, compute), ("x3", scale_out), "x4", compute, op.dtype)
    _emit(builder, unit, text)


def _emit(builder: ScheduleBuilder, unit: Unit, text: str) -> None:
    """Add the kernel that computes `text` from the operands x0, x1, ..."""
    op = cast("ops.Quantization", unit.last.op)
    first, *others = (builder.view(value) for value in unit.last.operands)
    x = _in_groups(first, op)
    views = [x, *(_spread(view, x.shape, op) for view in others)]
    out = builder.define(unit.last.result)
    operands = tuple((f"x{place}", view.dtype) for place, view in enumerate(views))
    step = Operation(op, operands, ("y0", out.dtype), text=text)
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
