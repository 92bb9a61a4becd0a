"""A row of a result has the same bits alone and among any number of others, on any threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import gptrs
from backend_numba.products import dot, numbers
from gptrs import functionals as F
from gptrs.backend.contract import InputRole
from gptrs.ir import dtypes, parse_program
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.lowering import matmul

ARGUMENT, PARAMETER, STREAMED = InputRole.ARGUMENT, InputRole.PARAMETER, InputRole.STREAMED
ROWS = (*range(1, 41), 128, 300)
Run = Callable[[np.ndarray], np.ndarray]

pytestmark = pytest.mark.usefixtures("without_amx")


def require_rows_alone(make: Callable[[int, int], Run], x: np.ndarray, counts=ROWS) -> None:
    """`make(m, threads)` gives what computes m rows; each must be what it is without the others."""
    one = make(1, 1)
    alone = np.concatenate([one(x[i : i + 1]) for i in range(len(x))])
    for m in counts:
        for threads in (1, 2):
            found = make(m, threads)(x[-m:])
            assert found.tobytes() == alone[-m:].tobytes(), (m, threads)


def products(w: np.ndarray, dtype: str, axis: int, role: InputRole, m: int, threads: int) -> Run:
    """Return the product of m rows with `w`, contracted along `axis` of it."""
    k, n = w.shape[axis], w.shape[1 - axis]
    rows, columns = w.shape
    text = dot(f"{dtype}[{m}, {k}]", f"{dtype}[{rows}, {columns}]", f"{dtype}[{m}, {n}]", axis)
    executable = create(threads).compile(parse_program(text), [ARGUMENT, role])
    return lambda x: np.asarray(executable.run([x, w])[0])


def sizes(seed: int) -> tuple[int, int]:
    """Return n, of whole and partial panels, and k, of one block or several."""
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 11)) * PANEL + int(random.integers(0, 2)) * int(
        random.integers(PANEL)
    )
    return n, int(random.choice([random.integers(1, 90), random.integers(700, 3073)]))


@pytest.mark.sample(6)
@pytest.mark.paths
@pytest.mark.parametrize("role", [ARGUMENT, PARAMETER, STREAMED])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_products(dtype: str, axis: int, role: InputRole) -> None:
    random, type_ = np.random.default_rng(axis), getattr(dtypes, dtype)
    for seed in range(2):
        n, k = sizes(10 * axis + seed)
        x = numbers(random, (ROWS[-1], k), type_)
        w = numbers(random, (k, n) if axis == 0 else (n, k), type_)
        require_rows_alone(partial(products, w, dtype, axis, role), x)


@pytest.mark.paths
@pytest.mark.sample(3)
@pytest.mark.parametrize("k", [7, 100, 768])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_products_with_a_large_table(dtype: str, k: int) -> None:
    random, type_ = np.random.default_rng(k), getattr(dtypes, dtype)
    x, w = numbers(random, (130, k), type_), numbers(random, (16_389, k), type_)
    make = partial(products, w, dtype, 1, PARAMETER)
    require_rows_alone(make, x, counts=(2, 3, 4, 5, 7, 8, 16, 31, 130))


@pytest.mark.paths
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_products_with_a_table_of_long_rows(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of several rows are added up in blocks of k, those of one row in one go."""
    monkeypatch.setattr(matmul, "_LARGE", 64)
    random, type_ = np.random.default_rng(0), getattr(dtypes, dtype)
    for n, k in ((77, 1999), (64, 4160)):
        x, w = numbers(random, (40, k), type_), numbers(random, (n, k), type_)
        make = partial(products, w, dtype, 1, PARAMETER)
        require_rows_alone(make, x, counts=(2, 5, 6, 7, 13, 40))
        expected = x.astype(np.float64) @ w.astype(np.float64).T
        found = make(40, 2)(x).astype(np.float64)
        scale = np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64).T
        assert np.abs(found - expected).max() <= (2**-7 if dtype != "f32" else 1e-5) * scale.max()


def layers(
    w: np.ndarray, weight: str, layout: str, activation: str, rest: list[np.ndarray], m: int,
    threads: int,
) -> Run:  # fmt: skip
    """Return a linear layer of m rows of f32 with a bias and a residual, those in `rest`."""
    n, k = w.shape if layout == "out_in" else w.shape[::-1]
    out, (bias, residual) = f"f32[{m}, {n}]", rest
    attrs = f'{{activation = "{activation}", bias = true, layout = "{layout}", residual = true}}'
    program = parse_program(
        f"ptir.v0.5\nfunc @main(%x: f32[{m}, {k}], %w: {weight}[{w.shape[0]}, {w.shape[1]}], "
        f"%b: f32[{n}], %r: {out}) -> {out} {{\n  %0 = custom_call %x, %w, %b, %r "
        f'{{target = "gptrs.numba.linear.f32.v1", results = [{out}], attrs = {attrs}}} : {out}\n'
        "  return %0\n}\n"
    )
    roles = [ARGUMENT, PARAMETER, PARAMETER, ARGUMENT]
    executable = create(threads).compile(program, roles)

    def run(x: np.ndarray) -> np.ndarray:
        rows = np.ascontiguousarray(residual[x[:, -1].astype(int)])
        return np.asarray(executable.run([x, w, bias, rows])[0])

    return run


@pytest.mark.sample(6)
@pytest.mark.paths
@pytest.mark.parametrize("layout", ["in_out", "out_in"])
@pytest.mark.parametrize("activation", ["none", "gelu_tanh", "silu"])
@pytest.mark.parametrize("weight", ["f32", "bf16", "f16"])
def test_linear_layers(weight: str, activation: str, layout: str) -> None:
    random = np.random.default_rng(3)
    for n, k in ((3 * PANEL + 5, 900), (2 * PANEL, 64)):
        x = numbers(random, (ROWS[-1], k), dtypes.f32)
        x[:, -1] = np.arange(len(x))  # says which residual is that of the row
        shape = (n, k) if layout == "out_in" else (k, n)
        w = numbers(random, shape, getattr(dtypes, weight))
        rest = [numbers(random, shape, dtypes.f32) for shape in ((n,), (len(x), n))]
        counts = (*range(2, 20), 31, 128, 300)
        require_rows_alone(partial(layers, w, weight, layout, activation, rest), x, counts)


FUNCTIONS: dict[str, Callable[[gptrs.Tensor], gptrs.Tensor]] = {
    "softmax": lambda x: F.softmax(x, axis=1),
    "log_softmax": lambda x: F.log_softmax(x, axis=1),
    "layer_norm": F.layer_norm,
    "rms_norm": F.rms_norm,
    "sum": lambda x: F.sum(x, axis=1),
    "mean": lambda x: F.mean(x * x, axis=1),
    "cumsum": lambda x: F.cumsum(x, axis=1),
    "gelu": F.gelu,
}


@pytest.mark.sample(8)
@pytest.mark.paths
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("length", [5, 768, 1001])
def test_norms_and_reductions_along_rows(name: str, length: int) -> None:
    step = gptrs.jit(FUNCTIONS[name])

    def make(m: int, threads: int) -> Run:
        def run(x: np.ndarray) -> np.ndarray:
            with gptrs.use_backend(create(threads)):
                return step(gptrs.tensor(x)).numpy()

        return run

    x = numbers(np.random.default_rng(length), (66, length), dtypes.f32)
    require_rows_alone(make, x, counts=(2, 9, 66))
