"""The matrix product: which kernels read its operands in which order, and the epilogue."""

from __future__ import annotations

import math

from msgspec.structs import replace

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.program import Value
from gptrs.ir.size_guards import greatest, select
from gptrs.ir.symbolic_dim import SymbolicDim, symbols_of
from gptrs_backend_numba.codegen.compiled import compiled_task
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.cost_model import is_one
from gptrs_backend_numba.kernels.matmul import gemm as kernels
from gptrs_backend_numba.kernels.matmul.dots import MOST_ROWS, table_products
from gptrs_backend_numba.kernels.matmul.gemm import (
    ALONG_K,
    BLOCK_LENGTH,
    BLOCKS,
    DIRECT,
    IN_PLACE,
    LEFT,
    LENGTH,
    PACK,
    PACKED,
    RANK,
    REPEATS,
    RIGHT,
    RIGHT_MODE,
    RK,
    RN,
    TILE,
    TILE_ALONG_K,
    TILES,
    TILES_A_TASK,
    K,
    N,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, ROWS
from gptrs_backend_numba.lowering import amx_matmul
from gptrs_backend_numba.lowering.product_calls import (
    PARALLEL_FROM,
    PLAIN,
    Epilogue,
    Packer,
    call_fields,
    column_blocks,
    division,
    geometry,
    repeats,
    run,
    tasks_of_thread,
)
from gptrs_backend_numba.packing import Layout, Packing
from gptrs_backend_numba.schedule import KernelCall, ScheduleBuilder, with_dtype
from gptrs_backend_numba.views import Matrix, MemorySpace, Product, Storage, View, dense_strides

FLOATS: tuple[DType, ...] = (dtypes.f32, dtypes.bf16, dtypes.f16)
"""Element types of operands; sums are f32."""

_BLOCK_LENGTH = 768
"""Values of k in a block: its part of a panel stays in the L2 cache while all rows pass by. Of 384
to 1536 with AVX-512, 768 is best; 1536 loses 6 % at k = 3072. With AVX2 384 loses 3 %."""
_LEFT_BYTES = 7 << 17 if WIDTH == 16 else 7 << 15
"""Most bytes of the left side in a task, for a block of k: they stay in the L2 cache meanwhile."""
_LEAST_BLOCK = _BLOCK_LENGTH if WIDTH == 16 else 256
"""Values of k in the shortest block by which one task takes all rows, so that no other packs the
same panels: a whole right side written to memory costs up to a fifth of a product of few rows."""
_WHOLE_BLOCKS = 32
"""Blocks of a right side that is decoded are multiples of that: whole groups of its weight."""
_FEW_ALONG_N, _FEW_ALONG_K = 24, 8
"""Rows up to which a right side that is contiguous along n or k is better read in place: a tile
along k transposes it anew, which packing does once for all tiles (16 rows: 0.75 times as fast)."""
_SMALL_RIGHT = 1 << 18
"""Elements of a right side that the L2 cache holds."""
_TALL = 3 * ROWS // 4
"""Rows of a tile that is nearly as fast as one of all rows."""
_PACKED_BY_ALL = 8_192
"""Elements of a left side from which all threads pack it, each the rows that it will read."""
_LARGE = 16_384
"""Columns from which a weight that is contiguous along k is not copied: it is an embedding, which
is also read as a table, or at least too large to have twice."""


def gemm(
    builder: ScheduleBuilder,
    x: View,
    weight: View,
    out: View,
    epilogue: Epilogue = PLAIN,
    value: Value | None = None,
) -> None:
    """Add the calls for `out[.., n] = sum_k x[.., k] * weight[n, k]` and the epilogue.

    `x` and `weight` are f32, bf16 or f16 and have any strides; `out` is contiguous. A weight that
    is a parameter of the program is packed when it is first seen, another `value` once for products
    that are near.
    """
    *leading, k = x.shape
    rows = math.prod(leading)
    flat = x.reshaped((rows, k)) or builder.contiguous(x).reshaped((rows, k))
    assert flat is not None, "a contiguous tensor takes any shape"
    lhs = Matrix(flat, rows, flat.strides[0], flat.strides[1], ())
    rhs = Matrix(weight, weight.shape[0], weight.strides[0], weight.strides[1], ())
    multiply(builder, Product(lhs, rhs, k, ()), out, epilogue, value)


def multiply(
    builder: ScheduleBuilder,
    product: Product,
    out: View,
    epilogue: Epilogue = PLAIN,
    value: Value | None = None,
) -> None:
    """Add the calls for a batch of products of f32, bf16 or f16 into a contiguous `out`.

    `value` is the right side, as in `gemm`.
    """
    if out.size == 0:
        return
    is_one(product.lhs.rows)  # kernels for one row differ in all that follows
    if not product.batch and is_large_table(builder, product.rhs):
        _multiply_table(builder, product, out, epilogue)
    elif amx_matmul.suits(product):
        right = _right(builder, product, whole=True, value=value)
        amx_matmul.multiply(builder, product, right, out, epilogue)
    else:
        right = _right(builder, product, whole=_is_read_often(product), value=value)
        _multiply_tiles(builder, product, right, out, epilogue)


def multiply_packed_by(
    builder: ScheduleBuilder, product: Product, out: View, epilogue: Epilogue, packer: Packer
) -> None:
    """Add the calls for a product whose right side tasks pack by `packer`, as f32."""
    _multiply_tiles(builder, product, product.rhs.view, out, epilogue, dtypes.f32, packer)


def multiply_words(builder: ScheduleBuilder, product: Product, out: View) -> None:
    """Add the calls for a batch of products of si32, whose sums wrap, into a contiguous `out`.

    All but the tiles move words of 4 bytes, whatever they mean.
    """
    sides = (
        replace(side, view=with_dtype(side.view, dtypes.f32)) for side in (product.lhs, product.rhs)
    )
    lhs, rhs = sides
    product = replace(product, lhs=lhs, rhs=rhs)
    first = len(builder.steps)
    right = _right(builder, product, whole=_is_read_often(product))
    _multiply_tiles(builder, product, right, with_dtype(out, dtypes.f32), PLAIN, dtypes.si32)
    # Profiles show the types of views: those that the words have.
    for index, step in enumerate(builder.steps[first:], first):
        if isinstance(step, KernelCall):
            reads = tuple([with_dtype(view, dtypes.si32) for view in step.reads])
            write = with_dtype(step.write, dtypes.si32)
            builder.steps[index] = replace(step, reads=reads, write=write)


def suits(product: Product, out: View) -> bool:
    """Return whether `multiply` can compute a product that is summed in f32."""
    types = {product.lhs.view.dtype, product.rhs.view.dtype, out.dtype}
    return types <= {*FLOATS} and product.k > 0


def is_large_table(builder: ScheduleBuilder, rhs: Matrix) -> bool:
    """Return whether a right side is a weight too large to have twice, read where it lies."""
    large = rhs.column == 1 and rhs.rows >= _LARGE
    return large and parameter(builder, rhs.view) is not None


def parameter(builder: ScheduleBuilder, view: View) -> int | None:
    """Return the parameter that the view is a part of, None if it is another value."""
    storage = view.storage
    is_input = storage.space is MemorySpace.INPUT and storage.index in builder.context.parameters
    return storage.index if is_input else None


def _right(
    builder: ScheduleBuilder, product: Product, whole: bool, value: Value | None = None
) -> View:
    """Return the right side as tiles read it: a parameter packed once, others in every run.

    Those are packed by the tasks, a panel at a time, unless they need the `whole` of it. Results
    are the same bits.
    """
    rhs = product.rhs
    view = rhs.view
    size = view.dtype.itemsize
    input_ = parameter(builder, view)
    layout = Layout(size, rhs.rows, product.k, rhs.row, rhs.column, view.offset)
    if input_ is not None and input_ not in builder.context.streamed and not product.batch:
        return packed_view(builder, view, Packing(input_, layout))
    if not whole:
        return view
    if value is None or product.batch:
        return _packed_right(builder, product)
    return builder.form_of(
        value, layout, lambda: _packed_right(builder, product), within=NEAR_GROUPS
    )


NEAR_GROUPS = 100
"""Groups between two products that share a packed right side: those of the chunks of a head. Other
weights are read twice only where layers are computed again, which is to save memory."""


def _packed_right(builder: ScheduleBuilder, product: Product) -> View:
    """Add the packing of a whole right side, or of all of a batch."""
    rhs, batch = product.rhs, math.prod(product.batch)
    view, size = rhs.view, rhs.view.dtype.itemsize
    panels = -(-rhs.rows // PANEL)
    target = builder.fresh(view.dtype, (batch * panels * PANEL * product.k,))
    fields = {N: rhs.rows, K: product.k, RN: rhs.row, RK: rhs.column}
    fields |= {LEFT: LENGTH, RIGHT: LENGTH + 2 * len(product.batch), RANK: len(product.batch)}
    fields[PACK] = compiled_task(kernels.right_packing(size))
    builder.call_tasks(
        compiled_task(kernels.panel_packing(size)),
        batch * panels,
        (view, view),
        target,
        geometry(product, fields),
        builder.threads_from(PARALLEL_FROM, target.size),
    )
    return target


def _is_read_often(product: Product) -> bool:
    """Return whether several tasks, one after another, would pack the same panels.

    A panel of a matrix with long rows is read from many pages: 2048 x 2048 x 2048 takes 1.1 times
    as long where 7 tasks pack it.
    """
    k = product.k
    block_length = _BLOCK_LENGTH if isinstance(k, SymbolicDim) else _shared_block(product, 2)
    return product.lhs.rows > ROWS * _most_tiles(block_length)


def packed_view(builder: ScheduleBuilder, view: View, packing: Packing) -> View:
    """Return the packed copy of a right side, one for all products with it."""
    packings = builder.context.packings
    layout, size = packing.layout, view.dtype.itemsize
    index = packings.setdefault(packing, len(packings))
    storage = Storage(MemorySpace.PACKED, index, layout.nbytes)
    shape = (layout.nbytes // size,)
    return View(storage, view.dtype, shape, dense_strides(shape))


def _multiply_tiles(
    builder: ScheduleBuilder,
    product: Product,
    right: View,
    out: View,
    epilogue: Epilogue,
    kind: DType | None = None,
    packer: Packer | None = None,
) -> None:
    """Add the calls; `kind` is the type of the right side if its view does not have it."""
    kind = kind or right.dtype
    m, n, k = product.lhs.rows, product.rhs.rows, product.k
    batch = math.prod(product.batch)
    mode = BLOCKS if packer else _right_mode(product, right, can_transpose=kind in FLOATS)
    # Tasks of whole rows each read all of the right side: from their own caches, if it is small.
    known = not symbols_of([*product.batch, m, n, k])
    by_rows = known and mode not in (PACKED, BLOCKS) and n * k <= _SMALL_RIGHT
    tiles = _even_tiles(m, builder.context.threads) if by_rows else -(-m // ROWS)
    blocked = mode == BLOCKS and not packer
    block_length = _shared_block(product, m) if blocked else _block_length(2 if packer else m, k)
    block_length = greatest(block_length, 1)
    if packer and block_length < k:
        block_length = -(-block_length // _WHOLE_BLOCKS) * _WHOLE_BLOCKS
    most = _most_tiles(block_length)
    fields = call_fields(product, out, epilogue)
    shares = tasks_of_thread(product)
    fields |= division(product, tiles, most, builder.context.threads, shares, by_rows) | {
        RIGHT_MODE: mode,
        BLOCK_LENGTH: block_length,
        REPEATS: int(mode == PACKED and repeats(builder, product)),
        TILE: compiled_task(kernels.any_tile(kind)),
        PACK: packer.function
        if packer
        else compiled_task(kernels.right_packing(right.dtype.itemsize)),
    }
    if kind in FLOATS and mode not in (PACKED, IN_PLACE, BLOCKS) and product.rhs.row != 1:
        fields[TILE_ALONG_K] = compiled_task(kernels.any_tile_along_k(right.dtype))
    left = _packed_left(builder, product, fields)
    padded = -(-n // PANEL) * PANEL
    needed = block_length != greatest(k, 1) and not (fields[DIRECT] and padded == n)
    sums = builder.fresh(dtypes.f32, (batch * m, padded)) if needed else out
    count = batch * -(-tiles // fields[TILES_A_TASK]) * column_blocks(n, fields)
    task = compiled_task(kernels.tiled_product(kind))
    run(builder, product, task, count, (left, right), sums, out, epilogue, fields, packer)


def _even_tiles(rows: int, threads: int) -> int:
    """Return how many tiles there are, the same number for each thread if they stay tall.

    A sum does not depend on the height of its tile.
    """
    tiles = -(-rows // ROWS)
    even = -(-tiles // threads) * threads
    return even if rows >= _TALL * even else tiles


def _most_tiles(block_length: int) -> int:
    """Return the most tiles of a task."""
    return _LEFT_BYTES // (4 * ROWS * greatest(block_length, 1))


def _block_length(m: int, k: int) -> int:
    """Return the values of k in a block, all of them for a single row or where they are few."""
    if is_one(m) or (not isinstance(k, SymbolicDim) and k <= _BLOCK_LENGTH):
        return k
    blocks = -(-k // _BLOCK_LENGTH)
    return select(_BLOCK_LENGTH - k, k, -(-k // blocks))


def _shared_block(product: Product, rows: int) -> int:
    """Return `_block_length(rows, k)`, or less where one task then takes all rows of the product.

    The heads of language models are packed as a whole: chunks of rows share them.
    """
    m, k = product.lhs.rows, product.k
    usual = _block_length(rows, k)
    if symbols_of([m, k, product.rhs.rows]) or m == 1 or product.rhs.rows >= _LARGE:
        return usual
    fitting = _LEFT_BYTES // (4 * ROWS * -(-m // ROWS))
    if not _LEAST_BLOCK <= fitting < usual:
        return usual
    return -(-k // -(-k // fitting))


def _multiply_table(
    builder: ScheduleBuilder, product: Product, out: View, epilogue: Epilogue
) -> None:
    lhs, rhs = product.lhs, product.rhs
    rows = replace(lhs.view, shape=(lhs.rows, product.k), strides=(lhs.row, lhs.column))
    left = builder.converted(rows, dtypes.f32)
    tiles = -(-lhs.rows // MOST_ROWS)
    most = _LEFT_BYTES // (4 * MOST_ROWS * product.k)
    fields = call_fields(product, out, epilogue)
    fields |= division(product, tiles, most, builder.context.threads)
    task = compiled_task(table_products(rhs.view.dtype))
    count = -(-tiles // fields[TILES_A_TASK]) * column_blocks(rhs.rows, fields)
    run(builder, product, task, count, (left, rhs.view), out, out, epilogue, fields)


def _right_mode(product: Product, right: View, can_transpose: bool) -> int:
    if right is not product.rhs.view:
        return PACKED
    rows, rhs = product.lhs.rows, product.rhs
    if rhs.row == 1 or rhs.rows == 1:
        return select(_FEW_ALONG_N - rows, IN_PLACE, BLOCKS)
    along_k = can_transpose and rhs.column == 1 and product.k != 1
    return select(_FEW_ALONG_K - rows, ALONG_K, BLOCKS) if along_k else BLOCKS


def _packed_left(builder: ScheduleBuilder, product: Product, fields: dict[int, int]) -> View:
    """Return the left side in tiles of f32; a single row of f32 is one already."""
    lhs = product.lhs
    dense = lhs.column == 1 or product.k == 1
    if lhs.rows == 1 and dense and not product.batch and lhs.view.dtype is dtypes.f32:
        return lhs.view
    batch = math.prod(product.batch)
    target = builder.fresh(dtypes.f32, (batch * lhs.rows * product.k,))
    if target.size:
        builder.call_tasks(
            compiled_task(kernels.left_packing(lhs.view.dtype)),
            batch * -(-fields[TILES] // kernels.TILES_A_PACK),
            (lhs.view, lhs.view),
            target,
            geometry(product, fields),
            builder.threads_from(_PACKED_BY_ALL, target.size),
        )
    return target
