"""Products on AMX: as exact as those of f32, whatever the shape and the type."""

import numpy as np
import pytest

from backend_numba.products import dot
from gptrs.backend.contract import InputRole
from gptrs.ir import dtypes, parse_program
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.lowering.amx_matmul import is_there

ARGUMENT, PARAMETER = InputRole.ARGUMENT, InputRole.PARAMETER
ROUNDING = {"f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-10}
OFF = ("GPTRS_NUMBA_AMX", "0")

pytestmark = pytest.mark.skipif(not is_there(), reason="the processor has no AMX")


def numbers(random: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32).astype(dtype.numpy)


def layer(
    x: np.ndarray,
    w: np.ndarray,
    *extra: np.ndarray,
    types: tuple[str, str] = ("f32", "f32"),
    activation: str = "none",
    threads: int = 1,
) -> np.ndarray:
    """A linear layer with a bias and a residual, as far as these are given."""
    (m, k), n = x.shape, w.shape[1]
    given = [f"%x: {types[0]}[{m}, {k}]", f"%w: {types[1]}[{k}, {n}]"]
    given += [f"%b: {types[0]}[{n}]", f"%r: {types[0]}[{m}, {n}]"][: len(extra)]
    names = ", ".join(param.split(":")[0] for param in given)
    flags = f"bias = {str(len(extra) > 0).lower()}, residual = {str(len(extra) > 1).lower()}"
    out = f"{types[0]}[{m}, {n}]"
    text = (
        f"ptir.v0.5\nfunc @main({', '.join(given)}) -> {out} {{\n  %0 = custom_call {names} "
        f'{{target = "gptrs.numba.linear.{types[0]}.v1", results = [{out}], attrs = '
        f'{{activation = "{activation}", layout = "in_out", {flags}}}}} : {out}\n'
        f"  return %0\n}}\n"
    )
    roles = [ARGUMENT, PARAMETER, *[ARGUMENT] * len(extra)]
    executable = create(threads).compile(parse_program(text), roles)
    return np.asarray(executable.run([x, w, *extra])[0]).astype(np.float64)


def require_close(
    found: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray | float,
    r: np.ndarray | float,
    dtype: str,
) -> None:
    """The error is that of a sum in f32, not that of products of bf16.

    Besides, products of parts that would be subnormal numbers are lost.
    """
    x, w = x.astype(np.float64), w.astype(np.float64)
    want, size = x @ w + b + r, np.abs(x) @ np.abs(w) + np.abs(b) + np.abs(r)
    lost = 6 * x.shape[1] * 2.0**-126
    allowed = lost + 2.0**-24 * (8 + x.shape[1] / 16) * size + ROUNDING[dtype] * np.abs(want)
    assert (np.abs(found - want) <= allowed).all()


@pytest.mark.sample(2)
@pytest.mark.paths
@pytest.mark.parametrize(
    "types", [("f32", "f32"), ("f32", "bf16"), ("f32", "f16"), ("bf16", "bf16"), ("f16", "f16")]
)
def test_tails_of_rows_columns_and_depth(types: tuple[str, str]) -> None:
    random = np.random.default_rng(1)
    left, right = (getattr(dtypes, name) for name in types)
    for m, k, n in ((32, 64, 1), (33, 65, PANEL), (63, 96, PANEL + 1), (64, 127, 2 * PANEL),
                    (100, 333, 77), (300, 900, 50), (40, 1700, 70), (32, 2304, PANEL)):  # fmt: skip
        x, w = numbers(random, (m, k), left), numbers(random, (k, n), right)
        b, r = numbers(random, (n,), left), numbers(random, (m, n), left)
        for extra in ((), (b,), (b, r)):
            found, *others = (layer(x, w, *extra, types=types, threads=t) for t in (1, 2, 5))
            wide = [*(each.astype(np.float64) for each in extra), 0.0, 0.0]
            require_close(found, x, w, wide[0], wide[1], types[0])
            assert all(np.array_equal(found, other) for other in others)


@pytest.mark.paths
@pytest.mark.parametrize(
    ("dtype", "axes"), [("f32", (1, 2)), ("bf16", (1, 1)), ("bf16", (2, 2)), ("f32", (2, 1))]
)
def test_batches_of_run_time_values(dtype: str, axes: tuple[int, int]) -> None:
    """Axes: the contracted one of each side."""
    random = np.random.default_rng(6)
    type_ = getattr(dtypes, dtype)
    for m, k, n in ((33, 70, 41), (100, 900, 2 * PANEL)):
        x, w = numbers(random, (3, m, k), type_), numbers(random, (3, k, n), type_)
        left = x if axes[0] == 2 else np.ascontiguousarray(x.swapaxes(1, 2))
        right = w if axes[1] == 1 else np.ascontiguousarray(w.swapaxes(1, 2))
        types = [f"{dtype}[{', '.join(map(str, each.shape))}]" for each in (left, right)]
        text = dot(*types, f"{dtype}[3, {m}, {n}]", axes[1], axes[0])
        text = text.replace("{contract", "{batch_lhs = [0], batch_rhs = [0], contract")
        executable = create(2).compile(parse_program(text), [ARGUMENT, ARGUMENT])
        found = np.asarray(executable.run([left, right])[0]).astype(np.float64)
        for at in range(3):
            require_close(found[at], x[at], w[at], 0.0, 0.0, dtype)
            single = layer(x[at], w[at], types=(dtype, dtype))
            assert np.array_equal(found[at], single)  # as with a parameter


@pytest.mark.paths
@pytest.mark.parametrize(("m", "k"), [(32, 64), (50, 99), (77, 800)])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_transposed_left_side_is_the_same_bits(m: int, k: int, batch: int) -> None:
    """As the gradients of weights multiply it."""
    random = np.random.default_rng(8)
    x, w = (numbers(random, (batch, k, size), dtypes.f32) for size in (m, 40))
    turned = np.ascontiguousarray(x.transpose(0, 2, 1))
    sides = "batch_lhs = [0], batch_rhs = [0], contract_rhs = [1]"
    found = []
    for array, axis in ((x, 1), (turned, 2)):
        text = (
            f"ptir.v0.5\nfunc @main(%x: f32{list(array.shape)}, %w: f32{list(w.shape)})"
            f" -> f32[{batch}, {m}, 40] {{\n  %0 = dot_general %x, %w {{contract_lhs = [{axis}],"
            f" {sides}}} : f32[{batch}, {m}, 40]\n  return %0\n}}\n"
        )
        executable = create(2).compile(parse_program(text), [ARGUMENT, ARGUMENT])
        found.append(np.asarray(executable.run([array, w])[0]))
    assert found[0].tobytes() == found[1].tobytes()
    np.testing.assert_allclose(found[0], turned @ w, atol=1e-4 * np.sqrt(k))


@pytest.mark.paths
def test_an_activation_comes_after_the_sum() -> None:
    random = np.random.default_rng(2)
    x, w = numbers(random, (70, 100), dtypes.f32), numbers(random, (100, 50), dtypes.f32)
    b, r = numbers(random, (50,), dtypes.f32), numbers(random, (70, 50), dtypes.f32)
    found = layer(x, w, b, r, activation="relu")
    want = np.maximum(x.astype(np.float64) @ w.astype(np.float64) + b, 0) + r
    assert np.abs(found - want).max() < 1e-4


def test_sizes_from_the_smallest_to_the_largest() -> None:
    random = np.random.default_rng(3)
    for scale in (1e-18, 1e-6, 1e6, 1e18):
        x, w = numbers(random, (64, 256), dtypes.f32), numbers(random, (256, 64), dtypes.f32)
        x, w = x * np.float32(scale), w * np.float32(scale)
        require_close(layer(x, w), x, w, 0.0, 0.0, "f32")


@pytest.mark.paths
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3.4028235e38])
@pytest.mark.parametrize("side", ["x", "w"])
@pytest.mark.parametrize("k", [80, 1600])
def test_what_is_not_finite_stays_where_it_is(
    value: float, side: str, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(4)
    x, w = numbers(random, (90, k), dtypes.f32), numbers(random, (k, 70), dtypes.f32)
    b, r = numbers(random, (70,), dtypes.f32), numbers(random, (90, 70), dtypes.f32)
    (x if side == "x" else w)[41, 65] = value
    found = layer(x, w, b, r)
    monkeypatch.setenv(*OFF)
    want = layer(x, w, b, r)
    assert np.array_equal(np.isnan(found), np.isnan(want))
    finite = np.isfinite(want)
    assert np.array_equal(found[~finite], want[~finite], equal_nan=True)
    assert np.allclose(found[finite], want[finite], rtol=1e-4, atol=1e-3)
    assert (~finite).sum() in ((70, 90) if abs(value) != np.float32(3.4028235e38) else range(91))


def test_few_rows_and_a_switch_leave_amx_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of vector units are another order of additions: the last bits tell them apart."""
    random = np.random.default_rng(5)
    x, w = numbers(random, (64, 700), dtypes.f32), numbers(random, (700, 64), dtypes.f32)
    with_amx, few = layer(x, w), layer(x[:31], w)
    monkeypatch.setenv(*OFF)
    without = layer(x, w)
    assert not np.array_equal(with_amx, without)
    assert np.array_equal(few, without[:31])
