"""Intrinsics: typed memory behind an address, and scalar instructions without promotion."""

from __future__ import annotations

import os
from functools import cache

import numpy as np
from llvmlite import ir

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.inlining import (
    intrinsic,
    named_intrinsic,
    register_jitable,
    types,
)
from gptrs_backend_numba.codegen.processor import (
    ARM_BASELINE,
    host_description,
    host_features,
    llvm_name,
    this_machine,
)
from gptrs_backend_numba.codegen.targets import chosen_target


def call_llvm(builder, name, result, arguments):
    """Emit a call of the LLVM intrinsic `name`."""
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, function_type, name)
    return builder.call(function, arguments)


@intrinsic
def pointer(typing_context, address, element):
    """Return the memory at `address` as elements of the NumPy type `element`, unchecked."""
    signature = types.CPointer(element.instance_type)(types.int64, element)

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return signature, generate


def unary(name, emit):
    """Return an intrinsic of one number; `emit` takes the builder, the type and the number."""

    @named_intrinsic(name)
    def apply(typing_context, x):
        def generate(context, builder, signature, arguments):
            return emit(builder, signature.return_type, *arguments)

        return types.unliteral(x)(types.unliteral(x)), generate

    return apply


def binary(name, emit):
    """Return an intrinsic of two numbers of one type; `emit` takes builder, type and both."""

    @named_intrinsic(name)
    def apply(typing_context, x, y):
        if types.unliteral(x) != types.unliteral(y):
            raise TypeError(f"operands of one type needed, got {x} and {y}")

        def generate(context, builder, signature, arguments):
            return emit(builder, signature.return_type, *arguments)

        return types.unliteral(x)(types.unliteral(x), types.unliteral(y)), generate

    return apply


def _math(name):
    """Emit the LLVM math intrinsic `name` on floats of any width."""

    def emit(builder, type_, *arguments):
        return call_llvm(
            builder, f"llvm.{name}.f{type_.bitwidth}", arguments[0].type, list(arguments)
        )

    return emit


@intrinsic
def fma(typing_context, x, y, z):
    """Return `x * y + z`, rounded once."""

    def generate(context, builder, signature, arguments):
        return _math("fma")(builder, signature.return_type, *arguments)

    return x(x, x, x), generate


@intrinsic
def choose(typing_context, condition, x, y):
    """Return `x` where `condition` holds, else `y`, without a branch."""

    def generate(context, builder, signature, arguments):
        return builder.select(*arguments)

    return x(condition, x, y), generate


def _divisor(builder, type_, y):
    """Return a safe divisor for `y`, and whether the quotient is the negated dividend instead."""
    zero = builder.icmp_unsigned("==", y, ir.Constant(y.type, 0))
    minus_one = ir.Constant(ir.IntType(1), 0)
    if type_.signed:
        minus_one = builder.icmp_unsigned("==", y, ir.Constant(y.type, -1))
    replaced = builder.or_(zero, minus_one)
    return builder.select(replaced, ir.Constant(y.type, 1), y), minus_one


def _quotient(builder, type_, x, y):
    divisor, minus_one = _divisor(builder, type_, y)
    divide = builder.sdiv if type_.signed else builder.udiv
    return builder.select(minus_one, builder.neg(x), divide(x, divisor))


def _remainder(builder, type_, x, y):
    divisor, _ = _divisor(builder, type_, y)
    return (builder.srem if type_.signed else builder.urem)(x, divisor)


def _integer_extreme(direction):
    def emit(builder, type_, x, y):
        compare = builder.icmp_signed if type_.signed else builder.icmp_unsigned
        return builder.select(compare(direction, x, y), x, y)

    return emit


def _shift(shift_of, beyond):
    """Return a shift for any count: `beyond` gives the result for counts past the width."""

    def emit(builder, type_, x, y):
        width = ir.Constant(y.type, type_.bitwidth)
        inside = builder.icmp_unsigned("<", y, width)  # a negative count is a huge unsigned one
        count = builder.select(inside, y, ir.Constant(y.type, 0))
        shifted = shift_of(builder, type_)(x, count)
        return builder.select(inside, shifted, beyond(builder, type_, x))

    return emit


def _zero(builder, type_, x):
    return ir.Constant(x.type, 0)


def _sign_bits(builder, type_, x):
    if not type_.signed:
        return ir.Constant(x.type, 0)
    return builder.ashr(x, ir.Constant(x.type, type_.bitwidth - 1))


_divide_exact = binary("_divide_exact", lambda builder, type_, x, y: builder.udiv(x, y))


@register_jitable
def offset(geometry, at, rank, index):
    """Return the element offset of row-major `index`; (size, stride) of each axis begin at `at`."""
    total = np.int64(0)
    for axis in range(rank - 1, -1, -1):
        size = geometry[at + 2 * axis]
        rest = _divide_exact(index, size)
        total += (index - rest * size) * geometry[at + 2 * axis + 1]
        index = rest
    return total


def _reciprocal_root(builder, type_, x):
    root = _math("sqrt")(builder, type_, x)
    return builder.fdiv(ir.Constant(x.type, 1.0), root)


def _integer_sign(builder, type_, x):
    if type_.signed:
        x = _integer_extreme(">")(builder, type_, x, ir.Constant(x.type, -1))
    return _integer_extreme("<")(builder, type_, x, ir.Constant(x.type, 1))


def _integer_absolute(builder, type_, x):
    return _integer_extreme(">")(builder, type_, x, builder.neg(x)) if type_.signed else x


def _shift_right_low_half(builder, type_, x, y):
    low = builder.and_(x, ir.Constant(x.type, 15))
    return _shift(lambda builder, _: builder.lshr, _zero)(builder, type_, low, y)


absolute = unary("absolute", _math("fabs"))
floor = unary("floor", _math("floor"))
ceil = unary("ceil", _math("ceil"))
rint = unary("rint", _math("rint"))
square_root = unary("square_root", _math("sqrt"))
copysign = binary("copysign", _math("copysign"))
float_maximum = binary("float_maximum", _math("maximum"))
float_minimum = binary("float_minimum", _math("minimum"))
power = binary("power", _math("pow"))
divide = binary("divide", lambda builder, type_, x, y: builder.fdiv(x, y))
float_remainder = binary("float_remainder", lambda builder, type_, x, y: builder.frem(x, y))
reciprocal = unary("reciprocal", lambda builder, _, x: builder.fdiv(ir.Constant(x.type, 1.0), x))
reciprocal_root = unary("reciprocal_root", _reciprocal_root)
negated = unary("negated", lambda builder, type_, x: builder.neg(x))
complement = unary("complement", lambda builder, type_, x: builder.not_(x))
integer_sign = unary("integer_sign", _integer_sign)
integer_absolute = unary("integer_absolute", _integer_absolute)
wrap_add = binary("wrap_add", lambda builder, type_, x, y: builder.add(x, y))
wrap_sub = binary("wrap_sub", lambda builder, type_, x, y: builder.sub(x, y))
wrap_mul = binary("wrap_mul", lambda builder, type_, x, y: builder.mul(x, y))
bit_and = binary("bit_and", lambda builder, type_, x, y: builder.and_(x, y))
bit_or = binary("bit_or", lambda builder, type_, x, y: builder.or_(x, y))
bit_xor = binary("bit_xor", lambda builder, type_, x, y: builder.xor(x, y))
integer_maximum = binary("integer_maximum", _integer_extreme(">"))
integer_minimum = binary("integer_minimum", _integer_extreme("<"))
quotient = binary("quotient", _quotient)
remainder = binary("remainder", _remainder)
shift_left = binary("shift_left", _shift(lambda builder, _: builder.shl, _zero))
shift_right_logical = binary("shift_right_logical", _shift(lambda builder, _: builder.lshr, _zero))
shift_right_low_half = binary("shift_right_low_half", _shift_right_low_half)
shift_right_arithmetic = binary(
    "shift_right_arithmetic",
    _shift(lambda builder, type_: builder.ashr if type_.signed else builder.lshr, _sign_bits),
)


@intrinsic
def keep_alive(typing_context, array):
    """Do nothing: numba frees an array after its last mention, which this is.

    A kernel that uses the address of an array needs it before each `return`, see
    `gptrs_backend_numba.codegen.inlining`.
    """

    def generate(context, builder, signature, arguments):
        return context.get_dummy_value()

    return types.void(array), generate


# Element types in kernels: the types they are loaded, computed on, rounded and stored as.
#
# `i1` is a byte in memory and a truth value in a register. Floats of 8 and 16 bits are unsigned
# integers in memory and float32 in a register, rounded to the narrow type after every operation.
# Integers of 4 bits take a byte in memory and in a register, and wrap after every operation.


INTEGERS: tuple[DType, ...] = dtypes.INTEGERS
FLOATS: tuple[DType, ...] = dtypes.FLOATS
NUMBERS: tuple[DType, ...] = (*INTEGERS, *FLOATS, dtypes.cf32, dtypes.cf64)
"""The element types that kernels can add and multiply."""


def is_narrow(dtype: DType) -> bool:
    """Return whether the type is computed on as float32 and rounded."""
    return dtype.is_float and dtype.bits <= 16


def constant(value: complex, dtype: DType) -> np.generic:
    """Return `value` as a NumPy scalar of the register type, to be a global name of a kernel."""
    if is_narrow(dtype):
        return np.float32(value.real)
    if dtype.bits == 4:
        return (np.int8 if dtype.kind == "signed" else np.uint8)(int(value.real))
    return dtype.numpy.type(value)


# The processor that kernels are compiled for: the host, or what numba's variables say instead.


_CPU_NAME, _CPU_FEATURES = "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"


DECIDING = frozenset({
    *("ssse3", "fma", "f16c", "avx2", "avxvnni", "avx512f", "avx512bw", "avx512vnni"),
    *("avx512bf16", "amx-tile", "amx-bf16", "amx-int8", "neon"),
    *("dotprod", "i8mm", "bf16", "fullfp16"),
})  # fmt: skip
"""The features that kernels and those who choose among them ask for, and no others: machine code
for a processor with the same of these fits all that was decided for this one."""
_AFTER_AVX2 = ("avx512", "avxvnni", "amx")


@cache
def features() -> frozenset[str]:
    """Return which of the deciding features may be used.

    Another CPU than the host has no AVX-512, and no sums of products of bytes (VNNI).
    """
    found = usable_features() & DECIDING
    return found - {"avxvnni"} if "avx512f" in found else found  # whose vectors are half as wide


@cache
def usable_features() -> frozenset[str]:
    """Return LLVM's names of all features that may be used; `NUMBA_CPU_*` are meant for tests."""
    name, given = os.environ.get(_CPU_NAME), os.environ.get(_CPU_FEATURES)
    target = chosen_target()
    if target is not None:
        return frozenset(target.features)
    if given is None and name is not None and name.lower() == "generic":  # to numba it has none
        given = ""
    if given is not None:
        found = frozenset(word[1:] for word in given.split(",") if word.startswith("+"))
        return found | {ARM_BASELINE} if this_machine() == "aarch64" else found
    host = host_features()
    if name is None or name == llvm_name():
        return host
    return frozenset(each for each in host if not each.startswith(_AFTER_AVX2))


@cache
def description() -> str:
    """Return everything except numba's version that decides which machine code it makes."""
    settings = {k: v for k, v in os.environ.items() if k.startswith("NUMBA_")}
    return repr((host_description(), chosen_target(), sorted(settings.items())))
