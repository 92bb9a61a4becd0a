"""Cases of the elementwise ops on integers and i1, by exact integer arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise as ops
from gptrs_conformance.cases.elementwise_floats import defined
from gptrs_conformance.numerics import integer_range, wrapped
from gptrs_conformance.op_case import OpCase, rows
from gptrs_conformance.samples import edge_integers, integers, next_seed, sample

SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (3, 0, 2), (2, 1, 3, 5), (37,))
BITS = (dtypes.i1, *dtypes.INTEGERS)


DIVISION = (ops.Div, ops.Rem)
UNARY, BINARY = defined(ops.Unary, "signed"), defined(ops.Binary, "signed")
BOOLEAN = defined(ops.Binary, "bool")


def values_of(array: np.ndarray) -> list[int]:
    """The elements as Python integers."""
    return [int(value) for value in array.ravel()]


def exact(values: list[int], shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Python integers, wrapped to `dtype`, as an array of objects."""
    flat = np.empty(len(values), object)
    flat[:] = [wrapped(value, dtype) for value in values]
    return flat.reshape(shape)


def operands(
    dtype: DType, count: int, rng: np.random.Generator
) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
    """`count` operands of one shape: samples in every kind of shape, then all pairs of edges."""
    for shape in ((5,), *SHAPES):
        seeds = rng.integers(2**31, size=count)
        yield f"shape {list(shape)}", tuple(sample(dtype, shape, int(seed)) for seed in seeds)
    edges = np.array([False, True]) if dtype.is_bool else integers(edge_integers(dtype), dtype)
    if count == 1:
        yield "edges", (edges,)
    else:
        yield "edges", (np.repeat(edges, len(edges)), np.tile(edges, len(edges)))


@rows(*UNARY, dtypes=dtypes.INTEGERS)
def unary(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Every kind of shape and the edges of the type, where negation wraps."""
    for label, (x,) in operands(dtype, 1, rng):
        values = [UNARY[op_class](value) for value in values_of(x)]
        yield OpCase(op_class(), (x,), (exact(values, x.shape, dtype),), label=label)


@rows(*(op for op in BINARY if op not in DIVISION), dtypes=dtypes.INTEGERS)
def binary(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Every kind of shape and all pairs of edges, where results wrap."""
    for label, (x, y) in operands(dtype, 2, rng):
        pairs = zip(values_of(x), values_of(y), strict=True)
        values = [BINARY[op_class](a, b) for a, b in pairs]
        yield OpCase(op_class(), (x, y), (exact(values, x.shape, dtype),), label=label)


@rows(*DIVISION, dtypes=dtypes.INTEGERS)
def division(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """All signs, the least value by -1, and zero as a divisor, which is an error."""
    for label, (x, y) in operands(dtype, 2, rng):
        divisor = np.where(y == 0, np.ones_like(y), y)
        pairs = zip(values_of(x), values_of(divisor), strict=True)
        values = [BINARY[op_class](a, b) for a, b in pairs]
        expected = exact(values, x.shape, dtype)
        yield OpCase(op_class(), (x, np.asarray(divisor)), (expected,), label=label)
    x, y = sample(dtype, (2, 3), 1), integers([1, 2, 3, 1, 0, 2], dtype).reshape(2, 3)
    yield OpCase(op_class(), (x, y), (), label="by zero", error=f"`{op_class.name}`")


@rows(ops.ShiftLeft, ops.ShiftRightArithmetic, ops.ShiftRightLogical, dtypes=dtypes.INTEGERS)
def shifts(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Amounts within the width, at it, beyond it, and negative ones."""
    amounts = [0, 1, dtype.bits - 1, dtype.bits, integer_range(dtype)[1]]
    amounts += [-1, integer_range(dtype)[0]] if dtype.kind == "signed" else []
    fitting = [amount for amount in amounts if amount <= integer_range(dtype)[1]]
    edges = edge_integers(dtype)
    x = integers([value for value in edges for _ in fitting], dtype)
    y = integers(fitting * len(edges), dtype)
    yield _shift_case(op_class, x, y, "edges")
    for shape in SHAPES:
        x = sample(dtype, shape, next_seed(rng))
        amount = np.asarray(rng.integers(0, min(dtype.bits, 7), size=shape), np.int64)
        yield _shift_case(op_class, x, amount.astype(dtype.numpy), f"{list(shape)}")


def _shift_case(op_class: type[Op], x: np.ndarray, y: np.ndarray, label: str) -> OpCase:
    dtype = dtypes.from_numpy(x.dtype)
    pairs = zip(values_of(x), values_of(y), strict=True)
    values = [_shifted(op_class, a, b, dtype) for a, b in pairs]
    return OpCase(op_class(), (x, y), (exact(values, x.shape, dtype),), label=label)


def _shifted(op_class: type[Op], x: int, amount: int, dtype: DType) -> int:
    out = not 0 <= amount < dtype.bits
    if op_class is ops.ShiftRightArithmetic:
        return x >> (dtype.bits if out else amount)
    if out:
        return 0
    return x << amount if op_class is ops.ShiftLeft else x % (1 << dtype.bits) >> amount


@rows(*BOOLEAN, dtypes=[dtypes.i1])
def booleans(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """All four pairs, in every kind of shape."""
    for label, (x, y) in operands(dtype, 2, rng):
        pairs = zip(x.ravel().tolist(), y.ravel().tolist(), strict=True)
        values = [BOOLEAN[op_class](a, b) for a, b in pairs]
        yield OpCase(op_class(), (x, y), (np.array(values, bool).reshape(x.shape),), label=label)


@rows(*defined(ops.Unary, "bool"), dtypes=[dtypes.i1])
def boolean(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Both values, in every kind of shape."""
    for label, (x,) in operands(dtype, 1, rng):
        values = [UNARY[op_class](value) for value in x.ravel().tolist()]
        yield OpCase(op_class(), (x,), (np.array(values, bool).reshape(x.shape),), label=label)
