"""Lowerings of the ops that make random numbers from a seed, to the bit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from gptrs.api.programs import dtypes as types
from gptrs.api.programs import ops
from gptrs.api.programs import random_constants as numbers
from gptrs_backend_jax.conversion import convert
from gptrs_backend_jax.lowering import TABLE, LoweringContext
from gptrs_backend_jax.rounding import unfused

random = ops.random

LOW = np.uint64(2**32 - 1)
HALF = np.uint64(32)
MULTIPLIERS = tuple(np.uint64(number) for number in numbers.PHILOX_MULTIPLIERS)


@TABLE.register(random.RngUniform, dtypes=random.RngUniform.allowed)
def rng_uniform(op: ops.random.RngUniform, ctx: LoweringContext, seed: Array) -> Array:
    """Return the random words for integers, their leading bits as a fraction for floats."""
    width, words = _words(op, seed)
    if not op.dtype.is_float:
        return lax.reshape(lax.convert_element_type(words, op.dtype.numpy), op.shape)
    precision = numbers.UNIFORM_BITS[op.dtype.name]
    leading = lax.convert_element_type(words >> np.uint64(width - precision), np.float64)
    fraction = leading * np.float64(2.0**-precision)
    return lax.reshape(convert(fraction, types.f64, op.dtype), op.shape)


# Refused for f64: XLA's results are off by one or two units in the last place there, and PTIR asks
# for the bits. Narrower types are rounded from f64, which hides it.
@TABLE.register(
    random.RngNormal, dtypes=[d for d in random.RngNormal.allowed if d is not types.f64]
)
def rng_normal(op: ops.random.RngNormal, ctx: LoweringContext, seed: Array) -> Array:
    """Return the inverse normal distribution function of the fractions of the random words."""
    width, words = _words(op, seed)
    precision = min(width, 52)
    leading = lax.convert_element_type(words >> np.uint64(width - precision), np.float64)
    u = (leading + 0.5) * np.float64(2.0**-precision)
    return lax.reshape(convert(inverse_normal(u), types.f64, op.dtype), op.shape)


def _words(op: ops.random.Random, seed: Array) -> tuple[int, Array]:
    """Return the width of a random word, 32 or 64, and one word for each element."""
    count = math.prod(op.shape)
    width = max(op.dtype.bits, 32)
    blocks = lax.iota(np.uint64, -(-count * width // 128))
    key, counter = (seed[place].astype(np.uint64) for place in (0, 1))
    low = blocks + counter
    carry = lax.convert_element_type(low < blocks, np.uint64)
    words = _philox([low & LOW, low >> HALF, carry, lax.full_like(low, 0)], key)
    if width == 64:
        words = words[:, 0::2] | (words[:, 1::2] << HALF)
    return width, lax.slice_in_dim(lax.reshape(words, (words.size,)), 0, count)


def _philox(counter: Sequence[Array], key: Array) -> Array:
    """Return Philox 4x32-10: four words [N, 4] for each of N counters, four columns [N].

    All are 32-bit words in ui64, so that products are exact.
    """
    c0, c1, c2, c3 = counter
    for number in range(numbers.PHILOX_ROUNDS):
        k0, k1 = (
            (word + np.uint64(number * step % 2**64)) & LOW
            for word, step in zip((key & LOW, key >> HALF), numbers.PHILOX_KEY_STEPS, strict=True)
        )
        p, q = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (q >> HALF) ^ c1 ^ k0, q & LOW, (p >> HALF) ^ c3 ^ k1, p & LOW
    return jnp.stack([c0, c1, c2, c3], axis=-1)


def inverse_normal(u: Array) -> Array:
    """Return PPND16 of f64 in (0, 1), each operation rounded, in the order that PTIR states."""
    q = u - 0.5
    r = 0.180625 - unfused(q * q)
    central = unfused(q * _polynomial(r, numbers.CENTRAL[0])) / _polynomial(r, numbers.CENTRAL[1])
    t = lax.sqrt(-_log(lax.min(u, 1 - u)))
    near, beyond = t - 1.6, t - 5
    middle = _polynomial(near, numbers.MIDDLE[0]) / _polynomial(near, numbers.MIDDLE[1])
    far = _polynomial(beyond, numbers.FAR[0]) / _polynomial(beyond, numbers.FAR[1])
    tail = lax.select(t <= 5, middle, far)
    tail = lax.select(q < 0, -tail, tail)
    return lax.select(lax.abs(q) <= 0.425, central, tail)


def _log(x: Array) -> Array:
    """Return the logarithm of positive normal f64 by its series, to the bit as PTIR states it."""
    bits = lax.bitcast_convert_type(x, np.int64)
    exponent = ((bits >> 52) & 0x7FF) - 1022
    fraction = lax.bitcast_convert_type(
        (bits & (2**52 - 1)) | np.int64(1022 << 52), np.float64
    )  # in [0.5, 1)
    is_small = fraction < numbers.SQRT_HALF
    m = lax.select(is_small, 2 * fraction, fraction)
    exponent = lax.select(is_small, exponent - 1, exponent)
    s = (m - 1) / (m + 1)
    series = _polynomial(unfused(s * s), numbers.LOG_SERIES)
    whole = unfused(lax.convert_element_type(exponent, np.float64) * numbers.LN_2)
    return whole + unfused((2 * s) * series)


def _polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    """Evaluate by Horner's rule; the coefficient of the highest power comes first."""
    first, *others = coefficients
    total = lax.full_like(x, first)
    for coefficient in others:
        total = unfused(total * x) + coefficient
    return total
