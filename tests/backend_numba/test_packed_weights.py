"""Weights of matrix products are packed once, and only their packed copies stay in memory."""

import gc
from pathlib import Path

import numpy as np

import gptrs
from backend_numba.products import dot, numbers, require_close
from gptrs.backend.contract import InputRole
from gptrs.backend.mapped_files import release_pages
from gptrs.ir import dtypes, parse_program
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.packing import PACKED_WEIGHTS

ARGUMENT, PARAMETER = InputRole.ARGUMENT, InputRole.PARAMETER


def test_two_executables_share_one_packed_copy_that_dies_with_the_weight() -> None:
    random = np.random.default_rng(7)
    w = numbers(random, (48, 80), dtypes.f32)
    gc.collect()  # models of other tests
    gc.collect()
    before = PACKED_WEIGHTS.nbytes
    programs = [parse_program(dot(f"f32[{m}, 48]", "f32[48, 80]", f"f32[{m}, 80]", 0))
                for m in (1, 9)]  # fmt: skip
    executables = [create(1).compile(program, [ARGUMENT, PARAMETER]) for program in programs]
    for m, executable in zip((1, 9), executables, strict=True):
        x = numbers(random, (m, 48), dtypes.f32)
        require_close(np.asarray(executable.run([x, w])[0]), x, w)
    panels = -(-80 // PANEL)
    assert PACKED_WEIGHTS.nbytes - before == panels * PANEL * 48 * 4
    del w
    gc.collect()
    assert before == PACKED_WEIGHTS.nbytes


def test_another_weight_is_packed_anew() -> None:
    random = np.random.default_rng(8)
    program = parse_program(dot("f32[3, 16]", "f32[16, 20]", "f32[3, 20]", 0))
    executable = create(1).compile(program, [ARGUMENT, PARAMETER])
    x = numbers(random, (3, 16), dtypes.f32)
    for _ in range(3):
        w = numbers(random, (16, 20), dtypes.f32)
        require_close(np.asarray(executable.run([x, w])[0]), x, w)


def test_released_pages_of_a_file_are_read_again(tmp_path: Path) -> None:
    content = np.arange(20_000, dtype=np.float32)
    content.tofile(tmp_path / "weights")
    mapped = np.memmap(tmp_path / "weights", np.float32, "r")
    written = np.memmap(tmp_path / "weights", np.float32, "c")
    written[:] = 7
    plain = content.copy()
    for array in (mapped, written, plain):
        release_pages(np.asarray(array).reshape(100, 200))
    assert (mapped == content).all()
    assert (written == 7).all()
    assert (plain == content).all()


def test_a_tensor_that_a_step_has_bound_is_packed_once() -> None:
    random = np.random.default_rng(9)
    backend = create(1)
    gc.collect()
    before = PACKED_WEIGHTS.nbytes
    with gptrs.use_backend(backend):
        bound = gptrs.tensor(numbers(random, (48, 80), dtypes.f32))
        step = gptrs.jit(lambda x: x @ bound)
        for _ in range(2):
            x = numbers(random, (9, 48), dtypes.f32)
            require_close(step(gptrs.tensor(x)).numpy(), x, bound.numpy())
            assert PACKED_WEIGHTS.nbytes - before == -(-80 // PANEL) * PANEL * 48 * 4
