"""Inference and refusals of the ops that address elements by another tensor."""

from __future__ import annotations

import pytest

from gptrs.ir.ops import indexing
from gptrs.ir.ops.indexing import (
    DynamicSlice,
    DynamicUpdateSlice,
    Gather,
    ScatterReduce,
    SegmentReduce,
    Take,
)

GOOD = [
    (Take(), "f32[5, 2] si32[3]", "f32[3, 2]"),
    (Take(), "f32[5, 2] ui8[]", "f32[2]"),
    (Take(), "f32[5] si64[2, 3]", "f32[2, 3]"),
    (Take(), "f32[0, 2] si64[0]", "f32[0, 2]"),
    (Gather(0), "f32[5, 2] si32[3, 2]", "f32[3, 2]"),
    (Gather(1), "f32[5, 2] si32[4, 9]", "f32[4, 9]"),
    (Gather(0), "i1[0] si32[0]", "i1[0]"),
    (DynamicSlice((2, 1)), "f32[5, 2] si32[2]", "f32[2, 1]"),
    (DynamicSlice((0,)), "f32[0] ui8[1]", "f32[0]"),
    (DynamicSlice(()), "f32[] si32[0]", "f32[]"),
    (DynamicUpdateSlice(), "f32[5, 2] f32[1, 2] si32[2]", "f32[5, 2]"),
    (DynamicUpdateSlice(), "f32[] f32[] si32[0]", "f32[]"),
    (DynamicUpdateSlice(), "f32[5] f32[0] si64[1]", "f32[5]"),
    (ScatterReduce(0, "add"), "f32[5, 2] si32[9, 1] f32[9, 1]", "f32[5, 2]"),
    (ScatterReduce(1, "mul"), "cf32[5, 2] ui8[5, 2] cf32[5, 2]", "cf32[5, 2]"),
    (ScatterReduce(0, "max"), "si4[0] si4[0] si4[0]", "si4[0]"),
    (ScatterReduce(0, "min"), "bf16[3] si64[0] bf16[0]", "bf16[3]"),
    (ScatterReduce(0, "replace"), "i1[3] si64[1] i1[1]", "i1[3]"),
    (ScatterReduce(2, "replace"), "cf64[3, 1, 2] si64[2, 1, 4] cf64[2, 1, 4]", "cf64[3, 1, 2]"),
    (SegmentReduce("sum", 4), "f32[3, 2] si32[3]", "f32[4, 2]"),
    (SegmentReduce("prod", 0), "cf32[0] si64[0]", "cf32[0]"),
    (SegmentReduce("max", 1), "ui4[3, 0, 2] ui4[3]", "ui4[1, 0, 2]"),
    (SegmentReduce("min", 2), "f8e4m3[0, 3] ui64[0]", "f8e4m3[2, 3]"),
]

BAD = [
    (Take(), "f32[5] f32[2]", "`take` of f32[2] needs a signed or unsigned element type"),
    (Take(), "f32[] si32[2]", "`take` of f32[], si32[2] needs at least one axis to look up in"),
    (Gather(0), "f32[5] i1[2]", "`gather` of i1[2] needs a signed or unsigned element type"),
    (
        Gather(0),
        "f32[5, 2] si32[2]",
        "`gather` of f32[5, 2], si32[2] needs operands of one rank that have axis 0",
    ),
    (
        Gather(1),
        "f32[5] si32[2]",
        "`gather` of f32[5], si32[2] needs operands of one rank that have axis 1",
    ),
    (
        Gather(0),
        "f32[] si32[]",
        "`gather` of f32[], si32[] needs operands of one rank that have axis 0",
    ),
    (Gather(0), "f32[5, 2] si32[1, 3]", "`gather` of f32[5, 2], si32[1, 3] reads 3 of 2 on axis 1"),
    (
        DynamicSlice((1,)),
        "f32[5] f32[1]",
        "`dynamic_slice` of f32[1] needs a signed or unsigned element type",
    ),
    (
        DynamicSlice((1,)),
        "f32[5] si32[]",
        "`dynamic_slice` of f32[5], si32[] needs a vector of 1 starts",
    ),
    (
        DynamicSlice((6,)),
        "f32[5] si32[1]",
        "`dynamic_slice` of f32[5] needs 1 sizes within its dims, got [6]",
    ),
    (
        DynamicSlice((-1,)),
        "f32[5] si32[1]",
        "`dynamic_slice` of f32[5] needs 1 sizes within its dims, got [-1]",
    ),
    (
        DynamicSlice((1, 1)),
        "f32[5] si32[1]",
        "`dynamic_slice` of f32[5] needs 1 sizes within its dims, got [1, 1]",
    ),
    (
        DynamicUpdateSlice(),
        "f32[5] f16[1] si32[1]",
        "`dynamic_update_slice` of f32[5], f16[1]"
        " needs operands of one element type; `cast` one side",
    ),
    (
        DynamicUpdateSlice(),
        "f32[5] f32[1] si32[2]",
        "`dynamic_update_slice` of f32[5], si32[2] needs a vector of 1 starts",
    ),
    (
        DynamicUpdateSlice(),
        "f32[5] f32[6] si32[1]",
        "`dynamic_update_slice` of f32[5], f32[6]"
        " needs an update of the same rank, no larger on any axis",
    ),
    (
        DynamicUpdateSlice(),
        "f32[5] f32[] si32[1]",
        "`dynamic_update_slice` of f32[5], f32[]"
        " needs an update of the same rank, no larger on any axis",
    ),
    (
        ScatterReduce(0, "sum"),
        "f32[5] si32[2] f32[2]",
        "`scatter_reduce` attribute `kind` must be one of add, mul, max, min, replace, got `sum`",
    ),
    (
        ScatterReduce(0, "add"),
        "f32[5] f32[2] f32[2]",
        "`scatter_reduce` of f32[2] needs a signed or unsigned element type",
    ),
    (
        ScatterReduce(0, "add"),
        "f32[5] si32[2] f16[2]",
        "`scatter_reduce` of f32[5], f16[2] needs operands of one element type; `cast` one side",
    ),
    (
        ScatterReduce(0, "add"),
        "i1[5] si32[2] i1[2]",
        "`scatter_reduce` of i1[5] needs a signed or unsigned or float or complex element type",
    ),
    (
        ScatterReduce(0, "max"),
        "cf32[5] si32[2] cf32[2]",
        "`scatter_reduce` of cf32[5] needs a signed or unsigned or float element type",
    ),
    (
        ScatterReduce(0, "add"),
        "f32[5] si32[2] f32[3]",
        "`scatter_reduce` of f32[5], si32[2], f32[3] needs indices and updates of one shape",
    ),
    (
        ScatterReduce(0, "add"),
        "f32[5] si32[] f32[]",
        "`scatter_reduce` of f32[5], si32[], f32[] needs operands of one rank that have axis 0",
    ),
    (
        ScatterReduce(0, "replace"),
        "f32[] si32[] f32[]",
        "`scatter_reduce` of f32[], si32[], f32[] needs operands of one rank that have axis 0",
    ),
    (
        ScatterReduce(-1, "replace"),
        "f32[5] si32[2] f32[2]",
        "`scatter_reduce` of f32[5], si32[2], f32[2] needs operands of one rank that have axis -1",
    ),
    (
        ScatterReduce(0, "add"),
        "f32[5, 2] si32[1, 3] f32[1, 3]",
        "`scatter_reduce` of f32[5, 2], si32[1, 3], f32[1, 3] writes 3 of 2 on axis 1",
    ),
    (
        SegmentReduce("and", 2),
        "si8[3] si32[3]",
        "`segment_reduce` attribute `kind` must be one of sum, prod, max, min, got `and`",
    ),
    (
        SegmentReduce("sum", 2),
        "f32[3] f32[3]",
        "`segment_reduce` of f32[3] needs a signed or unsigned element type",
    ),
    (
        SegmentReduce("sum", 2),
        "i1[3] si32[3]",
        "`segment_reduce` of i1[3] needs a signed or unsigned or float or complex element type",
    ),
    (
        SegmentReduce("min", 2),
        "cf64[3] si32[3]",
        "`segment_reduce` of cf64[3] needs a signed or unsigned or float element type",
    ),
    (
        SegmentReduce("sum", 2),
        "f32[3, 2] si32[2]",
        "`segment_reduce` of f32[3, 2], si32[2] needs a vector with one id a row",
    ),
    (
        SegmentReduce("sum", 2),
        "f32[3, 2] si32[3, 2]",
        "`segment_reduce` of f32[3, 2], si32[3, 2] needs a vector with one id a row",
    ),
    (
        SegmentReduce("sum", 2),
        "f32[] si32[]",
        "`segment_reduce` of f32[], si32[] needs a vector with one id a row",
    ),
    (
        SegmentReduce("sum", -1),
        "f32[3] si32[3]",
        "`segment_reduce` of f32[3], si32[3] needs num_segments >= 0, got -1",
    ),
    (
        SegmentReduce("sum", 2**49),
        "f32[3] si32[3]",
        "`f32[562949953421312]` has more than 2^48 elements",
    ),
]


@pytest.mark.parametrize(("op", "operands", "result"), GOOD)
def test_result(op, operands, result, infer):
    assert infer(op, operands) == result


@pytest.mark.parametrize(("op", "operands", "message"), BAD)
def test_refusal(op, operands, message, refusal):
    assert refusal(op, operands) == message


def test_every_op_has_rows(registered):
    assert {op.name for op, *_ in GOOD} == registered(indexing)
