"""The writer of products: matrices after transposes and reshapes."""

from __future__ import annotations

import math

from gptrs.api.programs import DType, dtypes
from gptrs.api.programs import ops as op_modules
from gptrs_onnx.writing.elementwise import converted
from gptrs_onnx.writing.graph_writer import GraphWriter, Ref
from gptrs_onnx.writing.registry import writes

ops = op_modules.contraction


def summing_dtype(dtype: DType) -> DType:
    """Return the type in which ONNX sums what is summed in `dtype`: integers wrap afterwards."""
    if not dtype.is_integer:
        return dtype
    return dtypes.si32 if dtype.bits < 32 or dtype is dtypes.si32 else dtypes.si64


@writes(ops.DotGeneral)
def dot_general(w: GraphWriter, op: ops.DotGeneral, lhs: Ref, rhs: Ref) -> Ref:
    """Write sums of products, in the accumulate type."""
    accumulator = op.accumulator(lhs.type)
    wide = summing_dtype(
        dtypes.f32 if accumulator.is_float and accumulator.bits < 32 else accumulator
    )
    result = op.infer(lhs.type, rhs.type)
    rows, columns = op.free_lhs(lhs.type), op.free_rhs(rhs.type)
    # Into an accumulate type, integers wrap.
    left = w.transpose(w.cast(lhs, wide), (*op.batch_lhs, *rows, *op.contract_lhs))
    right = w.transpose(w.cast(rhs, wide), (*op.batch_rhs, *op.contract_rhs, *columns))
    batch = tuple(lhs.shape[axis] for axis in op.batch_lhs)
    m = tuple(lhs.shape[axis] for axis in rows)
    n = tuple(rhs.shape[axis] for axis in columns)
    k = math.prod(lhs.shape[axis] for axis in op.contract_lhs)
    # Without a batch, all rows are one matrix whatever their axes are, as in a linear layer.
    lead = m if not batch and m else (math.prod(m),)
    left = w.reshape(left, (*batch, *lead, k))
    right = w.reshape(right, (*batch, k, math.prod(n)))
    product = w.node("MatMul", left, right, shape=(*batch, *lead, math.prod(n)))
    total = w.cast(w.reshape(product, result.shape), accumulator)
    return converted(w, total, result.dtype)
