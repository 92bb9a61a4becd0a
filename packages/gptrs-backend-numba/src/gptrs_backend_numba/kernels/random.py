"""Kernels of the random ops: Philox 4x32-10, and the inverse of the normal distribution function.

A task computes `BLOCKS` blocks of four words. Element types differ in how many words make an
element and in what is computed of them.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir import random_constants as numbers
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.conversion import bits_of_f64, convert, f64_from_bits, wrapped
from gptrs_backend_numba.codegen.elements import Unary, cast_element_of, memory_of
from gptrs_backend_numba.codegen.inlining import named, register_jitable
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel
from gptrs_backend_numba.codegen.machine import divide, pointer, square_root

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


@kernel
def random_task(seed, unused, out, geometry, task, *, RESULT, A_BLOCK, word, element):
    """Compute `BLOCKS` blocks of the stream; the geometry is the number of elements."""
    S, O = pointer(seed, np.uint64), pointer(out, RESULT)
    count = pointer(geometry, np.int64)[0]
    first = task * BLOCKS
    blocks = min(first + BLOCKS, (count + A_BLOCK - 1) // A_BLOCK)
    for block in range(first, blocks):
        words = philox(S[0], S[1], np.uint64(block))
        for i in range(min(A_BLOCK, count - block * A_BLOCK)):
            O[block * A_BLOCK + i] = element(word(words, i))
    return 0


def random(dtype: DType, *, normal: bool) -> SpecializedKernel:
    """Return the kernel of `rng_normal` or `rng_uniform`."""
    width = max(dtype.bits, 32)
    return random_task.specialize(
        RESULT=memory_of(dtype),
        A_BLOCK=128 // width,
        word=two_words if width == 64 else one_word,
        element=_element_of(dtype, width, normal=normal),
    )


@register_jitable
def one_word(words, i):
    """Return 32 bits of a block."""
    return words[i]


@register_jitable
def two_words(words, i):
    """Return 64 bits of a block."""
    return words[2 * i] | words[2 * i + 1] << np.uint64(32)


@cache
def _element_of(dtype: DType, width: int, *, normal: bool) -> Unary:
    """Return the function from `width` random bits to an element in memory."""
    if not dtype.is_float:
        return _integer_of(np.dtype(f"u{width // 8}").type)
    precision = min(width, 52) if normal else numbers.UNIFORM_BITS[dtype.name]
    shift, scale = np.uint64(width - precision), 2.0**-precision
    store = cast_element_of(dtypes.f64, dtype)

    @register_jitable
    @named(f"uniform_{dtype}")
    def uniform(bits):
        return store(convert(bits >> shift, np.float64) * scale)

    @register_jitable
    @named(f"normal_{dtype}")
    def normal_number(bits):
        # In the middle between two multiples, so that neither 0 nor 1 comes out.
        return store(inverse_normal((convert(bits >> shift, np.float64) + 0.5) * scale))

    return normal_number if normal else uniform


def _integer_of(type_: type[np.generic]) -> Unary:
    @register_jitable
    @named(f"low_bits_{np.dtype(type_).name}")
    def low_bits(bits):
        return wrapped(bits, type_)

    return low_bits


@register_jitable
def philox(key, start, block):
    """Return the four words of a block, 64 bits each, for the 128-bit counter `start + block`."""
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
    """Return PPND16 of a number in (0, 1), each operation in the order that `rng_normal` states."""
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
    """Return the logarithm of a normal number, from its exponent and a series for its fraction."""
    bits = bits_of_f64(x)
    exponent = (bits >> 52) - 1022
    m = f64_from_bits((bits & 0xFFFFFFFFFFFFF) | 0x3FE0000000000000)
    if m < _SQRT_HALF:
        m, exponent = 2.0 * m, exponent - 1
    s = divide(m - 1.0, m + 1.0)
    return float(exponent) * _LN_2 + (2.0 * s) * _polynomial(s * s, _LOG_SERIES)


@register_jitable
def _polynomial(x, coefficients):
    """Evaluate a polynomial by Horner's rule, the coefficient of the highest power first."""
    total = coefficients[0]
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total
