"""Calls of the convolution kernels: tiles and tasks, and the packing of weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gptrs.ir import dtypes
from gptrs.ir.shapes import Shape
from gptrs.quick_dataclass import dataclass
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.kernels.convolution import direct as kernels
from gptrs_backend_numba.kernels.convolution.activation import ACTIVATED, activation
from gptrs_backend_numba.kernels.convolution.geometry import COMMON, TILE_FIELDS
from gptrs_backend_numba.kernels.matmul import gemm
from gptrs_backend_numba.kernels.matmul import gemm_geometry as at
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, ROWS
from gptrs_backend_numba.packing import Layout, Packing
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import MemorySpace, Storage, View, dense_strides

PARALLEL_FROM = 65_536
"""Products from which it pays to share the work: waking a worker takes microseconds."""
TASKS = 16
"""Tasks that a convolution is divided into at least, if it is large enough."""
_MANY_WEIGHTS = 1 << 17
"""Numbers from which a panel is not in the L2 cache when it is needed; it is prefetched then."""
_BYTES_A_TASK = 192 * 1024
"""Bytes that the tiles of a task read and write: they stay in the L2 cache for all panels."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The geometry of a call, as in `extract_patches`."""

    window: Shape
    stride: Shape
    padding: Shape
    dilation: Shape

    @property
    def taps(self) -> int:
        """Return the number of positions of the window."""
        return math.prod(self.window)


@dataclass(frozen=True, slots=True)
class Operands:
    """The views of a call; `scale`, `shift` and the two bounds are always present."""

    x: View
    weight: View
    scale: View
    shift: View
    residual: View | None
    bounds: View
    out: View
    activation: str = "none"
    """One of `ACTIVATED`, if bounds are not all."""


def tiles(
    rows: int, positions: int, fields: Mapping[str, int], batch: int = 1, tasks: int = TASKS
) -> dict[str, int]:
    """Return the fields that cut positions into tiles, and the work into `tasks` or more."""
    count = -(-positions // ROWS)
    items = rows * count
    panels = -(-fields["N"] // PANEL)
    height = -(-positions // count)
    bytes_ = height * (fields["STEP"] * fields["RUNS"] + 4 * fields["N"])
    most = max(1, min(_BYTES_A_TASK // bytes_, -(-items * batch // tasks)))
    blocks = -(-items // most)
    columns = min(panels, -(-tasks // (blocks * batch)))
    return {
        "TILES": count,
        "ITEMS": items,
        "ITEMS_A_TASK": -(-items // blocks),
        "PANELS_A_TASK": -(-panels // columns),
        "PANELS_A_GROUP": panels,
    } | _functions(divmod(positions, count), fields["N"], batch * fields["K"] * panels * PANEL)


def _functions(rows: tuple[int, int], outputs: int, weights: int) -> dict[str, int]:
    """Return the addresses of the kernels for tiles of `rows[0]` positions, and of one more."""
    vectors = {1 if min(PANEL, outputs - at) <= WIDTH else 2 for at in range(0, outputs, PANEL)}
    names = {2: ("SHORT", "TALL"), 1: ("SHORT_HALF", "TALL_HALF")}
    prefetches = weights >= _MANY_WEIGHTS
    return {
        names[wide][more]: compiled_task(
            kernels.tiles_of(rows[0] + more, wide, prefetches=prefetches)
        )
        for wide in vectors
        for more in range(2 if rows[1] else 1)
    }


def multiply(
    builder: ScheduleBuilder,
    sides: tuple[View, View],
    given: Operands,
    fields: Mapping[str, int],
    runs: Sequence[int],
    batch: int = 1,
) -> None:
    """Add the call that computes all tiles of `batch` independent products."""
    panels = -(-fields["N"] // PANEL)
    count = batch * -(-fields["ITEMS"] // fields["ITEMS_A_TASK"])
    count *= -(-panels // fields["PANELS_A_TASK"])
    numbers = dict(fields) | {"TABLE": len(TILE_FIELDS)}
    task = compiled_task(kernels.tiles_task)
    work = batch * given.out.size * fields["K"]
    run(builder, (task, count, work), sides, given, geometry(TILE_FIELDS, numbers, runs))


def geometry(
    names: Sequence[str], numbers: Mapping[str, int], tail: Sequence[int] = ()
) -> list[int]:
    """Return the numbers in the order of the names, 0 for those that are not given."""
    return [*(numbers.get(name, 0) for name in names), *tail]


def run(
    builder: ScheduleBuilder,
    job: tuple[int, int, int],
    sides: tuple[View, View],
    given: Operands,
    numbers: list[int],
    extra: View | None = None,
) -> None:
    """Add the call of a job: a task function, the number of tasks, and of products in all."""
    task, count, work = job
    numbers[COMMON.index("HAS_RESIDUAL")] = int(given.residual is not None)
    if given.activation in ACTIVATED:
        numbers[COMMON.index("ACTIVATION")] = compiled_task(activation(given.activation))
    threads = builder.threads_from(PARALLEL_FROM, work)
    x, right = sides
    reads = (x, right, given.scale, given.shift, given.residual or x, given.bounds, extra or x)
    kernel = compiled(kernels.run_convolution)
    builder.add_job(kernel, (task, count, threads), reads, given.out, numbers)


def packed(builder: ScheduleBuilder, weight: View) -> View:
    """Return a weight [K, O] in panels: kept for a parameter, else packed in every run."""
    (k, n), (column, row) = weight.shape, weight.strides
    layout = Layout(4, n, k, row, column, weight.offset)
    source = parameter(builder, weight)
    if source is not None:
        return kept(builder, Packing(source, layout))
    target = builder.fresh(dtypes.f32, (layout.nbytes // 4,))
    pack = compiled_task(gemm.right_packing(4))
    fields = {at.N: n, at.K: k, at.RN: row, at.RK: column, at.PACK: pack}
    builder.call_tasks(
        compiled_task(gemm.panel_packing(4)),
        -(-n // PANEL),
        (weight, weight),
        target,
        at.numbers(fields),
        builder.threads_from(PARALLEL_FROM, target.size),
    )
    return target


def kept(builder: ScheduleBuilder, packing: Packing) -> View:
    """Return the packed copy of a parameter, one for all calls that read it."""
    packings = builder.context.packings
    index = packings.setdefault(packing, len(packings))
    size = packing.layout.nbytes // 4
    storage = Storage(MemorySpace.PACKED, index, packing.layout.nbytes)
    return View(storage, dtypes.f32, (size,), dense_strides((size,)))


def parameter(builder: ScheduleBuilder, view: View) -> int | None:
    """Return the parameter that the view is a part of, None if it is another value."""
    storage = view.storage
    is_input = storage.space is MemorySpace.INPUT and storage.index in builder.context.parameters
    return storage.index if is_input else None
