"""Inference and refusals of the ops that put elements in order."""

from __future__ import annotations

import pytest

from gptrs.ir import dtypes
from gptrs.ir.ops import sorting
from gptrs.ir.ops.sorting import Sort, TopK

GOOD = [
    (Sort(0), "f32[5]", "f32[5]"),
    (Sort(1, descending=True, stable=False), "i1[2, 3] cf64[2, 3]", "i1[2, 3] cf64[2, 3]"),
    (Sort(0), "si4[0, 2] i1[0, 2] f32[0, 2]", "si4[0, 2] i1[0, 2] f32[0, 2]"),
    (TopK(2, 0), "f32[5]", "f32[2] si32[2]"),
    (TopK(5, 0, largest=False, indices_dtype=dtypes.si64), "ui64[5]", "ui64[5] si64[5]"),
    (TopK(0, 1), "i1[2, 3, 4]", "i1[2, 0, 4] si32[2, 0, 4]"),
    (TopK(0, 0), "bf16[0, 4]", "bf16[0, 4] si32[0, 4]"),
    (TopK(3, 0, indices_dtype=dtypes.si32), "i1[2147483648]", "i1[3] si32[3]"),
]

BAD = [
    (
        Sort(0),
        "cf32[2]",
        "`sort` of cf32[2] needs a bool or signed or unsigned or float element type",
    ),
    (Sort(0), "f32[2] f32[3]", "`sort` of f32[2], f32[3] needs operands of one shape"),
    (Sort(0), "f32[2] f32[2, 1]", "`sort` of f32[2], f32[2, 1] needs operands of one shape"),
    (Sort(1), "f32[2]", "`sort` of f32[2] has no axis 1"),
    (Sort(-1), "f32[2] i1[2]", "`sort` of f32[2], i1[2] has no axis -1"),
    (Sort(0), "f32[]", "`sort` of f32[] has no axis 0"),
    (Sort(0), "", "`sort` takes at least 1 operand (x), got 0"),
    (
        TopK(1, 0),
        "cf64[2]",
        "`top_k` of cf64[2] needs a bool or signed or unsigned or float element type",
    ),
    (TopK(1, 1), "f32[2]", "`top_k` of f32[2] has no axis 1"),
    (TopK(1, -1), "f32[2]", "`top_k` of f32[2] has no axis -1"),
    (TopK(1, 0), "f32[]", "`top_k` of f32[] has no axis 0"),
    (TopK(3, 0), "f32[2]", "`top_k` of f32[2] cannot give 3 elements of axis 0"),
    (TopK(-1, 0), "f32[2]", "`top_k` of f32[2] cannot give -1 elements of axis 0"),
    (
        TopK(1, 0, indices_dtype=dtypes.ui32),
        "f32[2]",
        "`top_k` of f32[2] needs indices of si32 or si64, got ui32",
    ),
    (
        TopK(1, 0, indices_dtype=dtypes.si32),
        "i1[2147483649]",
        "`top_k` of i1[2147483649] needs indices of si64 for the size of axis 0",
    ),
    (TopK(1, 0), "f32[2] f32[2]", "`top_k` takes 1 operand (x), got 2"),
]


@pytest.mark.parametrize(("op", "operands", "results"), GOOD)
def test_result(op, operands, results, infer):
    assert infer(op, operands) == results


@pytest.mark.parametrize(("op", "operands", "message"), BAD)
def test_refusal(op, operands, message, refusal):
    assert refusal(op, operands) == message


def test_every_op_has_rows(registered):
    assert {op.name for op, *_ in GOOD} == registered(sorting)
