"""Inference and refusals of the ops that move elements."""

from __future__ import annotations

import pytest

from gptrs.ir import dtypes
from gptrs.ir.literal_text import Literal, Scalar
from gptrs.ir.ops import layout
from gptrs.ir.ops.layout import (
    BroadcastTo,
    Concat,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Tile,
    Transpose,
)

NAN = Scalar(Literal.full(float("nan"), dtypes.f32))
TRUE = Scalar(Literal.full(True, dtypes.i1))

GOOD = [
    (Reshape((6,)), "f32[2, 3]", "f32[6]"),
    (Reshape((-1, 2)), "f32[2, 3]", "f32[3, 2]"),
    (Reshape((-1,)), "f32[0, 3]", "f32[0]"),
    (Reshape((0, 7)), "f32[0, 3]", "f32[0, 7]"),
    (Reshape((1, 1)), "f32[]", "f32[1, 1]"),
    (Reshape(()), "f32[1]", "f32[]"),
    (Transpose((1, 0)), "f32[2, 3]", "f32[3, 2]"),
    (Transpose((2, 0, 1)), "i1[2, 0, 4]", "i1[4, 2, 0]"),
    (Transpose(()), "f32[]", "f32[]"),
    (BroadcastTo((2, 3)), "f32[3]", "f32[2, 3]"),
    (BroadcastTo((2, 3)), "f32[2, 1]", "f32[2, 3]"),
    (BroadcastTo((4,)), "f32[]", "f32[4]"),
    (BroadcastTo((0, 3)), "f32[1, 3]", "f32[0, 3]"),
    (BroadcastTo(()), "f32[]", "f32[]"),
    (Slice((1, 0), (1, 2)), "f32[2, 3]", "f32[1, 2]"),
    (Slice((0,), (3,), (2,)), "f32[5]", "f32[3]"),
    (Slice((5,), (0,)), "f32[5]", "f32[0]"),
    (Slice((), ()), "f32[]", "f32[]"),
    (Slice((0,), (2,), (1,)), "f32[2]", "f32[2]"),
    (Concat(0), "f32[2, 3]", "f32[2, 3]"),
    (Concat(1), "f32[2, 3] f32[2, 0] f32[2, 4]", "f32[2, 7]"),
    (Pad((1, 0), (2, 0)), "f32[2, 3]", "f32[5, 3]"),
    (Pad((0,), (0,), (2,)), "f32[4]", "f32[10]"),
    (Pad((1,), (1,), (9,)), "f32[1]", "f32[3]"),
    (Pad((1,), (1,), (9,)), "f32[0]", "f32[2]"),
    (Pad((-1,), (-2,), (1,)), "f32[3]", "f32[2]"),
    (Pad((-3,), (0,)), "f32[3]", "f32[0]"),
    (Pad((-5,), (9,)), "f32[3]", "f32[7]"),
    (Pad((-(2**62),), (2**62,)), "f32[3]", "f32[3]"),
    (Pad((), ()), "f32[]", "f32[]"),
    (Pad((0,), (0,), (0,)), "f32[2]", "f32[2]"),
    (Pad((1,), (1,), value=NAN), "f32[2]", "f32[4]"),
    (Pad((1,), (1,), value=TRUE), "i1[2]", "i1[4]"),
    (Tile((2, 3)), "f32[2, 3]", "f32[4, 9]"),
    (Tile((0, 1)), "cf32[2, 3]", "cf32[0, 3]"),
    (Tile((7,)), "f32[0]", "f32[0]"),
    (Tile(()), "f32[]", "f32[]"),
    (Reverse((0, 2)), "f32[2, 3, 4]", "f32[2, 3, 4]"),
    (Reverse(()), "f32[]", "f32[]"),
    (Reverse((1,)), "si4[2, 0]", "si4[2, 0]"),
]

BAD = [
    (Reshape((5,)), "f32[2, 3]", "`reshape` of f32[2, 3] to [5] does not keep the number of"),
    (Reshape((-1, 4)), "f32[2, 3]", "`reshape` of f32[2, 3] to [-1, 4] does not keep the number"),
    (Reshape((-1, -1)), "f32[4]", "`reshape` of f32[4] to [-1, -1] does not keep the number of"),
    (Reshape((-1, 0)), "f32[0]", "`reshape` of f32[0] to [-1, 0] does not keep the number of"),
    (Reshape((-2, -3)), "f32[6]", "`reshape` of f32[6] to [-2, -3] does not keep the number of"),
    (Reshape((-1, -6)), "f32[6]", "`reshape` of f32[6] to [-1, -6] does not keep the number of"),
    (
        Transpose((0, 0)),
        "f32[2, 3]",
        "`transpose` of f32[2, 3] needs a permutation of 2 axes, got [0, 0]",
    ),
    (Transpose((0,)), "f32[2, 3]", "`transpose` of f32[2, 3] needs a permutation of 2 axes, got"),
    (
        Transpose((0, -1)),
        "f32[2, 3]",
        "`transpose` of f32[2, 3] needs a permutation of 2 axes, got [0, -1]",
    ),
    (
        BroadcastTo((3,)),
        "f32[2]",
        "`broadcast_to` of f32[2] to [3] needs each dim, aligned at the right, equal or 1",
    ),
    (BroadcastTo((2,)), "f32[1, 2]", "`broadcast_to` of f32[1, 2] to [2] needs each dim"),
    (BroadcastTo((-1,)), "f32[1]", "a tensor type needs dims >= 0, got `f32[-1]`"),
    (BroadcastTo((2**25, 2**25)), "f32[]", "`f32[33554432, 33554432]` has more than 2^48 elements"),
    (BroadcastTo((2**48, 2, 0)), "f32[]", "`f32[281474976710656, 2, 0]` has more than 2^48 eleme"),
    (Slice((0,), (1, 1)), "f32[2, 3]", "`slice` of f32[2, 3] needs 2 starts, sizes and strides"),
    (Slice((0,), (1,), (1, 1)), "f32[2]", "`slice` of f32[2] needs 1 starts, sizes and strides"),
    (
        Slice((0,), (1,), (0,)),
        "f32[2]",
        "`slice` of f32[2] needs start >= 0, size >= 0, stride >= 1 on axis 0, got 0, 1, 0",
    ),
    (Slice((-1,), (1,)), "f32[2]", "`slice` of f32[2] needs start >= 0, size >= 0, stride >= 1"),
    (Slice((0,), (-1,)), "f32[2]", "`slice` of f32[2] needs start >= 0, size >= 0, stride >= 1"),
    (Slice((1,), (2,)), "f32[2]", "`slice` of f32[2] reads up to 3 on axis 0, past its size"),
    (Slice((0,), (3,), (2,)), "f32[4]", "`slice` of f32[4] reads up to 5 on axis 0, past its size"),
    (Slice((3,), (0,)), "f32[2]", "`slice` of f32[2] reads up to 3 on axis 0, past its size"),
    (Concat(2), "f32[2, 3]", "`concat` of f32[2, 3] has no axis 2"),
    (Concat(-1), "f32[2]", "`concat` of f32[2] has no axis -1"),
    (Concat(0), "f32[]", "`concat` of f32[] has no axis 0"),
    (Concat(0), "", "`concat` takes at least 1 operand (x), got 0"),
    (Concat(0), "f32[2] f16[2]", "`concat` of f32[2], f16[2] needs operands of one element type"),
    (
        Concat(0),
        "f32[2, 3] f32[2, 4]",
        "`concat` of f32[2, 3], f32[2, 4] needs equal dims on every axis but 0",
    ),
    (Concat(0), "f32[2] f32[2, 1]", "`concat` of f32[2], f32[2, 1] needs equal dims on every"),
    (
        Pad((1,), (1,)),
        "f32[2, 3]",
        "`pad` of f32[2, 3] needs 2 integers in `low`, `high` and `interior`",
    ),
    (Pad((1,), (1, 1)), "f32[2]", "`pad` of f32[2] needs 1 integers in `low`, `high` and `int"),
    (Pad((1,), (1,), (0, 0)), "f32[2]", "`pad` of f32[2] needs 1 integers in `low`, `high`"),
    (
        Pad((1, 1), (1, 1), (0, -1)),
        "f32[2, 2]",
        "`pad` of f32[2, 2] needs `interior` >= 0 on axis 1, got -1",
    ),
    (
        Pad((0, -3), (0, -1), (0, 1)),
        "f32[2, 2]",
        "`pad` of f32[2, 2] trims axis 1 by 4, but has 3 elements there",
    ),
    (Pad((-1,), (0,)), "f32[0]", "`pad` of f32[0] trims axis 0 by 1, but has 0 elements there"),
    (Pad((1,), (1,), value=NAN), "f16[2]", "`pad` of f16[2] needs a value of the same type, got"),
    (Pad((2**47,), (2**47 + 1,)), "f32[0]", "`f32[281474976710657]` has more than 2^48 elements"),
    (Pad((0,), (0,), (2**62,)), "f32[9]", "`f32[36893488147419103241]` has more than 2^48"),
    (Tile((2,)), "f32[2, 3]", "`tile` of f32[2, 3] needs 2 integers >= 0 in `repeats`, got [2]"),
    (Tile((1, -1)), "f32[2, 3]", "`tile` of f32[2, 3] needs 2 integers >= 0 in `repeats`, got"),
    (Tile((1,)), "f32[]", "`tile` of f32[] needs 0 integers >= 0 in `repeats`, got [1]"),
    (Tile((2**48,)), "f32[2]", "`f32[562949953421312]` has more than 2^48 elements"),
    (Reverse((1, 0)), "f32[2, 3]", "`reverse` of f32[2, 3] needs ascending axes in [0, 2), got [1"),
    (Reverse((0, 0)), "f32[2]", "`reverse` of f32[2] needs ascending axes in [0, 1), got [0, 0]"),
    (Reverse((-1,)), "f32[2]", "`reverse` of f32[2] needs ascending axes in [0, 1), got [-1]"),
    (Reverse((0,)), "f32[]", "`reverse` of f32[] needs ascending axes in [0, 0), got [0]"),
]


@pytest.mark.parametrize(("op", "operands", "result"), GOOD)
def test_result(op, operands, result, infer):
    assert infer(op, operands) == result


@pytest.mark.parametrize(("op", "operands", "message"), BAD)
def test_refusal(op, operands, message, refusal):
    assert refusal(op, operands).startswith(message)


def test_every_op_has_rows(registered):
    assert {op.name for op, *_ in GOOD} == registered(layout)
