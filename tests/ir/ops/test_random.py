"""Inference and refusals of the random ops, and the numbers that define them."""

from __future__ import annotations

import math
import re

import pytest

from gptrs.ir import dtypes, random_constants
from gptrs.ir.ops import random
from gptrs.ir.ops.random import RngNormal, RngUniform
from gptrs.ir.tensor_type import TensorType

GOOD = [
    (RngUniform((2, 3), dtypes.f32), "ui64[2]", "f32[2, 3]"),
    (RngUniform((), dtypes.ui32), "ui64[2]", "ui32[]"),
    (RngUniform((0, 5), dtypes.ui64), "ui64[2]", "ui64[0, 5]"),
    (RngUniform((7,), dtypes.f8e5m2), "ui64[2]", "f8e5m2[7]"),
    (RngNormal((), dtypes.f64), "ui64[2]", "f64[]"),
    (RngNormal((1, 0), dtypes.bf16), "ui64[2]", "bf16[1, 0]"),
]

FLOATS = "f8e4m3 f8e5m2 bf16 f16 f32 f64"

BAD = [
    (
        RngUniform((2,), dtypes.f32),
        "si64[2]",
        "`rng_uniform` of si64[2] needs a seed of ui64[2]",
    ),
    (RngNormal((2,), dtypes.f32), "ui64[]", "`rng_normal` of ui64[] needs a seed of ui64[2]"),
    (RngNormal((2,), dtypes.f32), "ui64[3]", "`rng_normal` of ui64[3] needs a seed of ui64[2]"),
    (
        RngUniform((2,), dtypes.si32),
        "ui64[2]",
        f"`rng_uniform` of ui64[2] needs one of the dtypes ui32 ui64 {FLOATS}, got si32",
    ),
    (
        RngNormal((2,), dtypes.ui32),
        "ui64[2]",
        f"`rng_normal` of ui64[2] needs one of the dtypes {FLOATS}, got ui32",
    ),
    (
        RngUniform((2, -1), dtypes.f32),
        "ui64[2]",
        "a tensor type needs dims >= 0, got `f32[2, -1]`",
    ),
    (
        RngUniform((2**48, 2), dtypes.f32),
        "ui64[2]",
        "`f32[281474976710656, 2]` has more than 2^48 elements",
    ),
]


@pytest.mark.parametrize(("op", "operands", "result"), GOOD)
def test_result(op, operands, result, infer):
    assert infer(op, operands) == result


@pytest.mark.parametrize(("op", "operands", "message"), BAD)
def test_refusal(op, operands, message, refusal):
    assert refusal(op, operands) == message


@pytest.mark.parametrize("op", [RngUniform((3,), dtypes.f16), RngNormal((3,), dtypes.f16)])
def test_kernels_are_chosen_by_the_type_of_the_numbers(op):
    seed = TensorType(dtypes.ui64, (2,))
    assert op.key_dtype([seed], [op.infer(seed)]) is dtypes.f16


@pytest.mark.parametrize(
    ("pair", "published"),
    [
        (random_constants.CENTRAL, 55.8831928806149014439),
        (random_constants.MIDDLE, 49.33206503301610289036),
        (random_constants.FAR, 47.52583317549289671629),
    ],
)
def test_coefficients_have_the_hash_sums_of_the_publication(pair, published):
    # The sum of the mantissas d.ddd, without the last 1.0 of the denominator.
    coefficients = [*pair[0], *pair[1][:-1]]
    mantissas = [float(f"{coefficient:.17e}".split("e")[0]) for coefficient in coefficients]
    assert math.fsum(mantissas) == pytest.approx(published, rel=0, abs=2e-14)


def test_the_definition_states_every_number():
    names = ("CENTRAL", "MIDDLE", "FAR")
    coefficients = [c for name in names for part in getattr(random_constants, name) for c in part]
    stated = re.findall(r"\d+\.\d+(?:e-\d+)?", RngNormal.__doc__)
    for number in (*coefficients, random_constants.LN_2, random_constants.SQRT_HALF):
        assert repr(number) in stated
    hexadecimal = [*random_constants.PHILOX_MULTIPLIERS, *random_constants.PHILOX_KEY_STEPS]
    for number in hexadecimal:
        assert f"0x{number:X}" in RngUniform.__doc__
    for name, bits in random_constants.UNIFORM_BITS.items():
        assert f"{bits} for {name}" in RngUniform.__doc__


def test_every_op_has_rows(registered):
    assert {op.name for op, *_ in GOOD} == registered(random)
