"""Inference and refusals of the window ops."""

from __future__ import annotations

import pytest

from gptrs.ir import dtypes
from gptrs.ir.literal_text import Literal, Scalar
from gptrs.ir.ops import window
from gptrs.ir.ops.window import AxisWindow, ExtractPatches, ReduceWindow
from gptrs.ir.tensor_type import TensorType


def scalar(value, dtype):
    return Scalar(Literal.full(value, dtype))


GOOD = [
    (ReduceWindow("sum", ()), "f32[]", "f32[]"),
    (ReduceWindow("sum", (3,)), "f32[5]", "f32[3]"),
    (ReduceWindow("max", (2, 3), strides=(2, 1)), "si4[5, 7]", "si4[2, 5]"),
    (ReduceWindow("min", (3,), padding=(1, 2)), "ui64[5]", "ui64[6]"),
    (ReduceWindow("prod", (3,), dilation=(2,)), "cf32[5]", "cf32[1]"),
    (ReduceWindow("sum", (6,)), "f32[5]", "f32[0]"),
    (ReduceWindow("sum", (100,), strides=(7,)), "f32[5]", "f32[0]"),
    (ReduceWindow("sum", (2,), padding=(2, 0)), "f32[0]", "f32[1]"),
    (ReduceWindow("sum", (1, 2)), "f32[0, 3]", "f32[0, 2]"),
    (ReduceWindow("sum", (2**40,), padding=(2**40, 0)), "f32[5]", "f32[6]"),
    (ReduceWindow("sum", (2,), accum_dtype=dtypes.f64, out_dtype=dtypes.f16), "f32[3]", "f16[2]"),
    (ReduceWindow("max", (2,), out_dtype=dtypes.ui8), "si32[3]", "ui8[2]"),
    (ExtractPatches(()), "i1[2, 3]", "i1[2, 3]"),
    (ExtractPatches((2,)), "f32[1, 5, 3]", "f32[1, 4, 6]"),
    (
        ExtractPatches((2, 3), (1, 2), (1, 1, 0, 2), (2, 1)),
        "bf16[2, 5, 7, 3]",
        "bf16[2, 5, 4, 18]",
    ),
    (ExtractPatches((2,), value=scalar(-1, dtypes.si4)), "si4[1, 3, 2]", "si4[1, 2, 4]"),
    (ExtractPatches((2,), padding=(1, 1), value=scalar(1j, dtypes.cf64)), "cf64[1, 0, 2]",
     "cf64[1, 1, 4]"),
    (ExtractPatches((4,)), "f32[1, 3, 0]", "f32[1, 0, 0]"),
]  # fmt: skip

BAD = [
    (
        ReduceWindow("mean", (1,)),
        "f32[2]",
        "`reduce_window` attribute `kind` must be one of sum, prod, max, min, got `mean`",
    ),
    (
        ReduceWindow("max", (1,)),
        "cf32[2]",
        "`reduce_window` of cf32[2] needs a signed or unsigned or float element type",
    ),
    (
        ReduceWindow("sum", (1,)),
        "i1[2]",
        "`reduce_window` of i1[2] needs a signed or unsigned or float or complex element type",
    ),
    (
        ReduceWindow("max", (1,), accum_dtype=dtypes.f32),
        "f32[2]",
        "`reduce_window` of f32[2] of kind max takes no accum_dtype",
    ),
    (
        ReduceWindow("sum", (1,), accum_dtype=dtypes.si32),
        "f32[2]",
        "`reduce_window` of f32[2] cannot accumulate in or return si32",
    ),
    (
        ReduceWindow("sum", (1,)),
        "f32[2, 2]",
        "`reduce_window` of f32[2, 2] needs 2 integers >= 1 in `window`, got [1]",
    ),
    (
        ReduceWindow("sum", (0,)),
        "f32[2]",
        "`reduce_window` of f32[2] needs 1 integers >= 1 in `window`, got [0]",
    ),
    (
        ReduceWindow("sum", (1,), strides=(0,)),
        "f32[2]",
        "`reduce_window` of f32[2] needs 1 integers >= 1 in `strides`, got [0]",
    ),
    (
        ReduceWindow("sum", (1,), strides=()),
        "f32[2]",
        "`reduce_window` of f32[2] needs 1 integers >= 1 in `strides`, got []",
    ),
    (
        ReduceWindow("sum", (1,), dilation=(-1,)),
        "f32[2]",
        "`reduce_window` of f32[2] needs 1 integers >= 1 in `dilation`, got [-1]",
    ),
    (
        ReduceWindow("sum", (1,), padding=(0, -1)),
        "f32[2]",
        "`reduce_window` of f32[2] needs 2 integers >= 0 in `padding`, got [0, -1]",
    ),
    (
        ReduceWindow("sum", (1, 1), padding=(1, 1)),
        "f32[2, 2]",
        "`reduce_window` of f32[2, 2] needs 4 integers >= 0 in `padding`, got [1, 1]",
    ),
    (
        ReduceWindow("sum", (2**48,), padding=(2**48, 0)),
        "f32[2]",
        "`f32[281474976710658]` has more than 2^48 elements",
    ),
    (
        ExtractPatches(()),
        "f32[2]",
        "`extract_patches` of f32[2] needs (N, spatial.., C): at least 2 axes",
    ),
    (
        ExtractPatches((1, 1, 1)),
        "f32[1, 2, 3]",
        "`extract_patches` of f32[1, 2, 3] needs 1 integers >= 1 in `window`, got [1, 1, 1]",
    ),
    (
        ExtractPatches((2,), value=scalar(0, dtypes.f64)),
        "f32[1, 2, 3]",
        "`extract_patches` of f32[1, 2, 3] needs a value of the same type, got f64",
    ),
    (
        ExtractPatches((1,), padding=(2**47, 2**47)),
        "f32[1, 0, 3]",
        "`f32[1, 281474976710656, 3]` has more than 2^48 elements",
    ),
]


@pytest.mark.parametrize(("op", "operands", "result"), GOOD)
def test_result(op, operands, result, infer):
    assert infer(op, operands) == result


@pytest.mark.parametrize(("op", "operands", "message"), BAD)
def test_refusal(op, operands, message, refusal):
    assert refusal(op, operands) == message


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [(0, 0), (1, 0), (2, 3)])
@pytest.mark.parametrize("dilation", [1, 2])
def test_positions_are_those_that_fit(size, stride, padding, dilation):
    axis = AxisWindow(size, stride, *padding, dilation)
    for dim in range(12):
        end = padding[0] + dim + padding[1]
        last_reads = (start + (size - 1) * dilation for start in range(0, end, stride))
        assert axis.positions(dim) == sum(read < end for read in last_reads)


@pytest.mark.parametrize(
    ("op", "dtype", "accumulator"),
    [
        (ReduceWindow("sum", ()), dtypes.bf16, dtypes.f32),
        (ReduceWindow("prod", ()), dtypes.si8, dtypes.si8),
        (ReduceWindow("sum", (), accum_dtype=dtypes.f64), dtypes.f16, dtypes.f64),
        (ReduceWindow("max", ()), dtypes.f16, dtypes.f16),
    ],
)
def test_accumulator(op, dtype, accumulator):
    assert op.accumulator(TensorType(dtype, ())) is accumulator


def test_every_op_has_rows(registered):
    assert {op.name for op, *_ in GOOD} == registered(window)
