"""Elementwise ops whose results torch gives bit for bit: integers, i1, comparisons, choices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from backends.op_runner import run_op
from gptrs.backend.contract import Backend
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise as ops
from gptrs_conformance.samples import edge_floats, edge_integers, integers, sample
from parity.torch_arrays import to_torch, torch
from parity.torch_types import FLOATS, INTEGERS, torch_dtype

SHAPES = [(), (0,), (1,), (3, 0, 2), (5,), (3, 5, 7)]
UNARY = {
    ops.Neg(): torch.neg,
    ops.Abs(): torch.abs,
    ops.Sign(): torch.sign,
    ops.Not(): torch.bitwise_not,
}
BINARY = {
    ops.Add(): torch.add,
    ops.Sub(): torch.sub,
    ops.Mul(): torch.mul,
    ops.Maximum(): torch.maximum,
    ops.Minimum(): torch.minimum,
    ops.And(): torch.bitwise_and,
    ops.Or(): torch.bitwise_or,
    ops.Xor(): torch.bitwise_xor,
}
DIVISION = {
    ops.Div(): lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    ops.Rem(): torch.fmod,
}
CASTS = list(itertools.permutations([dtypes.i1, *INTEGERS, *FLOATS], 2))
COMPARE = {
    "lt": torch.lt,
    "le": torch.le,
    "eq": torch.eq,
    "ge": torch.ge,
    "gt": torch.gt,
    "ne": torch.ne,
}


def edges(dtype: DType) -> np.ndarray:
    if dtype.is_bool:
        return np.array([False, True])
    return edge_floats(dtype) if dtype.is_float else integers(edge_integers(dtype), dtype)


def all_pairs(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    values = edges(dtype)
    return np.repeat(values, len(values)), np.tile(values, len(values))


def assert_bits(found: np.ndarray, wanted: torch.Tensor) -> None:
    """One type, one shape, the same bits, but that any NaN is as good as any other."""
    ours, wanted = to_torch(found), wanted.contiguous()
    assert (ours.dtype, ours.shape) == (wanted.dtype, wanted.shape)
    if wanted.dtype.is_floating_point:
        both_nan = ours.double().isnan() & wanted.double().isnan()
        ours, wanted = (_bits(torch.where(both_nan, 0, x.double()), x) for x in (ours, wanted))
    assert torch.equal(ours, wanted)


def _bits(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return values.to(like.dtype).reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("dtype", [dtypes.i1, *INTEGERS], ids=str)
@pytest.mark.parametrize("op", [*UNARY, *BINARY], ids=lambda op: op.name)
def test_integers_and_booleans(reference: Backend, op: Op, dtype: DType) -> None:
    kinds = op.kinds  # pyright: ignore[reportAttributeAccessIssue]
    if dtype.kind not in kinds:
        pytest.skip(f"`{op.name}` does not take {dtype}")
    if op in UNARY:
        groups = [(edges(dtype),), *((sample(dtype, shape),) for shape in SHAPES)]
    else:
        pairs = ((sample(dtype, shape), sample(dtype, shape, seed=1)) for shape in SHAPES)
        groups = [all_pairs(dtype), *pairs]
    function = UNARY.get(op) or BINARY[op]
    for arrays in groups:
        expected = function(*(to_torch(array) for array in arrays))
        assert_bits(run_op(reference, op, *arrays), expected)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("op", DIVISION, ids=lambda op: op.name)
def test_integer_division(reference: Backend, op: Op, dtype: DType) -> None:
    x, y = all_pairs(dtype)
    least = np.iinfo(x.dtype).min
    # the least integer divided by -1 stops the process in torch
    keep = (y != 0) & ~((x == least) & (y.astype(np.int64) == -1))
    x, y = x[keep], y[keep]
    expected = DIVISION[op](to_torch(x), to_torch(y))
    assert_bits(run_op(reference, op, x, y), expected)


@pytest.mark.parametrize("dtype", [dtypes.ui8, dtypes.si8, dtypes.si32, dtypes.si64], ids=str)
def test_shifts_within_the_width(reference: Backend, dtype: DType) -> None:
    values = edges(dtype)
    amounts = np.arange(dtype.bits).astype(dtype.numpy)
    x, y = np.repeat(values, len(amounts)), np.tile(amounts, len(values))
    left = torch.bitwise_left_shift(to_torch(x), to_torch(y))
    assert_bits(run_op(reference, ops.ShiftLeft(), x, y), left)
    right = torch.bitwise_right_shift(to_torch(x), to_torch(y))
    assert_bits(run_op(reference, ops.ShiftRightArithmetic(), x, y), right)


@pytest.mark.parametrize("dtype", [dtypes.i1, *INTEGERS, *FLOATS], ids=str)
@pytest.mark.parametrize("direction", COMPARE)
def test_comparisons(reference: Backend, direction: str, dtype: DType) -> None:
    pairs = ((sample(dtype, shape), sample(dtype, shape, seed=1)) for shape in SHAPES)
    for x, y in (all_pairs(dtype), *pairs):
        expected = COMPARE[direction](to_torch(x), to_torch(y))
        found = run_op(reference, ops.Compare(direction), x, y)  # pyright: ignore[reportArgumentType]
        assert_bits(found, expected)


@pytest.mark.parametrize("dtype", [dtypes.i1, *INTEGERS, *FLOATS], ids=str)
def test_choices(reference: Backend, dtype: DType) -> None:
    for shape in SHAPES:
        predicate = sample(dtypes.i1, shape)
        x, y = sample(dtype, shape), sample(dtype, shape, seed=1)
        arrays = [to_torch(array) for array in (predicate, x, y)]
        assert_bits(run_op(reference, ops.Select(), predicate, x, y), torch.where(*arrays))


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_clamping(reference: Backend, dtype: DType) -> None:
    x, low = all_pairs(dtype)
    high = np.roll(x, 5)
    expected = torch.clamp(*(to_torch(array) for array in (x, low, high)))
    if dtype.is_float:  # torch.clamp is silent about the order of a NaN bound and a NaN operand
        defined = ~np.isnan(np.stack([x, low, high]).astype("f8")).any(axis=0)
        found = run_op(reference, ops.Clamp(), x[defined], low[defined], high[defined])
        assert_bits(found, expected[torch.from_numpy(defined)])
        assert np.isnan(run_op(reference, ops.Clamp(), x, low, high).astype("f8"))[~defined].all()
    else:
        assert_bits(run_op(reference, ops.Clamp(), x, low, high), expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_that_are_exact(reference: Backend, dtype: DType) -> None:
    x, y = all_pairs(dtype)
    functions = {
        ops.Neg(): torch.neg,
        ops.Abs(): torch.abs,
        ops.Floor(): torch.floor,
        ops.Ceil(): torch.ceil,
        ops.RoundNearestEven(): torch.round,
    }
    for op, function in functions.items():
        assert_bits(run_op(reference, op, x), function(to_torch(x)))
    for op in (ops.Add(), ops.Sub(), ops.Mul()):
        expected = BINARY[op](to_torch(x), to_torch(y))
        assert_bits(run_op(reference, op, x, y), expected)
    finite = torch.isfinite(to_torch(x))
    assert_bits(run_op(reference, ops.IsFinite(), x), finite)


@pytest.mark.parametrize(("source", "target"), CASTS, ids=str)
def test_casts(reference: Backend, source: DType, target: DType) -> None:
    """Where torch and PTIR agree on what fits: PTIR saturates, torch wraps or leaves it open."""
    x = edges(source)
    if target.is_integer and not source.is_bool:
        wide = x.astype("f8")
        info = np.iinfo(target.numpy)
        with np.errstate(invalid="ignore"):
            inside = (np.trunc(wide) >= info.min) & (np.trunc(wide) < float(info.max))
        x = x[inside]
    expected = to_torch(x).to(torch_dtype(torch, target))
    assert_bits(run_op(reference, ops.Cast(target), x), expected)


@pytest.mark.parametrize("target", [dtypes.f8e4m3, dtypes.f8e5m2], ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_casts_to_and_from_eight_bits(reference: Backend, source: DType, target: DType) -> None:
    every = np.arange(256, dtype=np.uint8).view(target.numpy)
    widened = to_torch(every).to(torch_dtype(torch, source))
    assert_bits(run_op(reference, ops.Cast(source), every), widened)
    if source is dtypes.f64:
        return  # torch rounds twice on the way from f64
    x = sample(source, (1000,)) * np.asarray(8, source.numpy)
    narrowed = to_torch(x).to(torch_dtype(torch, target))
    assert_bits(run_op(reference, ops.Cast(target), np.asarray(x)), narrowed)


def test_bitcasts(reference: Backend) -> None:
    groups = [
        (dtypes.si8, dtypes.ui8, dtypes.f8e4m3, dtypes.f8e5m2),
        (dtypes.si16, dtypes.f16, dtypes.bf16),
        (dtypes.si32, dtypes.f32),
        (dtypes.si64, dtypes.f64),
    ]
    for group in groups:
        for source, target in itertools.permutations(group, 2):
            x = edges(source)
            expected = to_torch(x).view(torch_dtype(torch, target))
            assert_bits(run_op(reference, ops.Bitcast(target), x), expected)
