"""Windows: geometries drawn at random against element-by-element code, and extreme ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.op_runner import run_op
from gptrs.backend.contract import Backend
from gptrs.capture import primitives
from gptrs.capture.graph import Captured
from gptrs.capture.tensor import Tensor, tensor
from gptrs.errors import ProgramError
from gptrs.ir import dtypes
from gptrs.ir.literal_text import Literal, Scalar
from gptrs.ir.op import Op
from gptrs.ir.ops.window import ExtractPatches, ReduceWindow
from gptrs_conformance.cases.window import expected_patches, expected_reduction
from gptrs_conformance.exact_values import exact_operand
from gptrs_conformance.numerics import decode

pytestmark = pytest.mark.sample(0)  # the cases of the kit are run where each is compiled


@st.composite
def geometries(draw: st.DrawFn, rank: int) -> tuple[tuple[int, ...], ...]:
    """Dims, window, strides, padding and dilation of a few axes."""

    def entries(low: int, high: int, count: int = rank) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(count))

    return entries(0, 6), entries(1, 4), entries(1, 3), entries(0, 3, 2 * rank), entries(1, 3)


@settings(max_examples=80, deadline=None)
@given(
    geometries(rank=2),
    st.sampled_from(["sum", "prod", "max", "min"]),
    st.sampled_from([dtypes.f32, dtypes.si8, dtypes.ui4, dtypes.bf16]),
    st.integers(0, 99),
)
def test_reductions(backend: Backend, geometry, kind, dtype, seed) -> None:
    dims, window, strides, padding, dilation = geometry
    op = ReduceWindow(kind, window, strides, padding, dilation)
    x = exact_operand(dtype, dims, np.random.default_rng(seed))
    found = run_op(backend, op, x)
    expected = expected_reduction(op, x)
    np.testing.assert_array_equal(decode(found), expected.astype(np.float64))


@settings(max_examples=80, deadline=None)
@given(geometries(rank=2), st.sampled_from([dtypes.f32, dtypes.i1, dtypes.si4]), st.integers(0, 99))
def test_patches(backend: Backend, geometry, dtype, seed) -> None:
    dims, window, strides, padding, dilation = geometry
    op = ExtractPatches(window, strides, padding, dilation, value=Scalar(Literal.full(1, dtype)))
    x = np.random.default_rng(seed).integers(0, 2, (2, *dims, 3)).astype(dtype.numpy)
    expected = expected_patches(op, x)
    np.testing.assert_array_equal(decode(run_op(backend, op, x)), expected.astype(np.float64))


def test_padding_is_not_materialized(backend: Backend) -> None:
    # Each window reaches from far outside up to one more element.
    op = ReduceWindow("sum", (2**40,), padding=(2**40, 0))
    x = np.array([1, 2, 4, 8, 16], np.int32)
    assert run_op(backend, op, x).tolist() == [0, 1, 3, 7, 15, 31]
    op = ReduceWindow("max", (1, 1), (2**40, 1), (2**40, 2**40, 0, 0))
    assert run_op(backend, op, x.reshape(5, 1)).tolist() == [[-(2**31)], [1], [-(2**31)]]


def test_patches_of_far_padding_are_not_materialized(backend: Backend) -> None:
    op = ExtractPatches((1,), (2**40,), (2**40, 2**40))
    x = np.arange(1, 4, dtype=np.float32).reshape(1, 3, 1)
    assert run_op(backend, op, x).reshape(-1).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    "op",
    [
        ReduceWindow("min", (1, 1, 1), padding=(2**40, 0, 0, 0, 0, 0)),
        ExtractPatches((2**40,), padding=(2**41, 0)),
    ],
)
def test_nothing_is_done_for_no_elements(backend: Backend, op: ReduceWindow | ExtractPatches):
    found = run_op(backend, op, np.zeros((1, 3, 0), np.float32))
    assert found.size == 0
    assert max(found.shape) > 2**40


@pytest.mark.parametrize("rank", [31, 32])
def test_the_greatest_rank(backend: Backend, rank: int) -> None:
    x = np.arange(4, dtype=np.float32).reshape((2, *(1,) * (rank - 2), 2))
    op = ReduceWindow("sum", (*(1,) * (rank - 1), 2))
    assert run_op(backend, op, x).reshape(-1).tolist() == [1, 5]
    patches = ExtractPatches((2, *(1,) * (rank - 3)), padding=(1, 0, *(0,) * (2 * rank - 6)))
    assert run_op(backend, patches, x).reshape(-1).tolist() == [0, 0, 0, 1, 0, 0, 2, 3]


def test_long_axes_shrink_before_short_ones_grow(backend: Backend) -> None:
    op = ReduceWindow("sum", (1, 2**16), padding=(2**16 - 1, 0, 0, 0))
    x = np.ones((1, 2**16), np.int32)
    found = run_op(backend, op, x)
    assert found.shape == (2**16, 1)
    assert found[-1, 0] == 2**16
    assert not found[:-1].any()


@pytest.mark.parametrize("view", [np.transpose, lambda x: x[::-1, ::-1], lambda x: x[1::2, ::2]])
def test_operands_may_be_views(backend: Backend, view) -> None:
    x = view(exact_operand(dtypes.f32, (6, 7), np.random.default_rng(0)))
    reduction = ReduceWindow("sum", (2, 2), (1, 2), (1, 0, 0, 1))
    np.testing.assert_array_equal(run_op(backend, reduction, x), expected_reduction(reduction, x))
    patches = ExtractPatches((2,), padding=(1, 0))
    deep = x[np.newaxis]
    np.testing.assert_array_equal(run_op(backend, patches, deep), expected_patches(patches, deep))


def captured(result: Tensor) -> Op:
    """The op that a tensor is the result of."""
    assert isinstance(result.source, Captured)
    return result.source.node.op


def test_primitives_leave_defaults_out_and_flatten_padding() -> None:
    x = tensor(np.zeros((4, 5), np.float32))
    plain = primitives.reduce_window(x, "max", [2, 3], [1, 1], [(0, 0), (0, 0)], [1, 1])
    assert captured(plain) == ReduceWindow("max", (2, 3))
    full = primitives.reduce_window(
        x, "sum", [2, 3], [1, 2], [(1, 2), (0, 3)], [2, 1], dtypes.f64, dtypes.f16
    )
    assert captured(full) == ReduceWindow(
        "sum", (2, 3), (1, 2), (1, 2, 0, 3), (2, 1), dtypes.f64, dtypes.f16
    )
    image = tensor(np.zeros((1, 5, 2), np.float16))
    assert captured(primitives.extract_patches(image, [3], [1])) == ExtractPatches((3,))
    filled = primitives.extract_patches(image, [3], padding=[(1, 0)], value=-1.5)
    value = Scalar(Literal.full(-1.5, dtypes.f16))
    assert captured(filled) == ExtractPatches((3,), padding=(1, 0), value=value)


def test_primitives_refuse_lists_of_defaults_of_another_length() -> None:
    x = tensor(np.zeros(4, np.float32))
    with pytest.raises(ProgramError, match="needs 1 integers >= 1 in `strides`, got"):
        primitives.reduce_window(x, "max", [2], [1, 1])
