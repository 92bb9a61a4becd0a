"""Results do not depend on threads: not on their number, not on who else runs, not on forks."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from gptrs.backend.contract import InputRole
from gptrs.backend.process_limits import granted_cpus
from gptrs.errors import UsageError
from gptrs.ir.builder import Builder
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.elementwise import Tanh
from gptrs.ir.ops.layout import Transpose
from gptrs.ir.program import Program
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.backend import create

RNG = np.random.default_rng(7)
SHAPES = [
    pytest.param((1, 300), (300, 700), (0,), id="row times matrix"),
    pytest.param((1, 300), (700, 300), (1,), id="row times transposed"),
    pytest.param((37, 300), (300, 129), (0,), id="matrix times matrix"),
    pytest.param((37, 300), (129, 300), (1,), id="matrix times transposed"),
]


def product(lhs: np.ndarray, rhs: np.ndarray, contract: tuple[int, ...]) -> Program:
    builder = Builder()
    x, w = (builder.param(TensorType.of(array)) for array in (lhs, rhs))
    return builder.program(builder.emit(Tanh(), builder.emit(DotGeneral((1,), contract), x, w)))


def run(threads: int, program: Program, *arrays: np.ndarray) -> np.ndarray:
    backend = create(threads)
    executable = backend.compile(program, [InputRole.ARGUMENT] * len(arrays))
    (result,) = executable.run([backend.to_device(array) for array in arrays])
    return backend.to_host(result)


@pytest.mark.parametrize(("left", "right", "contract"), SHAPES)
def test_the_number_of_threads_leaves_no_trace(
    left: tuple[int, ...], right: tuple[int, ...], contract: tuple[int, ...]
) -> None:
    lhs, rhs = (RNG.standard_normal(shape, np.float32) / 9 for shape in (left, right))
    program = product(lhs, rhs, contract)
    one = run(1, program, lhs, rhs)
    np.testing.assert_allclose(one, np.tanh(lhs @ (rhs if contract == (0,) else rhs.T)), 1e-5, 1e-5)
    for threads in (2, 3, 8):
        for _ in range(5):
            assert run(threads, program, lhs, rhs).tobytes() == one.tobytes()


def test_a_row_alone_is_the_row_in_a_batch_but_for_rounding() -> None:
    lhs, rhs = (RNG.standard_normal(s, np.float32) for s in ((13, 96), (96, 150)))
    whole = run(2, product(lhs, rhs, (0,)), lhs, rhs)
    for row in range(13):
        one = lhs[row : row + 1]
        alone = run(2, product(one, rhs, (0,)), one, rhs)
        np.testing.assert_allclose(alone[0], whole[row], rtol=1e-5, atol=1e-5)


def test_python_threads_may_run_one_executable_at_once() -> None:
    rhs = RNG.standard_normal((256, 512), np.float32)
    inputs = [RNG.standard_normal((1, 256), np.float32) for _ in range(4)]
    backend = create(2)
    roles = [InputRole.ARGUMENT, InputRole.PARAMETER]
    executable = backend.compile(product(inputs[0], rhs, (0,)), roles)
    expected = [np.asarray(executable.run([x, rhs])[0]).tobytes() for x in inputs]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(100):
            (found,) = executable.run([inputs[index], rhs])
            if np.asarray(found).tobytes() != expected[index]:
                wrong.append(index)

    workers = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


PROGRAM = """
import multiprocessing, os, sys, threading, time
import numpy as np
from gptrs.backend.contract import InputRole
from gptrs.ir import parse_program
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.run import executable as run_lock
text = '''ptir.v0.5
func @main(%x: f32[7, 512], %w: f32[512, 512]) -> f32[7, 512] {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[7, 512]
  return %0
}
'''
executable = create(2).compile(parse_program(text), [InputRole.ARGUMENT] * 2)
inputs = [np.ones((7, 512), np.float32), np.ones((512, 512), np.float32)]
def works(_=0):
    for _ in range(5):
        assert (executable.run(inputs)[0] == 512).all()
    return os.getpid()
def fork():
    child = os.fork()
    if child == 0:
        try:
            works()
            os._exit(0)
        except BaseException as error:
            print(error, flush=True)
            os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
works()
"""
FORKS = {
    "of an idle process": "assert fork() == 0",
    "of a child": """
child = os.fork()
if child == 0:
    works()
    os._exit(fork())
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""",
    "while two threads run": """
ends = threading.Event()
def go_on():
    while not ends.is_set():
        works()
threads = [threading.Thread(target=go_on) for _ in range(2)]
for thread in threads:
    thread.start()
assert [fork() for _ in range(6)] == [0] * 6
ends.set()
for thread in threads:
    thread.join()
""",
    "by a pool": """
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert os.getpid() not in pool.map(works, range(8), 1)
""",
}


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    # A fork with threads warns since Python 3.12: that it works is what is tested.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM + script]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("script", FORKS.values(), ids=FORKS)
def test_a_forked_child_starts_workers_of_its_own(script: str) -> None:
    done = run_script(f"{script}\nworks()\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_child_forked_while_a_program_ran_for_long_gets_an_error() -> None:
    script = "run_lock._PATIENCE_S = 0.1\nwith run_lock.RUN_LOCK:\n    code = fork()\n"
    done = run_script(f"{script}works()\nsys.exit(code)\n")
    assert (done.returncode, done.stderr) == (7, "")
    assert "forked while a program ran" in done.stdout


def test_argument_then_variable_then_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPTRS_NUM_THREADS", "3")
    assert create(5).threads == 5
    assert create(None).threads == 3
    monkeypatch.setenv("GPTRS_NUM_THREADS", "")
    assert create(None).threads == granted_cpus() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize("threads", [0, -1, 257, True])
def test_a_bad_argument_is_refused(threads: int) -> None:
    with pytest.raises(UsageError, match="`threads` must be from 1 to 256, got"):
        create(threads)


def test_views_of_weights_need_no_copy() -> None:
    weights = RNG.standard_normal((64, 96), np.float32)
    row = RNG.standard_normal((1, 96), np.float32)
    builder = Builder()
    x, w = (builder.param(TensorType.of(array)) for array in (row, weights))
    turned = builder.emit(Transpose((1, 0)), w)
    program = builder.program(builder.emit(DotGeneral((1,), (0,)), x, turned))
    assert (
        run(1, program, row, weights).tobytes()
        == run(1, _transposed_contraction(row, weights), row, weights).tobytes()
    )


def _transposed_contraction(row: np.ndarray, weights: np.ndarray) -> Program:
    builder = Builder()
    x, w = (builder.param(TensorType.of(array)) for array in (row, weights))
    return builder.program(builder.emit(DotGeneral((1,), (1,)), x, w))
