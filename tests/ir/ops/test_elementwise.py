"""Inference and refusals of the elementwise ops."""

from __future__ import annotations

import pytest

from gptrs.ir import OPS, dtypes
from gptrs.ir.ops import elementwise
from gptrs.ir.ops.elementwise import (
    Binary,
    Bitcast,
    Cast,
    Clamp,
    Compare,
    IsFinite,
    Select,
    StopGradient,
    Unary,
)

UNARY = {
    "neg abs sign": "signed unsigned float",
    "neg exp expm1 log log1p sqrt rsqrt reciprocal sin cos tanh": "complex float",
    "logistic erf floor ceil round_nearest_even": "float",
    "not": "bool signed unsigned",
    "stop_gradient": "bool signed unsigned float complex",
}
BINARY = {
    "add sub mul div": "signed unsigned float complex",
    "rem": "signed unsigned float",
    "pow": "float complex",
    "maximum minimum": "bool signed unsigned float",
    "and or xor": "bool signed unsigned",
    "shift_left shift_right_arithmetic shift_right_logical": "signed unsigned",
}


def accepted(table: dict[str, str]) -> dict[str, set[str]]:
    kinds: dict[str, set[str]] = {}
    for names, accepts in table.items():
        for name in names.split():
            kinds.setdefault(name, set()).update(accepts.split())
    return kinds


UNARY_KINDS, BINARY_KINDS = accepted(UNARY), accepted(BINARY)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
@pytest.mark.parametrize("name", UNARY_KINDS)
def test_unary(name, dtype, infer, refusal):
    op = OPS[name]()
    for shape in ("", "2, 3", "0, 4"):
        operand = f"{dtype}[{shape}]"
        if dtype.kind in UNARY_KINDS[name]:
            assert infer(op, operand) == operand
        else:
            assert isinstance(op, Unary)
            wanted = " or ".join(op.kinds)
            assert refusal(op, operand) == f"`{name}` of {operand} needs a {wanted} element type"
            assert set(op.kinds) == UNARY_KINDS[name]


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
@pytest.mark.parametrize("name", BINARY_KINDS)
def test_binary(name, dtype, infer, refusal):
    op = OPS[name]()
    assert isinstance(op, Binary)
    operand = f"{dtype}[2, 0]"
    if dtype.kind in BINARY_KINDS[name]:
        assert infer(op, f"{operand} {operand}") == operand
    else:
        wanted = " or ".join(op.kinds)
        message = f"`{name}` of {operand} needs a {wanted} element type"
        assert refusal(op, f"{operand} {operand}") == message
        assert set(op.kinds) == BINARY_KINDS[name]


@pytest.mark.parametrize("name", BINARY_KINDS)
def test_binary_needs_one_type(name, refusal):
    op = OPS[name]()
    assert refusal(op, "si32[2] ui32[2]") == (
        f"`{name}` of si32[2], ui32[2] needs operands of one element type; `cast` one side"
    )
    assert refusal(op, "f32[2] f32[]") == (
        f"`{name}` of f32[2], f32[] needs operands of one shape; use `broadcast_to`"
    )
    assert refusal(op, "f32[2]") == f"`{name}` takes 2 operands (lhs, rhs), got 1"


GOOD = [
    (IsFinite(), "f32[2]", "i1[2]"),
    (IsFinite(), "cf64[]", "i1[]"),
    *((Compare(way), "si4[3] si4[3]", "i1[3]") for way in ("lt", "le", "eq", "ge", "gt", "ne")),
    (Compare("eq"), "cf32[] cf32[]", "i1[]"),
    (Compare("ne"), "cf32[0] cf32[0]", "i1[0]"),
    (Compare("lt"), "i1[2] i1[2]", "i1[2]"),
    (Select(), "i1[2] f32[2] f32[2]", "f32[2]"),
    (Select(), "i1[] i1[] i1[]", "i1[]"),
    (Clamp(), "f16[0] f16[0] f16[0]", "f16[0]"),
    (Clamp(), "ui8[] ui8[] ui8[]", "ui8[]"),
    *((Cast(dtype), "f32[2, 2]", f"{dtype}[2, 2]") for dtype in dtypes.ALL),
    (Cast(dtypes.i1), "cf32[]", "i1[]"),
    (Cast(dtypes.cf32), "cf64[]", "cf32[]"),
    (Bitcast(dtypes.si32), "f32[0]", "si32[0]"),
    (Bitcast(dtypes.f8e5m2), "ui8[]", "f8e5m2[]"),
    (Bitcast(dtypes.cf32), "si64[2]", "cf32[2]"),
    (StopGradient(), "f32[1]", "f32[1]"),
]

BAD = [
    (IsFinite(), "si8[]", "`is_finite` of si8[] needs a float or complex element type"),
    (
        Compare("lt"),
        "cf32[2] cf32[2]",
        "`compare` of cf32[2], cf32[2] cannot order complex numbers by `lt`",
    ),
    (
        Compare("lt"),
        "f32[2] f16[2]",
        "`compare` of f32[2], f16[2] needs operands of one element type; `cast` one side",
    ),
    (
        Compare("is"),
        "f32[] f32[]",
        "`compare` attribute `direction` must be one of lt, le, eq, ge, gt, ne, got `is`",
    ),
    (
        Select(),
        "f32[2] f32[2] f32[2]",
        "`select` of f32[2], f32[2], f32[2] needs an i1 predicate",
    ),
    (
        Select(),
        "i1[] f32[2] f32[2]",
        "`select` of i1[], f32[2], f32[2] needs a predicate of the same shape",
    ),
    (
        Select(),
        "i1[2] f32[2] f64[2]",
        "`select` of f32[2], f64[2] needs operands of one element type; `cast` one side",
    ),
    (
        Select(),
        "i1[2] f32[2] f32[1]",
        "`select` of f32[2], f32[1] needs operands of one shape; use `broadcast_to`",
    ),
    (
        Clamp(),
        "f32[2] f32[] f32[2]",
        "`clamp` of f32[2], f32[], f32[2] needs operands of one shape; use `broadcast_to`",
    ),
    (Clamp(), "i1[] i1[] i1[]", "`clamp` of i1[] needs a signed or unsigned or float element type"),
    (Cast(dtypes.f32), "cf32[2]", "`cast` of cf32[2] to f32 would drop the imaginary part"),
    (
        Bitcast(dtypes.si64),
        "f32[]",
        "`bitcast` of f32[] to si64 needs types of equal width, i1 excluded",
    ),
    (
        Bitcast(dtypes.i1),
        "i1[]",
        "`bitcast` of i1[] to i1 needs types of equal width, i1 excluded",
    ),
]


@pytest.mark.parametrize(("op", "operands", "result"), GOOD)
def test_result(op, operands, result, infer):
    assert infer(op, operands) == result


@pytest.mark.parametrize(("op", "operands", "message"), BAD)
def test_refusal(op, operands, message, refusal):
    assert refusal(op, operands) == message


def test_every_op_has_rows(registered):
    named = {op.name for op, *_ in GOOD} | set(UNARY_KINDS) | set(BINARY_KINDS)
    assert named == registered(elementwise)
