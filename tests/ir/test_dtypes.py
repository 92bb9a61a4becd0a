"""The table of element types and its two ways in."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from gptrs.errors import ProgramError
from gptrs.ir import dtypes

NAMES = "i1 si4 ui4 si8 ui8 si16 ui16 si32 ui32 si64 ui64 f8e4m3 f8e5m2 bf16 f16 f32 f64 cf32 cf64"


def test_all_dtypes_of_the_spec_exist():
    assert " ".join(str(dtype) for dtype in dtypes.ALL) == NAMES


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_found_by_name_and_by_numpy_dtype(dtype):
    assert dtypes.by_name(dtype.name) is dtype
    assert dtypes.from_numpy(dtype.numpy) is dtype
    assert dtype.itemsize == max(1, dtype.bits // 8)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_exactly_one_kind(dtype):
    assert sum([dtype.is_bool, dtype.is_integer, dtype.is_float, dtype.is_complex]) == 1


def test_groups():
    assert " ".join(map(str, dtypes.INTEGERS)) == "si4 ui4 si8 ui8 si16 ui16 si32 ui32 si64 ui64"
    assert " ".join(map(str, dtypes.FLOATS)) == "f8e4m3 f8e5m2 bf16 f16 f32 f64"


@pytest.mark.parametrize(
    ("dtype", "accumulator"),
    [("f8e4m3", "f32"), ("bf16", "f32"), ("f16", "f32"), ("f64", "f64"), ("si8", "si8")],
)
def test_accumulator(dtype, accumulator):
    assert dtypes.by_name(dtype).accumulator is dtypes.by_name(accumulator)


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ProgramError) as caught:
        dtypes.by_name("float32")
    assert str(caught.value) == f"unknown dtype `float32`; known dtypes: {NAMES}"


def test_byte_order_does_not_matter():
    assert dtypes.from_numpy(np.dtype(">f4")) is dtypes.f32


@pytest.mark.parametrize("dtype", ["U3", "O", "M8[s]", "longdouble", ml_dtypes.float8_e4m3b11fnuz])
def test_numpy_dtype_without_counterpart(dtype):
    with pytest.raises(ProgramError, match=r"^NumPy dtype `.*` has no PTIR counterpart; convert"):
        dtypes.from_numpy(np.dtype(dtype))
