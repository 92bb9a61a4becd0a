"""Calls of the kernels of matrix products: epilogues, geometries, and the division into tasks."""

from __future__ import annotations

import math

from msgspec import Struct

from gptrs.ir import dtypes
from gptrs.ir.size_guards import greatest, least, select
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.codegen.machine_code import Kernel
from gptrs_backend_numba.cost_model import is_one
from gptrs_backend_numba.kernels.matmul.epilogue import finish
from gptrs_backend_numba.kernels.matmul.gemm import (
    DIRECT,
    FINISH,
    HAS_BIAS,
    HAS_RESIDUAL,
    LEFT,
    LENGTH,
    LK,
    LM,
    OUT_STEP,
    PANELS_A_TASK,
    RANK,
    RESIDUAL_STEP,
    RIGHT,
    RK,
    RN,
    SKIPPED,
    TILES,
    TILES_A_TASK,
    K,
    M,
    N,
    numbers,
    run_gemm,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, PANELS_OF_ROW
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import Product, View

PARALLEL_FROM = 32_768
"""Products from which it pays to share the work: waking a worker takes microseconds."""
_WORK_A_TASK = 65_536
"""Products from which a task is worth its overhead."""
_TASKS_A_THREAD = 2
"""Few, since each reads the left side anew: 1, 2, 4, 8 and 16 gave 321, 313, 308, 297 and 292
GFLOP/s on two threads. More than one, since threads need not be equally fast."""
_LARGE, _TASKS_OF_LARGE = 1 << 28, 4
"""Products, on vector units, from which twice as many are better: 1024 x 1024 x 1024 takes 11.1
instead of 12.2 ms on two threads, as none waits long for the other at the end."""
_ROUNDS_TO_EVEN = 4
"""Tasks of a thread up to which another division is tried."""
_ROWS_PAY = 5, 4
"""How much longer the longest thread of a division into rows may take: what a thread has written it
reads 5 times as fast as what another one has."""
_TASKS_A_ROW = 16
"""Tasks of a product of one row that give every thread about as much to do."""


class Epilogue(Struct, frozen=True):
    """The last operations on each sum: `activation(sum * scale + bias) + residual`, rounded once.

    `bias` is contiguous, of n elements; `residual` contiguous, of the result's shape; both f32,
    bf16 or f16. `activation` is a key of `gptrs_backend_numba.kernels.matmul.epilogue.ACTIVATIONS`.
    """

    bias: View | None = None
    activation: str = "none"
    residual: View | None = None
    scale: float = 1.0


PLAIN = Epilogue()
"""The sum itself."""


class Packer(Struct, frozen=True):
    """Packs blocks of the panels of a right side in the tasks of a product.

    `function` is the address for the field `PACK`, `run` the kernel that runs the tasks. That
    takes the addresses of `reads` behind those of both sides; `numbers` follow in the geometry.
    """

    function: int
    reads: tuple[View, ...]
    numbers: tuple[int, ...]
    run: Kernel


def tasks_of_thread(product: Product) -> int:
    """Return the tasks of a thread for a product on vector units."""
    return select(product.work - _LARGE, _TASKS_OF_LARGE, _TASKS_A_THREAD)


def division(
    product: Product,
    tiles: int,
    most: int,
    threads: int,
    tasks_a_thread: int = _TASKS_A_THREAD,
    rows_first: bool = False,
) -> dict[int, int]:
    """Return the fields that divide a product into tasks, of `most` tiles each at most.

    With `rows_first` tasks are whole rows where that takes hardly longer: a thread then reads what
    it has written itself, if another product or ops made the left side. Sizes must be known.
    They do not show in results: a value is the same whatever task computes it.
    """
    m, n = product.lhs.rows, product.rhs.rows
    panels, batch = -(-n // PANEL), math.prod(product.batch)
    tasks = tasks_a_thread * threads
    blocks = -(-tiles // least(greatest(1, most), -(-batch * tiles * panels // tasks)))
    tiles_a_task = -(-tiles // blocks)
    rows = 1 if is_one(m) else -(-m // blocks)
    panels_a_task = enough_panels(rows, n, product.k)
    if not is_one(m):
        enough = greatest(panels_a_task, -(-batch * blocks * panels // tasks))
        panels_a_task = least(panels, enough)
    if rows_first and threads > 1:
        shape, task = (batch, tiles, panels), (tiles_a_task, panels_a_task)
        tiles_a_task, panels_a_task = _by_rows(shape, task, threads)
    return {
        TILES: tiles,
        TILES_A_TASK: tiles_a_task,
        PANELS_A_TASK: panels_a_task,
        SKIPPED: (threads - 1) * panels_a_task,
    }


def _by_rows(shape: tuple[int, int, int], task: tuple[int, int], threads: int) -> tuple[int, int]:
    """Return the tiles and the panels of a task of whole rows; `task` itself if that is quicker.

    Of few tasks, the last ones decide: 192 x 192 x 192 in 3 tasks of 2 panels takes 1.3 times as
    long on two threads as in 2 of all. `shape` are matrices, tiles and panels.
    """
    batch, tiles, panels = shape

    def rounds(task: tuple[int, int]) -> int:
        return -(-batch * -(-tiles // task[0]) * -(-panels // task[1]) // threads)

    def cost(task: tuple[int, int]) -> int:
        """The time until the last thread ends, in thirds of a tile: as long as to pack a panel."""
        return rounds(task) * (3 * task[0] + 1) * task[1]

    if rounds(task) > _ROUNDS_TO_EVEN or tiles == 1:
        return task
    least = -(-tiles // task[0])
    heights = {-(-tiles // blocks) for blocks in range(least, 2 * threads * least + 1)}
    rows = min(((height, panels) for height in heights), key=cost)
    return rows if cost(rows) * _ROWS_PAY[1] <= cost(task) * _ROWS_PAY[0] else task


def enough_panels(rows: int, n: int, k: int) -> int:
    """Return the panels of a task: enough to be worth it, whole groups for one row."""
    panels = -(-n // PANEL)
    enough = least(panels, _WORK_A_TASK // greatest(1, rows * PANEL * k))
    if rows != 1:
        return greatest(1, enough)
    # A row takes so little time that it shows how memory starts again with each task.
    enough = greatest(enough, least(4 * enough, panels // _TASKS_A_ROW))
    return greatest(1, -(-enough // PANELS_OF_ROW)) * PANELS_OF_ROW


def column_blocks(n: int, fields: dict[int, int]) -> int:
    """Return how many tasks lie side by side."""
    panels = -(-n // PANEL)
    return -(-panels // fields[PANELS_A_TASK])


def call_fields(product: Product, out: View, epilogue: Epilogue) -> dict[int, int]:
    """Return the fields that describe the operands and what becomes of the sums."""
    lhs, rhs = product.lhs, product.rhs
    residual = None if epilogue.residual is None else epilogue.residual.dtype
    bias = None if epilogue.bias is None else epilogue.bias.dtype
    kernel = finish(out.dtype, bias, residual, epilogue.activation, float(epilogue.scale))
    plain = epilogue.activation == "none" and epilogue.scale == 1.0
    types = {out.dtype, bias or dtypes.f32, residual or dtypes.f32}
    return {
        M: lhs.rows, N: rhs.rows, K: product.k,
        LM: lhs.row, LK: lhs.column, RN: rhs.row, RK: rhs.column,
        LEFT: LENGTH, RIGHT: LENGTH + 2 * len(product.batch), RANK: len(product.batch),
        FINISH: compiled_task(kernel),
        DIRECT: int(plain and types == {dtypes.f32}),
        HAS_BIAS: int(bias is not None), HAS_RESIDUAL: int(residual is not None),
        OUT_STEP: rhs.rows, RESIDUAL_STEP: rhs.rows,
    }  # fmt: skip


def repeats(builder: ScheduleBuilder, product: Product) -> bool:
    """Return whether one row meets a right side that the next step of a loop reads again."""
    return builder.repeats and product.lhs.rows == 1 and not product.batch


def geometry(product: Product, fields: dict[int, int]) -> list[int]:
    """Return the numbers that the kernels read; fields that are not given are 0."""
    axes = [*product.axes(product.lhs), *product.axes(product.rhs)]
    return [*numbers(fields), *axes]


def run(
    builder: ScheduleBuilder,
    product: Product,
    task: int,
    count: int,
    operands: tuple[View, View],
    sums: View,
    out: View,
    epilogue: Epilogue,
    fields: dict[int, int],
    packer: Packer | None = None,
) -> None:
    """Add the call that runs `count` tasks; those of a `packer` pack the right side."""
    threads = builder.threads_from(PARALLEL_FROM, product.work)
    left, right = operands
    extra = [left if view is None else view for view in (epilogue.bias, epilogue.residual)]
    job, numbers_ = (task, count, threads), geometry(product, fields)
    if packer is None:
        builder.add_job(compiled(run_gemm), job, (left, right, *extra, sums), out, numbers_)
    else:
        reads = (left, right, *packer.reads, *extra, sums)
        builder.add_job(packer.run, job, reads, out, [*numbers_, *packer.numbers])
