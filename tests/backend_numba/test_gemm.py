"""The matrix product: tails, element types, layouts, batches, and threads."""

import gc
import itertools
import threading

import numpy as np
import pytest

from backend_numba.products import dot, numbers, product, require_close
from gptrs.backend.contract import InputRole
from gptrs.ir import dtypes, parse_program
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, ROWS
from gptrs_backend_numba.packing import PACKED_WEIGHTS

ARGUMENT, PARAMETER = InputRole.ARGUMENT, InputRole.PARAMETER


@pytest.mark.paths
@pytest.mark.parametrize("role", [ARGUMENT, PARAMETER])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_every_tail_in_rows_columns_and_depth(dtype: str, role: InputRole) -> None:
    random = np.random.default_rng(1)
    type_ = getattr(dtypes, dtype)
    for m in (*range(1, ROWS + 2), 2 * ROWS + 1, 41):
        for n in (1, 3, PANEL - 1, PANEL, PANEL + 1, 3 * PANEL + 5):
            k = int(random.integers(1, 90))
            x, w = numbers(random, (m, k), type_), numbers(random, (k, n), type_)
            require_close(product(x, w, dtype, 0, role), x, w, dtype)
            turned = np.ascontiguousarray(w.T)
            require_close(product(x, turned, dtype, 1, role), x, w, dtype)


@pytest.mark.paths
@pytest.mark.parametrize("role", [ARGUMENT, PARAMETER])
def test_random_shapes_large_enough_for_blocks(role: InputRole) -> None:
    random = np.random.default_rng(2)
    for _ in range(12):
        m, n, k = (int(random.integers(low, high)) for low, high in ((1, 700), (1, 200), (1, 2500)))
        x, w = numbers(random, (m, k), dtypes.f32), numbers(random, (k, n), dtypes.f32)
        require_close(product(x, w, "f32", 0, role), x, w)


@pytest.mark.paths
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("m", [1, 3, 7])
def test_a_large_table_is_read_in_place(dtype: str, m: int) -> None:
    random = np.random.default_rng(3)
    type_ = getattr(dtypes, dtype)
    x, w = numbers(random, (m, 53), type_), numbers(random, (16_391, 53), type_)
    gc.collect()  # else panels of earlier tests may go meanwhile
    before = PACKED_WEIGHTS.nbytes
    require_close(product(x, w, dtype, 1, PARAMETER), x, w.T, dtype)
    assert before == PACKED_WEIGHTS.nbytes


@pytest.mark.paths
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_layout_and_role_never_show(dtype: str) -> None:
    """Rows or columns first, packed before or in a run, whole or by each task: the same bits."""
    random = np.random.default_rng(11)
    type_ = getattr(dtypes, dtype)
    for m, k, n in (
        (1, 7, 33),
        (3, 70, 40),
        (11, 40, 5),
        (25, 9, 70),
        (130, 900, 41),
        (310, 790, 41),
    ):
        x, w = numbers(random, (m, k), type_), numbers(random, (k, n), type_)
        forms = ((x, 1), (np.ascontiguousarray(x.T), 0)), ((w, 0), (np.ascontiguousarray(w.T), 1))
        found = []
        for (left, of_left), (right, of_right) in itertools.product(*forms):
            types = [f"{dtype}[{', '.join(map(str, each.shape))}]" for each in (left, right)]
            text = dot(*types, f"{dtype}[{m}, {n}]", of_right, of_left)
            for role in (ARGUMENT, PARAMETER):
                executable = create(2).compile(parse_program(text), [ARGUMENT, role])
                found.append(np.asarray(executable.run([left, right])[0]))
        require_close(found[0], x, w, dtype)
        assert all(np.array_equal(found[0], other) for other in found[1:]), (m, k, n)


@pytest.mark.paths
@pytest.mark.parametrize("role", [ARGUMENT, PARAMETER])
def test_integers_of_32_bits_wrap(role: InputRole) -> None:
    """In all layouts, for all tails; numbers that would be NaN or subnormal as floats, too."""
    random = np.random.default_rng(12)
    shapes = ((1, 9, 5), (1, 70, 300), (4, 33, PANEL), (ROWS + 1, 800, PANEL + 3), (310, 780, 40))
    for (m, k, n), axes in zip(shapes, itertools.cycle([(1, 0), (0, 1), (1, 1)]), strict=False):
        x, w = (random.integers(-(2**31), 2**31, s, np.int32) for s in ((m, k), (k, n)))
        left = x if axes[0] == 1 else np.ascontiguousarray(x.T)
        right = w if axes[1] == 0 else np.ascontiguousarray(w.T)
        types = [f"si32[{', '.join(map(str, each.shape))}]" for each in (left, right)]
        program = parse_program(dot(*types, f"si32[{m}, {n}]", axes[1], axes[0]))
        (found,) = create(2).compile(program, [ARGUMENT, role]).run([left, right])
        assert np.array_equal(np.asarray(found), x @ w), (m, k, n)


@pytest.mark.parametrize("role", [ARGUMENT, PARAMETER])
def test_strided_operands(role: InputRole) -> None:
    text = """ptir.v0.5
func @main(%x: f32[40, 30], %w: f32[70, 50]) -> f32[15, 25] {
  %a = slice %x {starts = [3, 1], sizes = [20, 15], strides = [1, 2]} : f32[20, 15]
  %b = slice %w {starts = [2, 1], sizes = [20, 25], strides = [3, 2]} : f32[20, 25]
  %0 = dot_general %a, %b {contract_lhs = [0], contract_rhs = [0]} : f32[15, 25]
  return %0
}
"""
    random = np.random.default_rng(4)
    x, w = numbers(random, (40, 30), dtypes.f32), numbers(random, (70, 50), dtypes.f32)
    (found,) = create(1).compile(parse_program(text), [ARGUMENT, role]).run([x, w])
    require_close(np.asarray(found), x[3:23, 1:31:2].T, w[2:62:3, 1:51:2])


@pytest.mark.paths
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_batches(dtype: str) -> None:
    random = np.random.default_rng(5)
    type_ = getattr(dtypes, dtype)
    for m, n, k in ((1, 9, 5), (2, 40, 8), (17, 33, 64), (30, 70, 1100), (300, 35, 800)):
        text = dot(f"{dtype}[6, {m}, {k}]", f"{dtype}[6, {n}, {k}]", f"{dtype}[6, {m}, {n}]", 2, 2)
        text = text.replace("{contract", "{batch_lhs = [0], batch_rhs = [0], contract")
        x, w = numbers(random, (6, m, k), type_), numbers(random, (6, n, k), type_)
        executable = create(2).compile(parse_program(text), [ARGUMENT, ARGUMENT])
        found = np.asarray(executable.run([x, w])[0])
        for batch in range(6):
            require_close(found[batch], x[batch], w[batch].T, dtype)


def test_a_nan_stays_where_it_is() -> None:
    x, w = np.ones((5, 8), np.float32), np.ones((8, 70), np.float32)
    x[2, 3] = np.nan
    found = product(x, w, "f32", 0, PARAMETER)
    assert np.isnan(found[2]).all()
    assert (found[[0, 1, 3, 4]] == 8).all()


@pytest.mark.parametrize("role", [ARGUMENT, PARAMETER])
def test_the_number_of_threads_never_shows(role: InputRole) -> None:
    random = np.random.default_rng(9)
    for m, k, n in ((1, 800, 700), (4, 900, 333), (70, 1000, 130), (600, 90, 70), (130, 40, 190)):
        x, w = numbers(random, (m, k), dtypes.f32), numbers(random, (k, n), dtypes.f32)
        first, *others = (product(x, w, "f32", 0, role, threads) for threads in (1, 2, 5))
        assert all(np.array_equal(first, other) for other in others)


def test_several_python_threads_at_once() -> None:
    random = np.random.default_rng(10)
    x, w = numbers(random, (5, 64), dtypes.f32), numbers(random, (64, 96), dtypes.f32)
    program = parse_program(dot("f32[5, 64]", "f32[64, 96]", "f32[5, 96]", 0))
    found: list[np.ndarray] = []

    def work() -> None:
        executable = create(2).compile(program, [ARGUMENT, PARAMETER])
        found.extend(np.asarray(executable.run([x, w])[0]) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    for result in found:
        require_close(result, x, w)
