"""Weights that do not stay give the bits of weights that do, and leave no copies behind."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest

from gptrs.backend.contract import InputRole
from gptrs.ir import parse_program
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.packing import PACKED_WEIGHTS

ARGUMENT, PARAMETER, STREAMED = InputRole.ARGUMENT, InputRole.PARAMETER, InputRole.STREAMED
SIZES = [(300, 32), (96, 64), (40, 1000), (33, 7), (3, 70)]
"""Columns and depths: panels in pairs, an odd one, partial ones, several blocks of the depth."""
DTYPES = {"f32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16)}


def product(
    x: np.ndarray, w: np.ndarray, dtype: str, axis: int, role: InputRole, threads: int = 1
) -> np.ndarray:
    """x (m, k) times w, contracted along `axis` of it."""
    out = f"{dtype}[{x.shape[0]}, {w.shape[1 - axis]}]"
    text = (
        f"ptir.v0.5\nfunc @main(%x: {dtype}[{x.shape[0]}, {x.shape[1]}], %w:"
        f" {dtype}[{w.shape[0]}, {w.shape[1]}]) -> {out} {{\n  %0 = dot_general %x, %w"
        f" {{contract_lhs = [1], contract_rhs = [{axis}]}} : {out}\n  return %0\n}}\n"
    )
    executable = create(threads).compile(parse_program(text), [ARGUMENT, role])
    return np.asarray(executable.run([x, w])[0])


def operands(rows: int, n: int, k: int, dtype: str, axis: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(rows * n + k)
    shape = (k, n) if axis == 0 else (n, k)
    x, w = random.normal(size=(rows, k)), random.normal(size=shape)
    return x.astype(DTYPES[dtype]), w.astype(DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("rows", [1, 2, 4, 13, 70])
def test_products_are_the_same_bits(rows: int, axis: int, dtype: str) -> None:
    """For one row panels are taken in pairs; 70 rows are worth AMX, if there is one."""
    for n, k in SIZES:
        x, w = operands(rows, n, k, dtype, axis)
        kept, streamed = (product(x, w, dtype, axis, role) for role in (PARAMETER, STREAMED))
        assert kept.tobytes() == streamed.tobytes(), (n, k)


@pytest.mark.parametrize("rows", [1, 5, 70])
def test_threads_do_not_show(rows: int) -> None:
    x, w = operands(rows, 700, 400, "bf16", 1)
    first, *others = (product(x, w, "bf16", 1, STREAMED, threads) for threads in (1, 2, 3))
    assert all(first.tobytes() == other.tobytes() for other in others)


@pytest.mark.parametrize("rows", [1, 5, 70])
def test_nothing_is_kept(rows: int) -> None:
    x, w = operands(rows, 96, 64, "bf16", 1)
    gc.collect()
    before = PACKED_WEIGHTS.nbytes
    product(x, w, "bf16", 1, STREAMED)
    assert before == PACKED_WEIGHTS.nbytes
    kept = product(x, w, "bf16", 1, PARAMETER)
    assert before < PACKED_WEIGHTS.nbytes, "the other role does keep a copy"
    assert kept.shape == (rows, 96)
