"""Runs of quantized weights as f32 or bf16, in LLVM vector code.

Vectors have the length of the run; LLVM divides them into registers of the processor.
"""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import named_intrinsic, types
from gptrs_backend_numba.codegen.vector_ir import F32, I8, I16, I32, VectorEmitter

_HALF_BYTE = 4


@cache
def decode_run(count: int, bits: int, signed: bool, biased: bool):
    """Intrinsic: `(code - zero) * scale + offset` of a run of `count` codes, as f32.

    Arguments: the address of the codes, of 4 or 8 `bits`; their zero, scale, and offset, which is
    added if the run is `biased`; the address of the values.
    """

    @named_intrinsic(f"decode_run_{count}_{bits}_{signed}_{biased}")
    def decode(typing_context, codes, zero, scale, offset, target):
        def generate(context, builder, signature, arguments):
            emit = VectorEmitter(builder)
            values = _values(emit, arguments[:4], count, bits, signed, biased)
            emit.store(values, emit.pointer(arguments[4]))
            return context.get_dummy_value()

        return types.void(*_run_types(), types.int64), generate

    return decode


@cache
def decode_rounded(count: int, bits: int, signed: bool, biased: bool):
    """Intrinsic: as `decode_run`, with values rounded to bf16."""

    @named_intrinsic(f"decode_rounded_{count}_{bits}_{signed}_{biased}")
    def decode(typing_context, codes, zero, scale, offset, target):
        def generate(context, builder, signature, arguments):
            emit = VectorEmitter(builder)
            values = _values(emit, arguments[:4], count, bits, signed, biased)
            high = builder.lshr(_rounded(builder, values, count), _splat(count, 16))
            narrow = builder.trunc(high, ir.VectorType(I16, count))
            pointer = emit.pointer(arguments[4])
            builder.store(narrow, builder.bitcast(pointer, ir.PointerType(narrow.type)), align=2)
            return context.get_dummy_value()

        return types.void(*_run_types(), types.int64), generate

    return decode


@cache
def decode_pairs(count: int, bits: int, signed: bool, biased: bool):
    """Intrinsic: two runs, rounded to bf16, in pairs: a number of the first, one of the second.

    Arguments: those of `decode_run` for each run; the address of the pairs comes last.
    """

    @named_intrinsic(f"decode_pairs_{count}_{bits}_{signed}_{biased}")
    def decode(
        typing_context, codes, zero, scale, offset, codes_2, zero_2, scale_2, offset_2, target
    ):
        def generate(context, builder, signature, arguments):
            emit = VectorEmitter(builder)
            low, high = (
                _rounded(builder, _values(emit, some, count, bits, signed, biased), count)
                for some in (arguments[:4], arguments[4:8])
            )
            low = builder.lshr(low, _splat(count, 16))
            both = builder.or_(low, builder.and_(high, _splat(count, -0x10000)))
            emit.store(both, emit.pointer(arguments[8]))
            return context.get_dummy_value()

        return types.void(*_run_types(), *_run_types(), types.int64), generate

    return decode


def _run_types():
    """Return the types of codes, zero, scale, and offset.

    In a function: numba is imported where a kernel is compiled, not where this module is.
    """
    return types.int64, types.int64, types.float32, types.float32


def _splat(count, value):
    return ir.Constant(ir.VectorType(I32, count), [value] * count)


def _spread(builder, value, count):
    """Return a vector with a value in every lane."""
    undefined = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    single = builder.insert_element(undefined, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(single, undefined, _splat(count, 0))


def _values(emit, arguments, count, bits, signed, biased):
    """Return the values of a run, f32."""
    codes, zero, scale, offset = arguments
    b, wide = emit.builder, ir.VectorType(I32, count)
    if bits == _HALF_BYTE:
        octets = ir.VectorType(I8, count // 2)
        both = emit.load(emit.pointer(codes), octets, 1)
        low = b.and_(both, ir.Constant(octets, [15] * (count // 2)))
        high = b.lshr(both, ir.Constant(octets, [4] * (count // 2)))
        turns = [at // 2 + at % 2 * (count // 2) for at in range(count)]
        narrow = b.shuffle_vector(low, high, ir.Constant(wide, turns))
    else:
        narrow = emit.load(emit.pointer(codes), ir.VectorType(I8, count), 1)
    whole = (b.sext if signed else b.zext)(narrow, wide)
    whole = b.sub(whole, _spread(b, b.trunc(zero, I32), count))
    floats = b.sitofp(whole, ir.VectorType(F32, count))
    product = b.fmul(floats, _spread(b, scale, count))
    # Two roundings, as the instruction of the program has: the same bits on every processor.
    return b.fadd(product, _spread(b, offset, count)) if biased else product


def _rounded(builder, values, count):
    """Return the bits of values rounded to bf16, in the upper halves of words."""
    b = builder
    bits = b.bitcast(values, ir.VectorType(I32, count))
    odd = b.and_(b.lshr(bits, _splat(count, 16)), _splat(count, 1))
    rounded = b.add(bits, b.add(odd, _splat(count, 0x7FFF)))
    quiet = b.or_(bits, _splat(count, 0x400000))  # a NaN stays one
    return b.select(b.fcmp_unordered("uno", values, values), quiet, rounded)
