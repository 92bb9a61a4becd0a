"""Cases of the elementwise ops that compute on floats: each element by the definition of the op."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType, Kind
from gptrs.ir.op import OPS, Op
from gptrs.ir.ops import elementwise as ops
from gptrs_conformance.numerics import COMPLEX_RTOL, Tolerance, decode, elementwise_tolerance
from gptrs_conformance.op_case import OpCase, rows
from gptrs_conformance.samples import edge_floats, next_seed, sample

SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (3, 0, 2), (2, 1, 3, 5), (37,))
"""Rank 0, no elements, one, rank 4, and more than the lanes of a vector."""
COMPLEX = (dtypes.cf32, dtypes.cf64)


def defined(base: type[ops.Row], kind: Kind) -> dict[type[Op], Callable[..., Any]]:
    """The definitions of the rows of elementwise ops that derive from `base` and take `kind`."""
    return {
        op: op.definition
        for op in OPS.values()
        if issubclass(op, base) and kind in op.kinds and op.definition is not None
    }


UNARY, BINARY = defined(ops.Unary, "float"), defined(ops.Binary, "float")
COMPLEX_UNARY, COMPLEX_BINARY = defined(ops.Unary, "complex"), defined(ops.Binary, "complex")


@rows(*UNARY, dtypes=dtypes.FLOATS)
def unary(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Ordinary values in every kind of shape, small ones, large ones, and the edges of the type."""
    op = op_class()
    yield _unary_case(op, sample(dtype, (5,), next_seed(rng)), "ordinary")
    for shape in SHAPES:
        yield _unary_case(op, sample(dtype, shape, next_seed(rng)), f"shape {list(shape)}")
    yield _unary_case(op, edge_floats(dtype), "edges")
    if dtype.bits > 8:
        near_zero = sample(dtype, (16,), next_seed(rng)).astype(np.float64) * 2.0**-9
        yield _unary_case(op, near_zero.astype(dtype.numpy), "near zero")
        wide = sample(dtype, (32,), next_seed(rng)).astype(np.float64) * 16
        yield _unary_case(op, wide.astype(dtype.numpy), "wide")


def _unary_case(op: Op, x: np.ndarray, label: str) -> OpCase:
    dtype = dtypes.from_numpy(x.dtype)
    wide = decode(x)
    function = UNARY[type(op)]
    values = [function(value) for value in wide.ravel().tolist()]
    expected = np.array(values, np.float64).reshape(wide.shape)
    return OpCase(op, (x,), (expected,), elementwise_tolerance(op.name, dtype), label)


@rows(*BINARY, dtypes=dtypes.FLOATS)
def binary(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Ordinary values in every kind of shape, and every pair of edges of the type."""
    op = op_class()
    for shape in ((5,), *SHAPES):
        x, y = (sample(dtype, shape, next_seed(rng)) for _ in range(2))
        yield _binary_case(op, x, y, f"shape {list(shape)}")
    edges = edge_floats(dtype)
    x, y = np.repeat(edges, len(edges)), np.tile(edges, len(edges))
    if op_class in (ops.Maximum, ops.Minimum):
        # Which of two zeros of different signs is the result is unspecified.
        keep = (x != 0) | (y != 0)
        x, y = x[keep], y[keep]
    yield _binary_case(op, x, y, "edges")


def _binary_case(op: Op, x: np.ndarray, y: np.ndarray, label: str) -> OpCase:
    dtype = dtypes.from_numpy(x.dtype)
    function = BINARY[type(op)]
    pairs = zip(decode(x).ravel().tolist(), decode(y).ravel().tolist(), strict=True)
    values = [function(a, b) for a, b in pairs]
    expected = np.array(values, np.float64).reshape(x.shape)
    return OpCase(op, (x, y), (expected,), elementwise_tolerance(op.name, dtype), label)


@rows(*COMPLEX_UNARY, dtypes=COMPLEX)
def complex_unary(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Ordinary values of all four quadrants, in every kind of shape."""
    for shape in ((5,), *SHAPES):
        x = sample(dtype, shape, next_seed(rng))
        values = [COMPLEX_UNARY[op_class](value) for value in x.ravel().tolist()]
        yield _complex_case(op_class(), (x,), values, f"shape {list(shape)}")


@rows(*COMPLEX_BINARY, dtypes=COMPLEX)
def complex_binary(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Ordinary values of all four quadrants, in every kind of shape."""
    for shape in ((5,), *SHAPES):
        x, y = (sample(dtype, shape, next_seed(rng)) for _ in range(2))
        pairs = zip(x.ravel().tolist(), y.ravel().tolist(), strict=True)
        values = [COMPLEX_BINARY[op_class](a, b) for a, b in pairs]
        yield _complex_case(op_class(), (x, y), values, f"shape {list(shape)}")


def _complex_case(
    op: Op, inputs: tuple[np.ndarray, ...], values: list[complex], label: str
) -> OpCase:
    expected = np.array(values, np.complex128).reshape(inputs[0].shape)
    dtype = dtypes.from_numpy(inputs[0].dtype)
    # Each part may be small compared with the other, whose rounding errors it shares.
    rtol = COMPLEX_RTOL[dtype.name]
    tolerance = Tolerance.close(rtol, rtol * np.maximum(np.abs(expected), 1.0))
    return OpCase(op, inputs, (expected,), tolerance, label)
