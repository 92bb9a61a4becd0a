"""The contract of backends, whole graphs, and what is particular to JAX."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import gptrs
from gptrs.api.backends import BackendSettings
from gptrs.backend.contract import Backend, BoundInputs, InputRole
from gptrs.errors import BackendError, ExecutionError, UsageError
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
    from gptrs_backend_jax.conversion import MOST_BYTES, HostValue

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


ROWS_OF_TWO = """ptir.v0.5
func @main(%x: f32[2, 3], %y: f32[2, 3], %i: si32[1, 2]) -> (f32[2, 3], f32[1, 2, 3]) {
  %0, %1, %2 = scan %x, %y, %i {carry_count = 2}
    body(%3: f32[2, 3], %4: f32[2, 3], %5: si32[2]) {
      %6 = take %3, %5 : f32[2, 3]
      %7 = take %4, %5 : f32[2, 3]
      %8 = add %6, %7 : f32[2, 3]
      return %8, %4, %6
    } : (f32[2, 3], f32[2, 3], f32[1, 2, 3])
  %9, %10 = scan %0, %i {carry_count = 1}
    body(%11: f32[2, 3], %12: si32[2]) {
      %13 = take %11, %12 : f32[2, 3]
      return %13, %13
    } : (f32[2, 3], f32[1, 2, 3])
  return %9, %2
}
"""


def test_equal_indices_are_checked_once(jax_backend: Backend) -> None:
    from gptrs_backend_jax.executable import JaxExecutable

    executable = jax_backend.compile(parse_program(ROWS_OF_TWO), [InputRole.ARGUMENT] * 3)
    assert isinstance(executable, JaxExecutable)
    assert len(vars(executable)["_recording"].messages) == 1
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y, swapped = x * 10, np.array([[1, 0]], np.int32)
    last, rows = executable.run([jax_backend.to_device(each) for each in (x, y, swapped)])
    assert jax_backend.to_host(rows).tolist() == [x[::-1].tolist()]
    assert jax_backend.to_host(last).tolist() == (x + y).tolist()
    outside = np.array([[1, 2]], np.int32)
    with pytest.raises(ExecutionError, match="`take` reads index 2 of axis 0, which has size 2"):
        executable.run([jax_backend.to_device(each) for each in (x, y, outside)])


def test_a_cache_is_not_turned_for_a_product(jax_backend: Backend) -> None:
    from gptrs_backend_jax.client import program_text
    from gptrs_backend_jax.executable import JaxExecutable

    text = (
        "ptir.v0.5\nfunc @main(%q: f32[12, 1, 64], %k: f32[6, 12, 32, 64])"
        " -> f32[12, 1, 6, 32] {\n"
        "  %0 = dot_general %q, %k {contract_lhs = [2], contract_rhs = [3], batch_lhs = [0],"
        " batch_rhs = [1]} : f32[12, 1, 6, 32]\n  return %0\n}"
    )
    executable = jax_backend.compile(parse_program(text), [InputRole.ARGUMENT] * 2)
    assert isinstance(executable, JaxExecutable)
    q = np.arange(12 * 64, dtype=np.float32).reshape(12, 1, 64) % 7
    k = np.arange(6 * 12 * 32 * 64, dtype=np.float32).reshape(6, 12, 32, 64) % 5
    (found,) = executable.run([jax_backend.to_device(each) for each in (q, k)])
    assert np.array_equal(jax_backend.to_host(found), np.einsum("hqd,phsd->hqps", q, k))
    compiled = program_text(vars(executable)["_call"])
    # Rows of 64 keys stay rows: the heads come first, and nothing else moves.
    if compiled is not None:
        assert "f32[12,64,192]" not in compiled


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
    from gptrs_backend_jax.plugin import PLUGIN, has_accelerator

    monkeypatch.setenv("GPTRS_JAX_PLATFORM", "cpu")
    assert not has_accelerator()
    assert PLUGIN.name == "jax"
