"""Functions of one number in a form that LLVM vectorizes: no branches, no calls, no tables."""

from __future__ import annotations

import math

import numpy as np

from gptrs_backend_numba.codegen.conversion import bits_of, convert, from_bits, truncated
from gptrs_backend_numba.codegen.inlining import register_jitable
from gptrs_backend_numba.codegen.machine import (
    absolute,
    choose,
    copysign,
    divide,
    fma,
    integer_maximum,
    integer_minimum,
    rint,
)

f32, i32 = np.float32, np.int32


@register_jitable
def exp_f32(x):
    """Return `e^x` as `2^n * e^r`, |r| <= ln(2) / 2, by the polynomial of Cephes; < 2 ULP."""
    y = choose(x < f32(89.0), x, f32(89.0))  # NaN is put back at the end
    y = choose(y > f32(-104.0), y, f32(-104.0))
    n = _exponent(y)
    p = _significand(y, n)
    # Two steps, since 2^n alone may lie outside the normal range where the result does not.
    whole = truncated(n)
    half = i32(whole >> i32(1))
    first = from_bits(i32((half + i32(127)) << i32(23)))
    second = from_bits(i32((whole - half + i32(127)) << i32(23)))
    return choose(x == x, p * first * second, x)


@register_jitable
def _exponent(y):
    return rint(y * f32(1.44269504088896341))


@register_jitable
def _significand(y, n):
    """Return `e^y / 2^n`."""
    r = fma(n, f32(-0.693359375), y)
    r = fma(n, f32(2.12194440e-4), r)
    p = fma(f32(1.9875691500e-4), r, f32(1.3981999507e-3))
    p = fma(p, r, f32(8.3334519073e-3))
    p = fma(p, r, f32(4.1665795894e-2))
    p = fma(p, r, f32(1.6666665459e-1))
    p = fma(p, r, f32(5.0000001201e-1))
    return fma(p, r * r, r) + f32(1.0)


@register_jitable
def exp_of_moderate_f32(x):
    """Return `exp_f32(x)`, the same bits, for -87 <= x <= 88, in two thirds of its instructions."""
    n = _exponent(x)
    return _significand(x, n) * from_bits(i32((truncated(n) + i32(127)) << i32(23)))


@register_jitable
def tanh_f32(x):
    """Return tanh: an odd polynomial (Cephes `tanhf`) below 0.625, else by `e^2x`."""
    t = absolute(x)
    z = x * x
    p = fma(f32(-5.70498872745e-3), z, f32(2.06390887954e-2))
    p = fma(p, z, f32(-5.37397155531e-2))
    p = fma(p, z, f32(1.33314422036e-1))
    p = fma(p, z, f32(-3.33332819422e-1))
    near = fma(p * z, x, x)
    far = f32(1.0) - divide(f32(2.0), exp_f32(t + t) + f32(1.0))
    return copysign(choose(t < f32(0.625), near, far), x)


@register_jitable
def erf_f32(x):
    """Return the error function: an odd polynomial near 0, else `1 - e^p(|x|)`; about 1 ULP."""
    t = absolute(x)
    z = x * x
    p = fma(f32(-1.72853470e-5), t, f32(3.83197126e-4))
    q = fma(f32(-3.88396438e-3), t, f32(2.42546219e-2))
    p = fma(p, z, q)
    p = fma(p, t, f32(-1.06777877e-1))
    p = fma(p, t, f32(-6.34846687e-1))
    p = fma(p, t, f32(-1.28717512e-1))
    p = fma(p, t, -t)
    # The polynomial holds up to 4, where the result is 1; infinities end here, NaN below.
    p = choose(t <= f32(4.0), p, f32(-80.0))
    far = copysign(f32(1.0) - exp_of_moderate_f32(p), x)
    s = fma(f32(-5.96761703e-4), z, f32(4.99119423e-3))
    s = fma(s, z, f32(-2.67681349e-2))
    s = fma(s, z, f32(1.12819925e-1))
    s = fma(s, z, f32(-3.76125336e-1))
    s = fma(s, z, f32(1.28379166e-1))
    near = fma(s, x, x)
    return choose(t > f32(0.927734375), far, near)


@register_jitable
def normal_share_f32(x):
    """Return the share of the normal distribution below `x`, within 1.2e-7.

    Half as many instructions as `erf_f32`: one polynomial `p`, fitted for this, makes
    `e^p(|x|)` twice the smaller of both shares, where that one joins two.
    """
    t = absolute(x)
    p = fma(f32(-1.28630040e-6), t, f32(2.01821695e-5))
    p = fma(p, t, f32(-9.99099357e-5))
    p = fma(p, t, f32(-1.54507972e-4))
    p = fma(p, t, f32(4.96031670e-3))
    p = fma(p, t, f32(-3.64231430e-2))
    p = fma(p, t, f32(-3.18289965e-1))
    p = fma(p, t, f32(-7.97886014e-1)) * t
    n = rint(p * f32(1.44269504088896341))
    r = fma(n, f32(-0.693147180559945), p)  # one step: n >= -26 where it counts
    e = fma(f32(8.31250101e-3), r, f32(4.18903306e-2))
    e = fma(e, r, f32(1.66671157e-1))
    e = fma(e, r, f32(4.99992311e-1))
    e = fma(fma(e, r, f32(1.0)), r, f32(1.0))
    half = from_bits(i32((truncated(n) + i32(126)) << i32(23)))
    less = choose(p > f32(-87.0), e * half, f32(0.0))
    return choose(x < f32(0.0), less, f32(1.0) - less)


@register_jitable
def gelu_f32(x):
    """Return `x / 2 * (1 + erf(x / sqrt 2))`, within 8e-8 of `x`.

    It is `max(x, 0) - |x| / 2 * erfc(|x| / sqrt 2)`: a polynomial is the logarithm of the last
    factor. By `erf_f32` it takes twice as long, and is within 1.12e-7.
    """
    half = f32(0.5) * absolute(x)
    positive = fma(x, f32(0.5), half)  # NaN for -inf, as by `erf`
    h = choose(half < f32(4.0), half, f32(4.0))
    p = fma(f32(-5.0304306e-4), h, f32(3.4937006e-3))
    p = fma(p, h, f32(-8.259220e-3))
    p = fma(p, h, f32(-3.0373456e-3))
    p = fma(p, h, f32(7.8335837e-2))
    p = fma(p, h, f32(-2.9110062e-1))
    p = fma(p, h, f32(-1.2731955))
    p = fma(p, h, f32(-1.5957707)) * h
    return fma(-h, exp_of_moderate_f32(p), positive)


@register_jitable
def logistic_f32(x):
    """Return `1 / (1 + e^-x)` from `e^-|x|`, which cannot overflow."""
    e = exp_f32(-absolute(x))
    return divide(choose(x < f32(0.0), e, f32(1.0)), f32(1.0) + e)


@register_jitable
def logistic_f64(x):
    """Return `logistic_f32` in double precision."""
    e = math.exp(-absolute(x))
    return divide(choose(x < 0.0, e, 1.0), 1.0 + e)


@register_jitable
def sign_f32(x):
    """Return -1 or 1 with the sign of `x`; zeros and NaN stay."""
    return choose(absolute(x) > f32(0.0), copysign(f32(1.0), x), x)


@register_jitable
def sign_f64(x):
    """Return `sign_f32` in double precision."""
    return choose(absolute(x) > 0.0, copysign(1.0, x), x)


@register_jitable
def f16_to_f32(bits):
    """Return the value of a half-precision float given as uint16."""
    b = convert(bits, i32)
    magnitude = i32((b & i32(0x7FFF)) << i32(13))
    exponent = i32(magnitude & i32(0x0F800000))
    normal = from_bits(i32(magnitude + i32(112 << 23)))
    special = from_bits(i32(magnitude + i32(224 << 23)))
    # A subnormal is read as if it had the implicit bit of exponent 113, which is then taken off.
    subnormal = from_bits(i32(magnitude + i32(113 << 23))) - from_bits(i32(113 << 23))
    value = choose(exponent == i32(0x0F800000), special, normal)
    value = choose(exponent == i32(0), subnormal, value)
    sign = i32((b & i32(0x8000)) << i32(16))
    return from_bits(i32(bits_of(value) | sign))


@register_jitable
def f32_to_f16(x):
    """Return the nearest half-precision float as uint16, ties to even; overflows to infinity."""
    b = bits_of(x)
    magnitude = i32(b & i32(0x7FFFFFFF))
    # Adding 0.5 lines the subnormal bits up at the end of the significand, rounded by the adder.
    subnormal = i32(bits_of(from_bits(magnitude) + f32(0.5)) - i32(0x3F000000))
    odd = i32((magnitude >> i32(13)) & i32(1))
    normal = i32((magnitude - i32(112 << 23) + i32(0xFFF) + odd) >> i32(13))
    special = choose(magnitude > i32(0x7F800000), i32(0x7E00), i32(0x7C00))
    result = choose(magnitude < i32(113 << 23), subnormal, normal)
    result = choose(magnitude >= i32(143 << 23), special, result)
    return np.uint16(result | i32((b >> i32(16)) & i32(0x8000)))


@register_jitable
def bf16_to_f32(bits):
    """Return the value of a bfloat16 given as uint16."""
    return from_bits(i32(convert(bits, i32) << i32(16)))


@register_jitable
def f32_to_bf16(x):
    """Return the nearest bfloat16 as uint16, ties to even; NaN stays NaN."""
    b = bits_of(x)
    rounded = i32(b + i32(0x7FFF) + i32((b >> i32(16)) & i32(1)))
    kept = choose(x == x, rounded, i32(b | i32(0x400000)))
    return np.uint16((kept >> i32(16)) & i32(0xFFFF))


@register_jitable
def f64_to_f32_odd(x):
    """Return `x` in float32, the last bit set if inexact, so that a second rounding is harmless."""
    nearest = convert(x, f32)
    back = convert(nearest, np.float64)
    step = choose(absolute(back) < absolute(x), i32(1), i32(-1))
    b = bits_of(nearest)
    inexact = (back != x) & (x == x) & ((b & i32(1)) == i32(0)) & (absolute(back) > 0.0)
    return from_bits(choose(inexact, i32(b + step), b))


@register_jitable
def f8e5m2_to_f32(bits):
    """Return the value of an 8-bit float with 5 bits of exponent, the upper half of an f16."""
    return f16_to_f32(np.uint16(convert(bits, i32) << i32(8)))


@register_jitable
def f32_to_f8e5m2(x):
    """Return the nearest 8-bit float with 5 bits of exponent, ties to even, or infinity."""
    b = bits_of(x)
    magnitude = i32(b & i32(0x7FFFFFFF))
    subnormal = i32(bits_of(from_bits(magnitude) + f32(128.0)) - i32(0x43000000))
    odd = i32((magnitude >> i32(21)) & i32(1))
    normal = i32((magnitude - i32(112 << 23) + i32(0xFFFFF) + odd) >> i32(21))
    special = choose(magnitude > i32(0x7F800000), i32(0x7E), i32(0x7C))
    result = choose(magnitude < i32(113 << 23), subnormal, normal)
    result = choose(magnitude >= i32(143 << 23), special, result)
    return np.uint8(result | i32((b >> i32(24)) & i32(0x80)))


@register_jitable
def f8e4m3_to_f32(bits):
    """Return the value of an 8-bit float with 4 bits of exponent, which has no infinities."""
    b = convert(bits, i32)
    magnitude = i32((b & i32(0x7F)) << i32(20))
    normal = from_bits(i32(magnitude + i32(120 << 23)))
    subnormal = from_bits(i32(magnitude + i32(121 << 23))) - from_bits(i32(121 << 23))
    value = choose(magnitude < i32(1 << 23), subnormal, normal)
    value = choose(magnitude == i32(0x7F << 20), from_bits(i32(0x7FC00000)), value)
    return from_bits(i32(bits_of(value) | i32((b & i32(0x80)) << i32(24))))


@register_jitable
def f32_to_f8e4m3(x):
    """Return the nearest 8-bit float with 4 bits of exponent, ties to even; overflows to NaN."""
    b = bits_of(x)
    magnitude = i32(b & i32(0x7FFFFFFF))
    subnormal = i32(bits_of(from_bits(magnitude) + f32(16384.0)) - i32(0x46800000))
    odd = i32((magnitude >> i32(20)) & i32(1))
    normal = i32((magnitude - i32(120 << 23) + i32(0x7FFFF) + odd) >> i32(20))
    result = choose(magnitude < i32(121 << 23), subnormal, normal)
    result = choose(result > i32(0x7F), i32(0x7F), result)
    return np.uint8(result | i32((b >> i32(24)) & i32(0x80)))


@register_jitable
def wrapped_si4(x):
    """Return the signed number in the low 4 bits of an int8."""
    return np.int8(((x & 15) ^ 8) - 8)


@register_jitable
def wrapped_ui4(x):
    """Return the number in the low 4 bits of a uint8."""
    return np.uint8(x & 15)


@register_jitable
def clamped_si4(x):
    """Return the nearest number of 4 bits."""
    return integer_minimum(integer_maximum(x, np.int8(-8)), np.int8(7))


@register_jitable
def clamped_ui4(x):
    """Return the nearest number of 4 bits."""
    return integer_minimum(x, np.uint8(15))
