"""Every operation that is converted: a small function of JAX against JAX's own numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="these tests run functions of JAX")

import gptrs_backend_jax  # noqa: E402
from gptrs.errors import UnsupportedError  # noqa: E402

from .operation_cases import CASES, Case, X  # noqa: E402


def require_equal(case: Case, backend: str) -> None:
    """Run a case and compare each result with that of JAX: structure, type, shape, values."""
    want = jax.jit(case.function)(*case.arguments)
    converted = gptrs_backend_jax.from_jax(case.function, *case.arguments, backend=backend)
    found = converted(*case.arguments)
    assert jax.tree.structure(found) == jax.tree.structure(want)
    for have, right in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        wanted: Any = np.asarray(right)
        assert (have.dtype, have.shape) == (wanted.dtype, wanted.shape)
        if wanted.dtype.kind in "biu":
            assert np.array_equal(have, wanted), case.name
        else:
            np.testing.assert_allclose(have, wanted, case.tolerance, case.tolerance)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_ref_computes_what_jax_does(case: Case) -> None:
    require_equal(case, "ref")


@pytest.mark.parametrize("case", CASES[::4], ids=str)
def test_numba_computes_what_jax_does(case: Case) -> None:
    require_equal(case, "numba")


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda x: jax.numpy.linalg.svd(x), "`lapack_sgesdd_ffi` is a kernel"),
        (lambda x: jax.lax.rng_uniform(x[0, 0], 1.0, (3,)), "`stablehlo.rng`"),
        (lambda x: x.astype(np.complex64) * 1j, None),
    ],
)
def test_what_is_not_converted_is_refused_by_name(function: Any, named: str | None) -> None:
    if named is None:
        assert gptrs_backend_jax.from_jax(function, X, backend="ref")(X).dtype == np.complex64
        return
    with pytest.raises(UnsupportedError, match=named):
        gptrs_backend_jax.from_jax(function, X, backend="ref")(X)
