"""`einsum` refuses equations that do not fit, and is one product for two operands."""

from __future__ import annotations

import numpy as np
import pytest

from functionals.calls import ops_of, zeros
from gptrs import functionals as F
from gptrs.errors import UsageError

X, Y = zeros(2, 3), zeros(3, 4)

REFUSALS = [
    ("ij->ij", (X, Y), "`einsum` cannot read 'ij->ij' as an equation for `f32[2, 3]`, `f32[3, 4]`"),
    ("ijk->ij", (X,), "`einsum` cannot read 'ijk->ij' as an equation for `f32[2, 3]`"),
    ("i...jk->i", (X,), "`einsum` cannot read 'i...jk->i' as an equation for `f32[2, 3]`"),
    ("ij->ik", (X,), "`einsum` cannot read 'ij->ik' as an equation for `f32[2, 3]`"),
    ("i0->i", (X,), "`einsum` cannot read 'i0->i' as an equation for `f32[2, 3]`"),
    ("ij->ii", (X,), "`einsum` needs each axis of a result once, got 'ij->ii'"),
    ("->", (), "`einsum` cannot read '->' as an equation for no operands"),
    ("ij", (np.ones((2, 3)),), "`einsum` takes a tensor as operand 0, got `ndarray`"),
]


@pytest.mark.parametrize(("equation", "operands", "message"), REFUSALS)
def test_refusal(equation: str, operands, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        F.einsum(equation, *operands)
    assert refused.value.message == message


def test_two_operands_are_one_product() -> None:
    assert ops_of(lambda x, y: F.einsum("ij,jk->ik", x, y), X, Y) == ["dot_general", "transpose"]


def test_axes_of_size_1_repeat() -> None:
    assert F.einsum("ij,jk->ijk", X, zeros(1, 4)).shape == (2, 3, 4)
    assert F.einsum("...j,...j->...", zeros(5, 1, 3), X).shape == (5, 2)
