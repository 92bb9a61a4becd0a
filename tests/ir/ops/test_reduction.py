"""Inference and refusals of the reductions."""

from __future__ import annotations

import pytest

from gptrs.ir import dtypes
from gptrs.ir.ops import reduction
from gptrs.ir.ops.reduction import Argmax, Argmin, Cumulative, Reduce
from gptrs.ir.tensor_type import TensorType

GOOD = [
    (Reduce("sum", (1,)), "f32[2, 3]", "f32[2]"),
    (Reduce("sum", (0, 2)), "f32[2, 3, 4]", "f32[3]"),
    (Reduce("sum", (0, 2), keepdims=True), "f32[2, 3, 4]", "f32[1, 3, 1]"),
    (Reduce("sum", ()), "f32[]", "f32[]"),
    (Reduce("prod", (0,)), "cf32[0]", "cf32[]"),
    (Reduce("max", (0,)), "si4[0, 5]", "si4[5]"),
    (Reduce("min", (0,)), "ui64[3]", "ui64[]"),
    (Reduce("and", (0,)), "i1[3]", "i1[]"),
    (Reduce("or", (0,)), "ui8[3]", "ui8[]"),
    (Reduce("sum", (0,), accum_dtype=dtypes.f64), "f32[3]", "f32[]"),
    (Reduce("sum", (0,), out_dtype=dtypes.f32), "bf16[3]", "f32[]"),
    (Reduce("sum", (0,), accum_dtype=dtypes.si64, out_dtype=dtypes.ui16), "si8[3]", "ui16[]"),
    (Argmax(1), "f32[2, 3]", "si64[2]"),
    (Argmax(0, keepdims=True, dtype=dtypes.si32), "i1[2, 3]", "si32[1, 3]"),
    (Argmin(0), "ui4[1]", "si64[]"),
    (Argmin(1), "f32[0, 3]", "si64[0]"),
    (Argmax(0, dtype=dtypes.si32), "i1[2147483648]", "si32[]"),
    (Cumulative("sum", 0), "f32[2, 3]", "f32[2, 3]"),
    (Cumulative("sum", 1, reverse=True, exclusive=True), "cf32[2, 0]", "cf32[2, 0]"),
    (Cumulative("prod", 0, accum_dtype=dtypes.f64), "bf16[1]", "bf16[1]"),
    (
        Cumulative("prod", 0, accum_dtype=dtypes.ui4, out_dtype=dtypes.si64),
        "si8[3]",
        "si64[3]",
    ),
    (Cumulative("max", 2), "ui4[2, 3, 4]", "ui4[2, 3, 4]"),
    (Cumulative("min", 0, out_dtype=dtypes.f32), "f8e5m2[2]", "f32[2]"),
]

BAD = [
    (
        Reduce("mean", (0,)),
        "f32[2]",
        "`reduce` attribute `kind` must be one of sum, prod, max, min, and, or, got `mean`",
    ),
    (
        Reduce("and", (0,)),
        "f32[2]",
        "`reduce` of f32[2] needs a bool or signed or unsigned element type",
    ),
    (
        Reduce("max", (0,)),
        "cf32[2]",
        "`reduce` of cf32[2] needs a signed or unsigned or float element type",
    ),
    (
        Reduce("sum", (0,)),
        "i1[2]",
        "`reduce` of i1[2] needs a signed or unsigned or float or complex element type",
    ),
    (
        Reduce("max", (0,), accum_dtype=dtypes.f32),
        "f32[2]",
        "`reduce` of f32[2] of kind max takes no accum_dtype",
    ),
    (
        Reduce("sum", (1, 0)),
        "f32[2, 2]",
        "`reduce` of f32[2, 2] needs ascending axes in [0, 2), got [1, 0]",
    ),
    (
        Reduce("sum", (0, 0)),
        "f32[2]",
        "`reduce` of f32[2] needs ascending axes in [0, 1), got [0, 0]",
    ),
    (Reduce("sum", (-1,)), "f32[2]", "`reduce` of f32[2] needs ascending axes in [0, 1), got [-1]"),
    (Reduce("sum", (0,)), "f32[]", "`reduce` of f32[] needs ascending axes in [0, 0), got [0]"),
    (
        Reduce("sum", (0,), accum_dtype=dtypes.si32),
        "f32[2]",
        "`reduce` of f32[2] cannot accumulate in or return si32",
    ),
    (
        Reduce("sum", (0,), out_dtype=dtypes.f32),
        "cf32[2]",
        "`reduce` of cf32[2] cannot accumulate in or return f32",
    ),
    (Argmax(2), "f32[2, 3]", "`argmax` of f32[2, 3] has no axis 2"),
    (Argmax(-1), "f32[2]", "`argmax` of f32[2] has no axis -1"),
    (Argmin(0), "f32[]", "`argmin` of f32[] has no axis 0"),
    (Argmin(0), "f32[0, 3]", "`argmin` of f32[0, 3] has no extreme: axis 0 is empty"),
    (
        Argmax(0, dtype=dtypes.si8),
        "f32[2]",
        "`argmax` of f32[2] needs indices of si32 or si64, got si8",
    ),
    (
        Argmax(0),
        "cf32[2]",
        "`argmax` of cf32[2] needs a bool or signed or unsigned or float element type",
    ),
    (Argmin(0), "f32[2] f32[2]", "`argmin` takes 1 operand (x), got 2"),
    (
        Argmax(0, dtype=dtypes.si32),
        "i1[2147483649]",
        "`argmax` of i1[2147483649] needs indices of si64 for the size of axis 0",
    ),
    (
        Cumulative("or", 0),
        "si8[2]",
        "`cumulative` attribute `kind` must be one of sum, prod, max, min, got `or`",
    ),
    (
        Cumulative("sum", 0),
        "i1[2]",
        "`cumulative` of i1[2] needs a signed or unsigned or float or complex element type",
    ),
    (
        Cumulative("min", 0),
        "cf32[2]",
        "`cumulative` of cf32[2] needs a signed or unsigned or float element type",
    ),
    (Cumulative("sum", 1), "f32[2]", "`cumulative` of f32[2] has no axis 1"),
    (Cumulative("sum", -1), "f32[2]", "`cumulative` of f32[2] has no axis -1"),
    (Cumulative("sum", 0), "f32[]", "`cumulative` of f32[] has no axis 0"),
    (
        Cumulative("max", 0, accum_dtype=dtypes.f32),
        "f32[2]",
        "`cumulative` of f32[2] of kind max takes no accum_dtype",
    ),
    (
        Cumulative("sum", 0, accum_dtype=dtypes.f32),
        "si32[2]",
        "`cumulative` of si32[2] cannot accumulate in or return f32",
    ),
    (
        Cumulative("max", 0, out_dtype=dtypes.i1),
        "si32[2]",
        "`cumulative` of si32[2] cannot accumulate in or return i1",
    ),
]


@pytest.mark.parametrize(("op", "operands", "result"), GOOD)
def test_result(op, operands, result, infer):
    assert infer(op, operands) == result


@pytest.mark.parametrize(("op", "operands", "message"), BAD)
def test_refusal(op, operands, message, refusal):
    assert refusal(op, operands) == message


@pytest.mark.parametrize(
    ("op", "dtype", "accumulator"),
    [
        (Reduce("sum", ()), dtypes.bf16, dtypes.f32),
        (Reduce("prod", ()), dtypes.si8, dtypes.si8),
        (Reduce("sum", (), accum_dtype=dtypes.f64), dtypes.f16, dtypes.f64),
        (Reduce("max", ()), dtypes.f16, dtypes.f16),
        (Cumulative("sum", 0), dtypes.f8e4m3, dtypes.f32),
        (Cumulative("prod", 0, accum_dtype=dtypes.si64), dtypes.ui4, dtypes.si64),
        (Cumulative("min", 0), dtypes.bf16, dtypes.bf16),
    ],
)
def test_accumulator(op, dtype, accumulator):
    assert op.accumulator(TensorType(dtype, (2,))) is accumulator


def test_every_op_has_rows(registered):
    assert {op.name for op, *_ in GOOD} == registered(reduction)
