"""`gptrs.numba.linear.<dtype>.v1`: a linear layer with bias, activation and residual in one kernel.

Operands: x [.., K]; weight [N, K] if the attribute `layout` is "out_in", [K, N] if "in_out"; a
bias [N] if `bias`; a residual [.., N] if `residual`; all of one type, but that a weight for f32
may be bf16 or f16. The result [.., N] is `activation(x @ weight + bias) + residual`, computed in
f32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.program import Program, Value
from gptrs.ir.size_guards import greatest, select
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.kernels.amx import gemm_ir as amx
from gptrs_backend_numba.kernels.matmul.bf16 import (
    TileForm,
    bf16_product,
    left_rounding,
    vector_tiles,
)
from gptrs_backend_numba.kernels.matmul.bf16_ir import STEP
from gptrs_backend_numba.kernels.matmul.dots import COLUMNS_OF_ONE
from gptrs_backend_numba.kernels.matmul.epilogue import ACTIVATIONS, FIELDS, grouped, run_grouped
from gptrs_backend_numba.kernels.matmul.gemm import BLOCK_LENGTH, PACK, TILES, TILES_A_TASK
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.lowering import amx_matmul
from gptrs_backend_numba.lowering.matmul import (
    FLOATS,
    NEAR_GROUPS,
    gemm,
    is_large_table,
    multiply,
    packed_view,
    parameter,
)
from gptrs_backend_numba.lowering.product_calls import (
    PARALLEL_FROM,
    Epilogue,
    Packer,
    call_fields,
    column_blocks,
    division,
    geometry,
    run,
)
from gptrs_backend_numba.lowering.quantized_linear import TARGET
from gptrs_backend_numba.lowering.table import custom_call
from gptrs_backend_numba.memory import POOL
from gptrs_backend_numba.packing import Layout, Packing
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import Explain, KernelCall, Read, ScheduleBuilder
from gptrs_backend_numba.views import Matrix, Product, View

BF16_LINEAR = "gptrs.numba.bf16_linear.v1"
"""The target of `gptrs_backend_numba.lowering.linear`."""
NARROW: tuple[DType, ...] = (dtypes.bf16, dtypes.f16)
"""Types of weights that are widened in registers where all else is f32."""
SMALLEST = 1024
"""Elements of a weight below which a product costs less than finding out how to compute it."""
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
    out = builder.define(unit.last.result)
    gemm(builder, x, weight, out, epilogue, unit.last.operands[1])


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


# `gptrs.numba.bf16_linear.v1`: a linear layer whose operands are rounded to bf16 in one kernel.
#
# Operands and attributes are those of `gptrs.numba.linear.f32.v1`. The result is
# `activation(round(x) @ round(weight) + bias) + residual`: products of bf16, each the nearest to
# its number and the even one of two, are added in f32, as is all else. On AMX and AVX-512 with bf16
# numbers below 2^-126 count as zeros.


_CHUNK_STEPS = 72
"""Most steps of a chunk of k."""
_LEFT_BYTES = 1 << 20
"""Most bytes of the left side in a task, for a chunk of k: they stay in the L2 cache."""


def _when(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    return when(replace(op, target=linear_target(dtypes.f32)), operands)


@custom_call(BF16_LINEAR, when=_when)
def bf16_linear(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one product, after the rounding of the left side."""
    x, weight, epilogue = linear_operands(builder, unit)
    if epilogue.activation == "gelu_erf":
        # A fifth of ConvNeXt in bf16 was GELU, whose last bits the rounding of products hides.
        epilogue = replace(epilogue, activation="gelu_normal")
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
        multiply_rounded(builder, unit.last.operands, product, out, epilogue)


def _multiply_table(
    builder: ScheduleBuilder, product: Product, out: View, epilogue: Epilogue
) -> None:
    """Add a product with a table that is read where it lies: it is too large to have twice."""
    rounded = builder.converted(builder.converted(product.lhs.view, dtypes.bf16), dtypes.f32)
    lhs = replace(product.lhs, view=rounded, row=rounded.strides[0], column=rounded.strides[1])
    multiply(builder, replace(product, lhs=lhs), out, epilogue)


def _amx_tiles() -> TileForm:
    """Return the form of tiles in the registers of AMX.

    Few rows are multiplied with it, too, so that a row is the same bits in any company.
    """
    size, multiply = dtypes.bf16.itemsize, amx.multiply_tiles()
    return TileForm(
        amx.BLOCK_ROWS, size, amx.TILE_ROWS, multiply, amx.configure_amx, amx.release_amx
    )


def tile_form() -> TileForm:
    """Return the form of the tiles in which bf16 is multiplied."""
    return _amx_tiles() if amx_matmul.is_wanted() else vector_tiles()


def multiply_rounded(
    builder: ScheduleBuilder,
    sides: Sequence[Value],
    product: Product,
    out: View,
    epilogue: Epilogue,
    packer: Packer | None = None,
) -> None:
    """Add the calls for a product of both sides rounded to bf16, of the first as rows.

    The right side is packed here, or in the tasks, by the `packer`.
    """
    form = tile_form()
    m, n, k = product.lhs.rows, product.rhs.rows, product.k
    steps, tiles = -(-k // STEP), -(-m // form.rows)
    # A lone tile reads the right side once, and its left side stays in the L2 cache as it is.
    chunk = select(form.rows - m, greatest(steps, 1), min(greatest(steps, 1), _CHUNK_STEPS))
    fields = call_fields(product, out, epilogue) | {TILES: tiles, BLOCK_LENGTH: chunk}
    most = _LEFT_BYTES // form.left_bytes(min(greatest(steps, 1), _CHUNK_STEPS))
    fields |= division(product, tiles, most, builder.context.threads)
    # Queries, keys and values are products of one x, gates and what they weigh, too.
    left = builder.form_of(sides[0], BF16_LINEAR, lambda: _left(builder, product, form, fields))
    right = _right(builder, sides[1], product) if packer is None else product.rhs.view
    if packer is not None:
        fields[PACK] = packer.function
    sums = out
    if steps > _CHUNK_STEPS:
        sums = builder.fresh(dtypes.f32, (-(-n // PANEL) * tiles * form.rows * PANEL,))
    task = compiled_task(bf16_product(form))
    count = -(-tiles // fields[TILES_A_TASK]) * column_blocks(n, fields)
    run(builder, product, task, count, (left, right), sums, out, epilogue, fields, packer)


def _left(
    builder: ScheduleBuilder, product: Product, form: TileForm, fields: dict[int, int]
) -> View:
    """Return the left side, rounded, in tiles."""
    steps = -(-product.k // STEP)
    dtype = dtypes.bf16 if form.size == dtypes.bf16.itemsize else dtypes.f32
    target = builder.fresh(dtype, (form.room(product.lhs.rows) * steps * STEP,))
    lhs, view = product.lhs, product.lhs.view
    columns = lhs.row == 1 and lhs.column != 1
    builder.call_tasks(
        compiled_task(left_rounding(form, columns)),
        steps if columns else fields[TILES],
        (view, view),
        target,
        geometry(product, fields),
        builder.threads_from(PARALLEL_FROM, target.size),
    )
    return target


def _right(builder: ScheduleBuilder, value: Value, product: Product) -> View:
    """Return the right side, rounded and packed: once if it is a weight that is not streamed."""
    rhs = product.rhs
    view = rhs.view
    input_ = parameter(builder, view)
    size, offset = view.dtype.itemsize, view.offset
    layout = Layout(size, rhs.rows, product.k, rhs.row, rhs.column, offset, str(view.dtype))
    if input_ is not None and input_ not in builder.context.streamed:
        return packed_view(builder, view, Packing(input_, layout))

    def packed() -> View:
        target = builder.fresh(dtypes.bf16, (layout.nbytes // dtypes.bf16.itemsize,))
        threads = builder.threads_from(PARALLEL_FROM, target.size)
        reads, numbers = (view, view), layout.geometry
        builder.call_tasks(layout.task, layout.tasks, reads, target, numbers, threads)
        return target

    return builder.form_of(value, layout, packed, within=NEAR_GROUPS)


# `gptrs.numba.grouped_linear.v1`: each row times a matrix of its own choice.
#
# Operands: x f32 [R, I]; weight [G, O, I] of f32, bf16 or f16, with O of at least 8; groups si64
# [R]. The result is f32 [R, O]. R may be symbolic.


GROUPED_LINEAR = "gptrs.numba.grouped_linear.v1"
_COLUMNS_A_TASK = 64
_PARALLEL_FROM = 65_536
"""Products from which it pays to share the work."""


def fits_grouped(operands: Sequence[TensorType]) -> bool:
    """Return whether there is a kernel for operands that the functional takes."""
    x, weight, groups = operands
    return (
        x.dtype is dtypes.f32
        and weight.dtype in FLOATS
        and groups.dtype is dtypes.si64
        and weight.shape[1] >= COLUMNS_OF_ONE
        and weight.shape[2] > 0
    )


def _when_grouped(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    if op.attrs or [operand.rank for operand in operands] != [2, 3, 1]:
        return False
    x, weight, groups = operands
    return (
        fits_grouped(operands)
        and x.shape == (groups.shape[0], weight.shape[2])
        and op.results == (x.with_shape((x.shape[0], weight.shape[1])),)
    )


@custom_call(GROUPED_LINEAR, when=_when_grouped)
def grouped_linear(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add a job with a task for each block of columns."""
    x, weight, groups = (
        builder.contiguous(builder.view(operand)) for operand in unit.last.operands
    )
    out = builder.define(unit.last.result)
    matrices, outputs, inputs = weight.shape
    sizes = {
        "rows": x.shape[0],
        "inputs": inputs,
        "outputs": outputs,
        "matrices": matrices,
        "block": _COLUMNS_A_TASK,
    }
    numbers = tuple(sizes.get(field, 0) for field in FIELDS)
    tasks = -(-outputs // _COLUMNS_A_TASK)
    threads = builder.threads_from(_PARALLEL_FROM, x.size * outputs)
    leading = (POOL.address, compiled_task(grouped(weight.dtype)), tasks, threads)
    kernel, explain = compiled(run_grouped), wrong_group(groups, matrices)
    builder.steps.append(KernelCall(kernel, (x, weight, groups), out, numbers, explain, leading))


def wrong_group(groups: View, limit: int) -> Explain:
    """Return a function that states which group is not one of the matrices."""

    def explain(read: Read) -> str:
        found = (int(group) for group in read(groups).reshape(-1))
        wrong = next(group for group in found if not 0 <= group < limit)
        return f"`grouped_linear`: index {wrong} is out of range for {limit} matrices"

    return explain
