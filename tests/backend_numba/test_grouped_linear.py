"""Rows with a matrix of their own choice are one kernel, whatever the numbers of rows."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.capture.execute import use_backend
from gptrs.errors import ExecutionError
from gptrs.ir import dtypes
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs.optimizer.pipeline import Pipeline
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.evaluation import evaluate
from gptrs_backend_numba.fusion.claims import claim
from gptrs_backend_numba.fusion.passes import FUSE
from gptrs_backend_numba.lowering.linear import GROUPED_LINEAR

CLAIMS = Inlining(claim)

STEP = gptrs.jit(F.grouped_linear, dynamic={"x": ("R", None), "groups": ("R",)})
RNG = np.random.default_rng(5)


def run(x: np.ndarray, weight: np.ndarray, groups: np.ndarray, threads: int = 2) -> np.ndarray:
    with use_backend(create(threads)):
        return STEP(*map(gptrs.tensor, (x, weight, groups))).numpy()


def operands(rows: int, inputs: int, outputs: int, matrices: int) -> list[np.ndarray]:
    x = RNG.standard_normal((rows, inputs), np.float32)
    weight = RNG.standard_normal((matrices, outputs, inputs), np.float32)
    return [x, weight, RNG.integers(0, matrices, rows)]


def targets(x: np.ndarray, weight: np.ndarray, groups: np.ndarray) -> list[str]:
    program = STEP.lower(*map(gptrs.tensor, (x, weight, groups)))
    fused = Pipeline(inlining=CLAIMS, fuse=FUSE, evaluate=evaluate, verify=True).run(program)
    ops = [made.op for made in fused.main.body.instructions]
    return [op.target for op in ops if isinstance(op, CustomCall)]


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "matrices"),
    [(1, 64, 24, 4), (5, 37, 19, 3), (40, 128, 200, 8), (64, 5, 9, 1), (0, 32, 16, 2)],
)
def test_each_row_meets_its_matrix(rows, inputs, outputs, matrices):
    x, weight, groups = operands(rows, inputs, outputs, matrices)
    assert targets(x, weight, groups) == [GROUPED_LINEAR]
    wanted = np.einsum("ri,roi->ro", x.astype(np.float64), weight[groups])
    assert np.allclose(run(x, weight, groups), wanted, atol=1e-4)


def test_a_row_has_the_same_bits_alone_and_among_others():
    x, weight, groups = operands(30, 75, 150, 4)
    together = run(x, weight, groups)
    for row in (0, 11, 29):
        alone = run(x[row : row + 1], weight, groups[row : row + 1])
        assert (alone[0] == together[row]).all()


def test_matrices_that_no_row_chose_are_not_read():
    x, weight, groups = operands(6, 32, 16, 5)
    groups[:] = [1, 3, 1, 3, 3, 1]
    weight[[0, 2, 4]] = np.nan
    assert np.isfinite(run(x, weight, groups)).all()


def test_a_group_out_of_range_is_an_error():
    x, weight, groups = operands(3, 32, 16, 2)
    with pytest.raises(ExecutionError, match="index 2 is out of range for 2 matrices"):
        run(x, weight, groups * 0 + 2)


def test_narrow_products_have_the_ops():
    """Kernels compute eight columns at a time."""
    x, weight, groups = operands(3, 32, 7, 2)
    assert targets(x, weight, groups) == []
    wanted = np.einsum("ri,roi->ro", x, weight[groups])
    assert np.allclose(run(x, weight, groups), wanted, atol=1e-4)


@pytest.mark.parametrize("dtype", [dtypes.bf16, dtypes.f16])
def test_narrow_matrices_are_read_as_they_are(dtype):
    x, weight, groups = operands(7, 64, 24, 4)
    narrow = F.cast(gptrs.tensor(weight), dtype)
    step = gptrs.jit(lambda x, w, g: F.grouped_linear(x, F.cast(w, x.dtype), g))
    program = step.lower(gptrs.tensor(x), narrow, gptrs.tensor(groups))
    fused = Pipeline(inlining=CLAIMS, fuse=FUSE, evaluate=evaluate, verify=True).run(program)
    ops = [made.op for made in fused.main.body.instructions]
    assert [getattr(op, "target", op) for op in ops] == [GROUPED_LINEAR]
    with use_backend(create(2)):
        found = step(gptrs.tensor(x), narrow, gptrs.tensor(groups)).numpy()
    rounded = F.cast(narrow, dtypes.f32).numpy().astype(np.float64)
    assert np.allclose(found, np.einsum("ri,roi->ro", x, rounded[groups]), atol=1e-4)
