"""LLVM vector code for the registers of the host: addresses, loads, multiply-adds, loops."""

from __future__ import annotations

from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import intrinsic
from gptrs_backend_numba.codegen.machine import call_llvm, features

FEATURES = features()
"""Names of the features of the processor, as LLVM calls them."""
IS_ARM = "neon" in FEATURES
"""True for aarch64, whose 32 registers hold 4 floats each."""
FUSED = bool(FEATURES & {"fma", "neon"})
"""True if there is an instruction for fused multiply-adds; without one they are slow calls."""
_PRODUCT = "fma" if FUSED else "fmuladd"
"""LLVM's name of a multiply-add that is rounded once, or as the processor likes."""
HALVES = bool(FEATURES & {"f16c", "neon"})
"""True if there is an instruction that widens half-precision floats."""

WIDTH = 16 if "avx512f" in FEATURES else 8 if {"avx2", "fma"} <= FEATURES else 4
"""Floats in a vector register."""

F32, HALF = ir.FloatType(), ir.HalfType()
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
BYTES = ir.PointerType(I8)
VECTOR = ir.VectorType(F32, WIDTH)
"""The type of a vector register."""
ZERO = ir.Constant(VECTOR, [0.0] * WIDTH)
"""A vector of zeros."""


@intrinsic
def multiply_add(typing_context, x, y, z):
    """Return `x * y + z` of f32, rounded like a lane of `VectorEmitter.multiply_add`."""

    def generate(context, builder, signature, arguments):
        return call_llvm(builder, f"llvm.{_PRODUCT}.f32", F32, list(arguments))

    return x(x, x, x), generate


class VectorEmitter:
    """Addresses, vector loads and multiply-adds in the function that is being generated."""

    def __init__(self, builder):
        self.builder = builder

    def pointer(self, address):
        """Return an address as a pointer to bytes."""
        return self.builder.inttoptr(address, BYTES)

    def moved(self, pointer, *offsets):
        """Return `pointer` plus byte offsets: numbers, or products of a value and a number."""
        b = self.builder
        for offset in offsets:
            value, factor = offset if isinstance(offset, tuple) else (number(offset), 1)
            if factor and not (isinstance(value, ir.Constant) and value.constant == 0):
                bytes_ = value if factor == 1 else b.mul(value, number(factor))
                pointer = b.gep(pointer, [bytes_], source_etype=I8)
        return pointer

    def load(self, pointer, type_, align):
        """Load a value of a type at a pointer that is a multiple of `align`."""
        typed = self.builder.bitcast(pointer, ir.PointerType(type_))
        return self.builder.load(typed, align=align, typ=type_)

    def store(self, value, pointer):
        """Put vectors of f32 or single ones to a pointer that is a multiple of 4."""
        self.builder.store(value, self.builder.bitcast(pointer, ir.PointerType(value.type)), 4)

    def floats(self, pointer, dtype):
        """Load `WIDTH` elements of type "f32", "bf16" or "f16" as a vector of f32."""
        if dtype == "f32":
            return self.load(pointer, VECTOR, 4)
        if dtype == "f16" and HALVES:
            half = self.load(pointer, ir.VectorType(HALF, WIDTH), 2)
            return self.builder.fpext(half, VECTOR)
        wide = ir.VectorType(I32, WIDTH)
        bits = self.builder.zext(self.load(pointer, ir.VectorType(I16, WIDTH), 2), wide)
        if dtype == "bf16":
            return self.builder.bitcast(self.builder.shl(bits, words(16)), VECTOR)
        return self._from_half(bits)

    def from_half(self, bits):
        """Return the f32 of half-precision floats whose bits are in the lower half of words."""
        if not HALVES:
            return self._from_half(bits)
        b = self.builder
        half = b.bitcast(b.trunc(bits, ir.VectorType(I16, WIDTH)), ir.VectorType(HALF, WIDTH))
        return b.fpext(half, VECTOR)

    def _from_half(self, bits):
        """Emit `f16_to_f32` of `gptrs_backend_numba.codegen.scalar` for a vector."""
        b = self.builder
        magnitude = b.shl(b.and_(bits, words(0x7FFF)), words(13))
        exponent = b.and_(magnitude, words(0x0F800000))
        normal, special, implicit = (b.add(magnitude, words(n << 23)) for n in (112, 224, 113))
        bias = b.bitcast(words(113 << 23), VECTOR)
        subnormal = b.bitcast(b.fsub(b.bitcast(implicit, VECTOR), bias), bits.type)
        value = b.select(b.icmp_unsigned("==", exponent, words(0x0F800000)), special, normal)
        value = b.select(b.icmp_unsigned("==", exponent, words(0)), subnormal, value)
        sign = b.shl(b.and_(bits, words(0x8000)), words(16))
        return b.bitcast(b.or_(value, sign), VECTOR)

    def splat(self, value):
        """Return a vector with one f32 in every lane."""
        b = self.builder
        undefined = ir.Constant(VECTOR, ir.Undefined)
        single = b.insert_element(undefined, value, ir.Constant(I32, 0))
        return b.shuffle_vector(single, undefined, words(0))

    def multiply_add(self, x, y, z):
        """Return `x * y + z` of vectors, rounded once where the processor can; else twice."""
        return call_llvm(self.builder, f"llvm.{_PRODUCT}.v{WIDTH}f32", VECTOR, [x, y, z])

    def one_of(self, wanted, choices):
        """Yield each of the `choices`, integers, in a branch that is taken if `wanted` is it."""
        for choice in choices:
            with self.builder.if_then(self.builder.icmp_signed("==", wanted, number(choice))):
                yield choice

    def prefetch(self, pointer, write=0, near=3):
        """Prefetch the cache line of an address, which need not exist; where `near` is 2, to L2.

        More lines can be waited for there than in L1.
        """
        hints = [ir.Constant(I32, hint) for hint in (write, near, 1)]  # 1: as data
        call_llvm(self.builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, *hints])

    def keep_order(self):
        """Let LLVM move no load or store from before this point behind it, or the reverse."""
        self.builder.asm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", [], True)

    def in_order(self, values):
        """Return the pointers and vectors; LLVM computes all of them before it uses one result.

        So LLVM does not compute more ahead than registers hold. For x86-64 and aarch64.
        """
        b = self.builder
        pointers = [isinstance(value.type, ir.PointerType) for value in values]
        vector = "=w" if IS_ARM else "=v" if WIDTH == 16 else "=x"
        results = ["=r" if each else vector for each in pointers]
        types = [value.type for value in values]
        function = ir.FunctionType(ir.LiteralStructType(types), types)
        constraints = ",".join([*results, *map(str, range(len(values)))])
        found = b.asm(function, "", constraints, values, False)
        return [b.extract_value(found, at) for at in range(len(values))]

    def total(self, value):
        """Return the sum of the lanes, added in pairs: halves first, so the order never varies."""
        b = self.builder
        width = WIDTH
        while width > 1:
            width //= 2
            lanes = [ir.VectorType(I32, width)([start + i for i in range(width)])
                     for start in (0, width)]  # fmt: skip
            low, high = (b.shuffle_vector(value, value, half) for half in lanes)
            value = b.fadd(low, high)
        return b.extract_element(value, ir.Constant(I32, 0))

    def loop(self, count, step, starts, body):
        """Emit `for k in range(0, count, step)` with values carried over; `count` may be 0."""
        b = self.builder
        entry = b.block
        head, done = b.append_basic_block("loop"), b.append_basic_block("done")
        b.cbranch(b.icmp_signed(">", count, number(0)), head, done)
        b.position_at_end(head)
        k = b.phi(I64)
        k.add_incoming(number(0), entry)
        carried = [b.phi(start.type) for start in starts]
        results = body(k, list(carried))
        following, end = b.add(k, number(step)), b.block
        for phi, start, result in zip((k, *carried), (None, *starts), (following, *results),
                                      strict=True):  # fmt: skip
            if start is not None:
                phi.add_incoming(start, entry)
            phi.add_incoming(result, end)
        b.cbranch(b.icmp_signed("<", following, count), head, done)
        b.position_at_end(done)
        left = [b.phi(start.type) for start in starts]
        for phi, start, result in zip(left, starts, results, strict=True):
            phi.add_incoming(start, entry)
            phi.add_incoming(result, end)
        return left


class WordEmitter(VectorEmitter):
    """Vectors of si32, whose bits are held as f32: they are moved alike, products and sums wrap."""

    def floats(self, pointer, dtype):
        """Load `WIDTH` elements."""
        return self.load(pointer, VECTOR, 4)

    def multiply_add(self, x, y, z):
        """Return `x * y + z` of integers."""
        b = self.builder
        x, y, z = (b.bitcast(value, ir.VectorType(I32, WIDTH)) for value in (x, y, z))
        return b.bitcast(b.add(b.mul(x, y), z), VECTOR)


def emitter_of(builder, dtype):
    """Return the emitter for elements of a type: "si32", or what `VectorEmitter.floats` reads."""
    return WordEmitter(builder) if dtype == "si32" else VectorEmitter(builder)


def bytes_of(dtype):
    """Return the bytes of an element: of "f32", "bf16", "f16" or "si32"."""
    return 4 if dtype in ("f32", "si32") else 2


def number(value):
    """Return a constant of type i64."""
    return ir.Constant(I64, value)


def splat(value):
    """Return a vector with one f32, which is known now, in every lane."""
    return ir.Constant(VECTOR, [value] * WIDTH)


def words(value):
    """Return a vector with one i32 in every lane."""
    return ir.Constant(ir.VectorType(I32, WIDTH), [value] * WIDTH)
