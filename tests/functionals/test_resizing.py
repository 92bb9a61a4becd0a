"""Resizing refuses what it does not know, and is captured as few ops."""

from __future__ import annotations

import pytest

from functionals.calls import ops_of, zeros
from gptrs import functionals as F
from gptrs.errors import UsageError

X = zeros(2, 3, 4)

REFUSALS = [
    (
        lambda: F.resize(X, (2,), (2,), "area"),
        '`resize` takes mode="nearest", "linear" or "cubic", got \'area\'',
    ),
    (
        lambda: F.resize(X, (2,), (2,), rounding="up"),
        '`resize` takes rounding="round_prefer_floor", "round_prefer_ceil", "floor" or "ceil", got'
        " 'up'",
    ),
    (
        lambda: F.resize(zeros(2, 3, dtype="i8"), (2,), (1,), "linear"),
        "`resize` needs a floating-point `x`, got `si64[2, 3]`",
    ),
    (
        lambda: F.resize(X, (2, 3), (2,)),
        "`resize` of `f32[2, 3, 4]` needs 2 `axes`, one for each size, got [2]",
    ),
    (
        lambda: F.resize(X, (2,), (2,), scales=(1.0, 2.0)),
        "`resize` of `f32[2, 3, 4]` needs 1 `scales`, one for each size, got [1.0, 2.0]",
    ),
    (
        lambda: F.resize(X, (2,), (3,)),
        "`resize` got axis 3 for `f32[2, 3, 4]`, which has 3 axes",
    ),
    (
        lambda: F.resize(zeros(2, 0), (3,), (1,)),
        "`resize` of `f32[2, 0]` cannot make 3 elements of none",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS)
def test_refusal(call, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        call()
    assert refused.value.message == message


def test_an_axis_that_keeps_its_size_costs_nothing() -> None:
    assert ops_of(lambda x: F.resize(x, (3, 4), (1, 2), "linear"), X) == []
    assert ops_of(lambda x: F.resize(x, (3, 8), (1, 2), "linear"), X) == [
        "transpose",
        "cast",
        "dot_general",
        "transpose",
    ]
    assert "take" in ops_of(lambda x: F.resize(x, (6,), (1,)), X)
