"""Cases of the random ops: Philox in Python integers, the normal distribution in Python floats."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from gptrs.ir import dtypes, random_constants
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops.random import RngNormal, RngUniform
from gptrs_conformance.numerics import PRECISION
from gptrs_conformance.op_case import OpCase, rows

WORD = 2**32

DRAWS: tuple[tuple[str, tuple[int, ...], tuple[int, int]], ...] = (
    ("one row", (11,), (0x0123456789ABCDEF, 7)),
    ("zero seed", (4,), (0, 0)),
    ("rank 0", (), (1, 2)),
    ("empty", (0, 3), (3, 4)),
    ("rank 4, not a whole block", (2, 1, 3, 5), (2**63 + 1, 2**40)),
    ("counter past 2^32", (9,), (WORD - 1, WORD - 1)),
    ("tails", (401,), (99, 3)),
    # The second f64 lies beyond 6.66 standard deviations, as one in 3.6e10 does.
    ("far tail", (4,), (1, 44407670663)),
    ("counter past 2^64", (3, 7), (2**64 - 1, 2**64 - 2)),
)
"""Label, shape and seed."""


def philox(counter: int, key: int) -> list[int]:
    """Philox 4x32-10: the four words for a 128-bit counter and a 64-bit key."""
    c = [counter >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)]
    k = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c[0], WORD)
        high1, low1 = divmod(0xCD9E8D57 * c[2], WORD)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) % WORD, (k[1] + 0xBB67AE85) % WORD]
    return c


def words(seed: tuple[int, int], count: int, dtype: DType) -> list[int]:
    """Return the 32 or 64 random bits behind each of the first `count` elements of `dtype`."""
    width = 64 if dtype.bits == 64 else 32
    blocks = range(-(-count * width // 128))
    stream = [word for block in blocks for word in philox(seed[1] + block, seed[0])]
    if width == 64:
        pairs = zip(stream[0::2], stream[1::2], strict=True)
        stream = [low + WORD * high for low, high in pairs]
    return stream[:count]


def uniform(word: int, dtype: DType) -> float:
    """The leading bits of a word as a fraction."""
    width = 64 if dtype is dtypes.f64 else 32
    precision = PRECISION[dtype.name]
    return math.ldexp(word >> (width - precision), -precision)


def normal(word: int, dtype: DType) -> float:
    """The f64 that a word stands for, before it is rounded to `dtype`."""
    if dtype is dtypes.f64:
        return inverse_normal(math.ldexp((word >> 12) + 0.5, -52))
    return inverse_normal(math.ldexp(word + 0.5, -32))


def inverse_normal(u: float) -> float:
    """PPND16 as the docstring of `RngNormal` states it."""
    q = u - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        numerator, denominator = random_constants.CENTRAL
        return (q * _horner(r, numerator)) / _horner(r, denominator)
    t = math.sqrt(-_log(min(u, 1 - u)))
    s, (numerator, denominator) = (
        (t - 1.6, random_constants.MIDDLE) if t <= 5 else (t - 5, random_constants.FAR)
    )
    tail = _horner(s, numerator) / _horner(s, denominator)
    return -tail if q < 0 else tail


def _log(x: float) -> float:
    m, e = math.frexp(x)
    if m < 0.7071067811865476:
        m, e = 2 * m, e - 1
    s = (m - 1) / (m + 1)
    return e * 0.6931471805599453 + (2 * s) * _horner(s * s, [1 / n for n in range(21, 0, -2)])


def _horner(x: float, coefficients: tuple[float, ...] | list[float]) -> float:
    total = coefficients[0]
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


@rows(RngUniform, dtypes=RngUniform.allowed)
def rng_uniform(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Every shape and seed; the numbers are exact in their type."""
    del op_class, rng
    for label, shape, seed in DRAWS:
        drawn = words(seed, math.prod(shape), dtype)
        if dtype.is_float:
            expected = np.array([uniform(word, dtype) for word in drawn], np.float64)
        else:
            expected = np.array(drawn, np.uint64)
        yield _case(RngUniform(shape, dtype), seed, expected, label)


@rows(RngNormal, dtypes=RngNormal.allowed)
def rng_normal(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Every shape and seed; the f64 that is rounded to the type is given."""
    del op_class, rng
    for label, shape, seed in DRAWS:
        drawn = words(seed, math.prod(shape), dtype)
        expected = np.array([normal(word, dtype) for word in drawn], np.float64)
        yield _case(RngNormal(shape, dtype), seed, expected, label)


def _case(
    op: RngUniform | RngNormal, seed: tuple[int, int], flat: np.ndarray, label: str
) -> OpCase:
    return OpCase(op, (np.array(seed, np.uint64),), (flat.reshape(op.shape),), label=label)
