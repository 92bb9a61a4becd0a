"""What a matrix product does to its sums: bias, activation, residual, and scale."""

import math

import numpy as np
import pytest

from backend_numba.products import HALF_ULP, numbers, require_close
from gptrs.backend.contract import InputRole
from gptrs.errors import UnsupportedError
from gptrs.ir import dtypes, parse_program
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.kernels.matmul.epilogue import ACTIVATIONS
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, ROWS
from gptrs_backend_numba.lowering.matmul import gemm
from gptrs_backend_numba.lowering.product_calls import Epilogue
from gptrs_backend_numba.lowering.table import custom_call
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder

ARGUMENT, PARAMETER = InputRole.ARGUMENT, InputRole.PARAMETER


def activated(name: str, x: np.ndarray) -> np.ndarray:
    """The definition of an activation in f64."""
    erf = np.vectorize(math.erf)
    return {
        "none": lambda: x,
        "relu": lambda: np.maximum(x, 0),
        "relu6": lambda: np.clip(x, 0, 6),
        "gelu_tanh": lambda: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        "gelu_erf": lambda: x / 2 * (1 + erf(x / np.sqrt(2))),
        "gelu_normal": lambda: x / 2 * (1 + erf(x / np.sqrt(2))),
        "gelu_quick": lambda: x / (1 + np.exp(-1.702 * x)),
        "silu": lambda: x / (1 + np.exp(-x)),
    }[name]()


def linear(
    dtype: str, m: int, k: int, n: int, layout: str, activation: str, bias: bool, residual: bool
) -> str:
    weight = f"{n}, {k}" if layout == "out_in" else f"{k}, {n}"
    params = [f"%x: {dtype}[2, {m}, {k}]", f"%w: {dtype}[{weight}]"]
    params += [f"%b: {dtype}[{n}]"] * bias + [f"%r: {dtype}[2, {m}, {n}]"] * residual
    names = ", ".join(param.split(":")[0] for param in params)
    attrs = (
        f'{{activation = "{activation}", bias = {str(bias).lower()}, layout = "{layout}", '
        f"residual = {str(residual).lower()}}}"
    )
    out = f"{dtype}[2, {m}, {n}]"
    return (
        f"ptir.v0.5\nfunc @main({', '.join(params)}) -> {out} {{\n  %0 = custom_call {names} "
        f'{{target = "gptrs.numba.linear.{dtype}.v1", results = [{out}], attrs = {attrs}}} '
        f": {out}\n  return %0\n}}\n"
    )


@pytest.mark.sample(8)
@pytest.mark.paths
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_epilogues(dtype: str, activation: str) -> None:
    random = np.random.default_rng(6)
    type_ = getattr(dtypes, dtype)
    for case, (m, k, n) in enumerate(((1, 20, 40), (1, 33, 3), (5, 7, PANEL), (9, 50, 77))):
        bias, residual = case % 2 == 0, case % 3 == 0
        layout = "out_in" if case == 3 else "in_out"
        x, w = numbers(random, (2, m, k), type_), numbers(random, (k, n), type_)
        b, r = numbers(random, (n,), type_), numbers(random, (2, m, n), type_)
        want = x.astype(np.float64) @ w.astype(np.float64) + bias * b.astype(np.float64)
        want = activated(activation, want) + residual * r.astype(np.float64)
        inputs = [x, np.ascontiguousarray(w.T) if layout == "out_in" else w]
        inputs += [b] * bias + [r] * residual
        roles = [ARGUMENT, PARAMETER, *[ARGUMENT] * (bias + residual)]
        program = parse_program(linear(dtype, m, k, n, layout, activation, bias, residual))
        found = np.asarray(create(1).compile(program, roles).run(inputs)[0]).astype(np.float64)
        allowed = 2e-5 + HALF_ULP[dtype] * np.abs(want)
        assert (np.abs(found - want) <= allowed).all(), (m, k, n)


def test_a_linear_layer_with_an_unknown_attribute_is_refused() -> None:
    text = linear("f32", 1, 2, 3, "in_out", "none", False, False).replace('"none"', '"cube"')
    with pytest.raises(UnsupportedError, match=r"custom_call.*gptrs\.numba\.linear\.f32\.v1"):
        create(1).compile(parse_program(text), [ARGUMENT, PARAMETER])


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_sums_that_start_with_bias_and_residual(residual: bool, narrow: bool) -> None:
    """One block of k and several, whole panels and a tail, tiles of one row and of all heights."""
    random = np.random.default_rng(11)
    type_ = dtypes.bf16 if narrow else dtypes.f32
    for m, k, n in ((1, 300, 5 * PANEL), (1, 40, PANEL + 3), (6, 70, PANEL), (14, 1700, 77),
                    (ROWS, 900, 2 * PANEL), (41, 2401, 3 * PANEL + 5)):  # fmt: skip
        x, w = numbers(random, (m, k), dtypes.f32), numbers(random, (k, n), type_)
        b, r = numbers(random, (n,), dtypes.f32), numbers(random, (m, n), dtypes.f32)
        text = linear("f32", m, k, n, "in_out", "none", True, residual).replace("[2, ", "[")
        text = text.replace("%w: f32", f"%w: {type_}")
        inputs = [x, w, b] + [r] * residual
        roles = [ARGUMENT, PARAMETER, *[ARGUMENT] * (1 + residual)]
        first, second = (
            np.asarray(create(threads).compile(parse_program(text), roles).run(inputs)[0])
            for threads in (1, 3)
        )
        assert np.array_equal(first, second)
        require_close(first - b - r * residual, x, w.astype(np.float32), extra=np.abs(r) + 4)


@custom_call("gptrs.numba.scaled_test.f32.v1", when=lambda op, operands: True)
def scaled(builder: ScheduleBuilder, unit: Unit) -> None:
    x, weight = (builder.view(value) for value in unit.last.operands)
    gemm(builder, x, weight, builder.define(unit.last.result), Epilogue(scale=0.25))


def test_a_scale_through_a_target_of_ones_own() -> None:
    text = """ptir.v0.5
func @main(%x: f32[6, 20], %w: f32[40, 20]) -> f32[6, 40] {
  %0 = custom_call %x, %w {target = "gptrs.numba.scaled_test.f32.v1", results = [f32[6, 40]]}
    : f32[6, 40]
  return %0
}
"""
    random = np.random.default_rng(11)
    x, w = numbers(random, (6, 20), dtypes.f32), numbers(random, (40, 20), dtypes.f32)
    (found,) = create(1).compile(parse_program(text), [ARGUMENT, ARGUMENT]).run([x, w])
    require_close(4 * np.asarray(found), x, w.T)


def test_a_target_has_one_lowering() -> None:
    with pytest.raises(ValueError, match="registered twice"):
        custom_call("gptrs.numba.linear.f32.v1", when=lambda op, operands: True)(scaled)
