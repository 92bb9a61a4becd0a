"""Linear layers of the precision `bf16`: both sides rounded, sums in f32."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from gptrs.backend.contract import InputRole
from gptrs.backend.settings import Precision
from gptrs.ir import parse_program
from gptrs.optimizer.pipeline import Pipeline
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.fusion import VARIABLE as FUSE
from gptrs_backend_numba.lowering.linear import BF16_LINEAR
from gptrs_backend_numba.packing import PACKED_WEIGHTS
from gptrs_backend_numba.run.executable import NumbaExecutable
from gptrs_runtime.load import load_model

RNG = np.random.default_rng(7)
SHAPES = {
    "whole steps": (64, 96),
    "rests": (70, 100),
    "chunks of k": (40, 2500),
    "blocks of k": (40, 700),
    "thin": (1030, 1),
}
DTYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def rounded(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def program(m: int, n: int, k: int, dtype: str = "f32", layout: str = "out_in") -> str:
    shape = f"{n}, {k}" if layout == "out_in" else f"{k}, {n}"
    widened = "" if dtype == "f32" else f"%v = cast %w {{dtype = f32}} : f32[{shape}]"
    return f"""ptir.v0.5
func @main(%x: f32[{m}, {k}], %w: {dtype}[{shape}]) -> f32[{m}, {n}] {{
  {widened}
  %0 = dot_general %x, {"%v" if widened else "%w"}
    {{contract_lhs = [1], contract_rhs = [{1 if layout == "out_in" else 0}]}} : f32[{m}, {n}]
  return %0
}}"""


GELU = """ptir.v0.5
func @main(%x: f32[4001, 32], %w: f32[32, 32]) -> f32[4001, 32] {
  %y = custom_call %x, %w {target = "gptrs.numba.linear.f32.v1", results = [f32[4001, 32]],
    attrs = {activation = "gelu_erf", bias = false, layout = "out_in", residual = false}}
    : f32[4001, 32]
  return %y
}"""


def run(
    text: str, *inputs: np.ndarray, threads: int = 1, role: InputRole = InputRole.PARAMETER
) -> np.ndarray:
    """Return the result of a program whose layer must have become one call."""
    backend = create(threads).with_precision("bf16")
    fused = Pipeline(fuse=backend.fuse(), verify=True).run(parse_program(text))
    assert str(fused).count(BF16_LINEAR) == 1, fused
    roles = [InputRole.ARGUMENT, *[role] * (len(inputs) - 1)]
    buffers = [backend.to_device(each) for each in inputs]
    return np.asarray(backend.compile(fused, roles).run(buffers)[0])


def require_close(found: np.ndarray, x: np.ndarray, w: np.ndarray) -> None:
    """Assert that sums are those of rounded operands, but for roundings of f32."""
    a, b = rounded(x), rounded(w)
    most = np.abs(a) @ np.abs(b).T
    assert (np.abs(found - a @ b.T) <= 2.0**-20 * most).all()


@pytest.mark.paths
@pytest.mark.parametrize("name", SHAPES)
def test_a_row_is_the_same_bits_in_any_company(name: str) -> None:
    n, k = SHAPES[name]
    w, x = normal(n, k), normal(64, k)
    whole = run(program(64, n, k), x, w)
    require_close(whole, x, w)
    for rows in (1, 2, 13, 16, 17, 33, 49):
        for threads in (1, 2):
            found = run(program(rows, n, k), x[-rows:], w, threads=threads)
            assert found.tobytes() == whole[-rows:].tobytes(), (rows, threads)


@pytest.mark.paths
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["out_in", "in_out"])
def test_weights_of_any_type_and_order(dtype: str, layout: str) -> None:
    x, w = normal(5, 70), normal(40, 70).astype(DTYPES[dtype])
    given = w if layout == "out_in" else np.ascontiguousarray(w.T)
    found = run(program(5, 40, 70, dtype, layout), x, given)
    require_close(found, x, w.astype(np.float32))
    passing = run(program(5, 40, 70, dtype, layout), x, given, role=InputRole.ARGUMENT)
    assert passing.tobytes() == found.tobytes()
    streamed = run(program(5, 40, 70, dtype, layout), x, given, role=InputRole.STREAMED)
    assert streamed.tobytes() == found.tobytes()
    assert run(program(5, 40, 70, dtype), x, w).tobytes() == found.tobytes()


@pytest.mark.paths
@pytest.mark.parametrize(("k", "m"), [(96, 33), (70, 14), (64, 3), (64, 24), (2500, 17)])
def test_a_transposed_left_side_is_the_same_bits(k: int, m: int) -> None:
    """As the gradients of weights multiply it; heights of tiles are no multiples of 4, too."""
    text = program(m, 40, k).replace(f"%x: f32[{m}, {k}]", f"%x: f32[{k}, {m}]")
    text = text.replace("contract_lhs = [1]", "contract_lhs = [0]")
    x, w = normal(m, k), normal(40, k)
    found = run(text, np.ascontiguousarray(x.T), w)
    assert found.tobytes() == run(program(m, 40, k), x, w).tobytes()


@pytest.mark.paths
@pytest.mark.parametrize("rows", [1, 33])
def test_bias_and_residual_are_added_to_the_sum(rows: int) -> None:
    text = f"""ptir.v0.5
func @main(%x: f32[{rows}, 64], %w: f32[48, 64], %b: f32[48], %r: f32[{rows}, 48])
  -> f32[{rows}, 48] {{
  %0 = dot_general %x, %w {{contract_lhs = [1], contract_rhs = [1]}} : f32[{rows}, 48]
  %1 = broadcast_to %b {{shape = [{rows}, 48]}} : f32[{rows}, 48]
  %2 = add %0, %1 : f32[{rows}, 48]
  %3 = add %2, %r : f32[{rows}, 48]
  return %3
}}"""
    x, w, b, r = normal(rows, 64), normal(48, 64), normal(48), normal(rows, 48)
    plain = run(program(rows, 48, 64), x, w)
    np.testing.assert_array_equal(run(text, x, w, b, r), (plain + b) + r)


@pytest.mark.paths
def test_gelu_of_all_numbers() -> None:
    """A weight that picks one number leaves each as it is; GELU of it is within 1.2e-7 of it."""
    odd = [0.0, -0.0, 1e-30, -1e-30, -6.0, -13.5, 60.0, -60.0, 2.0**60, -(2.0**60)]
    x = np.zeros((4001, 32), np.float32)
    x[:, 0] = rounded(np.linspace(-12, 12, 4001, dtype=np.float32))
    x[: len(odd), 0] = rounded(np.array(odd, np.float32))
    x[-3:, 0] = np.inf, -np.inf, np.nan
    w = np.zeros((32, 32), np.float32)
    w[:, 0] = 1
    found = run(GELU, x, w)[:, 3]
    assert np.isnan(found[-2:]).all()
    assert found[-3] == np.inf
    y = x[:-3, 0].astype(np.float64)
    wanted = np.array([v / 2 * math.erfc(-v / math.sqrt(2)) for v in y])
    assert (np.abs(found[:-3] - wanted) <= 1.2e-7 * np.maximum(np.abs(y), 1)).all()


@pytest.mark.paths
def test_layers_of_one_x_share_its_rounding() -> None:
    text = """ptir.v0.5
func @main(%x: f32[33, 64], %v: f32[48, 64], %w: f32[40, 64]) -> (f32[33, 48], f32[33, 40],
  f32[33, 40]) {
  %0 = dot_general %x, %v {contract_lhs = [1], contract_rhs = [1]} : f32[33, 48]
  %1 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [1]} : f32[33, 40]
  %2 = neg %x : f32[33, 64]
  %3 = dot_general %2, %w {contract_lhs = [1], contract_rhs = [1]} : f32[33, 40]
  return %0, %1, %3
}"""
    backend = create(2).with_precision("bf16")
    fused = Pipeline(fuse=backend.fuse(), verify=True).run(parse_program(text))
    roles = [InputRole.ARGUMENT, InputRole.PARAMETER, InputRole.PARAMETER]
    executable = backend.compile(fused, roles)
    assert isinstance(executable, NumbaExecutable)
    assert len(executable.schedule.calls) == 2 + 1 + 3  # roundings, the negation, products
    x, v, w = normal(33, 64), normal(48, 64), normal(40, 64)
    found = [np.asarray(each).tobytes() for each in executable.run([x, v, w])]
    assert found[0] == run(program(33, 48, 64), x, v).tobytes()
    assert found[1] == run(program(33, 40, 64), x, w).tobytes()
    assert found[2] == run(program(33, 40, 64), -x, w).tobytes()


@pytest.mark.paths
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_a_weight_that_is_no_parameter_is_packed_once_for_products_that_are_near(
    precision: Precision,
) -> None:
    text = """ptir.v0.5
func @main(%x: f32[600, 64], %y: f32[700, 64], %w: f32[48, 64]) -> (f32[600, 48], f32[700, 48]) {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [1]} : f32[600, 48]
  %1 = dot_general %y, %w {contract_lhs = [1], contract_rhs = [1]} : f32[700, 48]
  return %0, %1
}"""
    backend = create(1).in_precision(precision)
    fused = Pipeline(fuse=backend.fuse(), verify=True).run(parse_program(text))
    executable = backend.compile(fused, [InputRole.ARGUMENT] * 3)
    assert isinstance(executable, NumbaExecutable)
    x, y, w = normal(600, 64), normal(700, 64), normal(48, 64)
    for _ in range(2):
        found = executable.run([x, y, w])
        for one, rows in zip(found, (x, y), strict=True):
            if precision == "bf16":
                require_close(np.asarray(one), rows, w)
            np.testing.assert_allclose(one, rows @ w.T, atol=0.5)
        w = normal(48, 64)
    # Roundings of x, y and w, and products.
    assert precision == "f32" or len(executable.schedule.calls) == 3 + 2


@pytest.mark.paths
def test_what_is_not_finite_spoils_its_row_alone() -> None:
    x, w = np.ones((4, 64), np.float32), normal(48, 64)
    w[0] = 1
    x[0, 5], x[1, 7], x[2, 9] = np.inf, np.nan, 3.4e38  # the last is rounded to infinity
    found = run(program(4, 48, 64), x, w)
    assert np.isnan(found[1]).all()
    assert np.isinf(found[[0, 2], 0]).all()
    require_close(found[3:], x[3:], w)


def test_numbers_halfway_become_even() -> None:
    x = np.zeros((1, 64), np.float32)
    x[0, :3] = 1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20
    w = np.zeros((32, 64), np.float32)
    w[:3, :3] = np.eye(3)
    found = run(program(1, 32, 64), x, w)
    assert found[0, :3].tolist() == [1, 1 + 2.0**-6, 1 + 2.0**-7]


def test_a_large_table_of_bf16_is_read_where_it_lies() -> None:
    x, w = normal(3, 32), normal(16_500, 32)
    found = run(program(3, 16_500, 32, "bf16"), x, w.astype(ml_dtypes.bfloat16))
    require_close(found, x, w)
    before = PACKED_WEIGHTS.nbytes
    kept = w.astype(ml_dtypes.bfloat16)
    run(program(1, 16_500, 32, "bf16"), x[:1], kept)
    assert PACKED_WEIGHTS.nbytes == before


def test_f32_weights_take_half_the_memory() -> None:
    backend = create(1).with_precision("bf16")
    fused = Pipeline(fuse=backend.fuse()).run(parse_program(program(1, 64, 64)))
    executable = backend.compile(fused, [InputRole.ARGUMENT, InputRole.PARAMETER])
    assert isinstance(executable, NumbaExecutable)
    (packing,) = executable.schedule.packings
    assert packing.layout.nbytes == 64 * 64 * 2


def test_products_are_rounded_without_fusions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FUSE, "0")
    backend = create(1).with_precision("bf16")
    fused = Pipeline(fuse=backend.fuse(), verify=True).run(parse_program(program(3, 48, 64)))
    assert BF16_LINEAR not in str(fused)
    x, w = normal(3, 64), normal(48, 64)
    executable = backend.compile(fused, [InputRole.ARGUMENT, InputRole.PARAMETER])
    found = np.asarray(executable.run([backend.to_device(x), backend.to_device(w)])[0])
    require_close(found, x, w)
    assert np.abs(found - x @ w.T).max() > 1e-3  # not the product of f32


@pytest.mark.long
def test_a_model_in_bf16() -> None:
    tokens = np.arange(40)[None]
    exact = load_model("demo", "numba").forward(tokens)
    wanted = load_model("demo", "ref", precision="bf16").forward(tokens)
    model = load_model("demo", "numba", precision="bf16")
    assert model.precision == "bf16"
    assert model.backend.with_precision("f32") is not model.backend
    found = model.forward(tokens)
    scale = np.abs(exact).max()
    assert 1e-5 * scale < np.abs(found - exact).max() < 0.02 * scale
    assert np.abs(found - wanted).max() < 0.01 * scale
    alone = np.concatenate([model.forward(tokens[:, : at + 1])[:, -1] for at in (0, 3, 39)])
    assert alone.tobytes() == found[0, [0, 3, 39]].tobytes()
