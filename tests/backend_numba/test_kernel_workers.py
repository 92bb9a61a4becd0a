"""Kernels that a program lacks are written down for other processes, which fill the store."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gptrs.errors import UsageError
from gptrs.ir import dtypes
from gptrs.ir.ops.elementwise import Neg
from gptrs.ir.ops.quantization import Quantize
from gptrs_backend_numba.codegen.inlining import named
from gptrs_backend_numba.codegen.interpreter import run_schedule
from gptrs_backend_numba.codegen.kernel import kernel
from gptrs_backend_numba.compiling.workers import Workers, kernel_of, spec_of, worker_count
from gptrs_backend_numba.kernels import elementwise
from gptrs_backend_numba.kernels.elementwise import Access, Operation
from gptrs_backend_numba.kernels.matmul import gemm
from gptrs_backend_numba.kernels.normalization import layer_norm
from gptrs_backend_numba.kernels.quantization import quantized_of
from gptrs_backend_numba.parts import all_parts

PROCESS = """
import json, sys
import gptrs
from gptrs import functionals as F
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.codegen.compiled import LISTENERS
from gptrs_backend_numba.compiling import workers

class Recorder:
    def send(self, specs):
        print(json.dumps(specs), flush=True)
        sys.stdin.readline()

workers.WORKERS = Recorder()
numbers = []
with gptrs.use_backend(create(1)), LISTENERS.told(lambda number, total: numbers.append(number)):
    x = gptrs.tensor([[1.0, 2, 3, 4], [5, 7, 9, 11]])
    y = F.layer_norm(x, gptrs.ones((4,)), gptrs.zeros((4,)))
    print(float((F.softmax(y) * y + 1).sum().item()))
print(len(numbers))
"""
WORKER = "from gptrs_backend_numba.compiling.worker import serve; serve()"


def fill_store(specs: str, store: Path) -> None:
    """Have a worker compile kernels, after some that nobody can."""
    unreadable = json.dumps(
        [["def kernel(:", []], [{"kernel": ["os", "path"]}, []], [{"generate": ["os"]}, []], 7]
    )
    with subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdin is not None
        print(unreadable, specs.strip(), sep="\n", file=worker.stdin, flush=True)
        end = time.monotonic() + 120
        while len([*store.glob("[0-9a-f]*")]) < len(json.loads(specs)):
            assert time.monotonic() < end
            assert worker.poll() is None
            time.sleep(0.05)
    assert worker.returncode == 0


@kernel
def scaled(source, target, *, FACTOR, OFFSET, KIND, PARTS, change):
    return change(source, target, FACTOR, OFFSET, KIND, PARTS)


def change(*values):
    return values


def made():
    @named("made_function")
    def inner(x):
        return x

    return inner


def test_a_kernel_is_read_as_it_was_written_down():
    bindings = {"FACTOR": float("inf"), "KIND": np.float32, "PARTS": (1, (None, True), "x")}
    specialized = scaled.specialize(OFFSET=np.float32(-0.0), change=change, **bindings)
    others = (layer_norm(dtypes.f32, np.float32(1e-5)), gemm.tiled_product(dtypes.bf16))
    for each in (specialized, *others):
        assert kernel_of(json.loads(json.dumps(spec_of(each)))).key == each.key
    nested = scaled.specialize(OFFSET=specialized, change=change, **bindings)
    assert kernel_of(spec_of(nested)).key == nested.key


def test_all_elementwise_kernels_are_read_as_they_were_written_down():
    """Their functions are those of `math` and `operator`, of modules, and made for types."""
    kernels = [each.source for each in all_parts()]
    made = quantized_of(dtypes.bf16, dtypes.f32, dtypes.f32, dtypes.si4)
    operands = ((0, dtypes.bf16), (1, dtypes.f32), (2, dtypes.si8))
    quantized = Operation(Quantize(dtypes.si4), operands, dtypes.si4, function=made)
    inputs = tuple(Access(dtype, 1) for _, dtype in operands)
    kernels.append(elementwise.task_kernel(1, inputs, Access(dtypes.si4, 1), (quantized,)))
    several = Operation(Neg(), ((0, dtypes.bf16),), dtypes.bf16)
    outputs = [(3, Access(dtypes.bf16, None)), (4, Access(dtypes.bf16, 1))]
    kernels.append(elementwise.several_kernel(2, inputs, outputs, (several, several)))
    for each in kernels:
        read = kernel_of(json.loads(json.dumps(spec_of(each))))
        assert read.key == each.key
        assert read.build("one").__code__.co_code == each.build("one").__code__.co_code


def test_functions_that_no_other_process_finds_are_refused():
    bindings = {"FACTOR": 1, "OFFSET": 0, "KIND": np.int8, "PARTS": ()}
    with pytest.raises(TypeError, match="made_function"):
        spec_of(scaled.specialize(change=made(), **bindings))


@pytest.mark.exhaustive
def test_another_process_compiles_what_a_program_lacks(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("GPTRS_NUMBA_COMPILERS", "2")
    found: list[tuple[str, int]] = []
    for worked in (False, True):
        monkeypatch.setenv("GPTRS_CACHE_DIR", str(tmp_path / f"{worked}"))
        with subprocess.Popen(
            [sys.executable, "-c", PROCESS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            specs = process.stdout.readline()
            assert len(json.loads(specs)) >= 4
            if worked:
                fill_store(specs, tmp_path / f"{worked}" / "numba")
            out, _ = process.communicate("\n", timeout=120)
        value, compiled = out.split()
        found.append((value, int(compiled)))
    (alone, all_of_them), (shared, told) = found
    assert shared == alone
    assert told == all_of_them, "those of others count"


@pytest.mark.parametrize("text", ["0", "65", "-1", "two", "1e3"])
def test_a_number_of_processes_is_a_number(text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPTRS_NUMBA_COMPILERS", text)
    with pytest.raises(UsageError, match=f"must be from 1 to 64, got `{text}`"):
        worker_count()


def test_where_no_process_starts_this_one_goes_on_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPTRS_NUMBA_COMPILERS", "3")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    workers = Workers()
    workers.send([[spec_of(run_schedule.specialize()), []]])
    assert not workers._started


def test_a_worker_that_has_ended_is_started_anew(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPTRS_NUMBA_COMPILERS", "2")
    workers = Workers()
    workers.send([])
    (first,) = workers._started
    first.kill()
    first.wait(timeout=60)
    workers.send([])
    (second,) = workers._started
    assert second.pid != first.pid
    assert second.stdin is not None
    second.stdin.close()
    assert second.wait(timeout=60) == 0
