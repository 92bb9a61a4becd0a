"""Vectors of bytes: sums of four products in each lane, and tables of 16 bytes.

Each word of a vector has four values of k. With VNNI, or `usdot` of aarch64, unsigned bytes meet
signed ones. `sdot`, which processors had years before, and the multiplications that all of aarch64
has take signed ones only: unsigned bytes are moved by 128 (`MOVED`) then, for which callers make
up.
"""

from __future__ import annotations

from llvmlite import ir

from gptrs_backend_numba.codegen.machine import call_llvm
from gptrs_backend_numba.codegen.vector_ir import FEATURES, I8, I16, I32, IS_ARM, WIDTH

WORDS = ir.VectorType(I32, WIDTH)
"""Words in a vector register."""
BYTES = ir.VectorType(I8, 4 * WIDTH)
"""The bytes of a vector register."""
_ARM_DOT = "usdot" if "i8mm" in FEATURES else "sdot" if "dotprod" in FEATURES else None
HAS_DOTS = IS_ARM or {16: "avx512vnni", 8: "avxvnni"}.get(WIDTH) in FEATURES
"""True if there is an instruction for sums of four products of bytes, or few of them."""
HAS_DOT_INSTRUCTIONS = IS_ARM and _ARM_DOT is not None
"""True on aarch64 if it is one instruction: what else is in registers has room."""
MOVED = 128 if IS_ARM and _ARM_DOT != "usdot" else 0
"""Subtract this from unsigned bytes before `dots` takes them: as bytes, `^ MOVED`."""
HAS_MATRICES = IS_ARM and "i8mm" in FEATURES
"""True if there is an instruction for two rows by two columns of 8 values of k (`usmmla`)."""
_LOOKUP = (
    ("neon", "aarch64.neon.tbl1.v16i8")
    if IS_ARM
    else {
        16: ("avx512bw", "x86.avx512.pshuf.b.512"),
        8: ("avx2", "x86.avx2.pshuf.b"),
        4: ("ssse3", "x86.ssse3.pshuf.b.128"),
    }[WIDTH]
)
HAS_LOOKUP = _LOOKUP[0] in FEATURES
"""True if there is an instruction that looks up each byte of a vector in a table of 16."""


def dots(builder, total, unsigned, signed, *, no_least=False):
    """Add the products of 4 unsigned bytes, less `MOVED`, and 4 signed ones to each word.

    `no_least` promises that no signed byte is -128.
    """
    if not IS_ARM:
        name = f"llvm.x86.avx512.vpdpbusd.{32 * WIDTH}"
        return call_llvm(builder, name, WORDS, [total, unsigned, signed])
    if _ARM_DOT is None:
        return builder.add(
            total, _widened_dots(builder, no_least, *_bytes(builder, unsigned, signed))
        )
    name = f"llvm.aarch64.neon.{_ARM_DOT}.v4i32.v16i8"
    return call_llvm(builder, name, WORDS, [total, *_bytes(builder, unsigned, signed)])


def _widened_dots(builder, no_least, one, other):
    """Return the sums by multiplications to 16 bits.

    Two products fit 16 bits together unless all four bytes are -128: that saves two instructions of
    six.
    """
    halves = ir.VectorType(I16, 8)
    pairs, quads = [], []
    for first in (0, 8):
        lanes = ir.Constant(ir.VectorType(I32, 8), [*range(first, first + 8)])
        parts = [builder.shuffle_vector(each, each, lanes) for each in (one, other)]
        quads.append(call_llvm(builder, "llvm.aarch64.neon.smull.v8i16", halves, parts))
    if no_least:
        quads = [call_llvm(builder, "llvm.aarch64.neon.addp.v8i16", halves, quads)]
    for quad in quads:
        pairs.append(call_llvm(builder, "llvm.aarch64.neon.saddlp.v4i32.v8i16", WORDS, [quad]))
    if no_least:
        return pairs[0]
    return call_llvm(builder, "llvm.aarch64.neon.addp.v4i32", WORDS, pairs)


def matrix_dots(builder, total, unsigned, signed):
    """Add products of 2 rows of 8 unsigned bytes and 2 columns of 8 signed ones, row by row.

    Needs `HAS_MATRICES`.
    """
    name = "llvm.aarch64.neon.usmmla.v4i32.v16i8"
    return call_llvm(builder, name, WORDS, [total, *_bytes(builder, unsigned, signed)])


def look_up(builder, table, codes):
    """Return words whose bytes are those of a table of 16 that the bytes of words name, below 16.

    Needs `HAS_LOOKUP`.
    """
    constant = ir.Constant(BYTES, [*table] * (WIDTH // 4))
    found = call_llvm(
        builder, f"llvm.{_LOOKUP[1]}", BYTES, [constant, builder.bitcast(codes, BYTES)]
    )
    return builder.bitcast(found, WORDS)


def _bytes(builder, *values):
    return [builder.bitcast(value, BYTES) for value in values]
