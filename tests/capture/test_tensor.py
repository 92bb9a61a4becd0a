"""Lazy tensors: what they stand for, when they are computed, what reading them gives."""

from __future__ import annotations

import contextvars
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import gptrs
from gptrs.capture import execute, primitives
from gptrs.capture.graph import Captured, Stored
from gptrs.capture.parameter import Parameter
from gptrs.capture.tensor import Tensor
from gptrs.errors import CheckpointError, ProgramError, UsageError
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType

pytestmark = pytest.mark.usefixtures("on_backend")


def test_tensor_copies_its_array():
    array = np.arange(3, dtype=np.float32)
    x = gptrs.tensor(array)
    array[0] = 7
    assert x.numpy().tolist() == [0, 1, 2]


def test_tensors_leave_as_lists_numbers_in_text_and_by_dlpack():
    x = gptrs.tensor([[1.5, 2.0]]) + 1
    assert x.tolist() == [[2.5, 3.0]]
    assert (x.ndim, x.size) == (2, 2)
    assert f"{gptrs.tensor(1.25):.1f} {gptrs.tensor(7):03d}" == "1.2 007"
    with pytest.raises(UsageError, match="a format needs a tensor of one element"):
        format(x, ".2f")
    taken = np.from_dlpack(x)
    taken[0, 0] = 9  # a copy
    assert x.tolist() == [[2.5, 3.0]]


def test_arrays_of_other_libraries_come_by_dlpack():
    array = np.arange(3, dtype=np.int32)
    x = gptrs.from_dlpack(array)
    array[0] = 7
    assert (x.dtype, x.tolist()) == (dtypes.si32, [0, 1, 2])
    with pytest.raises(UsageError, match="takes an object with `__dlpack__`, got `list`"):
        gptrs.from_dlpack([1, 2])


def test_types_may_be_named():
    assert gptrs.tensor([1.0]).astype("bf16").dtype is dtypes.bf16
    assert gptrs.tensor([1.0]).astype("float16").dtype is dtypes.f16
    with pytest.raises(ProgramError, match="unknown dtype `float61`"):
        gptrs.tensor([1.0]).astype("float61")


def test_python_numbers_get_their_types():
    assert gptrs.tensor(1.5).dtype is dtypes.f32
    assert gptrs.tensor([1, 2]).dtype is dtypes.si64
    assert gptrs.tensor(True).dtype is dtypes.i1
    assert gptrs.tensor([1, 2], dtypes.f32).dtype is dtypes.f32
    assert gptrs.tensor(np.float64(1)).dtype is dtypes.f64


def test_strings_are_refused():
    with pytest.raises(ProgramError, match="no PTIR counterpart"):
        gptrs.tensor(np.array(["a"]))


def test_values_are_computed_when_read_and_kept():
    x = gptrs.tensor(np.ones(4, np.float32))
    y = primitives.exp(x)
    assert isinstance(y.source, Captured)
    assert "not computed yet" in repr(y)
    np.testing.assert_allclose(y.numpy(), np.full(4, np.e), rtol=1e-6)
    assert isinstance(y.source, Stored)


def test_ipython_shows_the_values_of_a_lazy_tensor():
    y = gptrs.tensor([1.0, 2.0]) + np.ones(2, np.float32)
    shown = list[str]()
    y._repr_pretty_(SimpleNamespace(text=shown.append), cycle=False)
    assert shown == ["Tensor(f32[2],\narray([2., 3.], dtype=float32))"]


def test_a_computed_intermediate_is_a_leaf_of_later_graphs():
    execute.program_cache.clear()
    y = primitives.exp(gptrs.tensor(np.ones(4, np.float32)))
    y.numpy()
    z = primitives.neg(y)
    z.numpy()
    primitives.neg(gptrs.tensor(np.ones(4, np.float32))).numpy()
    # Had `exp` been captured again, the last graph would not be the one before it.
    assert execute.program_cache.statistics.hits == 1


def test_the_array_read_is_read_only():
    view = primitives.neg(gptrs.tensor(np.ones(4, np.float32))).numpy()
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_rank_0_and_zero_sized():
    assert primitives.neg(gptrs.tensor(2.0)).item() == -2.0
    assert primitives.neg(gptrs.tensor(np.empty((0, 3), np.float32))).shape == (0, 3)
    assert primitives.neg(gptrs.tensor(np.empty((0, 3), np.float32))).numpy().shape == (0, 3)


def test_item_needs_one_element():
    with pytest.raises(UsageError, match=r"one element, got `f32\[2\]`"):
        gptrs.tensor([1.0, 2.0]).item()


def test_numbers_read_from_tensors():
    assert int(gptrs.tensor(3)) == 3
    assert float(gptrs.tensor(1.5)) == 1.5
    assert bool(gptrs.tensor(True))


def test_operators():
    x = gptrs.tensor([1.0, 2.0])
    y = (1 - x) * 2 + x / 2 - (-x)
    np.testing.assert_allclose(y.numpy(), [1.5, 1.0])
    np.testing.assert_allclose((gptrs.tensor([[1.0, 2.0]]) @ x).numpy(), [5.0])


def test_mixing_element_types_is_refused():
    with pytest.raises(UsageError, match="one element type"):
        gptrs.tensor([1.0]) + gptrs.tensor([1])


def test_a_fraction_is_no_integer():
    with pytest.raises(UsageError, match=r"number 0\.5 is not a value of si64"):
        gptrs.tensor([1]) + 0.5


def test_eager_mode_runs_each_op(monkeypatch):
    monkeypatch.setenv("GPTRS_EAGER", "1")
    y = primitives.exp(gptrs.tensor(np.zeros(2, np.float32)))
    assert isinstance(y.source, Stored)
    assert y.numpy().tolist() == [1, 1]


def test_parameters_load_on_first_use(backend):
    calls: list[int] = []

    def load() -> np.ndarray:
        calls.append(1)
        return np.ones(3, np.float32)

    parameter = Parameter(TensorType(dtypes.f32, (3,)), 1, "w", load, backend)
    w = Tensor.of_parameter(parameter)
    y = w + 1
    assert not calls
    assert not parameter.loaded
    assert y.numpy().tolist() == [2, 2, 2]
    assert (w * 2).numpy().tolist() == [2, 2, 2]
    assert calls == [1]


def test_a_source_that_gives_another_type_is_refused(backend):
    parameter = Parameter(
        TensorType(dtypes.f32, (3,)), 1, "w", lambda: np.ones(2, np.float32), backend
    )
    with pytest.raises(CheckpointError, match=r"`w` was declared as `f32\[3\]`.*`f32\[2\]`"):
        Tensor.of_parameter(parameter).numpy()


def test_host_values_computed_by_the_default_backend_join_any_other():
    from gptrs.plugins.manager import manager

    one, other = (manager().get_backend(None, threads) for threads in (1, 2))
    with gptrs.use_backend(other):
        committed = gptrs.tensor([1.0]) + 1
        committed.numpy()
    set_aside = contextvars.Context()  # outside of every scope
    free = set_aside.run(lambda: gptrs.tensor([1.0]) * 3)
    set_aside.run(free.numpy)
    assert committed.backend is other
    assert free.backend is None
    assert (committed + free).item() == 5
    assert one is not other


def test_operators_need_no_other_import():
    code = "import gptrs; print((gptrs.tensor([1.0]) + gptrs.tensor([2.0])).item())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "3.0\n"


def test_equality_goes_by_elements_with_numbers_arrays_and_tensors_alone():
    x = gptrs.tensor([0.0, 1.0])
    for other in (1, 1.0, True, np.float32(1), np.ones(2, np.float32), gptrs.ones((2,))):
        assert [(x == other).tolist(), (x != other).tolist()] == [[False, True], [True, False]]
    for other in ("1", None, [0.0, 1.0]):
        assert (x == other) is False
        assert (x != other) is True
