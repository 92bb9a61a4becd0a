"""Kernels of the random ops: Philox 4x32-10, and the inverse of the normal distribution function.

A task computes `BLOCKS` blocks of four words. Element types differ in how many words make an
element and in what is computed of them.
"""

from __future__ import annotations

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir import random_constants as numbers
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.compiled import provide
from gptrs_backend_numba.codegen.conversion import bits_of_f64, f64_from_bits
from gptrs_backend_numba.codegen.deferred import register_jitable
from gptrs_backend_numba.codegen.machine import divide, square_root
from gptrs_backend_numba.codegen.registers import cast_element, typed_pointer

BLOCKS = 1024
"""Blocks of 128 bits a task."""

_u64, _i64 = np.uint64, np.int64
_HALF, _LOW = _u64(32), _u64(2**32 - 1)
_M0, _M1 = (_u64(multiplier) for multiplier in numbers.PHILOX_MULTIPLIERS)
_STEP0, _STEP1 = (_u64(step) for step in numbers.PHILOX_KEY_STEPS)
_ROUNDS = numbers.PHILOX_ROUNDS
_LOG_SERIES = numbers.LOG_SERIES
_A, _B = numbers.CENTRAL
_C, _D = numbers.MIDDLE
_E, _F = numbers.FAR
_LN_2, _SQRT_HALF = numbers.LN_2, numbers.SQRT_HALF

_SOURCE = """
# {what} of {result}
def kernel(seed, unused, out, geometry, task):
    S, O = pointer(seed, np.uint64), {O}
    count = pointer(geometry, np.int64)[0]
    first = task * BLOCKS
    blocks = min(first + BLOCKS, (count + {a_block} - 1) // {a_block})
    for block in range(first, blocks):
        words = philox(S[0], S[1], np.uint64(block))
        for i in range(min({a_block}, count - block * {a_block})):
            v = {word}
            O[block * {a_block} + i] = {element}
    return 0
"""


def source(dtype: DType, *, normal: bool) -> str:
    """The kernel of `rng_normal` or `rng_uniform`; the geometry is the number of elements."""
    width = max(dtype.bits, 32)
    word = "words[2 * i] | words[2 * i + 1] << np.uint64(32)" if width == 64 else "words[i]"
    return _SOURCE.format(
        what="normal numbers" if normal else "uniform numbers",
        result=dtype,
        O=typed_pointer("out", dtype),
        a_block=128 // width,
        word=word,
        element=_element(dtype, width, normal=normal),
    ).replace("BLOCKS", str(BLOCKS))


def _element(dtype: DType, width: int, *, normal: bool) -> str:
    if not dtype.is_float:
        return f"wrapped(v, np.uint{width})"
    precision = min(width, 52) if normal else numbers.UNIFORM_BITS[dtype.name]
    leading = f"convert(v >> np.uint64({width - precision}), np.float64)"
    if normal:
        value = f"inverse_normal(({leading} + 0.5) * {2.0**-precision!r})"
    else:
        value = f"({leading} * {2.0**-precision!r})"
    return cast_element(value, dtypes.f64, dtype)


@register_jitable
def philox(key, start, block):
    """The four words of a block, in 64 bits each, for the counter `start + block` of 128 bits."""
    low = start + block
    c0, c1 = low & _LOW, low >> _HALF
    c2, c3 = _u64(1) if low < block else _u64(0), _u64(0)
    k0, k1 = key & _LOW, key >> _HALF
    for _ in range(_ROUNDS):
        p, q = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (q >> _HALF) ^ c1 ^ k0, q & _LOW, (p >> _HALF) ^ c3 ^ k1, p & _LOW
        k0, k1 = (k0 + _STEP0) & _LOW, (k1 + _STEP1) & _LOW
    return c0, c1, c2, c3


@register_jitable
def inverse_normal(u):
    """PPND16 of a number in (0, 1), each operation in the order that `rng_normal` states."""
    q = u - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        return divide(q * _polynomial(r, _A), _polynomial(r, _B))
    t = square_root(-_log(min(u, 1.0 - u)))
    if t <= 5.0:
        s = t - 1.6
        tail = divide(_polynomial(s, _C), _polynomial(s, _D))
    else:
        s = t - 5.0
        tail = divide(_polynomial(s, _E), _polynomial(s, _F))
    return -tail if q < 0.0 else tail


@register_jitable
def _log(x):
    """The logarithm of a normal number: that of its exponent, and a series for its fraction."""
    bits = bits_of_f64(x)
    exponent = (bits >> 52) - 1022
    m = f64_from_bits((bits & 0xFFFFFFFFFFFFF) | 0x3FE0000000000000)
    if m < _SQRT_HALF:
        m, exponent = 2.0 * m, exponent - 1
    s = divide(m - 1.0, m + 1.0)
    return float(exponent) * _LN_2 + (2.0 * s) * _polynomial(s * s, _LOG_SERIES)


@register_jitable
def _polynomial(x, coefficients):
    """By Horner's rule, the coefficient of the highest power first."""
    total = coefficients[0]
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


EXPORTS = {"philox": philox, "inverse_normal": inverse_normal}
"""The names that the sources use."""
provide(EXPORTS)
