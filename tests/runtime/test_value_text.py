"""Values of every dtype, for people and as JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gptrs.ir import dtypes
from gptrs_observe.programs.report import json_values, shown_values


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array(1.5, np.float32), 1.5),
        (np.array([[1, 2], [3, 4]], np.uint64), [[1, 2], [3, 4]]),
        (np.array([2**64 - 1], np.uint64), [2**64 - 1]),
        (np.zeros((2, 0)), [[], []]),
        (np.array([True, False]), [True, False]),
        (np.array([np.nan, np.inf, -np.inf, -0.0]), ["nan", "inf", "-inf", -0.0]),
        (np.array([1 + 2j, complex(np.nan, -np.inf)], np.complex64), [[1.0, 2.0], ["nan", "-inf"]]),
        (np.array([0.1], np.float32), [float(np.float32(0.1))]),
        (np.array([1.5, np.nan]).astype(dtypes.bf16.numpy), [1.5, "nan"]),
        (np.array([448.0]).astype(dtypes.f8e4m3.numpy), [448.0]),
        (np.array([np.inf]).astype(dtypes.f8e5m2.numpy), ["inf"]),
        (np.array([-8, 7]).astype(dtypes.si4.numpy), [-8, 7]),
        (np.array(15).astype(dtypes.ui4.numpy), 15),
    ],
)
def test_json_is_exact_and_valid(array, expected):
    values = json_values(array)
    assert repr(values) == repr(expected)
    assert json.loads(json.dumps(values, allow_nan=False)) == expected


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_large_arrays_of_any_dtype_are_abbreviated(dtype):
    array = np.ones(1000, dtype.numpy)
    assert "..." in shown_values(array)
    assert len(shown_values(array)) < 200
    assert "..." not in shown_values(array[:3])


def test_odd_values_are_shown():
    assert shown_values(np.array([np.nan, np.inf, -0.0])) == "[nan inf -0.]"
    assert shown_values(np.array(2.5, np.float32)) == "2.5"
    assert shown_values(np.array([0.5, np.nan]).astype(dtypes.bf16.numpy)) == "[0.5 nan]"


@pytest.mark.parametrize("rank", range(1, 7))
def test_large_arrays_stay_short_whatever_their_rank(rank):
    shown = shown_values(np.ones((5,) * rank if rank > 2 else (100,) * rank))
    assert "..." in shown
    assert shown.count("\n") < 120
