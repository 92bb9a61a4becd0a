"""The node tests of the ONNX standard: what is converted is right, the rest is refused by name."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")

import gptrs_onnx  # noqa: E402
from gptrs.errors import UnsupportedError  # noqa: E402

PARTS = 16
LEAST = 0.90
"""The share of all tests that pass; the others are strings, sequences and types PTIR lacks."""
BUILT_IN = {"bfloat16": 1.6e-2, "float16": 2e-3}
"""Units in the last place of narrow floats: sums are in another order than the standard's."""


@pytest.fixture(scope="module")
def cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        return load_model_tests(kind="node")


def part_of(cases: Sequence[Any], number: int) -> Iterator[Any]:
    """Yield the cases of one of PARTS parts, the same in every process."""
    return (case for case in cases if zlib.crc32(case.name.encode()) % PARTS == number)


def is_right(case: Any, backend: Any) -> bool:
    """Return whether a case passes, False if it is refused; AssertionError for another result."""
    try:
        model = gptrs_onnx.from_proto(case.model, backend)
        for inputs, outputs in case.data_sets:
            given = zip(case.model.graph.input, map(array_of, inputs), strict=True)
            found = model(**{slot.name: array for slot, array in given})
            for slot, wanted in zip(case.model.graph.output, map(array_of, outputs), strict=True):
                compare(case, slot.name, found[slot.name], np.asarray(wanted))
    except UnsupportedError:
        return False
    return True


def array_of(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def compare(case: Any, name: str, found: np.ndarray, wanted: np.ndarray) -> None:
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), (case.name, name)
    loose = BUILT_IN.get(str(found.dtype), 1e-3)
    if found.dtype.kind not in "biufc":
        found, wanted = found.astype(np.float32), wanted.astype(np.float32)
    tolerance = max(case.atol or 0, 1e-6, loose / 4 if loose > 1e-3 else 0)
    message = f"{case.name}, {name}"
    np.testing.assert_allclose(
        found, wanted, max(case.rtol, loose), tolerance, equal_nan=True, err_msg=message
    )


@pytest.mark.few(0)
def test_deformable_convolutions_are_right(cases: list[Any], backend: Any) -> None:
    bent = [case for case in cases if "deform_conv" in case.name]
    assert len(bent) >= 4
    assert all(is_right(case, backend) for case in bent)


@pytest.mark.slow
def test_a_part_passes_or_is_refused_on_numba(cases: list[Any]) -> None:
    results = [is_right(case, "numba") for case in part_of(cases, 3)]
    assert sum(results) > LEAST / 1.1 * len(results)


@pytest.mark.slow
def test_all_pass_or_are_refused_on_ref(cases: list[Any]) -> None:
    results = [is_right(case, "ref") for case in cases]
    assert len(results) > 1800
    assert sum(results) >= LEAST * len(results)
