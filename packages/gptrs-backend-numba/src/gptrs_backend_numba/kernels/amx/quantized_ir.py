"""Products with quantized weights on AMX: 16 rows times 16 columns, a block of codes at a time.

AMX multiplies signed bytes and adds them up exactly, in integers. Each block has a scale of its own
on both sides, so its sums leave the tile registers, and are scaled and added in f32 block by block:
the same operations in the same order as in `matmul.quantized_ir`, with the same bits.
"""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from gptrs_backend_numba.codegen.deferred import named_intrinsic, types
from gptrs_backend_numba.codegen.machine import call_llvm
from gptrs_backend_numba.codegen.vector_ir import (
    F32,
    I8,
    I32,
    VECTOR,
    WIDTH,
    ZERO,
    VectorEmitter,
    number,
)
from gptrs_backend_numba.kernels.amx.gemm_ir import VOID, load_tile, store_tile, tile_register
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, VECTORS
from gptrs_backend_numba.kernels.matmul.quantized_form import Form
from gptrs_backend_numba.kernels.matmul.quantized_ir import (
    codes_of_four,
    prefetch_codes,
    scale_and_offset,
)

AMX_QUANTIZED_ROWS = 16
"""Rows of the left side in a tile."""
BLOCKS_AHEAD = 2
"""Blocks behind the last one that a tile reads, for nothing."""
_LEFT, _RIGHT = 4, 6
"""The first of the two registers for tiles of a side; those before hold sums."""
_LINE = 64
_BYTES = ir.VectorType(I8, 4 * WIDTH)
_WORDS = ir.VectorType(I32, WIDTH)


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
            place = builder.bitcast(memory, ir.PointerType(I8))
            call_llvm(builder, "llvm.x86.ldtilecfg", VOID, [place])
            return context.get_dummy_value()

        return types.void(), generate

    return configure


@cache
def signed_codes(form: Form):
    """Intrinsic: the codes of a panel minus their zero, a signed byte each.

    Arguments: the addresses of the codes and of the bytes; the number of blocks; the zero.
    """

    @named_intrinsic(f"signed_codes_{form.name}")
    def widen(typing_context, codes, target, blocks, zero):
        def generate(context, builder, signature, arguments):
            codes, target, blocks, zero = arguments
            emit = VectorEmitter(builder)
            byte = builder.trunc(zero, I8)
            single = builder.insert_element(
                ir.Constant(_BYTES, ir.Undefined), byte, ir.Constant(I32, 0)
            )
            lanes = ir.Constant(ir.VectorType(I32, 4 * WIDTH), [0] * (4 * WIDTH))
            zeros = builder.shuffle_vector(single, ir.Constant(_BYTES, ir.Undefined), lanes)

            def body(block, state):
                source, target = state
                prefetch_codes(emit, form, source)
                for four in range(form.block // 4):
                    for v in range(VECTORS):
                        found = codes_of_four(emit, form, source, four, v)
                        value = builder.sub(builder.bitcast(found, _BYTES), zeros)
                        place = emit.moved(target, (four * VECTORS + v) * _LINE)
                        emit.store(builder.bitcast(value, VECTOR), place)
                return [
                    emit.moved(source, form.panel_bytes(PANEL)),
                    emit.moved(target, form.block * PANEL),
                ]

            emit.loop(blocks, 1, [emit.pointer(codes), emit.pointer(target)], body)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return widen


@cache
def amx_quantized_tile(form: Form):
    """Intrinsic: `AMX_QUANTIZED_ROWS` rows times a panel of quantized weights of a form.

    Arguments: the address of the records of the rows and the bytes from those of one block to those
    of the next; of the signed codes of the panel, and of its scales, their scales, offsets, and
    their scales; the number of blocks; the logarithms of the blocks that share a scale or offset,
    and a scale of these; the address of the sums, f32, rows of `PANEL`, and of
    memory for the integer sums of a block, as many.

    Sums of a block are stored while those of the next two are multiplied: 1.3 times as fast as one
    after the other. So `BLOCKS_AHEAD` blocks behind the last one of both sides are read, too.
    """

    @named_intrinsic(f"amx_quantized_tile_{form.name}")
    def micro_kernel(
        typing_context, left, left_step, codes, scale, super_scale, offset, super_offset, blocks,
        shift, super_shift, out, integers,
    ):  # fmt: skip
        def generate(context, builder, signature, arguments):
            emit = VectorEmitter(builder)
            for v in range(VECTORS):
                _emit_half(emit, arguments, form, v)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 12), generate

    return micro_kernel


def _emit_half(emit, arguments, form, v):
    """Emit the code of one vector of columns of a tile."""
    left, left_step, codes, *parameters, blocks, shift, super_shift, out, integers = arguments
    b = emit.builder
    addresses = [emit.pointer(address) for address in parameters]
    integers, out = emit.pointer(integers), emit.pointer(out)

    def multiply(x, w, ahead, turn):
        load_tile(emit, _LEFT + turn, emit.moved(x, (left_step, ahead)), number(form.record))
        right = emit.moved(w, form.block * PANEL * ahead + _LINE * v)
        load_tile(emit, _RIGHT + turn, right, number(4 * PANEL))
        call_llvm(b, "llvm.x86.tilezero", VOID, [tile_register(turn)])
        registers = [tile_register(each) for each in (turn, _LEFT + turn, _RIGHT + turn)]
        call_llvm(b, "llvm.x86.tdpbssd", VOID, registers)

    def add(x, block, sums):
        groups = b.lshr(block, shift), b.lshr(block, super_shift)
        scale, offset = scale_and_offset(emit, form, addresses, groups, v)
        for r in range(AMX_QUANTIZED_ROWS):
            place = emit.moved(x, r * form.record + form.block)
            own = emit.splat(emit.load(place, F32, 4))
            dot = b.sitofp(emit.load(emit.moved(integers, _LINE * r), _WORDS, 4), VECTOR)
            sums[r] = emit.multiply_add(dot, b.fmul(scale, own), sums[r])
            if offset is not None:
                total = emit.splat(emit.load(emit.moved(place, 8), F32, 4))
                sums[r] = emit.multiply_add(offset, total, sums[r])

    def body_of(steps):
        def body(_, state):
            x, w, first, *sums = state
            for turn in range(steps):
                store_tile(emit, turn, integers, number(_LINE))
                multiply(x, w, turn + BLOCKS_AHEAD, turn)
                add(emit.moved(x, (left_step, turn)), b.add(first, number(turn)), sums)
            return [
                emit.moved(x, (left_step, steps)),
                emit.moved(w, form.block * PANEL * steps),
                b.add(first, number(steps)),
                *sums,
            ]

        return body

    state = [emit.pointer(left), emit.pointer(codes), number(0), *[ZERO] * AMX_QUANTIZED_ROWS]
    for turn in range(BLOCKS_AHEAD):
        multiply(*state[:2], turn, turn)
    for steps, count in ((2, b.lshr(blocks, number(1))), (1, b.and_(blocks, number(1)))):
        state = emit.loop(count, 1, state, body_of(steps))
    for r, value in enumerate(state[3:]):
        emit.store(value, emit.moved(out, 4 * PANEL * r + _LINE * v))
