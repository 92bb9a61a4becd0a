"""Devices of JAX by name, options for XLA, and what is said to be ignored."""

from __future__ import annotations

import time

import numpy as np
import pytest

import gptrs
from gptrs.api.backends import BackendSettings, InputRole, KernelRun, Mesh, ProcessGroup
from gptrs.api.programs import parse_program
from gptrs.backend.contract import Backend
from gptrs.errors import BackendError, UsageError

_PROGRAM = """
ptir.v0.5
func @main(%x: f32[64, 64], %w: f32[64, 32]) -> f32[64, 32] {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[64, 32]
  %1 = tanh %0 : f32[64, 32]
  return %1
}
"""


def test_devices_are_named(jax_backend: Backend) -> None:
    (first, *_) = jax_backend.devices()
    assert first.name == "cpu:0"
    assert first.used
    assert gptrs.get_backend("jax", device="cpu:0") is gptrs.get_backend("jax", device="cpu:0")


def test_what_is_not_there(jax_backend: Backend) -> None:
    with pytest.raises(UsageError, match="no device `cpu:99`") as caught:
        gptrs.get_backend("jax", device="cpu:99")
    assert "cpu:0" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="no option `fast`"):
        gptrs.get_backend("jax", device="cpu", options={"fast": "1"})


def test_threads_that_come_too_late_are_said(jax_backend: Backend) -> None:
    from gptrs_backend_jax.devices import chosen_device, ignored_settings

    device = chosen_device(BackendSettings(device="cpu"))
    (text,) = ignored_settings(BackendSettings(threads=97), device)
    assert "97 are not used" in text
    assert ignored_settings(BackendSettings(), device) == []


def test_processes_without_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    from gptrs_backend_jax import devices

    def alone(*_: object, outlive: bool) -> None:
        raise ValueError("coordinator_address should be defined.\nmore")

    monkeypatch.setattr(devices, "join_processes", alone)
    settings = BackendSettings(mesh=Mesh.parse("tensor=2"), processes=ProcessGroup("auto", None, 1))
    with pytest.raises(BackendError, match="did not meet: coordinator_address should be") as caught:
        devices.join(settings)
    assert "more" not in str(caught.value)
    assert "start all of them, before anything else" in (caught.value.hint or "")
    assert "pip install 'jax[k8s]'" in (caught.value.hint or "")


def test_kernels_are_told(jax_backend: Backend) -> None:
    told: list[KernelRun] = []
    program = parse_program(_PROGRAM)
    executable = jax_backend.compile(program, [InputRole.ARGUMENT, InputRole.PARAMETER])
    x, w = np.eye(64, dtype=np.float32), np.ones((64, 32), np.float32)
    inputs = [jax_backend.to_device(each) for each in (x, w)]
    (result,) = executable.run_profiled(inputs, told.append)
    assert np.allclose(jax_backend.to_host(result), np.tanh(w))
    assert told
    assert any("f32[64,32]" in run.operands for run in told)
    assert {at for run in told for at in run.inputs} == {0, 1}
    starts = [run.started or 0.0 for run in told]
    assert starts == sorted(starts)
    assert 0 <= time.perf_counter() - starts[0] < 60


def test_a_loaded_backend_takes_no_threads(jax_backend: Backend) -> None:
    with pytest.raises(UsageError, match="has its threads"):
        gptrs.load_model("demo", backend=jax_backend, threads=2)
