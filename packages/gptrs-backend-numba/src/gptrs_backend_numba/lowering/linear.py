"""`gptrs.numba.linear.<dtype>.v1`: a linear layer with bias, activation and residual in one kernel.

Operands: x [.., K]; weight [N, K] if the attribute `layout` is "out_in", [K, N] if "in_out"; a
bias [N] if `bias`; a residual [.., N] if `residual`; all of one type, but that a weight for f32
may be bf16 or f16. The result [.., N] is `activation(x @ weight + bias) + residual`, computed in
f32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.program import Program
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.kernels.matmul.epilogue import ACTIVATIONS
from gptrs_backend_numba.lowering.custom_calls import custom_call
from gptrs_backend_numba.lowering.matmul import FLOATS, gemm
from gptrs_backend_numba.lowering.product_calls import Epilogue
from gptrs_backend_numba.lowering.quantized_linear import TARGET
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import View

BF16_LINEAR = "gptrs.numba.bf16_linear.v1"
"""The target of `gptrs_backend_numba.lowering.bf16_linear`."""
NARROW: tuple[DType, ...] = (dtypes.bf16, dtypes.f16)
"""Types of weights that are widened in registers where all else is f32."""
_LAYOUTS = ("out_in", "in_out")
_ATTRIBUTES = {"layout", "activation", "bias", "residual"}


def linear_target(dtype: DType) -> str:
    """Return the target for operands of this type."""
    return f"gptrs.numba.linear.{dtype}.v1"


def when(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    """Return whether a call is a linear layer of one of `FLOATS`."""
    return _has_attributes(op) and _has_types(op, operands)


def _has_attributes(op: CustomCall) -> bool:
    attrs = op.attrs
    return (
        set(attrs) == _ATTRIBUTES
        and attrs["layout"] in _LAYOUTS
        and attrs["activation"] in ACTIVATIONS
        and isinstance(attrs["bias"], bool)
        and isinstance(attrs["residual"], bool)
    )


def _has_types(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    if len(operands) != 2 + bool(op.attrs["bias"]) + bool(op.attrs["residual"]):
        return False
    x, weight = operands[:2]
    if x.rank < 1 or weight.rank != 2:
        return False
    n, k = weight.shape if op.attrs["layout"] == "out_in" else weight.shape[::-1]
    result = TensorType(x.dtype, (*x.shape[:-1], n))
    wanted = [TensorType(x.dtype, (n,))] if op.attrs["bias"] else []
    wanted += [result] if op.attrs["residual"] else []
    narrow = x.dtype is dtypes.f32 and weight.dtype in NARROW
    fits = k == x.shape[-1] and (narrow or weight.dtype is x.dtype) and list(operands[2:]) == wanted
    return fits and op.target == linear_target(x.dtype) and op.results == (result,)


def linear(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one product, after a copy of a bias or residual that is not contiguous."""
    x, weight, epilogue = linear_operands(builder, unit)
    gemm(builder, x, weight, builder.define(unit.last.result), epilogue)


def linear_operands(builder: ScheduleBuilder, unit: Unit) -> tuple[View, View, Epilogue]:
    """Return x, the weight as [N, K], and what becomes of the sums."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    x, weight, *rest = (builder.view(value) for value in unit.last.operands)
    rest = [builder.contiguous(view) for view in rest]
    bias = rest.pop(0) if op.attrs["bias"] else None
    residual = rest.pop(0) if op.attrs["residual"] else None
    if op.attrs["layout"] == "in_out":
        weight = weight.transposed((1, 0))
    return x, weight, Epilogue(bias, str(op.attrs["activation"]), residual)


def rows_of_layers(program: Program) -> Iterator[int]:
    """Yield the numbers of rows of all linear layers: kernels for one row differ.

    Who asks for them before anything is lowered need not lower it again.
    """
    for function in program.functions:
        for step in function.body.walk():
            if isinstance(step.op, CustomCall) and step.op.target in _TARGETS:
                yield math.prod(step.operands[0].type.shape[:-1])


_TARGETS = frozenset((*map(linear_target, FLOATS), TARGET, BF16_LINEAR))
for _dtype in FLOATS:
    custom_call(linear_target(_dtype), when=when)(linear)
