"""Products of dequantized numbers, tables of codes, and codes that are rounded to themselves."""

from __future__ import annotations

import numpy as np
import pytest

from gptrs.capture.compilation import compile_program
from gptrs.ir import Program, parse_program, verify
from gptrs.optimizer.pass_base import RegionPass
from gptrs.optimizer.passes.integer_products import INTEGER_PRODUCTS, KEPT_CODES, TAKEN_CODES
from gptrs_backend_ref.backend import create

DEQUANTIZED = """
  %xi = cast %x {dtype = si32} : si32[2, 5, 8]
  %p = constant {value = 100} : si32[]
  %xp = broadcast_to %p {shape = [2, 5, 8]} : si32[2, 5, 8]
  %xs = sub %xi, %xp : si32[2, 5, 8]
  %xf = cast %xs {dtype = f32} : f32[2, 5, 8]
  %s = constant {value = 0.1} : f32[]
  %sb = broadcast_to %s {shape = [2, 5, 8]} : f32[2, 5, 8]
  %a = mul %sb, %xf : f32[2, 5, 8]"""
WEIGHT = """
  %wf = cast %w {dtype = f32} : f32[6, 2, 4]
  %t = constant {value = [[[0.5]], [[0.25]], [[3.0]], [[0.7]], [[0.01]], [[1.0]]]} : f32[6, 1, 1]
  %tb = broadcast_to %t {shape = [6, 2, 4]} : f32[6, 2, 4]
  %wm = mul %wf, %tb : f32[6, 2, 4]
  %wt = transpose %wm {permutation = [1, 2, 0]} : f32[2, 4, 6]
  %b = reshape %wt {shape = [8, 6]} : f32[8, 6]"""
PRODUCT = "  %y = dot_general %a, %b {contract_lhs = [2], contract_rhs = [0]} : f32[2, 5, 6]"
HEAD = "ptir.v0.5\nfunc @main(%x: ui8[2, 5, 8], %w: si8[6, 2, 4]) -> f32[2, 5, 6] {"


def program(*parts: str) -> Program:
    found = parse_program("\n".join([HEAD, *parts, "  return %y\n}"]))
    verify(found)
    return found


def changed(pass_: RegionPass, before: Program) -> Program:
    after = pass_.apply(before)
    verify(after)
    assert after is not before
    again = pass_.apply(after)
    assert str(again) == str(after), "a second run changes nothing"
    return after


def results(of: Program, *inputs: np.ndarray) -> np.ndarray:
    return np.asarray(compile_program(of, create()).run(list(inputs))[0])


def test_sums_of_a_quantized_layer_are_integers() -> None:
    before = program(DEQUANTIZED, WEIGHT, PRODUCT)
    after = changed(INTEGER_PRODUCTS, before)
    assert ": si32[2, 5, 6]" in str(after)
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (2, 5, 8)).astype(np.uint8)
    w = random.integers(-128, 128, (6, 2, 4)).astype(np.int8)
    sums = (x.astype(np.int32) - 100) @ w.astype(np.int32).reshape(6, 8).T
    scale = np.float32(0.1) * np.array([0.5, 0.25, 3, 0.7, 0.01, 1], np.float32)
    np.testing.assert_array_equal(results(after, x, w), sums.astype(np.float32) * scale)
    np.testing.assert_allclose(results(before, x, w), results(after, x, w), rtol=1e-5)


LEFT_ALONE = {
    "numbers on one side": program(
        DEQUANTIZED,
        "  %b = constant {value = splat(0.5)} : f32[8, 6]",
        PRODUCT,
    ),
    "scales along the contracted axis": program(
        DEQUANTIZED.replace("{value = 0.1} : f32[]", "{value = splat(0.1)} : f32[8]"),
        WEIGHT,
        PRODUCT,
    ),
    "an axis of scales that a reshape joins with others": program(
        DEQUANTIZED,
        WEIGHT.replace("[1, 2, 0]", "[1, 0, 2]").replace("f32[2, 4, 6]", "f32[2, 6, 4]"),
        PRODUCT,
    ),
    "numbers between the codes and the scale": program(
        DEQUANTIZED.replace("mul %sb, %xf", "mul %sb, %xh").replace(
            "  %s =", "  %xh = sqrt %xf : f32[2, 5, 8]\n  %s ="
        ),
        WEIGHT,
        PRODUCT,
    ),
    "sums of f64": program(
        DEQUANTIZED, WEIGHT, PRODUCT.replace("rhs = [0]", "rhs = [0], accum_dtype = f64")
    ),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_other_products_stay(name: str) -> None:
    assert INTEGER_PRODUCTS.apply(LEFT_ALONE[name]) is LEFT_ALONE[name]


def test_a_table_is_read_before_it_is_widened() -> None:
    text = """ptir.v0.5
func @main(%t: si8[50, 4], %i: si64[3]) -> f32[3, 4] {
  %0 = cast %t {dtype = si32} : si32[50, 4]
  %p = constant {value = -3} : si32[]
  %1 = broadcast_to %p {shape = [50, 4]} : si32[50, 4]
  %2 = sub %0, %1 : si32[50, 4]
  %3 = cast %2 {dtype = f32} : f32[50, 4]
  %s = constant {value = 0.3} : f32[]
  %4 = broadcast_to %s {shape = [50, 4]} : f32[50, 4]
  %5 = mul %3, %4 : f32[50, 4]
  %6 = take %5, %i : f32[3, 4]
  return %6
}"""
    before = parse_program(text)
    after = changed(TAKEN_CODES, before)
    assert "take %t, %i : si8[3, 4]" in str(after)
    random = np.random.default_rng(1)
    inputs = random.integers(-128, 128, (50, 4)).astype(np.int8), np.array([7, 0, 49])
    np.testing.assert_array_equal(results(after, *inputs), results(before, *inputs))


ROUNDED = """ptir.v0.5
func @main(%x: ui8[2, 4, 4, 3]) -> ui8[2, 3, 2, 2] {
  %0 = cast %x {dtype = si32} : si32[2, 4, 4, 3]
  %p = constant {value = 100} : si32[]
  %1 = broadcast_to %p {shape = [2, 4, 4, 3]} : si32[2, 4, 4, 3]
  %2 = sub %0, %1 : si32[2, 4, 4, 3]
  %3 = cast %2 {dtype = f32} : f32[2, 4, 4, 3]
  %s = constant {value = SCALE} : f32[]
  %4 = broadcast_to %s {shape = [2, 4, 4, 3]} : f32[2, 4, 4, 3]
  %5 = mul %3, %4 : f32[2, 4, 4, 3]
  %6 = transpose %5 {permutation = [0, 3, 1, 2]} : f32[2, 3, 4, 4]
  %7 = reduce_window %6 {kind = max, window = [1, 1, 3, 3], strides = [1, 1, 2, 2],
    padding = [0, 0, 0, 0, 1, 0, 1, 0]} : f32[2, 3, 2, 2]
  %u = constant {value = STEP} : f32[]
  %8 = broadcast_to %u {shape = [2, 3, 2, 2]} : f32[2, 3, 2, 2]
  %9 = div %7, %8 : f32[2, 3, 2, 2]
  %10 = round_nearest_even %9 : f32[2, 3, 2, 2]
  %q = constant {value = MIDDLE} : f32[]
  %11 = broadcast_to %q {shape = [2, 3, 2, 2]} : f32[2, 3, 2, 2]
  %12 = add %10, %11 : f32[2, 3, 2, 2]
  %l = constant {value = splat(LEAST)} : f32[1]
  %13 = broadcast_to %l {shape = [2, 3, 2, 2]} : f32[2, 3, 2, 2]
  %m = constant {value = 255.0} : f32[]
  %14 = broadcast_to %m {shape = [2, 3, 2, 2]} : f32[2, 3, 2, 2]
  %15 = clamp %12, %13, %14 : f32[2, 3, 2, 2]
  %16 = cast %15 {dtype = ui8} : ui8[2, 3, 2, 2]
  return %16
}"""


def rounded(scale: str, step: str, middle: str = "100.0", least: str = "0.0") -> Program:
    text = ROUNDED.replace("SCALE", scale).replace("STEP", step)
    return parse_program(text.replace("MIDDLE", middle).replace("LEAST", least))


@pytest.mark.parametrize("scale", ["0.1", "0.037", "3e20", "7e-30"])
def test_codes_that_are_rounded_to_themselves_stay_codes(scale: str) -> None:
    before = rounded(scale, scale)
    after = changed(KEPT_CODES, before)
    assert "f32" not in str(after)
    x = np.random.default_rng(2).permutation(96).astype(np.uint8).reshape(2, 4, 4, 3)
    for codes in (x, x + np.uint8(160)):
        np.testing.assert_array_equal(results(after, codes), results(before, codes))


@pytest.mark.parametrize(
    "given",
    [("0.1", "0.2"), ("-0.1", "-0.1"), ("0.1", "0.1", "99.0"), ("0.1", "0.1", "100.0", "3.0")],
)
def test_codes_of_another_scale_or_zero_point_are_rounded(given: tuple[str, ...]) -> None:
    before = rounded(*given)
    assert KEPT_CODES.apply(before) is before
