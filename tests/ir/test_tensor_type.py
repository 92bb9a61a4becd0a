"""Tensor types: text, sizes and the bounds they keep."""

from __future__ import annotations

import numpy as np
import pytest

from gptrs.errors import ProgramError
from gptrs.ir import TensorType, dtypes
from gptrs.ir.tensor_type import MAX_ELEMENTS, MAX_RANK


@pytest.mark.parametrize(
    ("dtype", "shape", "text", "size", "nbytes"),
    [
        (dtypes.f32, (), "f32[]", 1, 4),
        (dtypes.f32, (2, 3), "f32[2, 3]", 6, 24),
        (dtypes.si4, (0, 5), "si4[0, 5]", 0, 0),
        (dtypes.cf64, (2,), "cf64[2]", 2, 32),
        (dtypes.i1, (MAX_ELEMENTS,), f"i1[{2**48}]", 2**48, 2**48),
    ],
)
def test_describes_itself(dtype, shape, text, size, nbytes):
    type_ = TensorType(dtype, shape)
    assert (str(type_), type_.rank, type_.size, type_.nbytes) == (text, len(shape), size, nbytes)


def test_equal_by_content():
    type_ = TensorType(dtypes.f32, (2,))
    assert type_ == TensorType(dtypes.f32, (2,))
    assert len({type_, TensorType(dtypes.f32, (2,)), type_.with_shape((3,))}) == 2
    assert type_.with_dtype(dtypes.i1) == TensorType(dtypes.i1, (2,))


def test_of_array():
    assert str(TensorType.of(np.zeros((2, 0), dtype=np.int16))) == "si16[2, 0]"
    assert str(TensorType.of(np.float64(1))) == "f64[]"


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((-1,), "a tensor type needs dims >= 0, got `f32[-1]`"),
        ((2**48, 2), "`f32[281474976710656, 2]` has more than 2^48 elements"),
        ((0, 2**49), "`f32[0, 562949953421312]` has more than 2^48 elements"),
        ((1,) * (MAX_RANK + 1), "a tensor type has at most 32 axes, got 33"),
    ],
)
def test_bounds(shape, message):
    with pytest.raises(ProgramError) as caught:
        TensorType(dtypes.f32, shape)
    assert str(caught.value) == message


def test_array_of_unknown_dtype():
    with pytest.raises(ProgramError, match="`<U1` has no PTIR counterpart"):
        TensorType.of(np.array("a"))
