"""Modules with numbers of our own on ref and numba; every converter is called by some test."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="MLIR comes with JAX")

import gptrs_backend_jax  # noqa: E402
from gptrs_backend_jax.stablehlo.model import StableHloModel  # noqa: E402
from gptrs_backend_jax.stablehlo.reading.mlir_module import parsed  # noqa: E402

from .module_cases import MODULES, ModuleCase  # noqa: E402
from .operation_cases import CASES  # noqa: E402


@pytest.mark.parametrize("engine", ["ref", "numba"])
@pytest.mark.parametrize("case", MODULES, ids=str)
def test_a_module_gives_its_numbers(case: ModuleCase, engine: str) -> None:
    model = StableHloModel(parsed(case.text().encode()), engine, case.name)
    for found, wanted in zip(model.run(case.inputs), case.outputs, strict=True):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        if wanted.dtype.kind in "biu":
            assert np.array_equal(found, wanted), found
        else:
            np.testing.assert_allclose(found, wanted, 1e-6, 1e-6)
            assert np.array_equal(np.signbit(np.real(found)), np.signbit(np.real(wanted)))


def test_every_converter_has_a_case() -> None:
    seen: set[str] = set()
    texts = [case.text().encode() for case in MODULES]
    for case in CASES:
        exported = jax.export.export(jax.jit(case.function), platforms=["cpu"])(*case.arguments)
        texts.append(exported.mlir_module_serialized)
    for text in texts:
        module = parsed(text)
        seen.update(each.name for function in module.functions.values() for each in function.walk())
    known = {"chlo.erf", "chlo.top_k", "stablehlo.custom_call"}  # by name; test_files calls them
    known.add("sdy.sharding_constraint")  # of keys of random numbers, in test_networks
    assert set(gptrs_backend_jax.supported_operations()) - seen - known == set()
