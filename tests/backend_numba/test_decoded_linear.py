"""Products with quantized weights, and with their transposes, that decode in the caches."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from backend_numba.quantized_layers import FORMS, K, Layer, N
from gptrs.backend.contract import InputRole
from gptrs.backend.settings import Precision
from gptrs.ir import parse_program
from gptrs.optimizer.pipeline import Pipeline
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.lowering.decoded_linear import TARGET

CASES = [
    pytest.param(name, precision, layout, id=f"{name}-{precision}-{layout}")
    for number, name in enumerate(FORMS)
    for turn, precision in enumerate(("bf16", "f32"))
    for layout in (("out_in", "in_out"), ("in_out", "out_in"))[(number + turn) % 2][: 1 + turn]
]
"""Every form in both types: f32 in both layouts, bf16 in one by turns."""


def program(layer: Layer, rows: int, layout: str) -> str:
    """Return the text of `x @ weight.T`, or of `x @ weight`, plus what is added to it."""
    inputs, outputs = (K, N) if layout == "out_in" else (N, K)
    head, _, rest = layer.program(rows).partition("%w = ")
    head = head.replace(f"%x: f32[{rows}, {K}]", f"%x: f32[{rows}, {inputs}]")
    head = head.replace(f"-> f32[{rows}, {N}]", f"-> f32[{rows}, {outputs}]")
    head = head.replace(") ->", f", %r: f32[{rows}, {outputs}]) ->")
    decoding = rest.partition("\n")[0]
    axis = 1 if layout == "out_in" else 0
    return f"""{head}%w = {decoding}
  %p = dot_general %x, %w {{contract_lhs = [1], contract_rhs = [{axis}]}} : f32[{rows}, {outputs}]
  %y = add %p, %r : f32[{rows}, {outputs}]
  return %y
}}"""


def run(
    layer: Layer, x: np.ndarray, added: np.ndarray, precision: Precision, layout: str, threads: int
) -> np.ndarray:
    """Return the result of a program in which one call must be all that reads the weight."""
    backend = create(threads).with_precision(precision)
    text = program(layer, len(x), layout)
    fused = Pipeline(fuse=tuple(backend.fuse()), verify=True).run(parse_program(text))
    assert str(fused).count(TARGET) == 1, fused
    assert "dequantize" not in str(fused)
    arrays = [x, *layer.parts.values(), added]
    executable = backend.compile(fused, [InputRole.ARGUMENT] * len(arrays))
    return np.asarray(executable.run([backend.to_device(each) for each in arrays])[0])


@pytest.mark.sample(6)
@pytest.mark.paths
@pytest.mark.parametrize(("name", "precision", "layout"), CASES)
def test_results_are_those_of_the_decoded_weight(
    name: str, precision: Precision, layout: str
) -> None:
    layer, rng = FORMS[name], np.random.default_rng(5)
    inputs, outputs = (K, N) if layout == "out_in" else (N, K)
    x = rng.normal(size=(77, inputs)).astype(np.float32)
    added = rng.normal(size=(77, outputs)).astype(np.float32)
    left, right = x.astype(np.float64), layer.values.astype(np.float32).astype(np.float64)
    if precision == "bf16":
        left, right = (each.astype(ml_dtypes.bfloat16).astype(np.float64) for each in (x, right))
    right = right.T if layout == "out_in" else right
    most = (np.abs(left) @ np.abs(right)).max()
    found = run(layer, x, added, precision, layout, 1)
    assert np.abs(found - added - left @ right).max() <= 2e-6 * most
    for rows in (1, 5):
        few = run(layer, x[:rows], added[:rows], precision, layout, 2)
        assert np.abs(few - found[:rows]).max() <= 2e-6 * most
    if precision == "bf16":  # sums of f32 are divided by rows there, as for other weights
        assert few.tobytes() == found[:5].tobytes()


@pytest.mark.parametrize("layout", ["out_in", "in_out"])
def test_long_sums_keep_their_bits_in_blocks(layout: str) -> None:
    """Several chunks and blocks of k, with threads that share rows and columns."""
    rng = np.random.default_rng(1)
    n, k = (72, 2432) if layout == "out_in" else (2450, 64)
    codes = rng.integers(0, 256, (n, k // 2), np.uint8)
    scale = (rng.normal(size=(n, k // 32)) / 100).astype(np.float16)
    inputs, outputs = (k, n) if layout == "out_in" else (n, k)
    text = f"""ptir.v0.5
func @main(%x: f32[600, {inputs}], %c: ui8[{n}, {k // 2}], %s: f16[{n}, {k // 32}])
    -> f32[600, {outputs}] {{
  %q = unpack_bits %c {{bits = 4, axis = 1}} : ui8[{n}, {k}]
  %z = constant {{value = 8}} : si32[]
  %w = dequantize %q, %s, %z {{dtype = f32, axis = 1, group_size = 32}} : f32[{n}, {k}]
  %y = dot_general %x, %w
    {{contract_lhs = [1], contract_rhs = [{1 if layout == "out_in" else 0}]}} : f32[600, {outputs}]
  return %y
}}"""
    low, high = codes & 15, codes >> 4
    whole = np.stack([low, high], -1).reshape(n, k).astype(np.float64) - 8
    values = whole * np.repeat(scale.astype(np.float64), 32, 1)
    x = rng.normal(size=(600, inputs)).astype(np.float32)
    wanted = x @ (values.T if layout == "out_in" else values)
    sizes: list[tuple[Precision, float]] = [("f32", 2e-6), ("bf16", 2e-3)]
    for precision, most in sizes:
        found: list[bytes] = []
        for threads in (1, 2):
            backend = create(threads).with_precision(precision)
            fused = Pipeline(fuse=tuple(backend.fuse())).run(parse_program(text))
            executable = backend.compile(fused, [InputRole.ARGUMENT] * 3)
            buffers = [backend.to_device(each) for each in (x, codes, scale)]
            result = np.asarray(executable.run(buffers)[0])
            found.append(result.tobytes())
            size = np.abs(x) @ np.abs(values.T if layout == "out_in" else values)
            assert (np.abs(result - wanted) <= most * size).all()
        assert found[0] == found[1]
