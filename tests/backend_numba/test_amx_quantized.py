"""Quantized weights on AMX: the bits of the vector registers, for every form and height."""

from __future__ import annotations

import numpy as np
import pytest

from backend_numba.quantized_layers import FORMS
from gptrs.backend.contract import InputRole
from gptrs.ir import parse_program
from gptrs.optimizer.pipeline import Pipeline
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.codegen.vector_ir import FEATURES
from gptrs_backend_numba.fusion.passes import FUSE
from gptrs_backend_numba.lowering import quantized_linear
from gptrs_backend_numba.lowering.amx_matmul import VARIABLE, is_there

pytestmark = pytest.mark.skipif(
    "amx-int8" not in FEATURES or not is_there(), reason="the processor has no AMX for bytes"
)


def results(
    monkeypatch: pytest.MonkeyPatch,
    amx: str,
    text: str,
    inputs: list[np.ndarray],
    threads: int = 1,
) -> np.ndarray:
    """Run a program of one product with a weight, with AMX or without it."""
    used: list[object] = []
    product = quantized_linear.amx_quantized_product

    def told(form):
        used.append(form)
        return product(form)

    monkeypatch.setenv(VARIABLE, amx)
    monkeypatch.setattr(quantized_linear, "amx_quantized_product", told)
    program = Pipeline(fuse=FUSE).run(parse_program(text))
    roles = [InputRole.ARGUMENT, *[InputRole.PARAMETER] * (len(inputs) - 1)]
    executable = create(threads).with_precision("int8").compile(program, roles)
    found = np.asarray(executable.run(inputs)[0]).copy()
    assert bool(used) == (amx == "1")
    monkeypatch.setattr(quantized_linear, "amx_quantized_product", product)
    return found


@pytest.mark.sample(3)
@pytest.mark.paths
@pytest.mark.parametrize("name", FORMS)
def test_results_are_the_bits_of_vector_registers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = FORMS[name]
    parts = list(layer.parts.values())
    x = np.random.default_rng(5).normal(size=(101, layer.k)).astype(np.float32)
    x[3, 7], x[50, 2], x[100] = np.inf, np.nan, 1e-38
    for rows, threads in ((32, 1), (33, 2), (101, 1), (101, 2)):
        given = [x[-rows:], *parts]
        wanted = results(monkeypatch, "0", layer.program(rows), given, threads)
        found = results(monkeypatch, "1", layer.program(rows), given, threads)
        assert np.isnan(wanted).any() == (rows > 50)
        np.testing.assert_array_equal(found, wanted)
        assert np.isnan(found).tobytes() == np.isnan(wanted).tobytes()
        spoilt = np.isnan(wanted)
        assert found[~spoilt].tobytes() == wanted[~spoilt].tobytes(), (rows, threads)


@pytest.mark.parametrize("blocks", [1, 2, 3, 16, 17, 24, 33])
@pytest.mark.parametrize("rows", [32, 40, 48, 49, 64])
def test_sizes(rows: int, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks come in pairs, 16 at a time; tiles in heights up to 32, columns in panels of 32."""
    random, k, n = np.random.default_rng(rows), 32 * blocks, 1100
    given = f"%x: f32[{rows}, {k}], %codes: ui8[{n}, {k // 2}], %s: f32[{n}, {blocks}]"
    text = f"""ptir.v0.5
func @main({given}) -> f32[{rows}, {n}] {{
  %q = unpack_bits %codes {{bits = 4, axis = 1}} : ui8[{n}, {k}]
  %z = constant {{value = 8}} : si32[]
  %w = dequantize %q, %s, %z {{dtype = f32, axis = 1, group_size = 32}} : f32[{n}, {k}]
  %y = dot_general %x, %w {{contract_lhs = [1], contract_rhs = [1]}} : f32[{rows}, {n}]
  return %y
}}"""
    inputs = [
        random.normal(size=(rows, k)).astype(np.float32),
        random.integers(0, 256, (n, k // 2), np.uint8),
        random.normal(size=(n, blocks)).astype(np.float32),
    ]
    wanted = results(monkeypatch, "0", text, inputs)
    assert results(monkeypatch, "1", text, inputs).tobytes() == wanted.tobytes()
    assert results(monkeypatch, "1", text, inputs, 2).tobytes() == wanted.tobytes()
