"""No result depends on what fresh memory holds: two patterns in it give the same bits.

The op cases and checks of the kit run on filled memory, too: see `tests/conformance`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import gptrs
from fuzzing.tiny_models import save_tiny_model
from gptrs import functionals as F
from gptrs.backend.contract import InputRole
from gptrs.backend.op_table import refusals_of
from gptrs.errors import UsageError
from gptrs.ir import OPS, dtypes, parse_program
from gptrs.ir.program import Program
from gptrs_backend_numba.backend import NumbaBackend, create
from gptrs_backend_numba.codegen.compiled import compiled
from gptrs_backend_numba.codegen.kernel import kernel
from gptrs_backend_numba.codegen.machine import keep_alive, pointer
from gptrs_backend_numba.memory import VARIABLE, address_of, aligned, kernel_memory_filled
from gptrs_backend_numba.run.executable import NumbaExecutable
from gptrs_conformance.op_case import cases, legal_dtypes
from gptrs_conformance.op_runner import prepared, program_of
from gptrs_conformance.program_generator import programs_covering, random_inputs, random_program
from gptrs_runtime.load import load_model
from gptrs_runtime.loaded_model import LoadedModel
from runtime.generation.tiny_lms import save_tiny_lm

PATTERNS = ("255", "63")
"""NaN in every float and -1 in every integer; numbers near 0.75 and large integers."""
FEW_TYPES = (dtypes.f32, dtypes.bf16, dtypes.si32, dtypes.si4, dtypes.i1, dtypes.cf64)
PART, FEW = 3, 2
"""Of the cases of an op and type one of `PART` is run, and not many more than `FEW`."""

SUMS_OF_NOTHING = """ptir.v0.5
func @main(%x: f32[16, 0, 33], %w: f32[70, 0]) -> f32[16, 33, 70] {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [1]} : f32[16, 33, 70]
  return %0
}
"""
UNWRITTEN = """ptir.v0.5
func @main(%x: f32[5000]) -> (f32[5000], f32[]) {
  %0 = neg %x : f32[5000]
  %1 = reduce %0 {axes = [0], kind = sum} : f32[]
  return %0, %1
}
"""
LONGEST = ("reduce", "reduce_window")
"""Ops that take more seconds than all the others together."""


@cache
def numba() -> NumbaBackend:
    return create(2)


def results(program: Program, inputs: Iterable[np.ndarray]) -> list[bytes]:
    """Return the bytes of the results of the second of two runs."""
    arrays = list(inputs)
    executable = numba().compile(program, [InputRole.ARGUMENT] * len(arrays))
    _, found = (executable.run(arrays) for _ in range(2))
    return [np.asarray(result).tobytes() for result in found]


def assert_alike(
    monkeypatch: pytest.MonkeyPatch, program: Program, inputs: Iterable[np.ndarray]
) -> None:
    arrays = list(inputs)
    found: list[list[bytes]] = []
    for pattern in (*PATTERNS, ""):
        monkeypatch.setenv(VARIABLE, pattern)
        found.append(results(program, arrays))
    assert found[0] == found[1] == found[2], str(program)


@pytest.mark.parametrize("pattern", ["", *PATTERNS])
def test_sums_of_nothing_are_zero(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, pattern)
    inputs = [np.ones((16, 0, 33), np.float32), np.ones((70, 0), np.float32)]
    (found,) = results(parse_program(SUMS_OF_NOTHING), inputs)
    assert not any(found)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_programs_for_all_sizes_sum_nothing_to_zero(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, pattern)
    step = gptrs.jit(
        lambda x, weight: F.linear(F.transpose(x, [0, 2, 1]), weight),
        dynamic={"x": ("B", "N", None), "weight": (None, "N")},
    )
    with gptrs.use_backend(numba()):
        for batch, n in ((16, 5), (16, 0), (3, 7), (2, 0)):
            x, weight = np.ones((batch, n, 33), np.float32), np.ones((70, n), np.float32)
            assert (step(gptrs.tensor(x), gptrs.tensor(weight)).numpy() == n).all()


@pytest.mark.sample(6)
@pytest.mark.paths
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.exhaustive if name in LONGEST else ())
        for name in sorted(OPS)
    ],
)
def test_ops_do_not_show_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    legal = legal_dtypes(OPS[name])
    for place, dtype in enumerate(dtype for dtype in FEW_TYPES if dtype in legal):
        made = cases(OPS[name], dtype)
        for case in made[place % PART % len(made) :: max(PART, len(made) // FEW)]:
            program = prepared(program_of(case))
            if not refusals_of(numba(), program) and case.error is None:
                assert_alike(monkeypatch, program, case.inputs)


def claimed(op, operands, types) -> bool:
    return numba().refusal(op, operands, types) is None


@pytest.mark.sample(3)
@pytest.mark.paths
@pytest.mark.parametrize("seed", range(1000, 1010))
def test_generated_programs_do_not_show_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program = random_program(seed, size=40, accepts=claimed)
    assert_alike(monkeypatch, program, random_inputs(program, seed).values())


@pytest.mark.exhaustive
def test_programs_of_most_ops_and_types_do_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second program: `make fuzz` runs all of the kit, which has them all."""
    for seed, program in enumerate(programs_covering(0, accepts=claimed)):
        if seed % 2:
            continue
        assert_alike(monkeypatch, program, random_inputs(program, seed).values())


TEXT_MODELS = ("mamba", "mamba2", "qwen3_next", "gpt_oss", "lfm2", "deepseek_v3")
IMAGE_MODELS = ("convnext", "efficientnet", "resnet")
"""Models whose kernels are of their own: states, delta nets, sinks, experts, convolutions."""


def assert_models_alike(
    monkeypatch: pytest.MonkeyPatch, folder: Path, compute: Callable[[LoadedModel], bytes]
) -> None:
    found: list[bytes] = []
    for pattern in (*PATTERNS, ""):
        monkeypatch.setenv(VARIABLE, pattern)
        found.append(compute(load_model(folder, numba())))
    assert found[0] == found[1] == found[2]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(dtypes.f32, id="f32"),
        pytest.param(dtypes.bf16, id="bf16", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("variant", TEXT_MODELS)
def test_text_models_do_not_show_it(
    variant: str, dtype: dtypes.DType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compute(model: LoadedModel) -> bytes:
        """Return the logits of two texts, and of a text that grows in steps."""
        whole = model.forward(np.array([[1, 2, 3, 4], [4, 5, 6, 7]]))
        options = {"max_tokens": 4, "temperature": 0.0, "ignore_eos": True, "logprobs": 3}
        made = gptrs.generate(model, list(range(1, 20)), **options)
        return whole.tobytes() + str((made.token_ids, made.logprobs)).encode()

    assert_models_alike(monkeypatch, save_tiny_lm(tmp_path / "m", variant, dtype), compute)


@pytest.mark.parametrize("kind", IMAGE_MODELS)
def test_image_models_do_not_show_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = np.linspace(0, 1, 3 * 32 * 32, dtype=np.float32).reshape(1, 3, 32, 32)
    folder = save_tiny_model(tmp_path / "m", kind, numba())
    assert_models_alike(monkeypatch, folder, lambda model: model.forward(image).tobytes())


def test_a_result_that_no_kernel_writes_shows_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    program, inputs = parse_program(UNWRITTEN), [np.ones(5000, np.float32)]
    for pattern in PATTERNS:
        monkeypatch.setenv(VARIABLE, pattern)
        whole = numba().compile(program, [InputRole.ARGUMENT])
        without = replace(whole.schedule, steps=whole.schedule.steps[1:])
        executable = NumbaExecutable(without, program.main.body.params, [InputRole.ARGUMENT], 1)
        for _ in range(2):
            large, small = executable.run(inputs)
            assert set(np.asarray(large).tobytes()) == {int(pattern)}
            assert not np.asarray(small) < 5000 * 0.7


@kernel
def read_own_array(out, count):
    """Write the bytes of a fresh array to `out`."""
    held = np.empty(count, np.uint8)
    target = pointer(out, np.uint8)
    for i in range(count):
        target[i] = held[i]
    keep_alive(held)
    return 0


@pytest.mark.parametrize(("byte", "found"), [(63, 63), (0, 0), (255, 254)])
def test_memory_that_kernels_take_is_filled(byte: int, found: int) -> None:
    out = np.ones(100_000, np.uint8)
    for count in (2000, 100_000):
        with kernel_memory_filled(byte):
            assert compiled(read_own_array)(address_of(out), count) == 0
        assert set(out[:count].tolist()) == {found}


def test_arrays_are_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "63")
    assert set(aligned(1000).tolist()) == {63}


@pytest.mark.parametrize("text", ["256", "-1", "nan", "٣"])
def test_other_values_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(UsageError, match=f"`{VARIABLE}` must be a byte, 0 to 255, got `"):
        numba().compile(parse_program(UNWRITTEN), [InputRole.ARGUMENT])
