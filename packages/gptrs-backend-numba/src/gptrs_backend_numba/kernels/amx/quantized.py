"""Kernels of products with quantized weights on AMX, see `quantized_ir`.

The right side is packed as for `matmul.quantized`. A task brings blocks of a panel to signed bytes
and f32, which stay in the L1 cache while all its rows pass by.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import named_intrinsic, types
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, call_compiled, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import call_llvm, keep_alive, pointer
from gptrs_backend_numba.codegen.vector_ir import (
    F32,
    I8,
    I32,
    VECTOR,
    WIDTH,
    VectorEmitter,
    number,
)
from gptrs_backend_numba.kernels.amx.gemm_ir import (
    VOID,
    load_tile,
    release_amx,
    store_tile,
    tile_register,
)
from gptrs_backend_numba.kernels.matmul.gemm import (
    FINISH,
    HAS_RESIDUAL,
    LM,
    OUT_STEP,
    RESIDUAL,
    RESIDUAL_STEP,
    K,
    M,
    N,
    block_of_task,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, VECTORS, prefetch_rows
from gptrs_backend_numba.kernels.matmul.quantized import (
    SHIFT,
    SUPER_SHIFT,
    ZERO,
    values_of_panel,
)
from gptrs_backend_numba.kernels.matmul.quantized_form import Form
from gptrs_backend_numba.kernels.matmul.quantized_ir import (
    codes_of_four,
    rounded_block,
    scale_and_offset,
    store_bytes,
)

# Products with quantized weights on AMX: 32 rows times a panel, a block of codes at a time.
#
# AMX multiplies signed bytes and adds them up exactly, in integers. Each block has a scale of its
# own on both sides, so its sums leave the tile registers, and are scaled and added in f32 block by
# block: the same operations in the same order as in `matmul.quantized_ir`, with the same bits.
#
# The left side is records, of `REGISTER_ROWS` rows and a block: the codes of the rows one after
# another, si8; their scales, f32; and the sums of their rounded values, f32.


REGISTER_ROWS = 16
"""Rows of a register for tiles."""
AMX_QUANTIZED_ROWS = 2 * REGISTER_ROWS
"""Rows of a tile, two registers high."""
VALUES_BYTES = 8 * PANEL
"""Bytes of the scales and offsets of a block of a panel."""
BATCH = 2
"""Blocks that are multiplied before their sums are scaled. Four take a tenth longer."""
INTEGER_BYTES = 4 * BATCH * AMX_QUANTIZED_ROWS * PANEL
"""Bytes of the integer sums of as many blocks."""
_TOGETHER = 8
"""Rows whose sums are in registers at a time."""
_LEFT, _RIGHT = 4, 6
"""The first of the two registers for tiles of a side; those before hold sums."""
_LINE = 64
_BYTES = ir.VectorType(I8, 4 * WIDTH)
_WORDS = ir.VectorType(I32, WIDTH)


def record_bytes(form: Form) -> int:
    """Return the bytes of a record of the left side."""
    return REGISTER_ROWS * (form.block + 8)


@cache
def configure_for_blocks(block: int):
    """Intrinsic: configure the tile registers of this thread for blocks of `block` values of k."""
    rows = [16, 16, 16, 16, 16, 16, block // 4, block // 4]
    widths = [64, 64, 64, 64, block, block, 64, 64]
    pairs = [byte for width in widths for byte in (width, 0)]
    configuration = [1] + 15 * [0] + pairs + 16 * [0] + rows + 8 * [0]

    @named_intrinsic(f"configure_for_blocks_{block}")
    def configure(typing_context):
        def generate(context, builder, signature, arguments):
            content = ir.Constant(ir.ArrayType(I8, 64), configuration)
            with builder.goto_entry_block():
                memory = builder.alloca(content.type)
            builder.store(content, memory)
            address = builder.bitcast(memory, ir.PointerType(I8))
            call_llvm(builder, "llvm.x86.ldtilecfg", VOID, [address])
            return context.get_dummy_value()

        return types.void(), generate

    return configure


@cache
def round_to_record(form: Form):
    """Intrinsic: put a block of a row into its record.

    Arguments: the addresses of the values, f32, of the record, and the row in it.
    A block with infinities or NaN has a scale of NaN.
    """

    @named_intrinsic(f"round_to_record_{form.block}")
    def round_block(typing_context, x, record, row):
        def generate(context, builder, signature, arguments):
            x, record, row = arguments
            emit = VectorEmitter(builder)
            codes, scale, total = rounded_block(emit, emit.pointer(x), form.block)
            target = emit.pointer(record)
            for at, code in zip(range(0, form.block, WIDTH), codes, strict=True):
                store_bytes(emit, code, emit.moved(target, (row, form.block), at))
            values = emit.moved(target, REGISTER_ROWS * form.block, (row, 4))
            emit.store(scale, values)
            rounded = builder.fmul(scale, builder.sitofp(total, F32))
            emit.store(rounded, emit.moved(values, 4 * REGISTER_ROWS))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), generate

    return round_block


@cache
def prepare_blocks(form: Form):
    """Intrinsic: the codes of blocks of a panel minus their zero, and their values as f32.

    Arguments: the addresses of the codes, and of the scales of the panel, their scales, offsets,
    and their scales; the logarithms of the blocks that share a scale or offset, and a scale of
    these; the first block and how many; the zero; the addresses of the bytes, and of the
    `VALUES_BYTES` of each block: scales, then offsets.
    """

    @named_intrinsic(f"prepare_blocks_{form.name}")
    def prepare(
        typing_context, codes, scale, super_scale, offset, super_offset, shift, super_shift,
        first, count, zero, target, values,
    ):  # fmt: skip
        def generate(context, builder, signature, arguments):
            codes, *parameters, shift, super_shift, first, count, zero, target, values = arguments
            emit = VectorEmitter(builder)
            addresses = [emit.pointer(address) for address in parameters]
            zeros = _zeros(builder, zero)

            def body(at, state):
                source, target, values = state
                _emit_signed(emit, form, source, target, zeros)
                block = builder.add(first, at)
                groups = builder.lshr(block, shift), builder.lshr(block, super_shift)
                for v in range(VECTORS):
                    found = scale_and_offset(emit, form, addresses, groups, v)
                    for kind, value in enumerate(found):
                        if value is not None:
                            emit.store(value, emit.moved(values, 4 * PANEL * kind + _LINE * v))
                return [
                    emit.moved(source, form.panel_bytes(PANEL)),
                    emit.moved(target, form.block * PANEL),
                    emit.moved(values, VALUES_BYTES),
                ]

            emit.loop(count, 1, [emit.pointer(x) for x in (codes, target, values)], body)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 12), generate

    return prepare


def _zeros(builder, zero):
    """Return a vector with the zero of the codes in every byte."""
    undefined = ir.Constant(_BYTES, ir.Undefined)
    single = builder.insert_element(undefined, builder.trunc(zero, I8), ir.Constant(I32, 0))
    lanes = ir.Constant(ir.VectorType(I32, 4 * WIDTH), [0] * (4 * WIDTH))
    return builder.shuffle_vector(single, undefined, lanes)


def _emit_signed(emit, form, source, target, zeros):
    """Store the codes of a block minus their zero, a signed byte each."""
    b = emit.builder
    for four in range(form.block // 4):
        for v in range(VECTORS):
            found = codes_of_four(emit, form, source, four, v)
            value = b.sub(b.bitcast(found, _BYTES), zeros)
            address = emit.moved(target, (four * VECTORS + v) * _LINE)
            emit.store(b.bitcast(value, VECTOR), address)


@cache
def multiply_blocks(form: Form):
    """Intrinsic: adds the products of blocks of 1 to `AMX_QUANTIZED_ROWS` rows and a panel to sums.

    Arguments: the number of rows; the address of their first record, and the bytes to that of the
    next `REGISTER_ROWS`; of what `prepare_blocks` has made, codes and values; the number of
    blocks; the addresses of the sums, f32, rows of `PANEL`, and of `INTEGER_BYTES` of memory; the
    address of what is prefetched, and how many cache lines of it with each `BATCH` of blocks.
    """

    @named_intrinsic(f"multiply_blocks_{form.name}")
    def multiply(typing_context, rows, left, left_step, codes, values, count, sums, integers,
                 prefetch, lines):  # fmt: skip
        def generate(context, builder, signature, arguments):
            rows, *operands = arguments
            emit = VectorEmitter(builder)
            tall = builder.icmp_signed(">", rows, number(REGISTER_ROWS))
            with builder.if_else(tall) as (two, one):
                with two:
                    _emit_blocks(emit, form, 2, *operands)
                with one:
                    _emit_blocks(emit, form, 1, *operands)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 10), generate

    return multiply


def _emit_blocks(
    emit, form, high, left, left_step, codes, values, count, sums, integers, prefetch, lines
):  # fmt: skip
    """Emit the code for `high` registers of rows: batches of blocks, then the remaining blocks."""
    b = emit.builder
    sums, integers = emit.pointer(sums), emit.pointer(integers)

    def ahead(prefetch, at):
        emit.prefetch(emit.moved(prefetch, (at, _LINE)), near=2)
        return []

    def body_of(batch):
        def body(_, state):
            left, codes, values, prefetch = state
            emit.loop(lines, 1, [], lambda at, _: ahead(prefetch, at))
            for at in range(batch):
                address = emit.moved(integers, at * 4 * AMX_QUANTIZED_ROWS * PANEL)
                records = emit.moved(left, at * record_bytes(form))
                block = emit.moved(codes, at * form.block * PANEL)
                _emit_products(emit, form, high, records, left_step, block, address)
            for half in range(high * REGISTER_ROWS // _TOGETHER):
                _emit_sums(emit, form, half, batch, state, left_step, sums, integers)
            return [
                emit.moved(left, batch * record_bytes(form)),
                emit.moved(codes, batch * form.block * PANEL),
                emit.moved(values, batch * VALUES_BYTES),
                emit.moved(prefetch, (lines, _LINE)),
            ]

        return body

    state = [emit.pointer(x) for x in (left, codes, values, prefetch)]
    batches, rest = b.udiv(count, number(BATCH)), b.urem(count, number(BATCH))
    for batch, times in ((BATCH, batches), (1, rest)):
        state = emit.loop(times, 1, state, body_of(batch))


def _emit_products(emit, form, high, records, left_step, codes, integers):
    """Emit the integer sums of a block: those of a register of rows and a vector of columns."""
    for v in range(VECTORS):
        load_tile(emit, _RIGHT + v, emit.moved(codes, _LINE * v), number(4 * PANEL))
        for i in range(high):
            if v == 0:
                rows = emit.moved(records, (left_step, i))
                load_tile(emit, _LEFT + i, rows, number(form.block))
            call_llvm(emit.builder, "llvm.x86.tilezero", VOID, [tile_register(2 * i + v)])
            registers = [tile_register(x) for x in (2 * i + v, _LEFT + i, _RIGHT + v)]
            # Codes as bf16, whose sums are f32 already, take longer: 26 ns a block, not 22.
            call_llvm(emit.builder, "llvm.x86.tdpbssd", VOID, registers)
    for register in range(2 * high):
        address = emit.moved(integers, register * _LINE * REGISTER_ROWS)
        store_tile(emit, register, address, number(_LINE))


def _emit_sums(emit, form, half, batch, state, left_step, sums, integers):
    """Scale the integer sums of a batch for the rows of a half of a register, and add them."""
    b = emit.builder
    left, _, values, _ = state
    register, first = divmod(half * _TOGETHER, REGISTER_ROWS)
    lanes = [(r, v) for r in range(_TOGETHER) for v in range(VECTORS)]
    addresses = [emit.moved(sums, 4 * PANEL * (half * _TOGETHER + r) + _LINE * v) for r, v in lanes]
    totals = [emit.load(address, VECTOR, 4) for address in addresses]
    for at in range(batch):
        record = emit.moved(left, (left_step, register), at * record_bytes(form))
        own = emit.moved(record, REGISTER_ROWS * form.block + 4 * first)
        block = emit.moved(values, at * VALUES_BYTES)
        dots = emit.moved(integers, at * 4 * AMX_QUANTIZED_ROWS * PANEL + _LINE * first)
        for lane, (r, v) in enumerate(lanes):
            tile = REGISTER_ROWS * _LINE * (VECTORS * register + v)
            dot = b.sitofp(emit.load(emit.moved(dots, tile + _LINE * r), _WORDS, 4), VECTOR)
            scale = emit.load(emit.moved(block, _LINE * v), VECTOR, 4)
            factor = emit.splat(emit.load(emit.moved(own, 4 * r), F32, 4))
            totals[lane] = emit.multiply_add(dot, b.fmul(scale, factor), totals[lane])
            if form.offset is not None:
                offset = emit.load(emit.moved(block, 4 * PANEL + _LINE * v), VECTOR, 4)
                rounded = emit.moved(own, 4 * REGISTER_ROWS + 4 * r)
                rounded = emit.splat(emit.load(rounded, F32, 4))
                totals[lane] = emit.multiply_add(offset, rounded, totals[lane])
    for total, address in zip(totals, addresses, strict=True):
        emit.store(total, address)


# With scales brought to f32 once for all rows: 128 x 3072 x 768 takes 1.02 ms instead of 1.17.
_BLOCKS = 16
"""Blocks of a panel at a time: 16 KiB of codes."""


@kernel_part
def prefetch_results(G, out, row, panel, height):
    """Prefetch a tile of results, f32, and of what is added to them.

    Each row of them is in a page of its own, often in no cache that is near.
    """
    prefetch_rows(out + 4 * (row * G[OUT_STEP] + panel * PANEL), 4 * G[OUT_STEP], height)
    if G[HAS_RESIDUAL]:
        step = G[RESIDUAL_STEP]
        prefetch_rows(G[RESIDUAL] + 4 * (row * step + panel * PANEL), 4 * step, height)


@kernel_part
def memory_of_task(start, *, BLOCK):
    """Return where from `start` on a task has bytes and values of blocks, and its sums."""
    signed = (start + 63) // 64 * 64
    values = signed + _BLOCKS * BLOCK * PANEL
    integers = values + _BLOCKS * VALUES_BYTES
    return signed, values, integers, integers + INTEGER_BYTES


@kernel
def amx_quantized_task(
    left, codes, out, geometry, task,
    *, RECORD, BLOCK, CODES, memory_of_task, configure, prepare, multiply,
):  # fmt: skip
    """Compute a block of rows and columns: all tiles of the task pass by some blocks of a panel.

    `CODES` are the bytes of the codes of a block in a panel.
    """
    G = pointer(geometry, np.int64)
    m, n, blocks = G[M], G[N], G[K] // BLOCK
    part = block_of_task(G, task, (n + PANEL - 1) // PANEL)
    _, first_tile, last_tile, first_panel, last_panel = part
    size = AMX_QUANTIZED_ROWS * PANEL
    held = np.empty(_BLOCKS * (BLOCK * PANEL + VALUES_BYTES) + INTEGER_BYTES
                    + 4 * size * (last_tile - first_tile) + 64, np.uint8)  # fmt: skip
    signed, values, integers, sums = memory_of_task(np.int64(held.ctypes.data))
    S = pointer(sums, np.float32)
    # While some blocks are multiplied, the next ones come from memory.
    times = (last_tile - first_tile) * (_BLOCKS // BATCH)
    lines = (_BLOCKS * CODES // 64 + times - 1) // times
    configure()
    for panel in range(first_panel, last_panel):
        for i in range(size * (last_tile - first_tile)):
            S[i] = 0.0
        for begin in range(0, blocks, _BLOCKS):
            count = min(_BLOCKS, blocks - begin)
            first = codes + CODES * (blocks * panel + begin)
            following = first + CODES * count
            scale, super_scale, offset, super_offset = values_of_panel(G, panel)
            prepare(first, scale, super_scale, offset, super_offset, G[SHIFT], G[SUPER_SHIFT],
                    begin, count, G[ZERO], signed, values)  # fmt: skip
            is_last = begin + count == blocks
            for tile in range(first_tile, last_tile):
                row = tile * AMX_QUANTIZED_ROWS
                height = min(AMX_QUANTIZED_ROWS, m - row)
                tile_sums = sums + 4 * size * (tile - first_tile)
                if is_last:
                    prefetch_results(G, out, row, panel, height)
                multiply(height, left + RECORD * (row // REGISTER_ROWS * blocks + begin),
                         RECORD * blocks, signed, values, count, tile_sums, integers, following,
                         lines)  # fmt: skip
                following += 64 * lines * (_BLOCKS // BATCH)
                if is_last:
                    call_compiled(G[FINISH], tile_sums, PANEL, out, row, panel * PANEL, height,
                                  min(PANEL, n - panel * PANEL), geometry, 0)  # fmt: skip
    release_amx()
    keep_alive(held)
    return 0


@kernel
def amx_quantize_left_task(lhs, unused, out, geometry, task, *, RECORD, BLOCK, round_to_record):
    """Round the rows of one tile of the left side to records."""
    G = pointer(geometry, np.int64)
    m, blocks = G[M], G[K] // BLOCK
    row = task * AMX_QUANTIZED_ROWS
    height = min(AMX_QUANTIZED_ROWS, m - row)
    for i in range((height + REGISTER_ROWS - 1) // REGISTER_ROWS * REGISTER_ROWS):
        start = out + RECORD * ((row + i) // REGISTER_ROWS * blocks)
        for block in range(blocks):
            record = start + RECORD * block
            if i < height:
                round_to_record(lhs + 4 * ((row + i) * G[LM] + block * BLOCK), record,
                                i % REGISTER_ROWS)  # fmt: skip
            else:  # subnormal numbers, which would be slow, may lie there
                V = pointer(record + REGISTER_ROWS * BLOCK, np.float32)
                V[i % REGISTER_ROWS] = 0.0
                V[REGISTER_ROWS + i % REGISTER_ROWS] = 0.0
    return 0


def left_bytes(form: Form, rows: int, k: int) -> int:
    """Return the bytes of `rows` rows of the left side."""
    return -(-rows // REGISTER_ROWS) * (k // form.block) * record_bytes(form)


def amx_left_rounding(form: Form) -> SpecializedKernel:
    """Return the tasks that round the left side, a tile each."""
    return amx_quantize_left_task.specialize(
        RECORD=record_bytes(form), BLOCK=form.block, round_to_record=round_to_record(form)
    )


def amx_quantized_product(form: Form) -> SpecializedKernel:
    """Return the tasks of a product with weights of this form: blocks of rows and columns."""
    return amx_quantized_task.specialize(
        RECORD=record_bytes(form),
        BLOCK=form.block,
        CODES=form.panel_bytes(PANEL),
        memory_of_task=memory_of_task.specialize(BLOCK=form.block),
        configure=configure_for_blocks(form.block),
        prepare=prepare_blocks(form),
        multiply=multiply_blocks(form),
    )
