"""The matrix product: tails, element types, epilogues, packed weights, and the machine code."""

import gc
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from numba import njit

from gptrs.backend.mapped_pages import release_pages
from gptrs.backend.protocol import InputRole
from gptrs.errors import UnsupportedError
from gptrs.ir import dtypes, parse_program
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.kernels.emitter import FEATURES, WIDTH
from gptrs_backend_numba.kernels.epilogue import ACTIVATIONS
from gptrs_backend_numba.kernels.gemm_ir import PANEL, ROWS, VECTORS, tile
from gptrs_backend_numba.lowering.custom_calls import custom_call
from gptrs_backend_numba.lowering.matmul import gemm
from gptrs_backend_numba.lowering.product_calls import Epilogue
from gptrs_backend_numba.packing import PACKED_WEIGHTS
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import Builder

ARGUMENT, PARAMETER = InputRole.ARGUMENT, InputRole.PARAMETER
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


@pytest.mark.parametrize("role", [ARGUMENT, PARAMETER])
def test_random_shapes_large_enough_for_blocks(role: InputRole) -> None:
    random = np.random.default_rng(2)
    for _ in range(12):
        m, n, k = (int(random.integers(low, high)) for low, high in ((1, 700), (1, 200), (1, 2500)))
        x, w = numbers(random, (m, k), dtypes.f32), numbers(random, (k, n), dtypes.f32)
        require_close(product(x, w, "f32", 0, role), x, w)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("m", [1, 3, 7])
def test_a_large_table_is_read_in_place(dtype: str, m: int) -> None:
    random = np.random.default_rng(3)
    type_ = getattr(dtypes, dtype)
    x, w = numbers(random, (m, 53), type_), numbers(random, (16_391, 53), type_)
    before = PACKED_WEIGHTS.nbytes
    require_close(product(x, w, dtype, 1, PARAMETER), x, w.T, dtype)
    assert before == PACKED_WEIGHTS.nbytes


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


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_batches(dtype: str) -> None:
    random = np.random.default_rng(5)
    type_ = getattr(dtypes, dtype)
    for m, n, k in ((1, 9, 5), (2, 40, 8), (17, 33, 64), (30, 70, 1100)):
        text = dot(f"{dtype}[6, {m}, {k}]", f"{dtype}[6, {n}, {k}]", f"{dtype}[6, {m}, {n}]", 2, 2)
        text = text.replace("{contract", "{batch_lhs = [0], batch_rhs = [0], contract")
        x, w = numbers(random, (6, m, k), type_), numbers(random, (6, n, k), type_)
        executable = create(2).compile(parse_program(text), [ARGUMENT, ARGUMENT])
        found = np.asarray(executable.run([x, w])[0])
        for batch in range(6):
            require_close(found[batch], x[batch], w[batch].T, dtype)


def activated(name: str, x: np.ndarray) -> np.ndarray:
    """The definition of an activation in f64."""
    erf = np.vectorize(math.erf)
    return {
        "none": lambda: x,
        "relu": lambda: np.maximum(x, 0),
        "relu6": lambda: np.clip(x, 0, 6),
        "gelu_tanh": lambda: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        "gelu_erf": lambda: x / 2 * (1 + erf(x / np.sqrt(2))),
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
def scaled(builder: Builder, unit: Unit) -> None:
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


def test_a_nan_stays_where_it_is() -> None:
    x, w = np.ones((5, 8), np.float32), np.ones((8, 70), np.float32)
    x[2, 3] = np.nan
    found = product(x, w, "f32", 0, PARAMETER)
    assert np.isnan(found[2]).all()
    assert (found[[0, 1, 3, 4]] == 8).all()


def test_two_executables_share_one_packed_copy_that_dies_with_the_weight() -> None:
    random = np.random.default_rng(7)
    w = numbers(random, (48, 80), dtypes.f32)
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


@pytest.mark.parametrize("role", [ARGUMENT, PARAMETER])
def test_the_number_of_threads_never_shows(role: InputRole) -> None:
    random = np.random.default_rng(9)
    for m, k, n in ((1, 800, 700), (4, 900, 333), (70, 1000, 130), (600, 90, 70)):
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


REGISTER = {16: "zmm", 8: "ymm", 4: "xmm"}


def assembly(dtype: str) -> str:
    namespace: dict[str, object] = {"tile": tile(ROWS, dtype)}
    exec("def kernel(a, b, c, k):\n    tile(a, b, 128, k, 0, 0, 0, 0, c, 32, b, 128)\n", namespace)
    kernel = cast("Callable[..., None]", namespace["kernel"])
    dispatcher = njit("void(int64, int64, int64, int64)")(kernel)
    return dispatcher.inspect_asm(dispatcher.signatures[0])


@pytest.mark.skipif("fma" not in FEATURES, reason="needs an x86-64 host with FMA")
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_the_machine_code_has_multiply_adds_on_full_vectors_and_keeps_sums_in_registers(
    dtype: str,
) -> None:
    text = assembly(dtype)
    full = re.findall(rf"vfmadd\d+ps\t.*%{REGISTER[WIDTH]}\d+", text)
    assert len(full) >= 3 * ROWS * VECTORS
    assert not re.search(r"vfmadd\d+ss", text)
    loop = max(
        re.split(r"^\.LBB\w+:", text, flags=re.MULTILINE), key=lambda part: part.count("fma")
    )
    assert "(%rsp)" not in loop


@pytest.mark.parametrize(("cpu", "width"), [("haswell", 8), ("generic", 4)])
def test_other_machines(cpu: str, width: int) -> None:
    """The same tests on the code for narrower registers."""
    if width > WIDTH or "NUMBA_CPU_NAME" in os.environ:
        pytest.skip("the host has no such registers")
    chosen = "tails or epilogues or machine_code or blocks or table or batches"
    command = [sys.executable, "-m", "pytest", "-q", "-x", __file__, "--backends", "numba"]
    code = f"from gptrs_backend_numba.kernels import emitter; assert emitter.WIDTH == {width}"
    environment = {**os.environ, "NUMBA_CPU_NAME": cpu}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    done = subprocess.run(
        [*command, "-k", chosen, "-p", "no:cacheprovider"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
