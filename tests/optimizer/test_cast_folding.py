"""Which pairs of casts fold, on values of every type: those that do, and no fewer, keep results."""

from __future__ import annotations

import numpy as np
import pytest

from fuzzing.differential import run
from gptrs.errors import ProgramError
from gptrs.ir import Builder, Literal, Program, TensorType, dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.elementwise import Cast
from gptrs.optimizer.passes.arithmetic_folding import CAST_FOLDING, is_exact
from gptrs_conformance.numerics import every_value, integer_range

PAIRS = {dtypes.cf32: np.dtype(np.float32), dtypes.cf64: np.dtype(np.float64)}


def values_of(dtype: DType) -> np.ndarray:
    """All values of a type of at most 16 bits; of others limits, powers of two, and any bits."""
    if dtype.bits <= 16:
        return every_value(dtype)
    if dtype.is_integer:
        low, high = integer_range(dtype)
        near = [s * 2**k + d for k in range(65) for d in range(-2, 3) for s in (1, -1)]
        return np.array([n for n in {low, high, *near} if low <= n <= high], dtype.numpy)
    if dtype.is_complex:
        parts = _floats(PAIRS[dtype])
        return np.stack([parts, np.roll(parts, 7)], axis=-1).view(dtype.numpy)[:, 0]
    return _floats(dtype.numpy)


def _floats(storage: np.dtype) -> np.ndarray:
    limits = np.finfo(storage)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, limits.max, -limits.max, limits.tiny]
    powers = 2.0 ** np.arange(-30, 70)
    steps = np.concatenate([powers * factor for factor in (1, -1, 1 + 2**-5, 1.5, 1 + 2**-12)])
    bits = np.random.default_rng(0).integers(0, 256, 4000 * storage.itemsize, dtype=np.uint8)
    return np.concatenate([np.array(special, storage), steps.astype(storage), bits.view(storage)])


def two_casts(source: DType, between: DType, target: DType, size: int) -> Program | None:
    """`cast(cast(x, between), target)`, None where PTIR refuses one of the casts."""
    builder = Builder()
    x = builder.param(TensorType(source, (size,)), "x")
    try:
        return builder.program(builder.emit(Cast(target), builder.emit(Cast(between), x)))
    except ProgramError:
        return None


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    """Equal bits, but for those of NaNs."""
    return _bits(found) == _bits(expected)


def _bits(array: np.ndarray) -> Literal:
    if array.dtype.kind == "c":
        array = array.view(np.real(array).dtype)
    with np.errstate(invalid="ignore"):
        nan = array != array
    return Literal.of(np.where(nan, np.array(np.nan, array.dtype), array) if nan.any() else array)


@pytest.mark.sample(16)
@pytest.mark.parametrize("source", dtypes.ALL, ids=str)
def test_two_casts_fold_where_they_give_what_one_gives(source: DType):
    x = values_of(source)
    for between in dtypes.ALL:
        for target in dtypes.ALL:
            program = two_casts(source, between, target, x.size)
            if program is None:
                continue
            folded = CAST_FOLDING.apply(program)
            if folded is not program:
                (found,), (expected,) = run(folded, {"x": x}), run(program, {"x": x})
                assert same(found, expected), f"{source} -> {between} -> {target}"


@pytest.mark.parametrize("source", dtypes.ALL, ids=str)
def test_a_type_is_exact_if_all_values_come_back(source: DType):
    x = values_of(source)
    for between in dtypes.ALL:
        program = two_casts(source, between, source, x.size)
        if program is not None:
            assert is_exact(source, between) == same(run(program, {"x": x})[0], x), between
