"""Products of two matrices as programs, and how exact their results must be."""

import numpy as np

from gptrs.backend.contract import InputRole
from gptrs.ir import parse_program
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.backend import create

ARGUMENT = InputRole.ARGUMENT
HALF_ULP = {"f32": 0.0, "bf16": 2.0**-8, "f16": 2.0**-10}
"""Of a result rounded once to the type, relative to it; generous by a factor of 1 to 2."""


def numbers(random: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32).astype(dtype.numpy)


def dot(x: str, w: str, out: str, axis: int, left: int = 1) -> str:
    return (
        f"ptir.v0.5\nfunc @main(%x: {x}, %w: {w}) -> {out} {{\n  %0 = dot_general %x, %w "
        f"{{contract_lhs = [{left}], contract_rhs = [{axis}]}} : {out}\n  return %0\n}}\n"
    )


def product(x: np.ndarray, w: np.ndarray, dtype: str, axis: int, role: InputRole, threads: int = 1):
    """x (m, k) times w, contracted along `axis` of it."""
    m, n = x.shape[0], w.shape[1 - axis]
    rows, columns = w.shape
    text = dot(f"{dtype}[{m}, {x.shape[1]}]", f"{dtype}[{rows}, {columns}]",
               f"{dtype}[{m}, {n}]", axis)  # fmt: skip
    executable = create(threads).compile(parse_program(text), [ARGUMENT, role])
    return np.asarray(executable.run([x, w])[0])


def require_close(
    found: np.ndarray, x: np.ndarray, w: np.ndarray, dtype: str = "f32", extra: object = 0.0
) -> None:
    """`found` is x @ w up to the rounding of a sum of k products in f32 and of the result.

    `extra` is the size of what else was added and taken away.
    """
    x, w = x.astype(np.float64), w.astype(np.float64)
    size, want = np.abs(x) @ np.abs(w) + extra, x @ w
    allowed = 2.0**-24 * (8 + x.shape[1] / 4) * size + HALF_ULP[dtype] * np.abs(want) + 1e-6 * size
    assert found.shape == want.shape
    assert (np.abs(found.astype(np.float64) - want) <= allowed).all()
