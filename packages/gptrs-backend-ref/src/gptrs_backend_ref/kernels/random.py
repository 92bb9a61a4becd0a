"""Kernels of the ops that make random numbers from a seed."""

from __future__ import annotations

import math

import numpy as np

from gptrs.ir import random_constants as constants
from gptrs.ir.ops import random as ops
from gptrs_backend_ref.conversion import convert
from gptrs_backend_ref.table import TABLE

HALF = np.uint64(32)
LOW = np.uint64(2**32 - 1)


@TABLE.register(ops.RngUniform, dtypes=ops.RngUniform.allowed)
def rng_uniform(op: ops.RngUniform, seed: np.ndarray) -> np.ndarray:
    """Return the random words for integers, their leading bits as a fraction for floats."""
    width, words = _words(op, seed)
    if not op.dtype.is_float:
        return words.astype(op.dtype.numpy).reshape(op.shape)
    precision = constants.UNIFORM_BITS[op.dtype.name]
    fraction = (words >> np.uint64(width - precision)) * 2.0**-precision
    return convert(fraction, op.dtype).reshape(op.shape)


@TABLE.register(ops.RngNormal, dtypes=ops.RngNormal.allowed)
def rng_normal(op: ops.RngNormal, seed: np.ndarray) -> np.ndarray:
    """Return the inverse normal distribution function of the fractions of the random words."""
    width, words = _words(op, seed)
    precision = min(width, 52)
    u = ((words >> np.uint64(width - precision)) + 0.5) * 2.0**-precision
    return convert(inverse_normal(u), op.dtype).reshape(op.shape)


def _words(op: ops.Random, seed: np.ndarray) -> tuple[int, np.ndarray]:
    """Return the width of a random word, 32 or 64, and one word for each element."""
    count = math.prod(op.shape)
    width = max(op.dtype.bits, 32)
    blocks = np.arange(-(-count * width // 128), dtype=np.uint64)
    low = blocks + seed[1]
    carry = (low < blocks).astype(np.uint64)
    words = philox([low & LOW, low >> HALF, carry, np.zeros_like(low)], seed[0])
    if width == 64:
        words = words[:, 0::2] | words[:, 1::2] << HALF
    return width, words.reshape(-1)[:count]


def philox(counter: list[np.ndarray], key: np.uint64) -> np.ndarray:
    """Return Philox 4x32-10: four words [N, 4] for each of N counters, four columns [N].

    All are 32-bit words in ui64, so that products are exact.
    """
    c0, c1, c2, c3 = counter
    m0, m1 = (np.uint64(multiplier) for multiplier in constants.PHILOX_MULTIPLIERS)
    for number in range(constants.PHILOX_ROUNDS):
        k0, k1 = (
            (word + np.uint64(number * step)) & LOW
            for word, step in zip((key & LOW, key >> HALF), constants.PHILOX_KEY_STEPS, strict=True)
        )
        p, q = m0 * c0, m1 * c2
        c0, c1, c2, c3 = (q >> HALF) ^ c1 ^ k0, q & LOW, (p >> HALF) ^ c3 ^ k1, p & LOW
    return np.stack([c0, c1, c2, c3], axis=-1)


def inverse_normal(u: np.ndarray) -> np.ndarray:
    """Return PPND16 of f64 in (0, 1), each operation in the order that `RngNormal` states."""
    q = u - 0.5
    r = 0.180625 - q * q
    a, b = constants.CENTRAL
    central = (q * _polynomial(r, a)) / _polynomial(r, b)
    t = np.sqrt(-_log(np.minimum(u, 1 - u)))
    (c, d), (e, f) = constants.MIDDLE, constants.FAR
    middle = _polynomial(t - 1.6, c) / _polynomial(t - 1.6, d)
    far = _polynomial(t - 5, e) / _polynomial(t - 5, f)
    tail = np.where(t <= 5, middle, far)
    return np.where(np.abs(q) <= 0.425, central, np.where(q < 0, -tail, tail))


def _log(x: np.ndarray) -> np.ndarray:
    fraction, exponent = np.frexp(x)
    is_small = fraction < constants.SQRT_HALF
    m = np.where(is_small, 2 * fraction, fraction)
    e = np.where(is_small, exponent - 1, exponent)
    s = (m - 1) / (m + 1)
    return e * constants.LN_2 + (2 * s) * _polynomial(s * s, constants.LOG_SERIES)


def _polynomial(x: np.ndarray, coefficients: tuple[float, ...]) -> np.ndarray:
    """Evaluate by Horner's rule; the coefficient of the highest power comes first."""
    first, *others = coefficients
    total = np.full_like(x, first)
    for coefficient in others:
        total = total * x + coefficient
    return total
