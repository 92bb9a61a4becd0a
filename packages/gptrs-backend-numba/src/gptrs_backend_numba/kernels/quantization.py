"""Functions that compute the quantization ops in elementwise kernels.

Products and quotients have the type `compute`. Codes and zero points are integers of any width.
"""

from __future__ import annotations

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.conversion import (
    bits_of,
    conversion_to,
    convert,
    truncated,
    wrapped,
)
from gptrs_backend_numba.codegen.elements import Unary, cast_of, register_of
from gptrs_backend_numba.codegen.inlining import made, named, register_jitable
from gptrs_backend_numba.codegen.machine import (
    bit_and,
    bit_or,
    choose,
    divide,
    float_maximum,
    float_minimum,
    fma,
    rint,
    shift_left,
    shift_right_logical,
    wrap_add,
    wrap_sub,
)
from gptrs_backend_numba.codegen.vector_ir import FUSED

_MAGIC = 3 << 22
"""Added to f32 of less than 2^22 it rounds them: the lowest bits are those of the integer."""
_FAR_OUTSIDE = 2.0**40
"""Beyond every integer of 32 bits, whatever zero point is added to it."""


@made
def quantized_of(x: DType, scale: DType, compute: DType, dtype: DType) -> Unary:
    """Return `clamp(rint(x / scale) + zero_point)` as `dtype`, divided in `compute`."""
    as_x, as_scale, as_result = (
        cast_of(x, compute),
        cast_of(scale, compute),
        cast_of(dtypes.si64, dtype),
    )
    bound = register_of(compute)(_FAR_OUTSIDE)

    @register_jitable
    @named(f"{x}_over_{scale}_in_{compute}_to_{dtype}")
    def quantized(value, scale, zero_point):
        whole = rint(divide(as_x(value), as_scale(scale)))
        inside = float_minimum(float_maximum(whole, -bound), bound)
        return as_result(wrap_add(convert(inside, np.int64), convert(zero_point, np.int64)))

    return quantized


@register_jitable
def _mended_quotient(x, step):
    """Return `x / step` as far as it decides a code of 8 bits, by products.

    A division takes longer than all the rest. The quotient is that of the reciprocal, mended by
    what is left over (Markstein 1990); `step` is from 2^-100 to 2^100.
    """
    inverse = divide(np.float32(1.0), step)
    if FUSED:
        near = choose(x * inverse > np.float32(-1024.0), x * inverse, np.float32(-1024.0))
        near = choose(near < np.float32(1024.0), near, np.float32(1024.0))
        return fma(fma(-near, step, x), inverse, near)
    return divide(x, step)


@register_jitable
def _code_near(quotient, x, middle, low, high):
    """Return `clamp(rint(quotient) + middle, low, high)` as bits, 0 where x is NaN.

    All but the quotient are integers: to clamp first changes nothing, and lets the code be read off
    the bits of a sum.
    """
    near = choose(quotient > low - middle, quotient, low - middle)
    near = choose(near < high - middle, near, high - middle)
    code = wrap_add(bits_of(near + np.float32(_MAGIC)), truncated(middle))
    return choose(x == x, code, np.int32(0))


@made
def code_of(divided: bool, moved: bool, dtype: DType) -> Unary:
    """Return what makes an f32 a code of 8 bits: `clamp(rint(x / step) + middle, low, high)`.

    Operands, all f32: x, the step if it is `divided`, the zero point if it is `moved`, the limits.
    The zero point and the limits are whole numbers of 8 bits.
    """
    type_ = register_of(dtype)

    @register_jitable
    @named(f"quotient_code_{dtype}")
    def of_quotient(x, step, low, high):
        code = _code_near(_mended_quotient(x, step), x, np.float32(0.0), low, high)
        return wrapped(code, type_)

    @register_jitable
    @named(f"moved_quotient_code_{dtype}")
    def of_moved_quotient(x, step, middle, low, high):
        return wrapped(_code_near(_mended_quotient(x, step), x, middle, low, high), type_)

    @register_jitable
    @named(f"code_{dtype}")
    def of_number(x, low, high):
        return wrapped(_code_near(x, x, np.float32(0.0), low, high), type_)

    @register_jitable
    @named(f"moved_code_{dtype}")
    def of_moved_number(x, middle, low, high):
        return wrapped(_code_near(x, x, middle, low, high), type_)

    if divided:
        return of_moved_quotient if moved else of_quotient
    return of_moved_number if moved else of_number


@made
def _product_of(scale: DType, compute: DType) -> Unary:
    """Return `code * scale` in `compute`, of a code as int64."""
    as_scale, as_float = cast_of(scale, compute), conversion_to(register_of(compute))

    @register_jitable
    @named(f"code_times_{scale}_in_{compute}")
    def product(code, scale):
        return as_float(code) * as_scale(scale)

    return product


@made
def dequantized_of(scale: DType, compute: DType, dtype: DType) -> Unary:
    """Return `(code - zero_point) * scale` as `dtype`, computed in `compute`."""
    product, as_result = _product_of(scale, compute), cast_of(compute, dtype)

    @register_jitable
    @named(f"times_{scale}_in_{compute}_to_{dtype}")
    def dequantized(code, scale, zero_point):
        difference = wrap_sub(convert(code, np.int64), convert(zero_point, np.int64))
        return as_result(product(difference, scale))

    return dequantized


@made
def dequantized_affine_of(scale: DType, bias: DType, compute: DType, dtype: DType) -> Unary:
    """Return `code * scale + bias` as `dtype`, computed in `compute`."""
    product, as_bias, as_result = (
        _product_of(scale, compute), cast_of(bias, compute), cast_of(compute, dtype)
    )  # fmt: skip

    @register_jitable
    @named(f"times_{scale}_plus_{bias}_in_{compute}_to_{dtype}")
    def dequantized(code, scale, bias):
        return as_result(product(convert(code, np.int64), scale) + as_bias(bias))

    return dequantized


@made
def requantized_of(scale_in: DType, scale_out: DType, compute: DType, dtype: DType) -> Unary:
    """Return `quantized_of` of what `dequantized_of` gives, without rounding between."""
    dequantized = dequantized_of(scale_in, compute, compute)
    quantized = quantized_of(compute, scale_out, compute, dtype)

    @register_jitable
    @named(f"{scale_in}_to_{scale_out}_in_{compute}_to_{dtype}")
    def requantized(code, scale_in, zero_in, scale_out, zero_out):
        return quantized(dequantized(code, scale_in, zero_in), scale_out, zero_out)

    return requantized


@made
def unpacked_of(shift: int, bits: int) -> Unary:
    """Return the `bits` bits from bit `shift` of a byte, and of the next one if they reach it."""
    start, above = np.int64(shift), np.int64(8)
    mask = np.int64((1 << bits) - 1)
    as_byte = cast_of(dtypes.si64, dtypes.ui8)

    @register_jitable
    @named(f"bits_{bits}_at_{shift}")
    def of_one(low):
        return as_byte(bit_and(shift_right_logical(convert(low, np.int64), start), mask))

    @register_jitable
    @named(f"bits_{bits}_at_{shift}_of_two")
    def of_two(low, high):
        stream = bit_or(convert(low, np.int64), shift_left(convert(high, np.int64), above))
        return as_byte(bit_and(shift_right_logical(stream, start), mask))

    return of_two if shift + bits > 8 else of_one
