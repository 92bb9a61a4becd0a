"""The contract of backends, whole graphs, and what is particular to JAX."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import gptrs
from gptrs.api import BackendSettings
from gptrs.backend.bound_inputs import BoundInputs
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


def test_few_bytes_go_with_the_program(jax_backend: Backend) -> None:
    from gptrs_backend_jax.host_values import MOST_BYTES, HostValue

    given = np.arange(6, dtype=">i4").reshape(2, 3).T
    small = jax_backend.to_device(given)
    large = jax_backend.to_device(np.zeros(MOST_BYTES + 1, np.int8))
    assert isinstance(small, HostValue)
    assert not isinstance(large, HostValue)
    host = jax_backend.to_host(small)
    assert (host.dtype, host.tolist()) == (np.int32, given.tolist())
    assert not host.flags.writeable
    assert jax_backend.to_host(jax_backend.to_device(np.array(2.5))).shape == ()


def test_small_weights_are_put_on_the_device_once(jax_backend: Backend) -> None:
    from gptrs_backend_jax.executable import JaxExecutable

    text = (
        "ptir.v0.5\nfunc @main(%x: f32[2], %w: f32[2]) -> f32[2] {\n"
        "  %0 = mul %x, %w : f32[2]\n  return %0\n}"
    )
    roles = [InputRole.ARGUMENT, InputRole.PARAMETER]
    executable = jax_backend.compile(parse_program(text), roles)
    assert isinstance(executable, JaxExecutable)
    seen: list[object] = []
    call = vars(executable)["_call"]
    vars(executable)["_call"] = lambda *values: (seen.append(values[-1]), call(*values))[1]
    x, weight = (jax_backend.to_device(np.array([1.0, number], "f4")) for number in (2, 3))
    bound = BoundInputs([weight])
    for _ in range(2):
        (result,) = executable.run_bound([x], bound)
        assert jax_backend.to_host(result).tolist() == [1, 6]
    assert seen[0] is seen[1]
    assert not isinstance(seen[0], np.ndarray)
    with pytest.raises(UsageError, match="takes 2 inputs, got 1"):
        executable.run_bound([], bound)


def test_donated_memory_is_reused(jax_backend: Backend) -> None:
    with gptrs.use_backend(jax_backend):
        step = gptrs.jit(lambda total, x: total + x, donate=[0])
        total = gptrs.tensor([0.0])
        for value in (1.0, 2.0, 3.0):
            total = step(total, gptrs.tensor([value]))
        assert total.item() == 6.0


def test_a_platform_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from gptrs_backend_jax.creation import create

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
