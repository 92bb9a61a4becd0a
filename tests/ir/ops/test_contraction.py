"""Inference and refusals of dot_general."""

from __future__ import annotations

import pytest

from gptrs.ir import dtypes
from gptrs.ir.ops import contraction
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.tensor_type import TensorType

MATMUL = DotGeneral((1,), (0,))

GOOD = [
    (MATMUL, "f32[2, 3] f32[3, 4]", "f32[2, 4]"),
    (MATMUL, "si4[0, 3] si4[3, 4]", "si4[0, 4]"),
    (MATMUL, "cf32[2, 0] cf32[0, 4]", "cf32[2, 4]"),
    (DotGeneral((), ()), "f32[] f32[]", "f32[]"),
    (DotGeneral((), ()), "f32[2] f32[3]", "f32[2, 3]"),
    (DotGeneral((0, 1), (1, 0)), "f32[2, 3] f32[3, 2]", "f32[]"),
    (DotGeneral((2,), (1,), (0,), (0,)), "f16[5, 2, 3] f16[5, 3, 4]", "f16[5, 2, 4]"),
    (DotGeneral((3,), (3,), (1, 0), (0, 1)), "f32[2, 3, 4, 5] f32[3, 2, 6, 5]", "f32[3, 2, 4, 6]"),
    (DotGeneral((1,), (0,), out_dtype=dtypes.f32), "bf16[2, 3] bf16[3, 4]", "f32[2, 4]"),
    (
        DotGeneral((1,), (0,), accum_dtype=dtypes.si64, out_dtype=dtypes.si32),
        "si8[2, 3] si8[3, 4]",
        "si32[2, 4]",
    ),
]

BAD = [
    (
        MATMUL,
        "f32[2, 3] f16[3, 4]",
        "`dot_general` of f32[2, 3], f16[3, 4] needs operands of one element type; `cast` one side",
    ),
    (
        MATMUL,
        "i1[2, 3] i1[3, 4]",
        "`dot_general` of i1[2, 3] needs a signed or unsigned or float or complex element type",
    ),
    (
        MATMUL,
        "f32[3] f32[3, 4]",
        "`dot_general` of f32[3], f32[3, 4] needs distinct axes in [0, 1) for lhs, got [1]",
    ),
    (
        DotGeneral((0,), (1,), (1,), (1,)),
        "f32[2, 3] f32[2, 3]",
        "`dot_general` of f32[2, 3], f32[2, 3] needs distinct axes in [0, 2) for rhs, got [1, 1]",
    ),
    (
        DotGeneral((-1,), (0,)),
        "f32[2, 3] f32[3, 4]",
        "`dot_general` of f32[2, 3], f32[3, 4] needs distinct axes in [0, 2) for lhs, got [-1]",
    ),
    (
        DotGeneral((1,), ()),
        "f32[2, 3] f32[3]",
        "`dot_general` of f32[2, 3], f32[3]"
        " needs as many contract_lhs as contract_rhs axes, got [1], []",
    ),
    (
        DotGeneral((), (), (0,), ()),
        "f32[2] f32[2]",
        "`dot_general` of f32[2], f32[2] needs as many batch_lhs as batch_rhs axes, got [0], []",
    ),
    (
        MATMUL,
        "f32[2, 3] f32[4, 5]",
        "`dot_general` of f32[2, 3], f32[4, 5] pairs contract axis 1 of size 3 with 0 of 4",
    ),
    (
        DotGeneral((), (), (0,), (1,)),
        "f32[2] f32[2, 3]",
        "`dot_general` of f32[2], f32[2, 3] pairs batch axis 0 of size 2 with 1 of 3",
    ),
    (
        DotGeneral((1,), (0,), accum_dtype=dtypes.si32),
        "f32[2, 3] f32[3, 4]",
        "`dot_general` of f32[2, 3] cannot accumulate in or return si32",
    ),
    (
        DotGeneral([1], (0,)),
        "f32[2, 3] f32[3, 4]",
        "`dot_general` attribute `contract_lhs` must be"
        " a tuple of at most 1024 integers of 64 bits, got `[1]`",
    ),
    (MATMUL, "f32[2, 3]", "`dot_general` takes 2 operands (lhs, rhs), got 1"),
    (
        DotGeneral((), ()),
        f"f32[{'1, ' * 19}1] f32[{'1, ' * 19}1]",
        "a tensor type has at most 32 axes, got 40",
    ),
]


@pytest.mark.parametrize(("op", "operands", "result"), GOOD)
def test_result(op, operands, result, infer):
    assert infer(op, operands) == result


@pytest.mark.parametrize(("op", "operands", "message"), BAD)
def test_refusal(op, operands, message, refusal):
    assert refusal(op, operands) == message


@pytest.mark.parametrize(
    ("accum", "dtype", "accumulator"),
    [
        (None, dtypes.f8e4m3, dtypes.f32),
        (None, dtypes.f64, dtypes.f64),
        (None, dtypes.ui8, dtypes.ui8),
        (dtypes.ui32, dtypes.ui8, dtypes.ui32),
    ],
)
def test_accumulator(accum, dtype, accumulator):
    op = DotGeneral((1,), (0,), accum_dtype=accum)
    assert op.accumulator(TensorType(dtype, (2, 2))) is accumulator


def test_every_op_has_rows(registered):
    assert {op.name for op, *_ in GOOD} == registered(contraction)
