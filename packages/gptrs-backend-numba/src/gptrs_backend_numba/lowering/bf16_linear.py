"""`gptrs.numba.bf16_linear.v1`: a linear layer whose operands are rounded to bf16 in one kernel.

Operands and attributes are those of `gptrs.numba.linear.f32.v1`. The result is
`activation(round(x) @ round(weight) + bias) + residual`: products of bf16, each the nearest to its
number and the even one of two, are added in f32, as is all else. On AMX and AVX-512 with bf16
numbers below 2^-126 count as zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gptrs.ir import dtypes
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.program import Value
from gptrs.ir.size_guards import greatest, select
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.bf16_panels import Bf16Panels
from gptrs_backend_numba.codegen.compiled import compiled_task
from gptrs_backend_numba.kernels.amx.bf16_gemm import amx_tiles
from gptrs_backend_numba.kernels.matmul.bf16 import (
    TileForm,
    bf16_product,
    left_rounding,
    vector_tiles,
)
from gptrs_backend_numba.kernels.matmul.bf16_ir import STEP
from gptrs_backend_numba.kernels.matmul.gemm_geometry import BLOCK_LENGTH, TILES, TILES_A_TASK
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.lowering import amx_matmul
from gptrs_backend_numba.lowering.custom_calls import custom_call
from gptrs_backend_numba.lowering.linear import BF16_LINEAR, linear_operands, linear_target
from gptrs_backend_numba.lowering.linear import when as is_linear
from gptrs_backend_numba.lowering.matmul import is_large_table, multiply, packed_view, parameter
from gptrs_backend_numba.lowering.product_calls import (
    PARALLEL_FROM,
    Epilogue,
    call_fields,
    column_blocks,
    division,
    geometry,
    run,
)
from gptrs_backend_numba.matrix_views import Matrix, Product
from gptrs_backend_numba.packing import Packing
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import View

_CHUNK_STEPS = 72
"""Most steps of a chunk of k."""
_LEFT_BYTES = 1 << 20
"""Most bytes of the left side in a task, for a chunk of k: they stay in the L2 cache."""


def _when(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    return is_linear(replace(op, target=linear_target(dtypes.f32)), operands)


@custom_call(BF16_LINEAR, when=_when)
def bf16_linear(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one product, after the rounding of the left side."""
    x, weight, epilogue = linear_operands(builder, unit)
    out = builder.define(unit.last.result)
    *leading, k = x.shape
    rows = math.prod(leading)
    flat = x.reshaped((rows, k)) or builder.contiguous(x).reshaped((rows, k))
    assert flat is not None, "a contiguous tensor takes any shape"
    lhs = Matrix(flat, rows, flat.strides[0], flat.strides[1], ())
    rhs = Matrix(weight, weight.shape[0], weight.strides[0], weight.strides[1], ())
    product = Product(lhs, rhs, k, ())
    if out.size == 0:
        return
    if weight.dtype is dtypes.bf16 and is_large_table(builder, rhs):
        _multiply_table(builder, product, out, epilogue)
    else:
        _multiply(builder, unit.last.operands[0], product, out, epilogue)


def _multiply_table(
    builder: ScheduleBuilder, product: Product, out: View, epilogue: Epilogue
) -> None:
    """Add a product with a table that is read where it lies: it is too large to have twice."""
    rounded = builder.converted(builder.converted(product.lhs.view, dtypes.bf16), dtypes.f32)
    lhs = replace(product.lhs, view=rounded, row=rounded.strides[0], column=rounded.strides[1])
    multiply(builder, replace(product, lhs=lhs), out, epilogue)


def _multiply(
    builder: ScheduleBuilder, x: Value, product: Product, out: View, epilogue: Epilogue
) -> None:
    form = amx_tiles() if amx_matmul.is_wanted() else vector_tiles()
    m, n, k = product.lhs.rows, product.rhs.rows, product.k
    steps, tiles = -(-k // STEP), -(-m // form.rows)
    # A lone tile reads the right side once, and its left side stays in the L2 cache as it is.
    chunk = select(form.rows - m, greatest(steps, 1), min(greatest(steps, 1), _CHUNK_STEPS))
    fields = call_fields(product, out, epilogue) | {TILES: tiles, BLOCK_LENGTH: chunk}
    most = _LEFT_BYTES // form.left_bytes(min(greatest(steps, 1), _CHUNK_STEPS))
    fields |= division(product, tiles, most, builder.context.threads)
    # Queries, keys and values are products of one x, gates and what they weigh, too.
    left = builder.form_of(x, BF16_LINEAR, lambda: _left(builder, product, form, fields))
    right = _right(builder, product)
    sums = out
    if steps > _CHUNK_STEPS:
        sums = builder.fresh(dtypes.f32, (-(-n // PANEL) * tiles * form.rows * PANEL,))
    task = compiled_task(bf16_product(form))
    count = -(-tiles // fields[TILES_A_TASK]) * column_blocks(n, fields)
    run(builder, product, task, count, (left, right), sums, out, epilogue, fields)


def _left(
    builder: ScheduleBuilder, product: Product, form: TileForm, fields: dict[int, int]
) -> View:
    """Return the left side, rounded, in tiles."""
    steps = -(-product.k // STEP)
    dtype = dtypes.bf16 if form.size == dtypes.bf16.itemsize else dtypes.f32
    target = builder.fresh(dtype, (form.room(product.lhs.rows) * steps * STEP,))
    view = product.lhs.view
    builder.call_tasks(
        compiled_task(left_rounding(form)),
        fields[TILES],
        (view, view),
        target,
        geometry(product, fields),
        builder.threads_from(PARALLEL_FROM, target.size),
    )
    return target


def _right(builder: ScheduleBuilder, product: Product) -> View:
    """Return the right side, rounded and packed: once if it is a weight that is not streamed."""
    rhs = product.rhs
    view = rhs.view
    input_ = parameter(builder, view)
    layout = Bf16Panels(str(view.dtype), rhs.rows, product.k, rhs.row, rhs.column, view.offset)
    if input_ is not None and input_ not in builder.context.streamed:
        return packed_view(builder, view, Packing(input_, layout))
    target = builder.fresh(dtypes.bf16, (layout.nbytes // dtypes.bf16.itemsize,))
    threads = builder.threads_from(PARALLEL_FROM, target.size)
    builder.call_tasks(layout.task, layout.tasks, (view, view), target, layout.geometry, threads)
    return target
