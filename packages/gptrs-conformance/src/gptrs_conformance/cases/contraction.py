"""Cases of `dot_general`: every arrangement of axes, summed one product after another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops.contraction import DotGeneral
from gptrs_conformance.exact_values import plain
from gptrs_conformance.numerics import PRECISION, integer_range, wrapped
from gptrs_conformance.op_case import OpCase, rows
from gptrs_conformance.samples import next_seed, sample
from gptrs_conformance.tolerance import Tolerance

ARRANGEMENTS: tuple[tuple[str, DotGeneral, tuple[int, ...], tuple[int, ...]], ...] = (
    ("matrices", DotGeneral((1,), (0,)), (3, 5), (5, 4)),
    ("vectors", DotGeneral((0,), (0,)), (7,), (7,)),
    ("second transposed", DotGeneral((1,), (1,)), (2, 9), (3, 9)),
    ("first transposed", DotGeneral((0,), (0,)), (5, 3), (5, 4)),
    ("one row", DotGeneral((1,), (0,)), (1, 33), (33, 5)),
    ("a batch", DotGeneral((2,), (1,), (0,), (0,)), (2, 3, 4), (2, 4, 5)),
    ("two batch axes crossed", DotGeneral((3,), (2,), (0, 1), (1, 0)), (2, 3, 2, 4), (3, 2, 4, 2)),
    ("two contracted crossed", DotGeneral((0, 2), (2, 1)), (2, 3, 4), (5, 4, 2)),
    ("batch inside", DotGeneral((0,), (2,), (2,), (1,)), (4, 3, 2), (5, 2, 4)),
    ("outer product", DotGeneral((), ()), (3,), (4,)),
    ("scalars", DotGeneral((), ()), (), ()),
    ("nothing to sum", DotGeneral((1,), (0,)), (3, 0), (0, 4)),
    ("nothing to sum between axes", DotGeneral((1,), (1,)), (3, 0, 4), (5, 0)),
    ("nothing to sum on either side", DotGeneral((1,), (1,)), (3, 0, 4), (2, 0, 5)),
    ("nothing to sum in a batch", DotGeneral((2,), (2,), (0,), (0,)), (2, 3, 0, 4), (2, 5, 0)),
    ("no rows", DotGeneral((1,), (0,)), (0, 5), (5, 4)),
    ("an empty batch", DotGeneral((2,), (1,), (0,), (0,)), (0, 3, 4), (0, 4, 5)),
)
NUMBERS = (*dtypes.INTEGERS, *dtypes.FLOATS, dtypes.cf32, dtypes.cf64)


@rows(DotGeneral, dtypes=NUMBERS)
def dot_general(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Every arrangement, then the accumulate and output types."""
    for label, op, left, right in ARRANGEMENTS:
        x, y = sample(dtype, left, next_seed(rng)), sample(dtype, right, 3)
        yield _case(op, x, y, label)
    yield from _typed(dtype, rng)


def _typed(dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Accumulate and output types of the same kind, told apart from the defaults by the values."""
    plain = DotGeneral((1,), (0,))
    if dtype.is_integer:
        ones = np.ones((1, 40), dtype.numpy)
        top = np.full((40, 1), integer_range(dtype)[1]).astype(dtype.numpy)
        wider = dtypes.si64 if dtype.kind == "signed" else dtypes.ui64
        yield _case(plain, ones, top, "wraps")
        yield _case(replace(plain, accum_dtype=wider), ones, top, "wide accumulator saturates")
        widened = replace(plain, accum_dtype=wider, out_dtype=wider)
        yield _case(widened, ones, top, "wide result")
    elif dtype.is_float:
        x, y = sample(dtype, (2, 8), next_seed(rng)), sample(dtype, (8, 2), 5)
        for out in (dtypes.f16, dtypes.f32, dtypes.f64):
            yield _case(replace(plain, out_dtype=out), x, y, f"out {out}")
        # 2^-20 is lost beside 1 in f32 only after some steps, in f64 never.
        small = np.full((1, 64), 2.0**-5).astype(dtype.numpy)
        column = np.full((64, 1), 2.0**-5).astype(dtype.numpy)
        column[0] = 2.0**7
        accumulated = replace(plain, accum_dtype=dtypes.f64, out_dtype=dtypes.f64)
        yield _case(accumulated, small, column, "accum f64")
        if dtype is dtypes.f32:
            tiny = np.array([[2.0**13, 1.0, -(2.0**13)]], np.float32)
            large = np.array([[2.0**13], [2.0**-3], [2.0**13]], np.float32)
            yield _case(accumulated, tiny, large, "accum f64 keeps what f32 loses")


def _case(op: DotGeneral, x: np.ndarray, y: np.ndarray, label: str) -> OpCase:
    dtype = dtypes.from_numpy(x.dtype)
    total, magnitude = _summed(op, x, y)
    out = op.out_dtype or dtype
    if dtype.is_integer:
        accum = op.accum_dtype or dtype
        low, high = integer_range(out)
        values = [min(max(wrapped(value, accum), low), high) for value in total.ravel().tolist()]
        expected = np.empty(len(values), object)
        expected[:] = values
        return OpCase(op, (x, y), (expected.reshape(total.shape),), label=label)
    kind = np.complex128 if dtype.is_complex else np.float64
    unit = 2.0**-22 if _adds_in_f32(op, dtype) else 2.0**-50
    if out.is_float and out.bits <= 16:
        unit += 2.0 ** (1 - PRECISION[out.name])
    tolerance = Tolerance.close(0.0, np.asarray(unit * magnitude + _least(out), np.float64))
    return OpCase(op, (x, y), (total.astype(kind),), tolerance, label)


def _adds_in_f32(op: DotGeneral, dtype: DType) -> bool:
    accum = op.accum_dtype or dtype.accumulator
    return accum in (dtypes.f32, dtypes.cf32)


def _least(out: DType) -> float:
    """Return how much a result near zero may be off where the type has few small values."""
    return {"f8e4m3": 2.0**-9, "f8e5m2": 2.0**-16, "f16": 2.0**-24}.get(out.name, 0.0)


def _summed(op: DotGeneral, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sums of products, and of their magnitudes, over Python numbers."""
    free_x = [a for a in range(x.ndim) if a not in op.batch_lhs + op.contract_lhs]
    free_y = [a for a in range(y.ndim) if a not in op.batch_rhs + op.contract_rhs]
    left = plain(x).transpose(*op.batch_lhs, *free_x, *op.contract_lhs)
    right = plain(y).transpose(*op.batch_rhs, *free_y, *op.contract_rhs)
    batch = tuple(x.shape[a] for a in op.batch_lhs)
    rows_, columns = (tuple(z.shape[a] for a in axes) for z, axes in ((x, free_x), (y, free_y)))
    terms = prod(x.shape[a] for a in op.contract_lhs)
    left = left.reshape(prod(batch), prod(rows_), terms)
    right = right.reshape(prod(batch), prod(columns), terms)
    total = np.zeros((prod(batch), prod(rows_), prod(columns)), object)
    magnitude = np.zeros(total.shape)
    for b, m, n in np.ndindex(*total.shape):
        products = [p * q for p, q in zip(left[b, m], right[b, n], strict=True)]
        total[b, m, n] = sum(products)
        magnitude[b, m, n] = sum(abs(complex(product)) for product in products)
    shape = (*batch, *rows_, *columns)
    return total.reshape(shape), magnitude.reshape(shape)
