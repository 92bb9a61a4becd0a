"""`constant` and `iota` on every element type."""

from __future__ import annotations

import numpy as np
import pytest

from backends.op_runner import run_op
from gptrs.backend.contract import Backend
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.literal_text import Literal
from gptrs.ir.ops.creation import Constant, Iota
from gptrs_conformance.numerics import decode
from gptrs_conformance.samples import sample

pytestmark = pytest.mark.sample(0)  # the cases of the kit are run where each is compiled

LIMITS = {"si4": 8, "ui4": 16, "f8e4m3": 17, "f8e5m2": 9, "si8": 128, "ui8": 256}


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (3, 5)], ids=str)
def test_constant(backend: Backend, shape: tuple[int, ...], dtype: DType) -> None:
    value = sample(dtype, shape)
    found = run_op(backend, Constant(Literal.of(value)))
    assert found.tobytes() == value.tobytes()
    assert found.flags.writeable


def test_constant_of_one_element_repeated(backend: Backend) -> None:
    found = run_op(backend, Constant(Literal.full(-0.0, dtypes.f32, (65, 129))))
    assert found.tobytes() == np.full((65, 129), -0.0, np.float32).tobytes()


@pytest.mark.parametrize("dtype", dtypes.INTEGERS + dtypes.FLOATS, ids=str)
def test_iota_up_to_the_last_exact_index(backend: Backend, dtype: DType) -> None:
    count = LIMITS.get(dtype.name, 257)
    found = run_op(backend, Iota((count,), 0, dtype))
    values = decode(found) if dtype.is_float else found
    assert [int(value) for value in values] == list(range(count))


@pytest.mark.parametrize(
    ("shape", "axis"), [((4,), 0), ((3, 4), 0), ((3, 4), 1), ((2, 0, 3), 2), ((65, 3, 129), 1)]
)
def test_iota_along_an_axis(backend: Backend, shape: tuple[int, ...], axis: int) -> None:
    found = run_op(backend, Iota(shape, axis, dtypes.si32))
    np.testing.assert_array_equal(found, np.indices(shape)[axis])


@pytest.mark.parametrize("shape", [(0, 2**40), (2**40, 0)], ids=str)
def test_iota_without_elements_along_a_long_axis(backend: Backend, shape: tuple[int, int]) -> None:
    for axis in (0, 1):
        assert run_op(backend, Iota(shape, axis, dtypes.si64)).shape == shape
