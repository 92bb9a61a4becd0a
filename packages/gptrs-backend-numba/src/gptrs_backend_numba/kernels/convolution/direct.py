"""Kernels of direct convolutions: the walk over tiles.

A tile is up to `ROWS` neighbouring positions of a row of the result, for a panel of channels. All
offsets and steps are in bytes. Borders of tiles and tasks depend on sizes alone, and each sum on
the window and the channels alone, so the number of threads never shows in a result.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import named_intrinsic, types
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, call_compiled, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import call_llvm, pointer
from gptrs_backend_numba.codegen.tasks import share_tasks
from gptrs_backend_numba.codegen.vector_ir import (
    F32,
    I32,
    VECTOR,
    WIDTH,
    ZERO,
    VectorEmitter,
    number,
)
from gptrs_backend_numba.kernels.convolution.job import (
    ACTIVATION,
    BOUNDS,
    EXTRA,
    HAS_RESIDUAL,
    RESIDUAL,
    SCALE,
    SHIFT,
    TILE_FIELDS,
    positions,
)
from gptrs_backend_numba.kernels.matmul.bf16_ir import PairEmitter
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL

# The inner loops of convolutions in LLVM vector code: a tile of results, in registers throughout.
#
# A row of the left side is what one position of the result sees: runs of numbers in the image,
# which are read where they lie. Nothing is copied into a matrix of patches.


_LINE = 64
_STEPS = 4
"""Products for each sum in one turn of the loop over a run."""
_ROWS_A_BASE = 3
"""Rows whose addresses are a base and one or two steps."""


class Epilogue:
    """The last operations on sums: `min(max(sum * scale + shift + residual, low), high)`.

    `scale` and `shift` are pointers to a number for each lane; `residual` is an address, 0 for
    none; `bounds` a pointer to `low` and `high`. Only the first lanes of a register, those in its
    mask, are read and written.
    """

    def __init__(self, emit, scale, shift, residual, bounds):
        self.emit = emit
        self._scale, self._shift = scale, shift
        self._residual = residual
        self._low, self._high = (
            emit.splat(emit.load(emit.moved(bounds, 4 * i), F32, 4)) for i in (0, 1)
        )

    def finish(self, sums, lanes, masks, out_of, residual_of):
        """Store the sums, each for `WIDTH` channels from a lane on, with the mask for that lane.

        `out_of` and `residual_of` emit the pointer that belongs to the sum of a number.
        """
        emit, b = self.emit, self.emit.builder
        scales, shifts = (
            {at: masked_load(emit, emit.moved(base, 4 * at), mask) for at, mask in masks.items()}
            for base in (self._scale, self._shift)
        )
        sums = [
            emit.multiply_add(value, scales[at], shifts[at])
            for value, at in zip(sums, lanes, strict=True)
        ]
        plain = b.block
        add, store = b.append_basic_block("add"), b.append_basic_block("store")
        b.cbranch(b.icmp_signed("!=", self._residual, number(0)), add, store)
        b.position_at_end(add)
        added = [
            b.fadd(value, masked_load(emit, residual_of(i), masks[at]))
            for i, (value, at) in enumerate(zip(sums, lanes, strict=True))
        ]
        b.branch(store)
        b.position_at_end(store)
        joined = [b.phi(VECTOR) for _ in sums]
        for both, value, other in zip(joined, sums, added, strict=True):
            both.add_incoming(value, plain)
            both.add_incoming(other, add)
        for i, (both, at) in enumerate(zip(joined, lanes, strict=True)):
            masked_store(emit, self._bounded(both), out_of(i), masks[at])

    def _bounded(self, value):
        b = self.emit.builder
        # NaN stays NaN: it is neither below nor above.
        value = b.select(b.fcmp_ordered("<", value, self._low), self._low, value)
        return b.select(b.fcmp_ordered(">", value, self._high), self._high, value)


def lanes_below(emit, count):
    """Return the mask of the first `count` lanes; `count` is any i64."""
    b = emit.builder
    below = b.select(b.icmp_signed("<", count, number(WIDTH)), count, number(WIDTH))
    narrow = b.trunc(below, I32)
    vector = ir.VectorType(I32, WIDTH)
    undefined = ir.Constant(vector, ir.Undefined)
    single = b.insert_element(undefined, narrow, ir.Constant(I32, 0))
    all_lanes = b.shuffle_vector(single, undefined, ir.Constant(vector, [0] * WIDTH))
    return b.icmp_signed("<", ir.Constant(vector, list(range(WIDTH))), all_lanes)


def masks_of(emit, count, vectors=1):
    """Yield the masks of the first `count` lanes of `vectors` registers, in one branch each time.

    Where masks are not free, the first branch is for whole registers, and its masks are None. With
    AVX-512 they cost nothing, and there is one branch. Elsewhere a mask takes a register, a load
    an instruction of its own, and a masked store dozens of them on AMD's processors.
    """

    def some():
        return [lanes_below(emit, emit.builder.sub(count, number(WIDTH * v)))
                for v in range(vectors)]  # fmt: skip

    if WIDTH == 16:
        yield some()
        return
    whole = emit.builder.icmp_signed(">=", count, number(WIDTH * vectors))
    with emit.builder.if_else(whole) as (all_lanes, first_lanes):
        with all_lanes:
            yield [None] * vectors
        with first_lanes:
            yield some()


def masked_load(emit, pointer, mask):
    """Load a vector with zeros where the mask is off, if any; nothing is read there."""
    if mask is None:
        return emit.load(pointer, VECTOR, 4)
    name = f"llvm.masked.load.v{WIDTH}f32.p0"
    align = ir.Constant(I32, 4)
    return call_llvm(emit.builder, name, VECTOR, [pointer, align, mask, ZERO])


def masked_store(emit, value, pointer, mask):
    """Write the lanes where the mask is on, all of them without one."""
    if mask is None:
        emit.store(value, pointer)
        return
    name = f"llvm.masked.store.v{WIDTH}f32.p0"
    align = ir.Constant(I32, 4)
    call_llvm(emit.builder, name, ir.VoidType(), [value, pointer, align, mask])


@cache
def conv_tile(rows: int, vectors: int, prefetches: bool, paired: bool):
    """Intrinsic: a tile of `rows` positions and up to `vectors * WIDTH` channels of the result.

    Arguments: the address of the first row of the left side, the bytes from one row to the next;
    the address of a table with the bytes from there to each run of numbers, how many runs there
    are and how long they are; the address of the right side, `PANEL` numbers for each of the left;
    the number of channels; addresses of the scale, the shift, the residual or 0, and the two
    bounds; of the result, and its bytes from one row to the next, the same in the residual; and
    the address to prefetch from, a cache line for each product, if the tile `prefetches`. Numbers
    of both sides are pairs of bf16 if the tile is `paired`.
    """

    @named_intrinsic(f"conv_tile_{rows}_{vectors}_{int(prefetches)}_{int(paired)}")
    def micro_kernel(
        typing_context, left, step, table, runs, run, right, width,
        scale, shift, residual, bounds, out, row, ahead,
    ):  # fmt: skip
        def generate(context, builder, signature, arguments):
            left, step, table, runs, run, right, width, *tail, out, row, ahead = arguments
            emit = VectorEmitter(builder)
            multiplies = PairEmitter(builder) if paired else emit
            scale, shift, residual, bounds = tail
            left, table, right, ahead = (
                emit.pointer(address) for address in (left, table, right, ahead)
            )
            kind = rows, vectors, prefetches
            body = _run_of_products(multiplies, kind, left, step, table, run)
            starts = [right, ahead, *[ZERO] * (rows * vectors)]
            sums = emit.loop(runs, 1, starts, body)[2:]
            tiles = [(m, WIDTH * v) for m in range(rows) for v in range(vectors)]
            pointers = [emit.pointer(address) for address in (scale, shift)]
            epilogue = Epilogue(emit, *pointers, residual, emit.pointer(bounds))

            def address_in(base):
                return lambda i: emit.moved(base, (row, tiles[i][0]), 4 * tiles[i][1])

            addresses = [address_in(emit.pointer(address)) for address in (out, residual)]
            for masks in masks_of(emit, width, vectors):
                by_lane = {WIDTH * v: mask for v, mask in enumerate(masks)}
                epilogue.finish(sums, [at for _, at in tiles], by_lane, *addresses)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 14), generate

    return micro_kernel


def _run_of_products(emit, kind, left, step, table, run):
    """Return the body of the loop over runs."""
    b = emit.builder
    rows = kind[0]

    def body(t, state):
        offset = emit.load(emit.moved(table, (t, 8)), run.type, 8)
        start = emit.moved(left, (offset, 1))
        # A base for every three rows: x86 adds a register once or twice for nothing.
        bases = [emit.moved(start, (step, m)) for m in range(0, rows, _ROWS_A_BASE)]
        state = [*bases, *state]
        rest = b.and_(run, number(_STEPS - 1))
        for count, steps in ((b.sub(run, rest), _STEPS), (rest, 1)):
            state = emit.loop(count, steps, state, _products(emit, kind, step, steps))
        return state[len(bases) :]

    return body


def _products(emit, kind, step, steps):
    """Return the body of the loop over a run: `steps` products for each sum."""
    rows, vectors, prefetches = kind
    count = -(-rows // _ROWS_A_BASE)

    def body(_, state):
        # Hidden, or LLVM derives each base from the one before, by additions that take the place
        # of multiplications in the processor.
        bases = [hidden(emit.builder, base) for base in state[:count]]
        right, ahead, *sums = state[count:]
        for u in range(steps):
            if u:
                _keep_order(emit.builder)
            if prefetches:
                _prefetch(emit, emit.moved(ahead, _LINE * u))
            factors = [
                emit.load(emit.moved(right, 4 * (u * PANEL + v * WIDTH)), VECTOR, 4)
                for v in range(vectors)
            ]
            for m in range(rows):
                base = emit.moved(bases[m // _ROWS_A_BASE], (step, m % _ROWS_A_BASE), 4 * u)
                value = emit.splat(emit.load(base, F32, 4))
                for v in range(vectors):
                    at = m * vectors + v
                    sums[at] = emit.multiply_add(value, factors[v], sums[at])
        bases = [emit.moved(base, 4 * steps) for base in bases]
        addresses = [emit.moved(right, 4 * PANEL * steps), emit.moved(ahead, _LINE * steps)]
        return [*bases, *addresses, *sums]

    return body


def hidden(builder, pointer):
    """Return the pointer itself, with its origin hidden from the compiler."""
    type_ = ir.FunctionType(pointer.type, [pointer.type])
    return builder.asm(type_, "", "=r,0", [pointer], side_effect=False)


def _prefetch(emit, pointer):
    """Prefetch the cache line of an address, which need not exist, into the L2 cache."""
    hints = [ir.Constant(I32, hint) for hint in (0, 2, 1)]
    call_llvm(emit.builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, *hints])


def _keep_order(builder):
    """Keep loads from moving across this: those of all steps would not fit into registers."""
    type_ = ir.FunctionType(ir.VoidType(), [])
    builder.asm(type_, "", "~{memory}", [], side_effect=True)


N, K, RUNS, RUN, TABLE = positions(TILE_FIELDS, "N K RUNS RUN TABLE")
BATCH_STEP, RIGHT_STEP, OUT_BATCH_STEP, IMAGE_STEP, ROW_STEP, STEP = positions(
    TILE_FIELDS, "BATCH_STEP RIGHT_STEP OUT_BATCH_STEP IMAGE_STEP ROW_STEP STEP"
)
ROWS_AN_IMAGE, POSITIONS, TILES, ITEMS, ITEMS_A_TASK, PANELS_A_TASK = positions(
    TILE_FIELDS, "ROWS_AN_IMAGE POSITIONS TILES ITEMS ITEMS_A_TASK PANELS_A_TASK"
)
PANELS_A_GROUP, GROUP_STEP = positions(TILE_FIELDS, "PANELS_A_GROUP GROUP_STEP")
TALL, SHORT, TALL_HALF, SHORT_HALF = positions(TILE_FIELDS, "TALL SHORT TALL_HALF SHORT_HALF")


@kernel
def run_convolution(
    state, function, count, threads, x, right, scale, shift, residual, bounds, extra, out, geometry
):
    """Run the tasks of a convolution; absent operands may be any address."""
    G = pointer(geometry, np.int64)
    G[SCALE], G[SHIFT], G[BOUNDS], G[EXTRA] = scale, shift, bounds, extra
    G[RESIDUAL] = residual if G[HAS_RESIDUAL] else 0
    share_tasks(state, function, count, threads, x, right, out, geometry)
    return 0


@kernel_part
def compute_panel(G, geometry, x, out, at, weights, following, tall, short, first_item, last_item):
    """Compute some tiles for the panel of channels that begins `at` bytes after the first."""
    n, tiles = G[N], G[TILES]
    whole, taller = G[POSITIONS] // tiles, G[POSITIONS] % tiles
    item = first_item
    while item < last_item:
        row = item // tiles
        tile = item - row * tiles
        position = tile * whole + min(tile, taller)
        image = row // G[ROWS_AN_IMAGE]
        left = x + image * G[IMAGE_STEP] + (row - image * G[ROWS_AN_IMAGE]) * G[ROW_STEP]
        left += position * G[STEP]
        target = 4 * n * (row * G[POSITIONS] + position) + at
        residual = G[RESIDUAL]
        if residual:
            residual += target
        # Neighbours of one size are one call: a call takes as long as some products.
        function, count = short, min(tiles - tile, last_item - item)
        if tile < taller:
            function, count = tall, min(taller - tile, last_item - item)
        call_compiled(function, left, weights, out + target, residual, at, geometry, following,
                      item, count)  # fmt: skip
        item += count


@kernel
def tiles_task(x, right, out, geometry, task):
    """Compute some panels of some tiles, panel by panel."""
    G = pointer(geometry, np.int64)
    n = G[N]
    panels = (n + PANEL - 1) // PANEL
    columns = (panels + G[PANELS_A_TASK] - 1) // G[PANELS_A_TASK]
    blocks = (G[ITEMS] + G[ITEMS_A_TASK] - 1) // G[ITEMS_A_TASK]
    batch = task // (blocks * columns)
    block = (task - batch * blocks * columns) // columns
    first_panel = (task - (batch * blocks + block) * columns) * G[PANELS_A_TASK]
    first_item = block * G[ITEMS_A_TASK]
    last_item = min(first_item + G[ITEMS_A_TASK], G[ITEMS])
    x += batch * G[BATCH_STEP]
    right += batch * G[RIGHT_STEP]
    out += batch * G[OUT_BATCH_STEP]
    for panel in range(first_panel, min(first_panel + G[PANELS_A_TASK], panels)):
        width = min(PANEL, n - panel * PANEL)
        at = 4 * PANEL * panel
        weights = right + at * G[K]
        # The next panel, also where it belongs to the next task: each tile prefetches a half.
        following = weights + 4 * PANEL * G[K]
        tall, short = G[TALL], G[SHORT]
        if width <= WIDTH:
            tall, short = G[TALL_HALF], G[SHORT_HALF]
        group = x + panel // G[PANELS_A_GROUP] * G[GROUP_STEP]
        compute_panel(
            G, geometry, group, out, at, weights, following, tall, short, first_item, last_item
        )
    return 0


@kernel
def tile_function(left, right, out, residual, at, geometry, ahead, item, count, *, ROWS, conv_tile):
    """Compute `count` tiles of `ROWS` positions each, next to one another."""
    G = pointer(geometry, np.int64)
    row, step, table = 4 * G[N], G[STEP], geometry + 8 * G[TABLE]
    scale, shift, width = G[SCALE] + at, G[SHIFT] + at, G[N] - at // 4
    for i in range(item, item + count):
        # Even tiles prefetch one half of the next panel, odd ones the other.
        conv_tile(
            left, step, table, G[RUNS], G[RUN], right, width, scale, shift, residual,
            G[BOUNDS], out, row, ahead + (i & 1) * 64 * G[K],
        )  # fmt: skip
        if G[ACTIVATION]:
            call_compiled(G[ACTIVATION], out, ROWS, row, min(width, PANEL), 0, 0, 0, 0, 0)
        left += ROWS * step
        out += ROWS * row
        if residual:
            residual += ROWS * row
    return 0


def tiles_of(
    rows: int, vectors: int, *, prefetches: bool, paired: bool = False
) -> SpecializedKernel:
    """Return the function of tiles of one size, which may prefetch the next panel.

    `paired`: of bf16, where the processor has an instruction for products of pairs.
    """
    tile = conv_tile(rows, vectors, prefetches, paired)
    return tile_function.specialize(ROWS=rows, conv_tile=tile)
