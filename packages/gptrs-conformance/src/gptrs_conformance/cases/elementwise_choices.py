"""Cases of comparisons, choices and what passes elements on: exact on every element type."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise as ops
from gptrs_conformance.exact_values import plain, wide
from gptrs_conformance.numerics import decode
from gptrs_conformance.op_case import OpCase, rows
from gptrs_conformance.samples import edge_floats, edge_integers, integers, sample

SHAPES: tuple[tuple[int, ...], ...] = ((5,), (), (0,), (1,), (3, 0, 2), (2, 1, 3, 5), (37,))
REAL = (*dtypes.INTEGERS, *dtypes.FLOATS)
Direction = Literal["lt", "le", "eq", "ge", "gt", "ne"]
DIRECTIONS: dict[Direction, Callable[[Any, Any], bool]] = {
    "lt": operator.lt,
    "le": operator.le,
    "eq": operator.eq,
    "ge": operator.ge,
    "gt": operator.gt,
    "ne": operator.ne,
}


def edges(dtype: DType) -> np.ndarray:
    """The values at the edges of a type: extremes, zeros, infinities, NaN."""
    if dtype.is_bool:
        return np.array([False, True])
    if dtype.is_float:
        return edge_floats(dtype)
    if dtype.is_complex:
        parts = np.array([0.0, -0.0, 1.0, -2.5, math.inf, math.nan])
        real, imaginary = np.repeat(parts, len(parts)), np.tile(parts, len(parts))
        pairs = np.stack([real, imaginary], axis=-1)
        return pairs.astype(f"f{dtype.itemsize // 2}").view(dtype.numpy).ravel()
    return integers(edge_integers(dtype), dtype)


def storage(array: np.ndarray) -> np.ndarray:
    """`array` as the kit takes expected values: floats as f64, complex as complex128."""
    return wide(plain(array), dtypes.from_numpy(array.dtype))


def _samples(
    dtype: DType, count: int, rng: np.random.Generator
) -> Iterator[tuple[str, list[np.ndarray]]]:
    for shape in SHAPES:
        seeds = rng.integers(2**31, size=count)
        yield f"shape {list(shape)}", [sample(dtype, shape, int(seed)) for seed in seeds]


@rows(ops.Compare, dtypes=dtypes.ALL)
def compare(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Every direction on all pairs of edges, so that NaN and both zeros meet everything."""
    chosen: tuple[Direction, ...] = ("eq", "ne") if dtype.is_complex else tuple(DIRECTIONS)
    values = edges(dtype)
    pairs = np.repeat(values, len(values)), np.tile(values, len(values))
    for direction in chosen:
        yield _compare_case(direction, *pairs, label=f"{direction} of edges")
    for number, (label, (x, y)) in enumerate(_samples(dtype, 2, rng)):
        yield _compare_case(chosen[number % len(chosen)], x, y, label=label)


def _compare_case(direction: Direction, x: np.ndarray, y: np.ndarray, label: str) -> OpCase:
    holds = DIRECTIONS[direction]
    pairs = zip(plain(x).ravel().tolist(), plain(y).ravel().tolist(), strict=True)
    expected = np.array([bool(holds(a, b)) for a, b in pairs], bool).reshape(x.shape)
    return OpCase(ops.Compare(direction), (x, y), (expected,), label=label)


@rows(ops.Select, dtypes=dtypes.ALL)
def select(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Mixed predicates in every kind of shape, and edge values, which pass unchanged."""
    for label, (x, y) in _samples(dtype, 2, rng):
        yield _select_case(np.asarray(rng.random(x.shape) < 0.5), x, y, label)
    x, y = edges(dtype), edges(dtype)[::-1].copy()
    for value in (True, False):
        yield _select_case(np.full(x.shape, value), x, y, f"edges where {value}")


def _select_case(predicate: np.ndarray, x: np.ndarray, y: np.ndarray, label: str) -> OpCase:
    expected = storage(y).copy()
    expected[predicate] = storage(x)[predicate]
    return OpCase(ops.Select(), (predicate, x, y), (expected,), label=label)


@rows(ops.Clamp, dtypes=REAL)
def clamp(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Below, within and above; bounds in the wrong order, where the upper one wins; NaN."""
    for label, arrays in _samples(dtype, 3, rng):
        yield _clamp_case(arrays, label)
    values = edges(dtype)
    if dtype.is_float:  # of two zeros either may come out
        values = values[(values != 0) | ~np.signbit(decode(values))]
    triples = np.array(np.meshgrid(*[np.arange(0, len(values), 3)] * 3)).reshape(3, -1)
    yield _clamp_case([values[index] for index in triples], "edges")


def _clamp_case(arrays: list[np.ndarray], label: str) -> OpCase:
    triples = zip(*(plain(array).ravel().tolist() for array in arrays), strict=True)
    found = [
        math.nan if any(value != value for value in (x, low, high)) else _clamped(x, low, high)
        for x, low, high in triples
    ]
    dtype = dtypes.from_numpy(arrays[0].dtype)
    expected = np.array(found, np.float64 if dtype.is_float else object)
    return OpCase(ops.Clamp(), tuple(arrays), (expected.reshape(arrays[0].shape),), label=label)


def _clamped(x: Any, low: Any, high: Any) -> Any:
    raised = low if x < low else x
    return high if raised > high else raised


@rows(ops.IsFinite, dtypes=(*dtypes.FLOATS, dtypes.cf32, dtypes.cf64))
def is_finite(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Every edge, where infinities and NaN are, and every kind of shape."""
    arrays = [("edges", edges(dtype)), *((label, x) for label, (x,) in _samples(dtype, 1, rng))]
    for label, x in arrays:
        finite = [
            math.isfinite(z.real) and math.isfinite(z.imag) for z in plain(x).ravel().tolist()
        ]
        yield OpCase(ops.IsFinite(), (x,), (np.array(finite, bool).reshape(x.shape),), label=label)


@rows(ops.StopGradient, dtypes=dtypes.ALL)
def stop_gradient(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Elements pass unchanged, and the result has separate memory."""
    arrays = [("edges", edges(dtype)), *((label, x) for label, (x,) in _samples(dtype, 1, rng))]
    for label, x in arrays:
        yield OpCase(ops.StopGradient(), (x,), (storage(x),), label=label)
