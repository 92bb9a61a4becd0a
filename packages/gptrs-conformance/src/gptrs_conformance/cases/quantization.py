"""Cases of the quantization ops: every rounding by exact fractions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from gptrs.ir import dtypes, random_constants
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops.quantization import (
    QUANTIZED,
    Dequantize,
    DequantizeAffine,
    Quantization,
    Quantize,
    Requantize,
    UnpackBits,
)
from gptrs.ir.ops.random import RngNormal, RngUniform
from gptrs_conformance.numerics import PRECISION, decode, integer_range, rounded_exactly
from gptrs_conformance.op_case import OpCase, rows
from gptrs_conformance.samples import as_float, edge_floats, edge_integers, integers, sample

LAYOUTS: tuple[tuple[str, tuple[int, ...], int | None, int | None], ...] = (
    ("per tensor", (3, 5), None, None),
    ("rank 0", (), None, None),
    ("empty", (2, 0, 3), None, None),
    ("first axis", (3, 2, 1), 0, None),
    ("last axis", (2, 1, 3, 5), 3, None),
    ("empty axis", (3, 0), 1, None),
    ("groups of the last axis", (3, 6), 1, 2),
    ("groups of the first axis", (6, 1, 2), 0, 3),
    ("one group", (2, 5), 1, 5),
    ("no groups", (0, 2), 0, 4),
)
"""Label, shape, axis and group size."""


def quotient(x: float, scale: float, compute: DType) -> float:
    """`x / scale` rounded to `compute`."""
    if compute is dtypes.f64 or scale == 0 or not (math.isfinite(x) and math.isfinite(scale)):
        with np.errstate(all="ignore"):  # non-finite values are the same in any type
            return float(np.float64(x) / np.float64(scale))
    return rounded_exactly(Fraction(x) / Fraction(scale), compute)


def product(difference: int, scale: float, compute: DType) -> float:
    """`difference * scale`, both the integer and the product rounded to `compute`."""
    # Differences beyond 2^24 are rounded to f32 before they are multiplied.
    whole = rounded_exactly(Fraction(difference), compute)
    if compute is dtypes.f64 or whole * scale == 0 or not math.isfinite(scale):
        return whole * scale
    return rounded_exactly(Fraction(whole) * Fraction(scale), compute)


def quantized(value: float, scale: float, zero_point: int, dtype: DType, compute: DType) -> int:
    """One element of `quantize`."""
    low, high = integer_range(dtype)
    ratio = quotient(value, scale, compute)
    if math.isinf(ratio):
        return high if ratio > 0 else low
    # Python's round goes to even at halves, as PTIR's quantize does.
    whole = 0 if math.isnan(ratio) else round(ratio)
    return min(max(whole + zero_point, low), high)


def spread(op: Quantization, parameter: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The scale or zero point of each element, found index by index."""
    result = np.zeros(shape, parameter.dtype)
    for index in np.ndindex(*shape):
        if parameter.ndim == 0 or op.axis is None:
            position: tuple[int, ...] = ()
        elif op.group_size is None:
            position = (index[op.axis],)
        else:
            position = tuple(
                i // op.group_size if axis == op.axis else i for axis, i in enumerate(index)
            )
        result[index] = parameter[position]
    return result


def computing(*floats: DType) -> DType:
    """f64 if one of the types is."""
    return dtypes.f64 if any(dtype is dtypes.f64 for dtype in floats) else dtypes.f32


def parameters(
    op: Quantization, shape: tuple[int, ...], dtype: DType, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Scales of `dtype`, one of them negative, and zero points for an operand of `shape`."""
    wanted: tuple[int, ...] = ()
    if op.axis is not None and op.group_size is None:
        wanted = (shape[op.axis],)
    elif op.axis is not None and op.group_size is not None:
        wanted = tuple(
            dim // op.group_size if axis == op.axis else dim for axis, dim in enumerate(shape)
        )
    scale = np.asarray(rng.uniform(0.05, 1.5, wanted))
    # Negative scales are legal, and a clamp before the division would get them wrong.
    scale.reshape(-1)[1::3] *= -1
    zero_point = np.asarray(rng.integers(-5, 6, wanted), np.int32)
    return as_float(scale, dtype), zero_point


def expected_quantize(
    op: Quantize, x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray
) -> np.ndarray:
    """Return what `quantize` must give, as si64."""
    compute = computing(dtypes.from_numpy(x.dtype), dtypes.from_numpy(scale.dtype))
    scales, zero_points = spread(op, decode(scale), x.shape), spread(op, zero_point, x.shape)
    values = decode(x)
    result = np.zeros(x.shape, np.int64)
    for index in np.ndindex(*x.shape):
        element = float(values[index]), float(scales[index]), int(zero_points[index])
        result[index] = quantized(*element, op.dtype, compute)
    return result


def expected_dequantize(
    op: Quantization, q: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, compute: DType
) -> np.ndarray:
    """Return what `dequantize` must give before it is rounded to its type, as f64."""
    scales, zero_points = spread(op, decode(scale), q.shape), spread(op, zero_point, q.shape)
    whole = q.astype(np.int64)
    result = np.zeros(q.shape, np.float64)
    for index in np.ndindex(*q.shape):
        difference = int(whole[index]) - int(zero_points[index])
        result[index] = product(difference, float(scales[index]), compute)
    return result


@rows(Quantize, dtypes=dtypes.FLOATS)
def quantize(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Every layout and result type, ties, saturation, NaN, and scales that no one should use."""
    del op_class
    for number, (label, shape, axis, group_size) in enumerate(LAYOUTS):
        op = Quantize(QUANTIZED[number % len(QUANTIZED)], axis, group_size)
        x = sample(dtype, shape, seed=number)
        scale_dtype = dtype if number % 3 else dtypes.FLOATS[number // 3 + 2]
        yield _quantize_case(op, (x, *parameters(op, shape, scale_dtype, rng)), label)
    ties = as_float(np.arange(-9, 10) / 2, dtype)
    yield _quantize_case(Quantize(dtypes.si4), (ties, *_pair(1, 0, dtype)), "ties")
    # Quotients around halves, which the product with a rounded reciprocal misses.
    precise = dtypes.f64 if dtype is dtypes.f64 else dtypes.f32
    near = as_float(3 / (np.arange(64) + 0.5), precise)
    x, zero_point = as_float(np.full(64, 3.0), dtype), np.zeros(64, np.int32)
    yield _quantize_case(Quantize(dtypes.si8, axis=0), (x, near, zero_point), "near ties")
    edges = edge_floats(dtype)
    for result, zero_point in ((dtypes.ui8, 3), (dtypes.si32, 2**31 - 1), (dtypes.ui32, -(2**31))):
        label = f"edge values as {result}"
        yield _quantize_case(Quantize(result), (edges, *_pair(0.5, zero_point, dtype)), label)
    scale = as_float(np.array([0.0, -0.0, np.inf, np.nan, 2.0**-9]), dtype)
    x = as_float(np.array([1.0, -1.0, 0.0, np.inf, np.nan])[:, np.newaxis] * np.ones(5), dtype)
    zero_point = np.arange(-2, 3, dtype=np.int32)
    yield _quantize_case(Quantize(dtypes.si8, axis=1), (x, scale, zero_point), "edge scales")


def _quantize_case(
    op: Quantize, inputs: tuple[np.ndarray, np.ndarray, np.ndarray], label: str
) -> OpCase:
    return OpCase(op, inputs, (expected_quantize(op, *inputs),), label=label)


def _pair(scale: float, zero_point: int, dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    return as_float(np.array(scale), dtype), np.array(zero_point, np.int32)


@rows(Dequantize, dtypes=QUANTIZED)
def dequantize(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Every layout and result type, differences past 2^24, and scales that no one should use."""
    del op_class
    for number, (label, shape, axis, group_size) in enumerate(LAYOUTS):
        op = Dequantize(dtypes.FLOATS[number % len(dtypes.FLOATS)], axis, group_size)
        scale_dtype = op.dtype if number % 3 else dtypes.FLOATS[number // 3 + 2]
        q = sample(dtype, shape, seed=number)
        yield _dequantize_case(op, (q, *parameters(op, shape, scale_dtype, rng)), label)
    edges = integers(edge_integers(dtype), dtype)
    for result, scale, zero_point in (
        (dtypes.f32, 0.1, 2**31 - 1),
        (dtypes.f32, -0.75, 0),
        (dtypes.f64, 1e-300, -(2**31)),
        (dtypes.f16, 2.0**-20, 1),
    ):
        scale_dtype = dtypes.f64 if result is dtypes.f64 else dtypes.f32
        pair = _pair(scale, zero_point, scale_dtype)
        label = f"edge values as {result}, zero point {zero_point}"
        yield _dequantize_case(Dequantize(result), (edges, *pair), label)
    q = integers([1, 1, 1, 1, 0, 0, 0, 0], dtype).reshape(2, 4)
    scale = as_float(np.array([0.0, -0.0, np.inf, np.nan]), dtypes.f32)
    zero_point = np.zeros(4, np.int32)
    yield _dequantize_case(Dequantize(dtypes.f32, axis=1), (q, scale, zero_point), "edge scales")


def _dequantize_case(
    op: Dequantize, inputs: tuple[np.ndarray, np.ndarray, np.ndarray], label: str
) -> OpCase:
    compute = computing(dtypes.from_numpy(inputs[1].dtype), op.dtype)
    return OpCase(op, inputs, (expected_dequantize(op, *inputs, compute),), label=label)


def expected_affine(
    op: DequantizeAffine, q: np.ndarray, scale: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    """Return what `dequantize_affine` must give before it is rounded to its type, as f64."""
    compute = computing(*(dtypes.from_numpy(array.dtype) for array in (scale, bias)), op.dtype)
    scales, biases = (spread(op, decode(array), q.shape) for array in (scale, bias))
    whole = q.astype(np.int64)
    result = np.zeros(q.shape, np.float64)
    for index in np.ndindex(*q.shape):
        scaled = product(int(whole[index]), float(scales[index]), compute)
        result[index] = total(scaled, float(biases[index]), compute)
    return result


def total(scaled: float, bias: float, compute: DType) -> float:
    """`scaled + bias`, rounded to `compute`."""
    exact = math.isfinite(scaled) and math.isfinite(bias) and scaled + bias != 0
    if compute is dtypes.f64 or not exact:
        return scaled + bias
    return rounded_exactly(Fraction(scaled) + Fraction(bias), compute)


@rows(DequantizeAffine, dtypes=QUANTIZED)
def dequantize_affine(
    op_class: type[Op], dtype: DType, rng: np.random.Generator
) -> Iterator[OpCase]:
    """Every layout and result type, a scale or bias for the whole tensor, and sums that round."""
    del op_class
    for number, (label, shape, axis, group_size) in enumerate(LAYOUTS):
        op = DequantizeAffine(dtypes.FLOATS[number % len(dtypes.FLOATS)], axis, group_size)
        q = sample(dtype, shape, seed=number)
        types = (dtypes.FLOATS[(number + 1) % 5], dtypes.FLOATS[(number + 3) % 5])
        wide = DequantizeAffine(op.dtype)
        (scale, _), (bias, _) = (
            parameters(wide if number % 4 == position else op, shape, each, rng)
            for position, each in enumerate(types, 1)
        )
        yield _affine_case(op, (q, scale, bias), label)
    edges = integers(edge_integers(dtype), dtype)
    for result, scale, bias in (
        (dtypes.f32, 0.1, 1.0e9),
        (dtypes.f32, -1.0 / 3, 1.0 / 3),
        (dtypes.f64, 1e-300, 1.0),
        (dtypes.bf16, 2.0**-20, -0.0),
    ):
        wide = dtypes.f64 if result is dtypes.f64 else dtypes.f32
        pair = (as_float(np.array(scale), wide), as_float(np.array(bias), wide))
        label = f"edge values as {result}, bias {bias}"
        yield _affine_case(DequantizeAffine(result), (edges, *pair), label)
    q = integers([1, 1, 1, 1, 0, 0, 0, 0], dtype).reshape(2, 4)
    scale = as_float(np.array([0.0, -0.0, np.inf, np.nan]), dtypes.f32)
    bias = as_float(np.array([-0.0, np.inf, -np.inf, 1.0]), dtypes.f32)
    yield _affine_case(DequantizeAffine(dtypes.f32, axis=1), (q, scale, bias), "edge parameters")


def _affine_case(
    op: DequantizeAffine, inputs: tuple[np.ndarray, np.ndarray, np.ndarray], label: str
) -> OpCase:
    return OpCase(op, inputs, (expected_affine(op, *inputs),), label=label)


@rows(UnpackBits, dtypes=(dtypes.ui8,))
def unpack_bits(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Every width along the last, the first and a middle axis, and no bytes at all."""
    del op_class, dtype
    for bits in range(1, 9):
        for shape, axis in (((2, 2 * bits), 1), ((bits, 3), 0), ((2, 3 * bits, 1), 1), ((0,), 0)):
            packed = rng.integers(0, 256, shape, np.uint8)
            op = UnpackBits(bits, axis)
            yield OpCase(op, (packed,), (expected_integers(op, packed),), label=f"{bits} {shape}")
    odd = rng.integers(0, 256, (3, 5), np.uint8)
    for op in (UnpackBits(4, 1), UnpackBits(2, 1), UnpackBits(5, 1), UnpackBits(6, 0)):
        yield OpCase(op, (odd,), (expected_integers(op, odd),), label=f"odd bytes, {op.bits} bits")


def expected_integers(op: UnpackBits, packed: np.ndarray) -> np.ndarray:
    """The result of `unpack_bits`: each line of bytes as one long number, cut into digits."""
    lines = np.moveaxis(packed, op.axis, -1)
    count = 8 * lines.shape[-1] // op.bits
    result = np.zeros((*lines.shape[:-1], count), np.int64)
    for index in np.ndindex(*lines.shape[:-1]):
        # One big integer cannot get the order of bits within and between bytes wrong in the way a
        # loop of shifts can.
        stream = int.from_bytes(lines[index].tobytes(), "little")
        for position in range(count):
            result[(*index, position)] = stream >> position * op.bits & (1 << op.bits) - 1
    return np.moveaxis(result, -1, op.axis)


@rows(Requantize, dtypes=QUANTIZED)
def requantize(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Every layout and result type; one pair of scale and zero point is sometimes tensor-wide."""
    del op_class
    for number, (label, shape, axis, group_size) in enumerate(LAYOUTS):
        op = Requantize(QUANTIZED[(number + 3) % len(QUANTIZED)], axis, group_size)
        tensor_wide = Requantize(op.dtype)
        first = tensor_wide if number % 3 == 1 else op
        second = tensor_wide if number % 3 == 2 else op
        scales = (dtypes.FLOATS[number % 6], dtypes.FLOATS[(number + 1) % 5])
        inputs = (
            sample(dtype, shape, seed=number),
            *parameters(first, shape, scales[0], rng),
            *parameters(second, shape, scales[1], rng),
        )
        yield _requantize_case(op, inputs, label)
    edges = integers(edge_integers(dtype), dtype)
    pairs = (*_pair(0.3, -(2**31), dtypes.f32), *_pair(0.1, 2**31 - 1, dtypes.f32))
    yield _requantize_case(Requantize(dtypes.si32), (edges, *pairs), "edge values")


def _requantize_case(
    op: Requantize,
    inputs: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    label: str,
) -> OpCase:
    q, scale_in, zero_point_in, scale_out, zero_point_out = inputs
    compute = computing(*(dtypes.from_numpy(scale.dtype) for scale in (scale_in, scale_out)))
    value = expected_dequantize(op, q, scale_in, zero_point_in, compute)
    if compute is dtypes.f32:
        value = value.astype(np.float32)  # exact: it has been rounded to f32
    step = Quantize(op.dtype, op.axis, op.group_size)
    wide_scale = decode(scale_out).astype(value.dtype)
    expected = expected_quantize(step, value, wide_scale, zero_point_out)
    return OpCase(op, inputs, (expected,), label=label)


# Cases of the random ops: Philox in Python integers, the normal distribution in Python floats.


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
        # The constants of Salmon et al. 2011; Python's integers do not wrap, so the halves of the
        # product are exact.
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
        # The middle of an interval: never 0 or 1, whose normal is infinite.
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
