"""Intrinsics: typed memory behind an address, and scalar instructions without promotion."""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from gptrs_backend_numba.codegen.deferred import intrinsic, register_jitable, types


def call_llvm(builder, name, result, arguments):
    """Emit a call of the LLVM intrinsic `name`."""
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, function_type, name)
    return builder.call(function, arguments)


@intrinsic
def pointer(typing_context, address, element):
    """The memory at `address` as elements of the NumPy type `element`; indexing is unchecked."""
    signature = types.CPointer(element.instance_type)(types.int64, element)

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return signature, generate


def unary(emit):
    """An intrinsic of one number; `emit` takes the builder, the type and the number."""

    @intrinsic
    def apply(typing_context, x):
        def generate(context, builder, signature, arguments):
            return emit(builder, signature.return_type, *arguments)

        return types.unliteral(x)(types.unliteral(x)), generate

    return apply


def binary(emit):
    """An intrinsic of two numbers of one type; `emit` takes the builder, the type and both."""

    @intrinsic
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
    """`x * y + z` rounded once."""

    def generate(context, builder, signature, arguments):
        return _math("fma")(builder, signature.return_type, *arguments)

    return x(x, x, x), generate


@intrinsic
def choose(typing_context, condition, x, y):
    """`x` where `condition` holds, else `y`, without a branch."""

    def generate(context, builder, signature, arguments):
        return builder.select(*arguments)

    return x(condition, x, y), generate


def _divisor(builder, type_, y):
    """`y` made safe to divide by, and whether the quotient is the negated dividend instead."""
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
    """A shift whose count may be anything: `beyond` gives the result for counts past the width."""

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


_divide_exact = binary(lambda builder, type_, x, y: builder.udiv(x, y))


@register_jitable
def offset(geometry, at, rank, index):
    """Element offset of row-major position `index`; (size, stride) of each axis begin at `at`."""
    total = np.int64(0)
    for axis in range(rank - 1, -1, -1):
        size = geometry[at + 2 * axis]
        rest = _divide_exact(index, size)
        total += (index - rest * size) * geometry[at + 2 * axis + 1]
        index = rest
    return total


EXPORTS = {
    "np": np,
    "pointer": pointer,
    "offset": offset,
    "choose": choose,
    "fma": fma,
    "absolute": unary(_math("fabs")),
    "floor": unary(_math("floor")),
    "ceil": unary(_math("ceil")),
    "rint": unary(_math("rint")),
    "square_root": unary(_math("sqrt")),
    "copysign": binary(_math("copysign")),
    "float_maximum": binary(_math("maximum")),
    "float_minimum": binary(_math("minimum")),
    "power": binary(_math("pow")),
    "divide": binary(lambda builder, type_, x, y: builder.fdiv(x, y)),
    "float_remainder": binary(lambda builder, type_, x, y: builder.frem(x, y)),
    "negated": unary(lambda builder, type_, x: builder.neg(x)),
    "complement": unary(lambda builder, type_, x: builder.not_(x)),
    "wrap_add": binary(lambda builder, type_, x, y: builder.add(x, y)),
    "wrap_sub": binary(lambda builder, type_, x, y: builder.sub(x, y)),
    "wrap_mul": binary(lambda builder, type_, x, y: builder.mul(x, y)),
    "bit_and": binary(lambda builder, type_, x, y: builder.and_(x, y)),
    "bit_or": binary(lambda builder, type_, x, y: builder.or_(x, y)),
    "bit_xor": binary(lambda builder, type_, x, y: builder.xor(x, y)),
    "integer_maximum": binary(_integer_extreme(">")),
    "integer_minimum": binary(_integer_extreme("<")),
    "quotient": binary(_quotient),
    "remainder": binary(_remainder),
    "shift_left": binary(_shift(lambda builder, _: builder.shl, _zero)),
    "shift_right_logical": binary(_shift(lambda builder, _: builder.lshr, _zero)),
    "shift_right_arithmetic": binary(
        _shift(lambda builder, type_: builder.ashr if type_.signed else builder.lshr, _sign_bits)
    ),
}
"""The names that kernel sources use."""
