"""Inference and refusals of the ops that move elements."""

from __future__ import annotations

import pytest

from gptrs.ir.ops import layout
from gptrs.ir.ops.layout import BroadcastTo, Concat, Reshape, Slice, Transpose

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
]


@pytest.mark.parametrize(("op", "operands", "result"), GOOD)
def test_result(op, operands, result, infer):
    assert infer(op, operands) == result


@pytest.mark.parametrize(("op", "operands", "message"), BAD)
def test_refusal(op, operands, message, refusal):
    assert refusal(op, operands).startswith(message)


def test_every_op_has_rows(registered):
    assert {op.name for op, *_ in GOOD} == registered(layout)
