"""What the kit takes of a backend that says that it flushes subnormal numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gptrs.ir import dtypes
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise as ops
from gptrs_conformance.flushing import judged
from gptrs_conformance.op_case import OpCase

TINY = np.float32(1e-40)
"""A subnormal f32."""


def taken(op: Op, inputs: list[list[float]], expected: list[float], found: list[float]) -> bool:
    arrays = tuple(np.array(values, np.float32) for values in inputs)
    case = OpCase(op, arrays, (np.array(expected),))
    array = np.array(found, np.float32)
    return case.tolerance.mismatch(array, judged(case, array, 0, dtypes.f32), dtypes.f32) is None


@pytest.mark.parametrize(
    ("found", "right"), [(2 * TINY, True), (0, True), (TINY, False), (1, False), (math.nan, False)]
)
def test_a_subnormal_result_may_be_zero_and_nothing_else(found, right):
    exact = float(TINY) + float(TINY)
    assert taken(ops.Add(), [[TINY, 1], [TINY, 2]], [exact, 3], [found, 3]) is right


@pytest.mark.parametrize(("found", "right"), [(-math.inf, True), (-7, False), (0, False)])
def test_an_operand_may_be_taken_for_zero(found, right):
    assert taken(ops.Log(), [[TINY]], [math.log(float(TINY))], [found]) is right


def test_other_elements_are_judged_as_ever():
    assert not taken(ops.Add(), [[TINY, 1], [1, 1]], [1, 2], [1, 0])
    assert not taken(ops.Mul(), [[1e-20], [1e-10]], [1e-30], [0])


def test_what_only_orders_or_moves_keeps_subnormal_numbers():
    for op in (ops.Neg(), ops.Maximum()):
        inputs = [[TINY]] if isinstance(op, ops.Neg) else [[TINY], [0]]
        expected = [-float(TINY)] if isinstance(op, ops.Neg) else [float(TINY)]
        assert not taken(op, inputs, expected, [0])
