"""Norms are as exact where the mean is far from 0, or the elements are equal, as anywhere else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import gptrs
from functionals.calls import running_on
from gptrs import functionals as F
from gptrs.backend.contract import Backend
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_conformance.numerics import decode, norm_tolerance
from gptrs_conformance.samples import as_float
from gptrs_conformance.uses.normalization import standardize

SHAPE = (2, 40, 24)
EPSILON = 1e-5
Norm = Callable[[gptrs.Tensor], gptrs.Tensor]


def plain(x: gptrs.Tensor) -> gptrs.Tensor:
    """The decomposition of other frameworks, that backends may have a kernel for."""
    apart = x - F.mean(x, -1, keepdims=True)
    return apart * F.rsqrt(F.mean(apart * apart, -1, keepdims=True) + EPSILON)


NORMS: dict[str, tuple[Norm, tuple[int, ...]]] = {
    "layer_norm": (F.layer_norm, (2, 3)),
    "layer_norm of two axes": (lambda x: F.layer_norm(x, axes=(1, 2)), (1, 2, 3)),
    "group_norm": (lambda x: F.group_norm(x, 6), (1, 3)),
    "group_norm of one group": (lambda x: F.group_norm(x, 1), (1, 2, 3)),
    "instance_norm": (F.instance_norm, (1,)),
}
"""The norms, and the axes that they normalize of x [N, P, groups, C]."""
GROUPS = {"group_norm": 6, "instance_norm": 24}


def exact(name: str, x: np.ndarray) -> np.ndarray:
    shape = (x.shape[0], -1, GROUPS.get(name, 1), x.shape[-1] // GROUPS.get(name, 1))
    wide = decode(x).astype(np.longdouble).reshape(shape)
    return standardize(wide, NORMS[name][1], EPSILON).reshape(x.shape)


def require_exact(found: np.ndarray, name: str, x: np.ndarray, what: object) -> None:
    dtype = dtypes.from_numpy(x.dtype)
    wanted = exact(name, x)
    assert found.dtype == x.dtype
    error = np.abs(decode(found) - wanted)
    # Sums of f64 are those of `reduce`, which backends may add one by one.
    allowed = 4 if dtype is dtypes.f64 else 1
    worst = (error / norm_tolerance(wanted, dtype).atol).max()
    assert worst <= allowed, f"{what}: {worst:.3g} of what is allowed"


def spreads(dtype: DType, seed: int) -> list[tuple[float, np.ndarray]]:
    """Return samples of SHAPE whose mean is up to 10^5 times as large as their spread."""
    random = np.random.default_rng(seed)
    found = []
    for power in (*range(6), 5.5):
        mean = random.choice([-1, 1]) * 10.0**power * random.uniform(1, 9)
        shape = random.choice([SHAPE, (1, 300, 6), (3, 7, 48)])
        found.append((mean, as_float(random.standard_normal(shape) + mean, dtype)))
    return found


@pytest.mark.paths
@pytest.mark.whole
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f64, dtypes.bf16, dtypes.f16], ids=str)
def test_equal_elements_give_exactly_0(backend: Backend, name: str, dtype: DType) -> None:
    call = gptrs.jit(NORMS[name][0])
    large = {"f64": 1e307, "f16": 6e4}.get(dtype.name, 3e38)
    with running_on(backend):
        for value in (12345.678, 3.3, 0.1, -1e37, large, -large, 1e-30, 0.0):
            with np.errstate(over="ignore"):
                x = as_float(np.full(SHAPE, value), dtype)
            if np.isfinite(decode(x)).all():
                assert (decode(call(gptrs.tensor(x)).numpy()) == 0).all(), value


@pytest.mark.paths
@pytest.mark.whole
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f64, dtypes.bf16, dtypes.f16], ids=str)
def test_a_large_mean_costs_no_digits(backend: Backend, name: str, dtype: DType) -> None:
    call = gptrs.jit(NORMS[name][0])
    most = 5e4 if dtype is dtypes.f16 else np.inf
    with running_on(backend):
        for mean, x in spreads(dtype, seed=len(name)):
            if abs(mean) < most:
                require_exact(call(gptrs.tensor(x)).numpy(), name, x, mean)


@pytest.mark.paths
@pytest.mark.whole
@pytest.mark.parametrize("name", NORMS)
def test_values_near_the_limit_stay_finite(backend: Backend, name: str) -> None:
    random = np.random.default_rng(3)
    call = gptrs.jit(NORMS[name][0])
    with running_on(backend):
        for scale in (1e16, 1e37):
            x = (random.standard_normal(SHAPE) * scale).astype(np.float32)
            found = call(gptrs.tensor(x)).numpy()
            if scale == 1e16:
                require_exact(found, name, x, scale)
            else:  # the squares are infinite
                assert (found == 0).all()
        one_sided = np.abs(x) + np.float32(1e37)
        assert (call(gptrs.tensor(one_sided)).numpy() == 0).all()


@pytest.mark.paths
def test_the_decomposition_of_others_has_the_kernel_of_numba() -> None:
    numba = pytest.importorskip("gptrs_backend_numba.backend").create(1)
    with gptrs.use_backend(numba):
        for mean, x in spreads(dtypes.f32, seed=1):
            require_exact(gptrs.jit(plain)(gptrs.tensor(x)).numpy(), "layer_norm", x, mean)


@pytest.mark.paths
@pytest.mark.parametrize("n", [1, 31, 256, 257, 1000])
def test_root_mean_square_of_equal_elements(backend: Backend, n: int) -> None:
    with running_on(backend):
        for value in (12345.678, 3.3, 0.1, -1.1, 1e17):
            x = np.full((2, n), value, np.float32)
            found = F.rms_norm(gptrs.tensor(x)).numpy()
            wide = x.astype(np.float64)
            wanted = wide / np.sqrt(wide**2 + 1e-6)
            assert (np.abs(found - wanted) <= norm_tolerance(wanted, dtypes.f32).atol).all(), value


@pytest.mark.paths
def test_variance_and_mean_of_what_hardly_varies(backend: Backend) -> None:
    with running_on(backend):
        for value in (12345.678, 3.3, 0.1, -1e37):
            x = gptrs.tensor(np.full(SHAPE, value, np.float32))
            for axis in (-1, (0, 1), None):
                variance, mean = F.variance_and_mean(x, axis)
                assert (variance.numpy() == 0).all()
                assert (mean.numpy() == np.float32(value)).all()
                assert (F.variance(x, axis, 1).numpy() == 0).all()
                assert (F.std(x, axis).numpy() == 0).all()
        for mean, x in spreads(dtypes.f32, seed=2):
            wide = x.astype(np.float64)
            for axis in (-1, (0, 1)):
                found = F.variance(gptrs.tensor(x), axis, 1).numpy()
                np.testing.assert_allclose(found, wide.var(axis, ddof=1), rtol=2e-6, err_msg=mean)
                biased, found = F.variance_and_mean(gptrs.tensor(x), axis)
                np.testing.assert_allclose(biased.numpy(), wide.var(axis), rtol=2e-6)
                np.testing.assert_allclose(found.numpy(), wide.mean(axis), rtol=2e-7, atol=2e-7)


@pytest.mark.parametrize("axis", [0, (0, 1), -1])
def test_sums_of_a_million_numbers_are_as_exact_as_of_a_thousand(
    axis: int | tuple[int, ...],
) -> None:
    """A running f32 total would be off by 3e-4."""
    shape = {0: (2**20,), -1: (2, 2**20)}.get(axis if isinstance(axis, int) else 1, (2**10, 2**10))
    create = pytest.importorskip("gptrs_backend_numba.backend").create
    with gptrs.use_backend(create(1)):
        x = gptrs.tensor(np.full(shape, 0.1, np.float32))
        for sum_of in (F.sum, lambda x, axis: F.mean(x, axis) * 2.0**20):
            found = sum_of(x, axis).numpy()
            np.testing.assert_allclose(found, np.float32(0.1) * 2.0**20, rtol=1e-6)


@pytest.mark.paths
@pytest.mark.parametrize("name", [name for name in NORMS if name != "layer_norm"])
def test_an_image_in_company_has_the_bits_it_has_alone(name: str) -> None:
    create = pytest.importorskip("gptrs_backend_numba.backend").create
    x = np.random.default_rng(0).standard_normal((5, 70, 192)).astype(np.float32) + 3
    call = gptrs.jit(NORMS[name][0])

    def run(images: np.ndarray, threads: int) -> bytes:
        with gptrs.use_backend(create(threads)):
            return call(gptrs.tensor(images)).numpy().tobytes()

    whole = run(x, 1)
    assert run(x, 3) == whole
    assert b"".join(run(image[None], 2) for image in x) == whole
