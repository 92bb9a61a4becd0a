"""Programs that no machine has the memory for are refused before anything is allocated."""

from __future__ import annotations

import re
import tracemalloc

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.backend import memory
from gptrs.backend.contract import InputRole
from gptrs.errors import ExecutionError
from gptrs.ir import parse_program

HUGE = parse_program("""ptir.v0.5
func @main(%x: f32[1]) -> f32[1] {
  %0 = broadcast_to %x {shape = [35184372088832]} : f32[35184372088832]
  %1 = cumulative %0 {kind = sum, axis = 0} : f32[35184372088832]
  %2 = slice %1 {starts = [0], sizes = [1]} : f32[1]
  return %2
}
""")


def test_a_program_too_large_for_any_machine(backend) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ExecutionError, match=r"needs 256 TiB at once, this machine has "):
            gptrs.run_program(HUGE, {"x": np.ones(1, np.float32)}, backend=backend)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


def test_parameters_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse_program("""ptir.v0.5
func @main(%x: f32[1000]) -> f32[10] {
  %0 = slice %x {starts = [0], sizes = [10]} : f32[10]
  return %0
}
""")
    monkeypatch.setattr(memory, "memory_bytes", lambda: 40)
    memory.MemoryNeed(program).require()
    monkeypatch.setattr(memory, "memory_bytes", lambda: 39)
    message = "needs 40 bytes at once, this machine has 39 bytes"
    with pytest.raises(ExecutionError, match=re.escape(message)):
        memory.MemoryNeed(program).require()
    monkeypatch.setattr(memory, "memory_bytes", lambda: None)
    memory.MemoryNeed(program).require()


def outer(x: gptrs.Tensor) -> gptrs.Tensor:
    products = F.reshape(x, (-1, 1)) * x  # (N, N)
    return F.sum(F.cumsum(products, axis=0))


def test_each_size_of_a_program_for_many_is_checked(backend) -> None:
    step = gptrs.jit(outer, dynamic={"x": ("N",)})
    small, huge = np.ones(9, np.float32), np.zeros(8_000_000, np.float32)
    with gptrs.use_backend(backend):
        assert step(gptrs.tensor(small)).numpy() == 405
        tracemalloc.start()
        try:
            with pytest.raises(ExecutionError, match=r"needs .* TiB at once, this machine has"):
                step(gptrs.tensor(huge))
            assert tracemalloc.get_traced_memory()[1] < 100e6
        finally:
            tracemalloc.stop()
        assert step.compiled == 1, "it was refused before anything was compiled"
        assert step(gptrs.tensor(small[:2])).numpy() == 6


def test_what_is_donated_makes_room_for_results(monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse_program("""ptir.v0.5
func @main(%x: f32[?0], %y: f32[?0]) -> (f32[?0], f32[?0]) {
  %0 = add %x, %y : f32[?0]
  %1 = sub %x, %y : f32[?0]
  return %0, %1
}
""")
    roles = [InputRole.DONATED, InputRole.ARGUMENT]
    monkeypatch.setattr(memory, "memory_bytes", lambda: 40)
    memory.MemoryNeed(program, roles).require({0: 10})
    with pytest.raises(ExecutionError, match="needs 44 bytes at once"):
        memory.MemoryNeed(program, roles).require({0: 11})
    with pytest.raises(ExecutionError, match="needs 80 bytes at once"):
        memory.MemoryNeed(program).require({0: 10})


def test_the_memory_of_this_machine_is_known() -> None:
    found = memory.memory_bytes()
    assert found is None or found > 2**20


def test_a_container_limits_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_limit", lambda: 2**20)
    assert memory.memory_bytes() == 2**20
