"""Inference and refusals of the normalizations."""

from __future__ import annotations

import math

import pytest

from gptrs.ir.ops import normalization
from gptrs.ir.ops.normalization import LayerNorm

GOOD = [
    (LayerNorm(1e-5, 1), "f32[2, 3] f32[3] f32[3]", "f32[2, 3]"),
    (LayerNorm(0.0, 0), "bf16[2, 3] bf16[2] bf16[2]", "bf16[2, 3]"),
    (LayerNorm(1.0, 0), "f64[0] f64[0] f64[0]", "f64[0]"),
    (LayerNorm(1.0, 1), "f8e4m3[0, 3, 2] f8e4m3[3] f8e4m3[3]", "f8e4m3[0, 3, 2]"),
]

BAD = [
    (
        LayerNorm(1e-5, 1),
        "f32[2, 3] f16[3] f32[3]",
        "`layer_norm` of f32[2, 3], f16[3], f32[3] needs operands of one element type; "
        "`cast` one side",
    ),
    (
        LayerNorm(1e-5, 0),
        "si32[2] si32[2] si32[2]",
        "`layer_norm` of si32[2] needs a float element type",
    ),
    (
        LayerNorm(1e-5, 0),
        "cf32[2] cf32[2] cf32[2]",
        "`layer_norm` of cf32[2] needs a float element type",
    ),
    (LayerNorm(1e-5, 2), "f32[2, 3] f32[3] f32[3]", "`layer_norm` of f32[2, 3] has no axis 2"),
    (LayerNorm(1e-5, -1), "f32[2, 3] f32[3] f32[3]", "`layer_norm` of f32[2, 3] has no axis -1"),
    (LayerNorm(1e-5, 0), "f32[] f32[] f32[]", "`layer_norm` of f32[] has no axis 0"),
    (
        LayerNorm(-1e-5, 0),
        "f32[2] f32[2] f32[2]",
        "`layer_norm` of f32[2] needs a finite epsilon >= 0, got -1e-05",
    ),
    (
        LayerNorm(math.nan, 0),
        "f32[2] f32[2] f32[2]",
        "`layer_norm` of f32[2] needs a finite epsilon >= 0, got nan",
    ),
    (
        LayerNorm(math.inf, 0),
        "f32[2] f32[2] f32[2]",
        "`layer_norm` of f32[2] needs a finite epsilon >= 0, got inf",
    ),
    (
        LayerNorm(1e-5, 1),
        "f32[2, 3] f32[3] f32[2]",
        "`layer_norm` of f32[2, 3], f32[3], f32[2] needs a scale and a bias of [3]",
    ),
    (
        LayerNorm(1e-5, 1),
        "f32[2, 3] f32[1, 3] f32[1, 3]",
        "`layer_norm` of f32[2, 3], f32[1, 3], f32[1, 3] needs a scale and a bias of [3]",
    ),
    (
        LayerNorm(1, 0),
        "f32[2] f32[2] f32[2]",
        "`layer_norm` attribute `epsilon` must be a float, got `1`",
    ),
]


@pytest.mark.parametrize(("op", "operands", "result"), GOOD)
def test_result(op, operands, result, infer):
    assert infer(op, operands) == result


@pytest.mark.parametrize(("op", "operands", "message"), BAD)
def test_refusal(op, operands, message, refusal):
    assert refusal(op, operands) == message


def test_every_op_has_rows(registered):
    assert {op.name for op, *_ in GOOD} == registered(normalization)
