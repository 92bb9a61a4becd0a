"""Programs that no machine has the memory for are refused before anything is allocated."""

from __future__ import annotations

import re
import tracemalloc

import numpy as np
import pytest

import gptrs
from gptrs.backend import memory_limit
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
        with pytest.raises(ExecutionError, match=r"needs 256 TiB at one time, this machine has "):
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
    monkeypatch.setattr(memory_limit, "memory_bytes", lambda: 40)
    memory_limit.require_memory(program)
    monkeypatch.setattr(memory_limit, "memory_bytes", lambda: 39)
    message = "needs 40 bytes at one time, this machine has 39 bytes"
    with pytest.raises(ExecutionError, match=re.escape(message)):
        memory_limit.require_memory(program)
    monkeypatch.setattr(memory_limit, "memory_bytes", lambda: None)
    memory_limit.require_memory(program)


def test_the_memory_of_this_machine_is_known() -> None:
    found = memory_limit.memory_bytes()
    assert found is None or found > 2**20


def test_a_container_limits_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "memory_limit", lambda: 2**20)
    assert memory_limit.memory_bytes() == 2**20
