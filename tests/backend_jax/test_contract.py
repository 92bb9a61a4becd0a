"""The contract of backends, whole graphs, and what is particular to JAX."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import gptrs
from gptrs.api import BackendSettings
from gptrs.backend.protocol import Backend, InputRole
from gptrs.errors import BackendError, UsageError
from gptrs.ir.parser import parse_program
from gptrs_conformance.kit import checks_of, run_check

CHECKS = {check.name: check for check in checks_of("core")}


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_contract(name: str, jax_backend: Backend) -> None:
    outcome = run_check(jax_backend, CHECKS[name])
    assert outcome.status == "pass", outcome.reason


def test_buffers_of_others_are_refused(jax_backend: Backend) -> None:
    text = "ptir.v0.5\nfunc @main(%x: f32[2]) -> f32[2] {\n  %0 = neg %x : f32[2]\n  return %0\n}"
    executable = jax_backend.compile(parse_program(text), [InputRole.ARGUMENT])
    with pytest.raises(UsageError, match="to_device"):
        executable.run([np.zeros(2, np.float32)])
    with pytest.raises(UsageError, match="needs 1 roles, got 0"):
        jax_backend.compile(parse_program(text), [])


def test_donated_memory_is_reused(jax_backend: Backend) -> None:
    with gptrs.use_backend(jax_backend):
        step = gptrs.jit(lambda total, x: total + x, donate=[0])
        total = gptrs.tensor([0.0])
        for value in (1.0, 2.0, 3.0):
            total = step(total, gptrs.tensor([value]))
        assert total.item() == 6.0


def test_a_platform_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from gptrs_backend_jax.backend import create

    monkeypatch.setenv("GPTRS_JAX_PLATFORM", "toaster")
    with pytest.raises(BackendError, match="no platform `toaster`") as caught:
        create(BackendSettings())
    assert "GPTRS_JAX_PLATFORM" in (caught.value.hint or "")


def test_describing_it_imports_no_jax() -> None:
    code = "import sys, gptrs_backend_jax.plugin; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})


def test_it_is_the_default_on_accelerators_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from gptrs_backend_jax.accelerators import has_accelerator
    from gptrs_backend_jax.plugin import PLUGIN

    monkeypatch.setenv("GPTRS_JAX_PLATFORM", "cpu")
    assert not has_accelerator()
    assert PLUGIN.name == "jax"
