"""Literals: identity by bits, and the check of their storage."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from gptrs.errors import ProgramError
from gptrs.ir import Literal, TensorType, dtypes


def test_keeps_the_array():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    literal = Literal.of(array.T)
    assert str(literal.type) == "f32[3, 2]"
    np.testing.assert_array_equal(literal.array, array.T)
    assert not literal.array.flags.writeable


def test_is_stored_in_native_byte_order():
    assert Literal.of(np.array([1, 2], dtype=">i4")) == Literal.of(np.array([1, 2], dtype="<i4"))


def test_compares_by_bits():
    nan = Literal.full(float("nan"), dtypes.f32)
    assert nan == Literal.full(float("nan"), dtypes.f32)
    assert Literal.full(0.0, dtypes.f32) != Literal.full(-0.0, dtypes.f32)
    assert Literal.full(0.0, dtypes.f32) != Literal.full(0, dtypes.si32)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_full(dtype):
    literal = Literal.full(1, dtype, (2, 3))
    assert literal.type == TensorType(dtype, (2, 3))
    assert (literal.array == np.ones(1, dtype=dtype.numpy)).all()
    assert literal.splat == np.ones(1, dtype=dtype.numpy).tobytes()


@pytest.mark.parametrize(
    ("array", "is_splat"),
    [([1, 1], True), ([1, 2], False), ([], False), (7, True), ([0.0, -0.0], False)],
)
def test_splat(array, is_splat):
    assert (Literal.of(np.array(array, dtype=np.float32)).splat is not None) == is_splat


def test_four_bit_integers_have_one_storage_form():
    negative = np.frombuffer(b"\xff", dtype=ml_dtypes.int4)
    assert Literal.of(negative) == Literal.full(-1, dtypes.si4, (1,))


@pytest.mark.parametrize(
    ("type_", "data", "message"),
    [
        (TensorType(dtypes.f32, (2,)), b"1234", "a literal of `f32[2]` needs 8 bytes, got 4"),
        (
            TensorType(dtypes.i1, (1,)),
            b"\x02",
            "a literal of `i1[1]` has an element of more than 1 bits",
        ),
        (
            TensorType(dtypes.si4, ()),
            b"\xff",
            "a literal of `si4[]` has an element of more than 4 bits",
        ),
    ],
)
def test_refuses_wrong_storage(type_, data, message):
    with pytest.raises(ProgramError) as caught:
        Literal(type_, data)
    assert str(caught.value) == message
