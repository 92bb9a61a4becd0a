"""The inner loops of products with quantized weights in LLVM vector code.

Activations are rounded to 8 bits by blocks of 16 or 32 values of k. A record of a block is its
codes, si8, then its scale, f32; minus the sum of its codes times the zero of the weights, si32; and
the sum of the rounded values, f32. Products and sums of codes are exact integers. Those of a block
are then scaled and added in f32, block by block: a row gives the same bits in a tile of any height.
"""

from __future__ import annotations

from functools import cache, partial

from llvmlite import ir

from gptrs_backend_numba.codegen.byte_vectors import (
    HAS_DOT_INSTRUCTIONS,
    HAS_DOTS,
    HAS_MATRICES,
    WORDS,
    dots,
    look_up,
    matrix_dots,
)
from gptrs_backend_numba.codegen.inlining import named_intrinsic, types
from gptrs_backend_numba.codegen.machine import call_llvm
from gptrs_backend_numba.codegen.vector_ir import (
    F32,
    I8,
    I32,
    IS_ARM,
    VECTOR,
    WIDTH,
    ZERO,
    VectorEmitter,
    words,
)
from gptrs_backend_numba.kernels.matmul.bf16_ir import HAS_PAIRS, pair_dots, store_wide
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, VECTORS, vector_addresses
from gptrs_backend_numba.kernels.matmul.quantized_form import Form
from gptrs_backend_numba.kernels.matmul.two_by_two_ir import (
    COLUMN_PAIRS,
    load_rows,
    pairs_of_rows,
    rows_of_turned,
)

USES_PAIRS = HAS_PAIRS and not HAS_DOTS
"""True if codes are multiplied in pairs, for want of that: see `byte_pairs_ir`."""
TOGETHER = 8 if HAS_MATRICES else 4
"""Values of k of a column that lie together in a panel."""
QUANTIZED_ROWS = 6 if WIDTH == 16 or HAS_DOT_INSTRUCTIONS or USES_PAIRS else 4 if IS_ARM else 2
"""Rows of the largest tile: sums of integers and of floats fill 32 registers, or those of integers
most of 16. On a Zen 3 tiles of 2, 3, 4 and 6 rows of 4 bits make 75, 83, 92 and 97 GMAC/s."""
_AHEAD = 4096
"""Bytes between the codes that are read and those that are prefetched into the L2 cache: weights
come from memory, from where 8 rows of 4 bits take 0.8 of the time that they take without."""
_AHEAD_OF_ONE = 1024
"""The same for one row of 4 bits, which is through with a panel much sooner: on one core of a Zen 4
a text of a Llama of 1.2 billion weights gets 33.8 tokens/s, 27 with `_AHEAD`. 8 bits are faster
with that (22.2 and 21.1)."""
_LINE = 64
_NOT_FINITE, _TINY = 0x7F800000, 0x0DA24260
"""The bits of infinity, and of 1e-30: smaller values count as 0."""
_MAGIC = float(3 << 22)
"""Added to f32 of less than 2^22 it rounds them: the lowest bits are those of the integer."""


@cache
def quantized_tile(form: Form):
    """Intrinsic: 1 to `QUANTIZED_ROWS` rows times a panel of quantized weights of a form.

    Arguments: the number of rows; the addresses of their records, those of all rows for each block,
    of the codes of the panel, and of its scales, their scales, offsets, and their scales; the
    number of blocks; the logarithms of the blocks that share a scale or offset, and a scale of
    these; the address of the sums, f32, and the elements from one row of them to the next.
    """

    @named_intrinsic(f"quantized_tile_{form.name}")
    def micro_kernel(
        typing_context, rows, left, codes, scale, super_scale, offset, super_offset, blocks,
        shift, super_shift, out, row,
    ):  # fmt: skip
        def generate(context, builder, signature, arguments):
            emit = VectorEmitter(builder)
            wanted, *rest = arguments
            for height in emit.one_of(wanted, range(1, QUANTIZED_ROWS + 1)):
                _emit_tile(emit, rest, height, form)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 12), generate

    return micro_kernel


def _emit_tile(emit, arguments, rows, form):
    """Emit the code of a tile of `rows` rows."""
    left, codes, *parameters, blocks, shift, super_shift, out, row = arguments
    b = emit.builder
    addresses = [emit.pointer(address) for address in parameters]
    kept = vector_addresses(emit, out, row, rows, VECTORS)
    in_memory = USES_PAIRS and rows > 1  # sums of integers take the registers

    def body(block, state):
        x, w, *sums = state
        prefetch_codes(emit, form, w, _AHEAD_OF_ONE if rows == 1 and form.bits == 4 else _AHEAD)
        groups = b.lshr(block, shift), b.lshr(block, super_shift)
        products = _block_dots(emit, form, x, w, rows)
        for v in range(VECTORS):
            scale, offset = scale_and_offset(emit, form, addresses, groups, v)
            for r in range(rows):
                at = r * VECTORS + v
                scale_at = r * form.record + form.rounded
                own = emit.splat(emit.load(emit.moved(x, scale_at), F32, 4))
                dot = b.sitofp(products[at], VECTOR)
                total = emit.load(kept[at], VECTOR, 4) if in_memory else sums[at]
                total = emit.multiply_add(dot, b.fmul(scale, own), total)
                if offset is not None:
                    rounded = emit.splat(emit.load(emit.moved(x, scale_at + 8), F32, 4))
                    total = emit.multiply_add(offset, rounded, total)
                if in_memory:
                    emit.store(total, kept[at])
                else:
                    sums[at] = total
        return [
            emit.moved(x, rows * form.record),
            emit.moved(w, form.panel_bytes(PANEL)),
            *sums,
        ]

    starts = [] if in_memory else [ZERO] * (rows * VECTORS)
    if in_memory:
        for pointer in kept:
            emit.store(ZERO, pointer)
    sums = emit.loop(blocks, 1, [emit.pointer(left), emit.pointer(codes), *starts], body)[2:]
    for value, pointer in zip(sums, kept, strict=not in_memory):
        emit.store(value, pointer)


def prefetch_codes(emit, form, codes, ahead=_AHEAD):
    """Prefetch a block of codes of a panel, `ahead` bytes ahead."""
    for line in range(0, form.panel_bytes(PANEL), _LINE):
        emit.prefetch(emit.moved(codes, ahead + line), near=2)


def _block_dots(emit, form, x, w, rows):
    """Return the integer sums of a block, row by row."""

    def word(pointer, r, bytes_):
        return _splat(emit, emit.load(emit.moved(pointer, r * form.record + bytes_), I32, 4))

    starts = [word(x, r, form.rounded + 4) for r in range(rows) for _ in range(VECTORS)]
    codes_of = partial(codes_of_four, emit, form)
    if USES_PAIRS:
        found = pair_dots(emit, form, (x, w), rows, codes_of, word)
        return [emit.builder.add(dot, start) for dot, start in zip(found, starts, strict=True)]
    if HAS_MATRICES:
        found = _block_matrices(emit, form, x, w, rows)
        return [emit.builder.add(dot, start) for dot, start in zip(found, starts, strict=True)]
    sums = starts
    for chunk in range(form.block // 4):
        codes = [codes_of(w, chunk, v) for v in range(VECTORS)]
        for r in range(rows):
            four = word(x, r, 4 * chunk)
            for v in range(VECTORS):
                at = r * VECTORS + v
                sums[at] = _dot(emit, sums[at], codes[v], four)
    return sums


def _block_matrices(emit, form, x, w, rows):
    """Return the integer sums of a block from zero, row by row, of blocks of two by two."""
    b = emit.builder
    sums = [words(0)] * (-(-rows // 2) * COLUMN_PAIRS)
    for chunk in range(form.block // TOGETHER):
        codes = [codes_of_four(emit, form, w, chunk, p, COLUMN_PAIRS) for p in range(COLUMN_PAIRS)]
        for pair, numbers in enumerate(pairs_of_rows(rows)):
            both = load_rows(
                emit, *(emit.moved(x, r * form.record + TOGETHER * chunk) for r in numbers)
            )
            for p, code in enumerate(codes):
                at = pair * COLUMN_PAIRS + p
                sums[at] = matrix_dots(b, sums[at], code, both)
    return rows_of_turned(b, sums, rows)


def codes_of_four(emit, form, w, chunk, v, vectors=VECTORS):
    """Return the codes of `TOGETHER` values of k for some columns, of `vectors` vectors of them."""
    b = emit.builder
    step = 4 * WIDTH
    if form.bits == 8:
        return emit.load(emit.moved(w, (chunk * vectors + v) * step), WORDS, 4)
    both = emit.load(emit.moved(w, (chunk // 2 * vectors + v) * step), WORDS, 4)
    half = b.lshr(both, words(4)) if chunk % 2 else both
    codes = b.and_(half, words(0x0F0F0F0F))
    if not form.table:
        return codes
    return look_up(b, form.table, codes)


def _dot(emit, total, codes, four):
    """Add the products of 4 unsigned bytes of codes and 4 signed ones in each lane."""
    b = emit.builder
    if HAS_DOTS:
        return dots(b, total, codes, four, no_least=True)  # activations are from -127 on
    for byte in range(4):
        code = b.and_(b.lshr(codes, words(8 * byte)), words(0xFF))
        value = b.ashr(b.shl(four, words(24 - 8 * byte)), words(24))
        total = b.add(total, b.mul(code, value))
    return total


def scale_and_offset(emit, form, addresses, groups, v):
    """Return the scales of a vector of columns, and what is added for each block of rounded sum."""
    b = emit.builder
    scale = _parameter(emit, form.scale, form.super_scale, addresses[:2], groups, v)
    if form.offset is None:
        return scale, None
    offset = _parameter(emit, form.offset, form.super_offset, addresses[2:], groups, v)
    if form.has_zero_points:
        middle = ir.Constant(VECTOR, [float(form.middle)] * WIDTH)
        offset = b.fmul(b.fsub(middle, offset), scale)
    return scale, offset


def _parameter(emit, dtype, above, addresses, groups, v):
    """Return a scale or offset for each column of a vector."""
    found = _values(emit, dtype, addresses[0], groups[0], v)
    if above is None:
        return found
    return emit.builder.fmul(found, _values(emit, above, addresses[1], groups[1], v))


def _values(emit, dtype, address, group, v):
    """Load the numbers of a vector of columns as f32."""
    b = emit.builder
    size = Form.sizes[dtype]
    pointer = emit.moved(address, (group, PANEL * size), v * WIDTH * size)
    if dtype in ("f32", "f16", "bf16"):
        return emit.floats(pointer, dtype)
    if dtype == "si32":
        return b.sitofp(emit.load(pointer, WORDS, 4), VECTOR)
    narrow = emit.load(pointer, ir.VectorType(I8, WIDTH), 1)
    return b.sitofp((b.sext if dtype == "si8" else b.zext)(narrow, WORDS), VECTOR)


def _splat(emit, value):
    """Return a vector with one i32 in every lane."""
    b = emit.builder
    undefined = ir.Constant(WORDS, ir.Undefined)
    single = b.insert_element(undefined, value, ir.Constant(I32, 0))
    return b.shuffle_vector(single, undefined, words(0))


@cache
def quantize_block(form: Form):
    """Intrinsic: write the record of a block of values.

    Arguments: the addresses of the values, f32, and of the record; the zero of the weights.
    A block with infinities or NaN has a scale of NaN.
    """

    @named_intrinsic(f"quantize_block_{form.block}_{form.wide}")
    def micro_kernel(typing_context, x, record, zero):
        def generate(context, builder, signature, arguments):
            _emit_record(VectorEmitter(builder), *arguments, form)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), generate

    return micro_kernel


def _emit_record(emit, x, record, zero, form):
    b = emit.builder
    target = emit.pointer(record)
    codes, scale, total = rounded_block(emit, emit.pointer(x), form.block)
    for at, code in zip(range(0, form.block, WIDTH), codes, strict=True):
        if form.wide:
            store_wide(emit, code, emit.moved(target, 2 * at))
        else:
            store_bytes(emit, code, emit.moved(target, at))
    start = b.neg(b.mul(total, b.trunc(zero, I32)))
    for at, value in enumerate((scale, start, b.fmul(scale, b.sitofp(total, F32)))):
        emit.store(value, emit.moved(target, form.rounded + 4 * at))


def store_bytes(emit, codes, pointer):
    """Store codes, words, as bytes."""
    b = emit.builder
    narrow = b.trunc(codes, ir.VectorType(I8, WIDTH))
    b.store(narrow, b.bitcast(pointer, ir.PointerType(narrow.type)), 1)


def rounded_block(emit, source, block):
    """Return the codes of a block of values, vectors of words; their scale, f32; and their sum."""
    b = emit.builder
    values = [emit.load(emit.moved(source, 4 * at), VECTOR, 4) for at in range(0, block, WIDTH)]
    top = words(0)
    for value in values:  # as bits: a NaN is larger than all numbers
        bits = b.and_(b.bitcast(value, WORDS), words(0x7FFFFFFF))
        top = b.select(b.icmp_unsigned(">", bits, top), bits, top)
    top = call_llvm(b, f"llvm.vector.reduce.umax.v{WIDTH}i32", I32, [top])
    finite = b.icmp_unsigned("<", top, I32(_NOT_FINITE))
    # 127 over a much smaller number overflows, and 0 times infinity is NaN.
    usable = b.and_(finite, b.icmp_unsigned(">=", top, I32(_TINY)))
    largest = b.bitcast(top, F32)
    scale = b.select(finite, b.fdiv(largest, F32(127.0)), F32(float("nan")))
    inverse = emit.splat(b.select(usable, b.fdiv(F32(127.0), largest), F32(0.0)))
    magic = ir.Constant(VECTOR, [_MAGIC] * WIDTH)
    codes, total = [], words(0)
    for value in values:
        # Codes are read off the bits: 128 x 768 takes 0.05 ms, with LLVM's `fptosi.sat` 0.22.
        rounded = b.fadd(b.fmul(value, inverse), magic)
        codes.append(b.sub(b.bitcast(rounded, WORDS), b.bitcast(magic, WORDS)))
        total = b.add(total, codes[-1])
    return codes, scale, call_llvm(b, f"llvm.vector.reduce.add.v{WIDTH}i32", I32, [total])
