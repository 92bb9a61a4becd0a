"""Intrinsics that bring numbers from one type to another."""

from __future__ import annotations

from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import intrinsic, made, named_intrinsic, types
from gptrs_backend_numba.codegen.machine import call_llvm, unary


def _reinterpreted(source, target):
    """Return an intrinsic that reads the bits of `source` as `target`, names of numba's types."""

    @intrinsic
    def apply(typing_context, x):
        def generate(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], context.get_value_type(getattr(types, target)))

        return getattr(types, target)(getattr(types, source)), generate

    return apply


bits_of = _reinterpreted("float32", "int32")
from_bits = _reinterpreted("int32", "float32")
bits_of_f64 = _reinterpreted("float64", "int64")
f64_from_bits = _reinterpreted("int64", "float64")


@intrinsic
def truncated(typing_context, x):
    """Return a float32 that is known to fit, as int32: one vector instruction, unlike `convert`."""

    def generate(context, builder, signature, arguments):
        return builder.fptosi(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate


@intrinsic
def wrapped(typing_context, x, element):
    """Return an integer as the integer type `element`: its low bits, or all if that is wider."""
    source, target = types.unliteral(x), element.instance_type

    def generate(context, builder, signature, arguments):
        target_type = context.get_value_type(target)
        if target.bitwidth < source.bitwidth:
            return builder.trunc(arguments[0], target_type)
        if target.bitwidth == source.bitwidth:
            return arguments[0]
        return (builder.sext if source.signed else builder.zext)(arguments[0], target_type)

    return target(source, element), generate


@intrinsic
def convert(typing_context, x, element):
    """Return `x` as `element`, as `cast` does: integers saturate, NaN is 0, `i1` is x != 0."""
    source, target = types.unliteral(x), element.instance_type

    def generate(context, builder, signature, arguments):
        return _converted(builder, source, target, context.get_value_type(target), arguments[0])

    return target(source, element), generate


@made
def conversion_to(type_):
    """Return `convert` to a NumPy type as a function of one number."""

    @named_intrinsic(f"conversion_to_{type_.__name__}")
    def convert_to(typing_context, x):
        source = types.unliteral(x)
        target = typing_context.resolve_value_type(type_).instance_type

        def generate(context, builder, signature, arguments):
            value_type = context.get_value_type(target)
            return _converted(builder, source, target, value_type, arguments[0])

        return target(source), generate

    return convert_to


def _converted(builder, source, target, target_type, value):
    if source == target:
        return value
    if target == types.boolean:
        zero = ir.Constant(value.type, 0)
        if isinstance(source, types.Float):
            return builder.fcmp_unordered("!=", value, zero)
        return builder.icmp_unsigned("!=", value, zero)
    if isinstance(target, types.Float):
        if isinstance(source, types.Float):
            wider = target.bitwidth > source.bitwidth
            return (builder.fpext if wider else builder.fptrunc)(value, target_type)
        signed = isinstance(source, types.Integer) and source.signed
        return (builder.sitofp if signed else builder.uitofp)(value, target_type)
    if source == types.boolean:
        return builder.zext(value, target_type)
    if isinstance(source, types.Float) and target.bitwidth < 32:
        return _narrowed(builder, target, target_type, value)
    if isinstance(source, types.Float):
        kind = "fptosi" if target.signed else "fptoui"
        name = f"llvm.{kind}.sat.i{target.bitwidth}.f{source.bitwidth}"
        return call_llvm(builder, name, target_type, [value])
    return _saturated(builder, source, target, target_type, value)


def _narrowed(builder, target, target_type, value):
    """Return a float as an integer of 8 or 16 bits, by way of 32 bits.

    LLVM makes single numbers of its conversions that saturate: to clamp 200,704 f32 and convert
    them to si8 took 211 us with them, and takes 45 us.
    """
    zero, least, most = (ir.Constant(value.type, n) for n in (0, target.minval, target.maxval))
    value = builder.select(builder.fcmp_ordered("ord", value, value), value, zero)
    value = builder.select(builder.fcmp_ordered("<", value, least), least, value)
    value = builder.select(builder.fcmp_ordered(">", value, most), most, value)
    return builder.trunc(builder.fptosi(value, ir.IntType(32)), target_type)


def _saturated(builder, source, target, target_type, value):
    compare = builder.icmp_signed if source.signed else builder.icmp_unsigned
    for bound, direction in ((target.minval, "<"), (target.maxval, ">")):
        if source.minval <= bound <= source.maxval:
            limit = ir.Constant(value.type, bound)
            value = builder.select(compare(direction, value, limit), limit, value)
    if target.bitwidth < source.bitwidth:
        return builder.trunc(value, target_type)
    if target.bitwidth == source.bitwidth:
        return value
    return (builder.sext if source.signed else builder.zext)(value, target_type)


def _to_53_bits_odd(builder, type_, x):
    """Return integers that float64 may not hold as odd multiples of 2^11, which it does hold.

    They lie on the same side of what is halfway between two numbers of much fewer bits.
    """

    def number(value):
        return ir.Constant(x.type, value)

    compare = builder.icmp_signed if type_.signed else builder.icmp_unsigned
    large = compare(">=", x, number(2**53))
    if type_.signed:
        large = builder.or_(large, compare("<=", x, number(-(2**53))))
    inexact = builder.icmp_unsigned("!=", builder.and_(x, number(2047)), number(0))
    bit = builder.shl(builder.zext(inexact, x.type), number(11))
    odd = builder.or_(builder.and_(x, number(~2047 % 2**64)), bit)
    return builder.select(large, odd, x)


to_53_bits_odd = unary("to_53_bits_odd", _to_53_bits_odd)
