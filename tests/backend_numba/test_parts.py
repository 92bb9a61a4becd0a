"""Chains run on parts until their kernel is compiled, with the same bits."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from gptrs.backend.contract import InputRole, KernelRun
from gptrs.errors import ExecutionError, UsageError
from gptrs.ir import parse_program
from gptrs_backend_numba import parts
from gptrs_backend_numba.backend import NumbaBackend
from gptrs_backend_numba.codegen import compiled, kernel_pack
from gptrs_backend_numba.compiling import workers
from gptrs_backend_numba.run.executable import NumbaExecutable
from gptrs_backend_numba.schedule import KernelCall

CHAINS: Mapping[str, str] = {
    "rows, columns and one element": """ptir.v0.5
        func @main(%a: f32[70, 50], %b: f32[70, 1], %c: f32[50], %d: f32[]) -> f32[70, 50] {
          %bb = broadcast_to %b {shape = [70, 50]} : f32[70, 50]
          %cc = broadcast_to %c {shape = [70, 50]} : f32[70, 50]
          %dd = broadcast_to %d {shape = [70, 50]} : f32[70, 50]
          %0 = mul %a, %bb : f32[70, 50]
          %1 = add %0, %cc : f32[70, 50]
          %2 = exp %1 : f32[70, 50]
          %3 = tanh %0 : f32[70, 50]
          %4 = sub %2, %3 : f32[70, 50]
          %5 = div %4, %dd : f32[70, 50]
          return %5
        }""",
    "blocks of several tasks, narrow numbers, a predicate": """ptir.v0.5
        func @main(%a: bf16[3, 30001], %b: bf16[3, 30001]) -> f16[3, 30001] {
          %0 = add %a, %b : bf16[3, 30001]
          %1 = compare %0, %a {direction = lt} : i1[3, 30001]
          %2 = mul %0, %0 : bf16[3, 30001]
          %3 = select %1, %2, %b : bf16[3, 30001]
          %4 = logistic %3 : bf16[3, 30001]
          %5 = cast %4 {dtype = f16} : f16[3, 30001]
          return %5
        }""",
    "tensors that lie otherwise": """ptir.v0.5
        func @main(%a: f64[5, 7, 11], %b: f64[11, 5, 7]) -> f64[5, 7, 11] {
          %0 = transpose %b {permutation = [1, 2, 0]} : f64[5, 7, 11]
          %1 = rem %a, %0 : f64[5, 7, 11]
          %2 = log1p %1 : f64[5, 7, 11]
          return %2
        }""",
    "GELU by division, its factors in another order": """ptir.v0.5
        func @main(%a: f32[70, 50]) -> f32[70, 50] {
          %root = constant {value = 1.4142135} : f32[]
          %one = constant {value = 1.0} : f32[]
          %half = constant {value = 0.5} : f32[]
          %roots = broadcast_to %root {shape = [70, 50]} : f32[70, 50]
          %ones = broadcast_to %one {shape = [70, 50]} : f32[70, 50]
          %halves = broadcast_to %half {shape = [70, 50]} : f32[70, 50]
          %x = sub %a, %ones : f32[70, 50]
          %0 = div %x, %roots : f32[70, 50]
          %1 = erf %0 : f32[70, 50]
          %2 = add %ones, %1 : f32[70, 50]
          %3 = mul %2, %x : f32[70, 50]
          %4 = mul %halves, %3 : f32[70, 50]
          %5 = mul %4, %a : f32[70, 50]
          return %5
        }""",
    "a copy of a part": """ptir.v0.5
        func @main(%a: si16[40, 60]) -> si16[20, 17] {
          %0 = slice %a {starts = [3, 5], sizes = [20, 17], strides = [1, 3]} : si16[20, 17]
          return %0
        }""",
    "parts of a result": """ptir.v0.5
        func @main(%a: cf32[4, 9], %b: cf32[4, 3]) -> cf32[4, 12] {
          %0 = mul %a, %a : cf32[4, 9]
          %1 = neg %b : cf32[4, 3]
          %2 = concat %0, %1 {axis = 1} : cf32[4, 12]
          return %2
        }""",
    "numbers of 4 bits": """ptir.v0.5
        func @main(%a: si4[9, 5], %b: si4[5]) -> si32[9, 5] {
          %0 = broadcast_to %b {shape = [9, 5]} : si4[9, 5]
          %1 = mul %a, %0 : si4[9, 5]
          %2 = sub %1, %a : si4[9, 5]
          %3 = cast %2 {dtype = si32} : si32[9, 5]
          %4 = shift_left %3, %3 : si32[9, 5]
          return %4
        }""",
}
DIVISION = """ptir.v0.5
func @main(%a: si32[300], %b: si32[300]) -> si32[300] {
  %0 = div %a, %b : si32[300]
  %1 = add %0, %a : si32[300]
  return %1
}"""


def values(text: str) -> list[np.ndarray]:
    """Return inputs of a program: numbers around 1, which no op makes NaN of."""
    dice = np.random.default_rng(7)
    found: list[np.ndarray] = []
    for type_ in [param.type for param in parse_program(text).main.body.params]:
        numbers = dice.uniform(0.5, 3.0, type_.shape)
        if type_.dtype.is_integer:
            numbers = dice.integers(-7, 7, type_.shape)
        found.append(np.asarray(numbers).astype(type_.dtype.numpy))
    return found


def program(text: str, monkeypatch: pytest.MonkeyPatch, use: str) -> NumbaExecutable:
    """Return a program compiled on parts or without."""
    monkeypatch.setenv(parts.VARIABLE, use)
    found = parse_program(text)
    roles = [InputRole.ARGUMENT] * len(found.main.body.params)
    return NumbaBackend(2).compile(found, roles)


def tiers(executable: NumbaExecutable, inputs: Sequence[np.ndarray]) -> list[bool]:
    """Return of each kernel call in a run whether it was in parts."""
    told: list[KernelRun] = []
    executable.run_profiled(inputs, told.append)
    return ["(parts)" in each.kernel for each in told]


@pytest.mark.sample(3)
@pytest.mark.paths
@pytest.mark.parametrize("name", CHAINS)
def test_parts_give_the_bits_of_the_fused_kernel(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = CHAINS[name]
    inputs = values(text)
    fused, in_parts = (program(text, monkeypatch, use) for use in ("0", "only"))
    assert not any(tiers(fused, inputs))
    assert any(tiers(in_parts, inputs))
    (expected,), (found,) = fused.run(inputs), in_parts.run(inputs)
    assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()


def test_an_op_that_fails_in_parts_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    in_parts = program(DIVISION, monkeypatch, "only")
    a, b = np.arange(300, dtype=np.int32), np.ones(300, np.int32)
    np.testing.assert_array_equal(in_parts.run([a, b])[0], 2 * a)
    with pytest.raises(ExecutionError, match="`div` of integers by zero"):
        in_parts.run([a, b * (a != 299)])
    np.testing.assert_array_equal(in_parts.run([a, b])[0], 2 * a)


@pytest.fixture
def waiting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[list[compiled.WantedKernel]]:
    """An empty store that has the parts of `DIVISION`; the kernels that are to be compiled."""
    monkeypatch.setenv(kernel_pack.VARIABLE, "0")
    monkeypatch.setenv("GPTRS_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv(workers.VARIABLE, raising=False)
    monkeypatch.setattr(compiled, "_announce", lambda store: None)
    asked: list[compiled.WantedKernel] = []
    monkeypatch.setattr(
        "gptrs_backend_numba.run.takeover.compile_beside", lambda kernels: asked.extend(kernels)
    )
    kernels = dict(compiled._KERNELS)
    monkeypatch.setattr(compiled, "_KERNELS", kernels)
    program(DIVISION, monkeypatch, "only")
    fused = [step for step in program(DIVISION, monkeypatch, "only").schedule.steps]
    for step in fused:
        if isinstance(step, KernelCall) and step.stand_in is not None:
            kernels.pop(step.stand_in.wanted.key, None)
    compiled.kernel_store.cache_clear()
    yield asked
    compiled.kernel_store.cache_clear()


def test_a_program_that_runs_again_goes_over_to_its_kernel(
    waiting: list[compiled.WantedKernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    executable = program(DIVISION, monkeypatch, "")
    a, b = np.arange(300, dtype=np.int32), np.full(300, 3, np.int32)
    assert tiers(executable, [a, b]) == [True]
    assert waiting == []
    assert tiers(executable, [a, b]) == [True]
    (wanted,) = waiting
    assert compiled.compile_if_free(wanted)  # as the process beside does
    until = time.monotonic() + 120
    while tiers(executable, [a, b]) == [True]:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert tiers(executable, [a, b]) == [False]
    np.testing.assert_array_equal(executable.run([a, b])[0], a // 3 + a)
    with pytest.raises(ExecutionError, match="`div` of integers by zero"):
        executable.run([a, b * 0])


def test_a_kernel_that_is_never_compiled_leaves_the_program_in_parts(
    waiting: list[compiled.WantedKernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    executable = program(DIVISION, monkeypatch, "")
    a = np.arange(1, 301, dtype=np.int32)
    for _ in range(4):
        np.testing.assert_array_equal(executable.run([a, a])[0], a + 1)
    assert len(waiting) == 1


def test_nothing_runs_in_parts_where_nothing_is_compiled_beside(
    waiting: list[compiled.WantedKernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(workers.VARIABLE, "1")
    a = np.arange(1, 301, dtype=np.int32)
    assert tiers(program(DIVISION, monkeypatch, ""), [a, a]) == [False]


def test_a_wrong_value_of_the_variable_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="`GPTRS_NUMBA_PARTS` must be 0 or only, got `yes`"):
        program(DIVISION, monkeypatch, "yes")
