"""Inference and refusals of the ops without operands."""

from __future__ import annotations

import pytest

from gptrs.ir import Literal, dtypes
from gptrs.ir.ops import creation
from gptrs.ir.ops.creation import Constant, Iota

GOOD = [
    (Constant(Literal.full(1.5, dtypes.f32, (2, 3))), "", "f32[2, 3]"),
    (Constant(Literal.full(True, dtypes.i1)), "", "i1[]"),
    (Constant(Literal.full(0, dtypes.si4, (0, 2))), "", "si4[0, 2]"),
    (Iota((2, 3), 1, dtypes.si32), "", "si32[2, 3]"),
    (Iota((0,), 0, dtypes.f32), "", "f32[0]"),
    (Iota((8,), 0, dtypes.si4), "", "si4[8]"),
    (Iota((16,), 0, dtypes.ui4), "", "ui4[16]"),
    (Iota((100, 17), 1, dtypes.f8e4m3), "", "f8e4m3[100, 17]"),
    (Iota((9,), 0, dtypes.f8e5m2), "", "f8e5m2[9]"),
    (Iota((257,), 0, dtypes.bf16), "", "bf16[257]"),
    (Iota((2049,), 0, dtypes.f16), "", "f16[2049]"),
]

BAD = [
    (
        Constant(1.0),
        "",
        "`constant` attribute `value` must be a gptrs.ir.Literal, got `1.0`",
    ),
    (Constant(Literal.full(1, dtypes.f32)), "f32[]", "`constant` takes 0 operands, got 1"),
    (
        Iota((2,), 0, dtypes.i1),
        "",
        "`iota` of i1[2] needs a signed or unsigned or float element type",
    ),
    (
        Iota((2,), 0, dtypes.cf32),
        "",
        "`iota` of cf32[2] needs a signed or unsigned or float element type",
    ),
    (Iota((2,), 1, dtypes.f32), "", "`iota` of f32[2] has no axis 1"),
    (Iota((), 0, dtypes.f32), "", "`iota` of f32[] has no axis 0"),
    (Iota((-2,), 0, dtypes.f32), "", "a tensor type needs dims >= 0, got `f32[-2]`"),
    (
        Iota((9,), 0, dtypes.si4),
        "",
        "`iota` of si4[9] counts past 7, the last index exact in the type",
    ),
    (
        Iota((258,), 0, dtypes.bf16),
        "",
        "`iota` of bf16[258] counts past 256, the last index exact in the type",
    ),
    (
        Iota((2,), True, dtypes.f32),
        "",
        "`iota` attribute `axis` must be an integer of 64 bits, got `True`",
    ),
]


@pytest.mark.parametrize(("op", "operands", "result"), GOOD)
def test_result(op, operands, result, infer):
    assert infer(op, operands) == result


@pytest.mark.parametrize(("op", "operands", "message"), BAD)
def test_refusal(op, operands, message, refusal):
    assert refusal(op, operands) == message


def test_every_op_has_rows(registered):
    assert {op.name for op, *_ in GOOD} == registered(creation)
