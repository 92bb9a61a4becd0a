"""Convolutions on AMX: as exact as those of f32, on every geometry."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gptrs
from backend_numba.convolutions import (
    EPILOGUES,
    Case,
    arrays_of,
    computed,
    expected,
    parameter,
)
from gptrs import functionals as F
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.cost_model import VARIABLE, AmxWork, Convolution, amx_is_better
from gptrs_backend_numba.lowering.amx_convolution import UnitWeight
from gptrs_backend_numba.lowering.amx_matmul import VARIABLE as UNIT
from gptrs_backend_numba.lowering.amx_matmul import is_there

pytestmark = pytest.mark.skipif(not is_there(), reason="the processor has no AMX")

POINT = ((0, 0), (0, 0))
GEOMETRIES = (
    Case((1, 7, 7, 64), 48),
    Case((2, 7, 9, 40), 33, stride=(2, 2)),
    Case((1, 15, 14, 32), 16, (1, 1), (2, 2), POINT),
    Case((1, 14, 13, 33), 40, (1, 1), padding=POINT),
    Case((3, 6, 5, 31), 17, (1, 1), padding=((1, 2), (0, 1))),
    Case((1, 9, 9, 3), 5, (7, 7), (2, 2), ((3, 3), (3, 3))),
    Case((2, 5, 6, 4), 33, (3, 2), (2, 3), ((0, 1), (2, 1))),
    Case((1, 21, 20, 70), 20, (3, 5), (1, 1), ((2, 0), (1, 3))),
    Case((1, 8, 70, 16), 100, (2, 2), (2, 1), POINT),
    Case((1, 1, 1, 5), 7, (1, 1), padding=POINT),
)


def require_close(case: Case, arrays: dict[str, np.ndarray], found: np.ndarray) -> None:
    """The error is that of sums in f32, not that of products of bf16."""
    plain = dataclasses.replace(case, activation="none")
    sizes = {name: np.abs(array) for name, array in arrays.items()}
    size = expected(plain, sizes)
    depth = case.kernel[0] * case.kernel[1] * case.image[3] // case.groups
    allowed = 2.0**-24 * (16 + depth / 8) * size + 6 * depth * 2.0**-126
    assert (np.abs(found - expected(case, arrays)) <= allowed).all()


@pytest.fixture(autouse=True)
def _amx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(UNIT, raising=False)  # whoever runs the tests may have switched it off
    monkeypatch.setenv(VARIABLE, "amx")


@pytest.mark.paths
@pytest.mark.parametrize("case", GEOMETRIES, ids=str)
def test_all_geometries(case: Case) -> None:
    arrays = arrays_of(case)
    require_close(case, arrays, computed(case, arrays))


@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
def test_epilogues(epilogue: dict[str, object]) -> None:
    case = dataclasses.replace(Case((1, 14, 13, 33), 40), **epilogue)
    arrays = arrays_of(case)
    require_close(case, arrays, computed(case, arrays))


def test_sizes_from_the_smallest_to_the_largest() -> None:
    case = Case((1, 8, 8, 64), 32, normalized=False)
    for scale in (1e-18, 1e-6, 1e6, 1e18):
        arrays = arrays_of(case)
        for name in ("x", "weight"):
            arrays[name] *= np.float32(scale)
        require_close(case, arrays, computed(case, arrays))


@pytest.mark.parametrize(
    "case",
    [
        Case((1, 57, 31, 16), 72, residual=True, activation="relu"),
        Case((2, 40, 40, 40), 100, stride=(2, 2)),
        Case((1, 56, 56, 24), 100, (1, 1), padding=POINT),
    ],
    ids=str,
)
def test_threads_do_not_show(case: Case) -> None:
    arrays = arrays_of(case)
    alone = computed(case, arrays, create(1))
    for threads in (2, 3):
        assert computed(case, arrays, create(threads)).tobytes() == alone.tobytes()


def inverted_residual(arrays: dict[str, np.ndarray], stride: int, threads: int) -> np.ndarray:
    """A 1x1 layer, a depthwise one and another 1x1 one, of large images."""
    backend = create(threads)
    with gptrs.use_backend(backend):
        w = {name: parameter(name, array, backend) for name, array in arrays.items()}
        y = F.relu6(F.conv2d(gptrs.tensor(arrays["x"]), w["e"], w["s"]))
        y = F.relu6(F.depthwise_conv2d(y, w["d"], None, stride, 1))
        return F.conv2d(y, w["p"], w["b"]).numpy()


@pytest.mark.parametrize("stride", [1, 2])
def test_chains_of_layers(stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without the unit within rounding, also where an image has NaN, whatever the threads."""
    random = np.random.default_rng(6)
    shapes = {
        "x": (2, 45, 41, 40), "e": (72, 40, 1, 1), "d": (72, 1, 3, 3), "p": (10, 72, 1, 1),
        "s": (72,), "b": (10,),
    }  # fmt: skip
    arrays = {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    arrays["x"][1, 20, 7, 3] = np.nan
    found, *others = (inverted_residual(arrays, stride, threads) for threads in (1, 2, 3))
    assert all(np.array_equal(found, other, equal_nan=True) for other in others)
    monkeypatch.setenv(UNIT, "0")
    wanted = inverted_residual(arrays, stride, 1)
    assert not np.array_equal(found, wanted, equal_nan=True)
    assert np.isnan(wanted).any()
    assert np.allclose(found, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, np.finfo(np.float32).max])
@pytest.mark.parametrize("side", ["x", "weight"])
@pytest.mark.parametrize(
    "window",
    [
        {},
        {"stride": (2, 2)},
        {"kernel": (1, 1), "padding": POINT},
        {"kernel": (1, 1), "padding": POINT, "stride": (2, 2)},
    ],
    ids=str,
)
def test_what_is_not_finite_stays_where_it_is(
    value: float, side: str, window: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without the unit, also in the padding, where weights meet zeros."""
    case = Case((2, 9, 8, 40), 48, residual=True, normalized=False)
    case = dataclasses.replace(case, **window)
    arrays = arrays_of(case)
    arrays[side][(1, 6, 2, 1) if side == "x" else (1, 5, 0, 0)] = value
    found = computed(case, arrays)
    monkeypatch.setenv(VARIABLE, "direct")
    monkeypatch.setenv(UNIT, "0")
    wanted = computed(case, arrays)
    finite = np.isfinite(wanted)
    assert np.array_equal(found[~finite], wanted[~finite], equal_nan=True)
    assert np.allclose(found[finite], wanted[finite], rtol=1e-4, atol=1e-3)
    if not np.isfinite(value):
        assert 0 < (~finite).sum() < wanted.size


def test_it_is_the_unit_that_runs_unless_it_is_switched_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sums of vector units are another order of additions: the last bits tell them apart."""
    case = Case((1, 12, 12, 96), 32)
    arrays = arrays_of(case)
    found = computed(case, arrays)
    monkeypatch.setenv(UNIT, "0")
    without = computed(case, arrays)
    assert not np.array_equal(found, without)
    monkeypatch.setenv(VARIABLE, "direct")
    assert np.array_equal(computed(case, arrays), without)


def test_weights_that_are_no_parameters_stay_on_the_vector_units() -> None:
    case = Case((1, 12, 12, 96), 32)
    arrays = arrays_of(case)
    found = computed(case, arrays, constant=False)
    require_close(case, arrays, found)
    assert not np.array_equal(found, computed(case, arrays))


def test_a_weight_in_columns() -> None:
    """Inputs 16 apart are a pair; steps come before taps; what is missing is zero."""
    weight = np.arange(2 * 40 * 20, dtype=np.float32).reshape(2, 40, 20)
    layout = UnitWeight(2, 40, 20, 20, 1, 0)
    made = layout.packed(weight, 1)
    columns = made.view(np.float32).reshape(2, 2, 2, 16, 2, 16)
    assert columns[0, 0, 1, 3, 1, 5] == weight[1, 16 + 3, 5]
    assert columns[1, 1, 0, 7, 0, 2] == weight[0, 32 + 7, 16 + 2]
    assert not columns[:, 1, :, 8:].any()
    assert not columns[:, 1, :, :, 1].any()
    assert not columns[1, ..., 4:].any()


def test_the_cost_model_leaves_small_sums_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "auto")
    large = AmxWork(4, 144, 32, 81 * 512, 9 * 512 * 512)
    assert amx_is_better(large, Convolution(1, 7, 7, 512, 512), None)
    small = AmxWork(49, 1, 2, 784 * 24, 24 * 32)
    assert not amx_is_better(small, Convolution(1, 28, 28, 24, 32, 1), None)
    monkeypatch.setenv(VARIABLE, "winograd")
    assert not amx_is_better(large, Convolution(1, 7, 7, 512, 512), 2)


@pytest.mark.parametrize(
    ("work", "sizes"),
    [
        (AmxWork(4, 96, 48, 81 * 3072, 3072 * 768), (7, 7, 3072, 768)),
        (AmxWork(196, 3, 24, 3153 * 96, 96 * 384), (56, 56, 96, 384)),
        (AmxWork(49, 24, 12, 801 * 768, 768 * 192), (28, 28, 768, 192)),
    ],
    ids=str,
)
def test_the_cost_model_knows_that_pairs_are_slow_beside_amx(
    work: AmxWork, sizes: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers of ConvNeXt, which take 2 to 6 times as long by the direct kernel of pairs."""
    monkeypatch.setenv(VARIABLE, "auto")
    assert amx_is_better(work, Convolution(1, *sizes, 1, rounded=True), None)
    small = AmxWork(196, 1, 2, 3153 * 8, 32 * 8)
    assert not amx_is_better(small, Convolution(1, 56, 56, 8, 8, 1, rounded=True), None)
