"""The rounding of products: what the precision `bf16` means in PTIR."""

from __future__ import annotations

import numpy as np
import pytest

from gptrs.capture.compilation import compile_program
from gptrs.ir import parse_program
from gptrs.optimizer.passes.arithmetic_folding import PRODUCT_ROUNDING
from gptrs_backend_ref.backend import create

LAYER = """ptir.v0.5
func @main(%x: f32[3, 4], %w: f32[5, 4]) -> f32[3, 5] {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [1]} : f32[3, 5]
  return %0
}"""
NARROW = LAYER.replace("%w: f32", "%v: bf16").replace(
    "  %0 =", "  %w = cast %v {dtype = f32} : f32[5, 4]\n  %0 ="
)
LEFT_ALONE = {
    "a batch": """ptir.v0.5
func @main(%x: f32[2, 3, 4], %w: f32[2, 5, 4]) -> f32[2, 3, 5] {
  %0 = dot_general %x, %w {batch_lhs = [0], batch_rhs = [0], contract_lhs = [2],
    contract_rhs = [2]} : f32[2, 3, 5]
  return %0
}""",
    "another type": LAYER.replace("f32", "f64"),
    "sums of f64": LAYER.replace("rhs = [1]", "rhs = [1], accum_dtype = f64"),
}


def test_both_sides_of_a_product_are_rounded() -> None:
    found = str(PRODUCT_ROUNDING.apply(parse_program(LAYER)))
    assert found.count("cast") == 2
    assert "bf16[3, 4]" in found
    assert "out_dtype = f32" in found
    again = parse_program(found)
    assert PRODUCT_ROUNDING.apply(again) is again


def test_a_weight_of_bf16_is_taken_as_it_is() -> None:
    found = str(PRODUCT_ROUNDING.apply(parse_program(NARROW)))
    assert "bf16[3, 4]" in found
    assert "dot_general %0, %v" in found or "dot_general %1, %v" in found


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_other_products_stay(name: str) -> None:
    program = parse_program(LEFT_ALONE[name])
    assert PRODUCT_ROUNDING.apply(program) is program


def test_the_reference_backend_rounds() -> None:
    backend = create().with_precision("bf16")
    x = np.full((3, 4), 1 + 2.0**-9, np.float32)  # 1 in bf16
    executable = compile_program(parse_program(LAYER), backend)
    (found,) = executable.run([x, np.ones((5, 4), np.float32)])
    np.testing.assert_array_equal(found, 4)
    exact = compile_program(parse_program(LAYER), create())
    np.testing.assert_array_equal(exact.run([x, np.ones((5, 4), np.float32)])[0], 4 + 2.0**-7)
