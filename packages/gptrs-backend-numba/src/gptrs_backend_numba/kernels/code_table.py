"""Functions of 8-bit codes by a table of 256 results, looked up in vector registers."""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import intrinsic, types
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel
from gptrs_backend_numba.codegen.machine import call_llvm, pointer
from gptrs_backend_numba.codegen.vector_ir import FEATURES, I8, I32, VectorEmitter, number

_SHUFFLES = (
    ("avx512bw", 64, "x86.avx512.pshuf.b.512"), ("avx2", 32, "x86.avx2.pshuf.b"),
    ("ssse3", 16, "x86.ssse3.pshuf.b.128"), ("neon", 16, "aarch64.neon.tbl1.v16i8"),
)  # fmt: skip
"""Features, the bytes of a vector, and LLVM's name of what picks bytes within 16 of them."""
_PART = 16


@intrinsic
def look_up(typing_context, codes, table, out, count):
    """Write `table[code]` of whole vectors of bytes; return how many codes are done.

    A vector picks its bytes from each 16 of the table, and keeps those whose upper 4 bits ask for
    them: two instructions for 64 bytes, 16 times. A byte at a time takes twice as long (Zen 4).
    """

    def generate(context, builder, signature, arguments):
        found = next((rest for feature, *rest in _SHUFFLES if feature in FEATURES), None)
        if found is None:
            return number(0)
        return _emit(VectorEmitter(builder), arguments, *found)

    return types.int64(*[types.int64] * 4), generate


def _emit(emit, arguments, width, name):
    codes, table, out, count = arguments
    b = emit.builder
    bytes_, part = ir.VectorType(I8, width), ir.VectorType(I8, _PART)
    low, four = ir.Constant(bytes_, [15] * width), ir.Constant(bytes_, [4] * width)
    lanes = ir.Constant(ir.VectorType(I32, width), [i % _PART for i in range(width)])
    table, undefined = emit.pointer(table), ir.Constant(part, ir.Undefined)
    parts = [emit.load(emit.moved(table, _PART * i), part, 1) for i in range(256 // _PART)]
    parts = [b.shuffle_vector(each, undefined, lanes) for each in parts]
    whole = b.mul(b.sdiv(count, number(width)), number(width))

    def body(k, _):
        value = emit.load(emit.moved(emit.pointer(codes), (k, 1)), bytes_, 1)
        within, upper = b.and_(value, low), b.lshr(value, four)
        result = None
        for i, each in enumerate(parts):
            picked = call_llvm(b, f"llvm.{name}", bytes_, [each, within])
            if result is None:
                result = picked
            else:
                wanted = b.icmp_unsigned("==", upper, ir.Constant(bytes_, [i] * width))
                result = b.select(wanted, picked, result)
        target = emit.moved(emit.pointer(out), (k, 1))
        b.store(result, b.bitcast(target, ir.PointerType(bytes_)), 1)
        return []

    emit.loop(whole, width, [], body)
    return whole


@kernel
def code_table_task(codes, table, out, geometry, task):
    """Write the results of a block of codes: G is how many there are, and how many a block has."""
    G = pointer(geometry, np.int64)
    first = task * G[1]
    count = min(G[1], G[0] - first)
    done = look_up(codes + first, table, out + first, count)
    C, T, O = (
        pointer(codes + first, np.uint8),
        pointer(table, np.uint8),
        pointer(out + first, np.uint8),
    )
    for i in range(done, count):
        O[i] = T[C[i]]
    return 0


def code_table() -> SpecializedKernel:
    """Return the tasks that look codes up, a block each."""
    return code_table_task.specialize()
