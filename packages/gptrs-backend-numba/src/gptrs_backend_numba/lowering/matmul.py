"""The matrix product: which kernels read its operands in which order, and the epilogue."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.kernels import gemm as kernels
from gptrs_backend_numba.kernels.compiled import compiled, compiled_task
from gptrs_backend_numba.kernels.emitter import WIDTH
from gptrs_backend_numba.kernels.epilogue import finish_source
from gptrs_backend_numba.kernels.gemm_geometry import BLOCKS, FIELDS, IN_PLACE, PACKED
from gptrs_backend_numba.kernels.gemm_ir import DOT_ROWS, PANEL, ROWS
from gptrs_backend_numba.packing import Layout, Packing
from gptrs_backend_numba.pool import POOL
from gptrs_backend_numba.products import Matrix, Product
from gptrs_backend_numba.schedule import Builder, Call
from gptrs_backend_numba.views import Place, Storage, View, dense_strides

FLOATS: tuple[DType, ...] = (dtypes.f32, dtypes.bf16, dtypes.f16)
"""Element types of operands; sums are f32."""

_PARALLEL_FROM = 32_768
"""Products from which it pays to share the work: waking a worker takes microseconds."""
_WORK_A_TASK = 65_536
_DEPTH = 768 if WIDTH == 16 else 384
"""Values of k in a block: its part of a panel stays in the L2 cache while all rows pass by."""
_TILES_A_TASK = 44
_TASKS = 32
"""Blocks that a product of many rows is divided into at least, if it is large enough."""
_FEW_ROWS = 24
"""Rows up to which a right side that is contiguous along n is better read in place."""
_MOST_DOTS = 4
"""Rows for which a right side that is contiguous along k is read in place, row by row."""
_LARGE = 16_384
"""Columns from which a weight that is contiguous along k is not copied: it is an embedding, which
is also read as a table, or at least too large to have twice."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What becomes of each sum: `activation(sum * scale + bias) + residual`, rounded once.

    `bias` is contiguous, of n elements; `residual` contiguous, of the result's shape; both f32,
    bf16 or f16. `activation` is a key of `gptrs_backend_numba.kernels.epilogue.ACTIVATIONS`.
    """

    bias: View | None = None
    activation: str = "none"
    residual: View | None = None
    scale: float = 1.0


PLAIN = Epilogue()
"""The sum itself."""


def gemm(builder: Builder, x: View, weight: View, out: View, epilogue: Epilogue = PLAIN) -> None:
    """`out[.., n] = sum_k x[.., k] * weight[n, k]` and the epilogue, for a contiguous `out`.

    `x` and `weight` are f32, bf16 or f16 and have any strides. A weight that is a parameter of the
    program is packed when it is first seen.
    """
    *leading, k = x.shape
    rows = math.prod(leading)
    flat = x.reshaped((rows, k)) or builder.contiguous(x).reshaped((rows, k))
    assert flat is not None, "a contiguous tensor takes any shape"
    lhs = Matrix(flat, rows, flat.strides[0], flat.strides[1], ())
    rhs = Matrix(weight, weight.shape[0], weight.strides[0], weight.strides[1], ())
    multiply(builder, Product(lhs, rhs, k, ()), out, epilogue)


def multiply(builder: Builder, product: Product, out: View, epilogue: Epilogue = PLAIN) -> None:
    """A batch of products of f32, bf16 or f16 operands into a contiguous `out`."""
    if out.size == 0:
        return
    rhs = product.rhs
    input_ = _parameter(builder, rhs.view)
    if reads_rows(product) and (input_ is None or rhs.rows >= _LARGE):
        _multiply_rows(builder, product, out, epilogue)
    elif input_ is not None and not product.batch and not (rhs.column == 1 and rhs.rows >= _LARGE):
        _multiply_tiles(builder, product, _packed(builder, product, input_), out, epilogue)
    else:
        _multiply_tiles(builder, product, rhs.view, out, epilogue)


def suits(product: Product, out: View) -> bool:
    """Whether `multiply` can compute a product that is summed in f32."""
    types = {product.lhs.view.dtype, product.rhs.view.dtype, out.dtype}
    return types <= {*FLOATS} and product.k > 0


def reads_rows(product: Product) -> bool:
    """Whether few rows meet a right side that is contiguous along k."""
    rhs = product.rhs
    few = product.lhs.rows <= _MOST_DOTS and rhs.rows >= DOT_ROWS
    return few and rhs.column == 1 and product.k > 1


def _parameter(builder: Builder, view: View) -> int | None:
    """The input that is the same in every run and that the view is a part of."""
    storage = view.storage
    is_input = storage.place is Place.INPUT and storage.index in builder.context.parameters
    return storage.index if is_input else None


def _packed(builder: Builder, product: Product, input_: int) -> View:
    """The packed copy of the right side, one for all products with it."""
    rhs, packings = product.rhs, builder.context.packings
    view = rhs.view
    size = view.dtype.itemsize
    layout = Layout(size, rhs.rows, product.k, rhs.row, rhs.column, view.offset)
    packing = Packing(input_, layout)
    if packing not in packings:
        packings.append(packing)
    storage = Storage(Place.PACKED, packings.index(packing), layout.nbytes)
    shape = (layout.nbytes // size,)
    return View(storage, view.dtype, shape, dense_strides(shape))


def _multiply_tiles(
    builder: Builder, product: Product, right: View, out: View, epilogue: Epilogue
) -> None:
    m, n, k = product.lhs.rows, product.rhs.rows, product.k
    batch = math.prod(product.batch)
    tiles = -(-m // ROWS)
    depth = k if tiles == 1 or k <= _DEPTH else -(-k // -(-k // _DEPTH))
    most = max(1, min(_TILES_A_TASK, batch * tiles * -(-n // PANEL) // _TASKS))
    tiles_a_task = -(-tiles // -(-tiles // most))
    fields = _fields(product, right, out, epilogue) | {
        "TILES": tiles,
        "TILES_A_TASK": tiles_a_task,
        "PANELS_A_TASK": _panels_a_task(min(m, tiles_a_task * ROWS), n, k),
        "DEPTH": max(depth, 1),
        "TILE": compiled_task(kernels.tile_source(right.dtype)),
        "PACK": compiled_task(kernels.right_source(right.dtype.itemsize)),
    }
    left = _packed_left(builder, product, fields)
    padded = -(-n // PANEL) * PANEL
    sums = builder.fresh(dtypes.f32, (batch * m, padded)) if depth < k else out
    count = batch * -(-tiles // fields["TILES_A_TASK"]) * _blocks(n, fields)
    task = compiled_task(kernels.task_source(right.dtype))
    _run(builder, product, task, count, (left, right), sums, out, epilogue, fields)


def _multiply_rows(builder: Builder, product: Product, out: View, epilogue: Epilogue) -> None:
    lhs, rhs = product.lhs, product.rhs
    shape, strides = (*product.batch, lhs.rows, product.k), (*lhs.batch, lhs.row, lhs.column)
    left = builder.converted(replace(lhs.view, shape=shape, strides=strides), dtypes.f32)
    fields = _fields(product, rhs.view, out, epilogue)
    fields["PANELS_A_TASK"] = _panels_a_task(lhs.rows, rhs.rows, product.k)
    task = compiled_task(kernels.dots_source(rhs.view.dtype))
    count = math.prod(product.batch) * _blocks(rhs.rows, fields)
    _run(builder, product, task, count, (left, rhs.view), out, out, epilogue, fields)


def _panels_a_task(rows: int, n: int, k: int) -> int:
    """Enough columns to be worth a task, in pairs for one row; they depend on sizes alone."""
    enough = min(-(-n // PANEL), _WORK_A_TASK // max(1, rows * PANEL * k))
    return max(1, enough) if rows > 1 else max(2, enough + enough % 2)


def _blocks(n: int, fields: dict[str, int]) -> int:
    panels = -(-n // PANEL)
    return -(-panels // fields["PANELS_A_TASK"])


def _fields(product: Product, right: View, out: View, epilogue: Epilogue) -> dict[str, int]:
    lhs, rhs = product.lhs, product.rhs
    residual = None if epilogue.residual is None else epilogue.residual.dtype
    bias = None if epilogue.bias is None else epilogue.bias.dtype
    finish = finish_source(out.dtype, bias, residual, epilogue.activation, float(epilogue.scale))
    first = len(FIELDS)
    return {
        "M": lhs.rows, "N": rhs.rows, "K": product.k,
        "LM": lhs.row, "LK": lhs.column, "RN": rhs.row, "RK": rhs.column,
        "LEFT": first, "RIGHT": first + 2 * len(product.batch), "RANK": len(product.batch),
        "WAY": _way(product, right),
        "FINISH": compiled_task(finish),
        "OUT_SIZE": out.dtype.itemsize, "OUT_STEP": rhs.rows, "RESIDUAL_STEP": rhs.rows,
    }  # fmt: skip


def _way(product: Product, right: View) -> int:
    if right.storage.place is Place.PACKED:
        return PACKED
    contiguous = product.rhs.row == 1 or product.rhs.rows == 1
    return IN_PLACE if contiguous and product.lhs.rows <= _FEW_ROWS else BLOCKS


def _packed_left(builder: Builder, product: Product, fields: dict[str, int]) -> View:
    """The left side in tiles of f32; a single row of f32 is one already."""
    lhs = product.lhs
    dense = lhs.column == 1 or product.k == 1
    if lhs.rows == 1 and dense and not product.batch and lhs.view.dtype is dtypes.f32:
        return lhs.view
    batch = math.prod(product.batch)
    target = builder.fresh(dtypes.f32, (batch * lhs.rows * product.k,))
    if target.size:
        builder.call_tasks(
            compiled_task(kernels.left_source(lhs.view.dtype)),
            batch * fields["TILES"],
            (lhs.view, lhs.view),
            target,
            _geometry(product, fields),
            parallel=target.size >= _PARALLEL_FROM,
        )
    return target


def _geometry(product: Product, fields: dict[str, int]) -> list[int]:
    axes = [*product.axes(product.lhs), *product.axes(product.rhs)]
    return [*(fields.get(name, 0) for name in FIELDS), *axes]


def _run(
    builder: Builder,
    product: Product,
    task: int,
    count: int,
    operands: tuple[View, View],
    sums: View,
    out: View,
    epilogue: Epilogue,
    fields: dict[str, int],
) -> None:
    threads = builder.context.threads if product.work >= _PARALLEL_FROM else 1
    left, right = operands
    extra = [left if view is None else view for view in (epilogue.bias, epilogue.residual)]
    numbers = np.array(_geometry(product, fields), np.int64)
    leading = (POOL.address, task, count, threads)
    reads = (left, right, *extra, sums)
    builder.steps.append(Call(compiled(kernels.RUN_SOURCE), reads, out, numbers, leading=leading))
