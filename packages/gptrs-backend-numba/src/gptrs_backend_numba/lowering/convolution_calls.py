"""Calls of the convolution kernels: tiles and tasks, and the packing of weights."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import product

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gptrs.ir import dtypes
from gptrs.ir.size_guards import Shape
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.codegen.kernel import SpecializedKernel
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.cost_model import Convolution, winograd_side
from gptrs_backend_numba.kernels.convolution import direct as direct_kernels
from gptrs_backend_numba.kernels.convolution import winograd as winograd_kernels
from gptrs_backend_numba.kernels.convolution.activation import ACTIVATED, activation
from gptrs_backend_numba.kernels.convolution.job import (
    COMMON,
    PAD_FIELDS,
    TILE_FIELDS,
    WINOGRAD_FIELDS,
    pad_task,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, ROWS
from gptrs_backend_numba.lowering.matmul import packed_view, parameter
from gptrs_backend_numba.memory import aligned
from gptrs_backend_numba.packing import Layout, Packing
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import View

PARALLEL_FROM = 65_536
"""Products from which it pays to share the work: waking a worker takes microseconds."""
TASKS = 16
"""Tasks that a convolution is divided into at least, if it is large enough."""
_MANY_WEIGHTS = 1 << 17
"""Numbers from which a panel is not in the L2 cache when it is needed; it is prefetched then."""
PADDED_A_TASK = 16_384
"""Floats of padded images per task."""
_BYTES_A_TASK = 192 * 1024
"""Bytes that the tiles of a task read and write: they stay in the L2 cache for all panels."""


class Windows(Struct, frozen=True):
    """The geometry of a call, as in `extract_patches`."""

    window: Shape
    stride: Shape
    padding: Shape
    dilation: Shape

    @property
    def taps(self) -> int:
        """Return the number of positions of the window."""
        return math.prod(self.window)


class Operands(Struct, frozen=True):
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
    rounded: bool = False
    """True if `x` and `weight` are to be rounded to bf16, a parameter then."""


def tiles(
    rows: int,
    positions: int,
    fields: Mapping[str, int],
    batch: int = 1,
    tasks: int = TASKS,
    *,
    paired: bool = False,
) -> dict[str, int]:
    """Return the fields that cut positions into tiles, and the work into `tasks` or more.

    Numbers of `fields` are words, of one f32 each or of a pair of bf16.
    """
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
    } | _functions(
        divmod(positions, count), fields["N"], batch * fields["K"] * panels * PANEL, paired
    )


_tiles_of = cache(direct_kernels.tiles_of)
"""Each layer needs some of the few, whose keys are long."""


def _functions(rows: tuple[int, int], outputs: int, weights: int, paired: bool) -> dict[str, int]:
    """Return the addresses of the kernels for tiles of `rows[0]` positions, and of one more."""
    vectors = {1 if min(PANEL, outputs - at) <= WIDTH else 2 for at in range(0, outputs, PANEL)}
    names = {2: ("SHORT", "TALL"), 1: ("SHORT_HALF", "TALL_HALF")}
    kind = {"prefetches": weights >= _MANY_WEIGHTS, "paired": paired}
    if _ALL_HEIGHTS.get():
        for wide, height in product(vectors, range(1, ROWS + 1)):
            compiled_task(_tiles_of(height, wide, **kind))
    return {
        names[wide][more]: compiled_task(_tiles_of(rows[0] + more, wide, **kind))
        for wide in vectors
        for more in range(2 if rows[1] else 1)
    }


_ALL_HEIGHTS: ContextVar[bool] = ContextVar("gptrs_numba_all_heights", default=False)


@contextmanager
def all_heights() -> Generator[None]:
    """Scope in which kernels for tiles of all heights are made, not only for those in use.

    The heights follow from the sizes of images. Where these are free, a run with new sizes would
    compile otherwise: about 0.1 s a kernel.
    """
    token = _ALL_HEIGHTS.set(True)
    try:
        yield
    finally:
        _ALL_HEIGHTS.reset(token)


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
    task = compiled_task(direct_kernels.tiles_task)
    work = batch * given.out.size * fields["K"]
    run(builder, (task, count, work), sides, given, geometry(TILE_FIELDS, numbers, runs))


def geometry(
    names: Sequence[str], numbers: Mapping[str, int], tail: Sequence[int] = ()
) -> list[int]:
    """Return the numbers in the order of the names, 0 for missing ones."""
    return [*[numbers.get(name, 0) for name in names], *tail]


def padded(builder: ScheduleBuilder, x: View, padding: Shape) -> View:
    """Return a view of the images with zeros around them."""
    if not any(padding):
        return x
    n, height, width, channels = x.shape
    top, bottom, left, right = padding
    shape = (n, top + height + bottom, left + width + right, channels)
    target = builder.fresh(dtypes.f32, shape)
    rows, line = n * shape[1], shape[2] * channels
    block = max(1, PADDED_A_TASK // line)
    fields = {
        "H": height, "W": width * channels, "TOP": top, "LEFT": left * channels,
        "HEIGHT": shape[1], "WIDTH": line, "ROWS": rows, "ROWS_A_TASK": block,
    }  # fmt: skip
    builder.call_tasks(
        compiled_task(pad_task),
        -(-rows // block),
        (x, x),
        target,
        geometry(PAD_FIELDS, fields),
        builder.threads_from(PARALLEL_FROM, target.size),
    )
    return target


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
    kernel = compiled(direct_kernels.run_convolution)
    builder.add_job(kernel, (task, count, threads), reads, given.out, numbers)


def paired_panels(matrices: np.ndarray, target: np.ndarray) -> None:
    """Round matrices f32 [B, K, O], K even, to pairs of bf16 in panels, and put them to `target`.

    In memory each panel follows the one before, the last one padded with zeros, and in it each
    pair of `K` is `PANEL` words.
    """
    count, k, outputs = matrices.shape
    made = target.view(np.uint16).reshape(count, -1, k // 2, PANEL, 2)
    for panel in range(made.shape[1]):
        some = matrices[..., panel * PANEL : (panel + 1) * PANEL]
        bits = some.astype(dtypes.bf16.numpy).view(np.uint16)
        width = some.shape[-1]
        pairs = bits.reshape(count, k // 2, 2, width)
        made[:, panel, :, :width] = pairs.transpose(0, 1, 3, 2)
        made[:, panel, :, width:] = 0
    assert outputs <= made.shape[1] * PANEL


class PairedWeight(Struct, frozen=True):
    """A weight (taps, inputs, outputs) as pairs of bf16 in panels, see `packing.Arrangement`.

    An odd number of inputs is padded with a zero. Strides and the offset count elements.
    """

    taps: int
    inputs: int
    outputs: int
    row: int
    column: int
    offset: int

    @property
    def pairs(self) -> int:
        """Return the pairs of numbers that a position of the result sees."""
        return self.taps * -(-self.inputs // 2)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all panels."""
        return 4 * self.pairs * -(-self.outputs // PANEL) * PANEL

    def packed(self, array: np.ndarray, threads: int) -> np.ndarray:
        """Return the panels of the parameter `array`, one after another."""
        strides = (4 * self.row * self.inputs, 4 * self.row, 4 * self.column)
        start = array.reshape(-1)[self.offset :]
        shape = (self.taps, self.inputs, self.outputs)
        weight = np.lib.stride_tricks.as_strided(start, shape, strides)
        weight = np.pad(weight, ((0, 0), (0, self.inputs % 2), (0, 0)))
        target = aligned(self.nbytes)
        paired_panels(weight.reshape(1, 2 * self.pairs, self.outputs), target)
        return target


def packed_pairs(builder: ScheduleBuilder, weight: View, taps: int) -> View:
    """Return a weight [K, O], a parameter, as pairs of bf16 in panels."""
    (k, outputs), (row, column) = weight.shape, weight.strides
    source = parameter(builder, weight)
    assert source is not None, "checked before"
    layout = PairedWeight(taps, k // taps, outputs, row, column, weight.offset)
    return packed_view(builder, weight, Packing(source, layout))


def packed(builder: ScheduleBuilder, weight: View) -> View:
    """Return a weight [K, O] in panels: kept for a parameter, else packed in every run."""
    (k, n), (column, row) = weight.shape, weight.strides
    layout = Layout(4, n, k, row, column, weight.offset)
    source = parameter(builder, weight)
    if source is not None:
        return packed_view(builder, weight, Packing(source, layout))
    target = builder.fresh(dtypes.f32, (layout.nbytes // 4,))
    threads = builder.threads_from(PARALLEL_FROM, target.size)
    builder.call_tasks(
        layout.task, layout.tasks, (weight, weight), target, layout.geometry, threads
    )
    return target


# Winograd's algorithms F(2x2, 3x3) and F(4x4, 3x3) for convolutions with strides of 1.
#
# They take 16 products for 4 results and 36 for 16, where the direct way takes 36 and 144. Lavin,
# Gray: Fast Algorithms for Convolutional Neural Networks (2016).


_BYTES_AT_ONCE = 1 << 20
"""Bytes of transformed tiles and sums: they stay in the L2 cache until they are read again."""
_LEAST_TILES = 48
"""Fewest tiles at a time if the weights exceed the L2 cache: they are read again each time."""

_G = {
    2: np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]], np.float64) / 2,
    4: np.array(
        [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]], np.float64
    ) / 24,
}  # fmt: skip
"""Weights `w` are transformed to `G w G^T`, by the side of a tile of results."""
_NEAR, _FAR = 2 / 3, 3 / 2
_ROUNDED_G = {
    2: _G[2],
    4: np.array(
        [
            [1, 0, 0],
            *(
                np.array([1, sign * at, at**2]) / (2 * at**2 * (at**2 - other**2))
                for at, other in ((_NEAR, _FAR), (_FAR, _NEAR))
                for sign in (1, -1)
            ),
            [0, 0, 1],
        ]
    ),
}
"""The same for numbers that are rounded to bf16, see `kernels.convolution.winograd`."""


class TransformedWeight(Struct, frozen=True):
    """A weight [3, 3, inputs, outputs] as matrices in panels, see `packing.Arrangement`.

    Their numbers are f32, or pairs of bf16 if they are `rounded`.
    """

    side: int
    inputs: int
    outputs: int
    offset: int
    rounded: bool = False

    @property
    def nbytes(self) -> int:
        """Return the bytes of all panels, which are padded with zeros."""
        size = 2 if self.rounded else 4
        return size * matrices(self.side) * self.inputs * -(-self.outputs // PANEL) * PANEL

    def packed(self, array: np.ndarray, threads: int) -> np.ndarray:
        """Return the matrices, transformed in f64, so that only the result is rounded."""
        size = 9 * self.inputs * self.outputs
        weight = array.reshape(-1)[self.offset : self.offset + size]
        weight = weight.reshape(3, 3, self.inputs, self.outputs)
        target, panels = aligned(self.nbytes), -(-self.outputs // PANEL)
        if self.rounded:
            g = _ROUNDED_G[self.side]
            both = np.einsum("ai,ijck,bj->abck", g, weight.astype(np.float64), g, optimize=True)
            both = both.reshape(-1, self.inputs, self.outputs)
            paired_panels(both.astype(np.float32), target)
            return target
        g = _G[self.side]
        made = target.view(np.float32).reshape(-1, panels, self.inputs, PANEL)
        for panel in range(panels):
            part = weight[..., panel * PANEL : (panel + 1) * PANEL].astype(np.float64)
            width = part.shape[-1]
            both = np.einsum("ai,ijck,bj->abck", g, part, g, optimize=True)
            made[:, panel, :, :width] = both.reshape(-1, self.inputs, width)
            made[:, panel, :, width:] = 0
        return target


def matrices(side: int) -> int:
    """Return the number of independent products."""
    return (side + 2) ** 2


def side_of(builder: ScheduleBuilder, given: Operands, at: Windows) -> int | None:
    """Return the side of the tiles, None if the convolution cannot or should not be computed so."""
    (n, _, _, inputs), (_, height, width, outputs) = given.x.shape, given.out.shape
    is_3x3 = (at.window, at.stride, at.dilation) == ((3, 3), (1, 1), (1, 1))
    if not is_3x3 or parameter(builder, given.weight) is None or not given.weight.is_contiguous:
        return None
    if given.rounded and inputs % 2:
        return None
    return winograd_side(Convolution(n, height, width, inputs, outputs, rounded=given.rounded))


def winograd(builder: ScheduleBuilder, given: Operands, at: Windows, side: int) -> None:
    """Add the calls that transform some tiles at a time, multiply them, and transform them back."""
    (n, _, _, inputs), (_, height, width, outputs) = given.x.shape, given.out.shape
    down, across = -(-height // side), -(-width // side)
    count = n * down * across
    source = parameter(builder, given.weight)
    assert source is not None, "checked before"
    weight = TransformedWeight(side, inputs, outputs, given.weight.offset, given.rounded)
    words = inputs // 2 if given.rounded else inputs
    right = packed_view(builder, given.weight, Packing(source, weight))
    zeros = builder.row(0.0, count=inputs)
    plain = _plain(builder, given)
    most = _tiles_at_once(count, weight)
    for first in range(0, count, most):
        taken = min(most, count - first)
        fields = {
            "H": given.x.shape[1], "W": given.x.shape[2], "TOP": at.padding[0],
            "LEFT": at.padding[2], "OH": height, "OW": width, "DOWN": down, "ACROSS": across,
            "FIRST": first, "COUNT": taken, "COUNT_A_TASK": -(-taken // TASKS),
        }  # fmt: skip
        transformed = builder.fresh(dtypes.f32, (matrices(side), taken, words))
        sums = builder.fresh(dtypes.f32, (matrices(side), taken, outputs))
        before, after = (
            kernel(side, rounded=given.rounded)
            for kernel in (winograd_kernels.before, winograd_kernels.after)
        )
        _transform(builder, before, (given.x, transformed), plain, fields | {"C": inputs}, zeros)
        _multiply(builder, transformed, right, replace(plain, out=sums))
        _transform(builder, after, (sums, given.out), given, fields | {"C": outputs}, zeros)


def _tiles_at_once(count: int, weight: TransformedWeight) -> int:
    """Return how many tiles: few enough for the L2 cache, enough to pay for reading the weights."""
    bytes_ = 4 * matrices(weight.side) * (weight.inputs + weight.outputs)
    least = _LEAST_TILES if weight.nbytes > _BYTES_AT_ONCE else ROWS
    chunks = max(1, min(-(-count * bytes_ // _BYTES_AT_ONCE), count // least))
    return -(-count // chunks)


def _plain(builder: ScheduleBuilder, given: Operands) -> Operands:
    """Return the operands without an epilogue."""
    channels = given.out.shape[3]
    ones, none = (builder.row(number, count=channels) for number in (1.0, 0.0))
    bounds = builder.row(-math.inf, math.inf)
    return replace(given, scale=ones, shift=none, residual=None, bounds=bounds, activation="none")


def _transform(
    builder: ScheduleBuilder,
    kernel: SpecializedKernel,
    sides: tuple[View, View],
    given: Operands,
    fields: dict[str, int],
    zeros: View,
) -> None:
    x, out = sides
    count = -(-fields["COUNT"] // fields["COUNT_A_TASK"])
    job = compiled_task(kernel), count, max(x.size, out.size)
    numbers = geometry(WINOGRAD_FIELDS, fields)
    run(builder, job, (x, x), replace(given, out=out), numbers, zeros)


def _multiply(builder: ScheduleBuilder, x: View, right: View, given: Operands) -> None:
    batch, count, inputs = x.shape
    outputs = given.out.shape[-1]
    fields = {
        "N": outputs, "K": inputs, "RUNS": 1, "RUN": inputs, "STEP": 4 * inputs,
        "ROWS_AN_IMAGE": 1, "POSITIONS": count, "BATCH_STEP": 4 * count * inputs,
        "RIGHT_STEP": 4 * inputs * -(-outputs // PANEL) * PANEL,
        "OUT_BATCH_STEP": 4 * count * outputs,
    }  # fmt: skip
    cut = tiles(1, count, fields, batch, paired=given.rounded)
    multiply(builder, (x, right), given, fields | cut, [0], batch)
