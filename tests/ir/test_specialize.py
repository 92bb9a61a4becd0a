"""Programs with symbolic dims: text, JSON, binding, specialization, execution."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gptrs
from gptrs.capture.execute import compile_program
from gptrs.errors import ProgramError, UnsupportedError, UsageError
from gptrs.ir import (
    TensorType,
    bind,
    dtypes,
    parse_json,
    parse_program,
    print_json,
    print_program,
    specialize,
    symbols,
    verify,
)

TEXT = """\
ptir.v0.5
func @half(%a: f32[2*?0]) -> f32[?0, 2] {
  %0 = reshape %a {shape = [?0, 2]} : f32[?0, 2]
  return %0
}

func @main(%p: i1[], %x: f32[?0, 4], %w: f32[4, ?1], %b: f32[2*?0]) -> (f32[?0, ?1], f32[3*?0], \
f32[?0+2, 4], f32[2, ?0, ?1], f32[?0, 2]) {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[?0, ?1]
  %1 = iota {shape = [?0], axis = 0, dtype = f32} : f32[?0]
  %2 = concat %b, %1 {axis = 0} : f32[3*?0]
  %3 = pad %x {low = [1, 0], high = [1, 0], interior = [0, 0]} : f32[?0+2, 4]
  %4 = broadcast_to %0 {shape = [2, ?0, ?1]} : f32[2, ?0, ?1]
  %7 = cond %p, %b
    then(%a: f32[2*?0]) {
      %5 = custom_call %a {target = "test.half.v1", results = [f32[?0, 2]], decomposition = @half} \
: f32[?0, 2]
      return %5
    }
    else(%a: f32[2*?0]) {
      %6 = reshape %a {shape = [-1, 2]} : f32[?0, 2]
      return %6
    } : f32[?0, 2]
  return %0, %2, %3, %4, %7
}
"""


def inputs(n: int, m: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "p": np.array(True),
        "x": rng.normal(size=(n, 4)).astype(np.float32),
        "w": rng.normal(size=(4, m)).astype(np.float32),
        "b": rng.normal(size=2 * n).astype(np.float32),
    }


def types(n: int, m: int) -> dict[str, TensorType]:
    return {name: TensorType.of(array) for name, array in inputs(n, m).items()}


def test_text_and_json_round_trip() -> None:
    program = parse_program(TEXT)
    verify(program)
    assert print_program(program) == TEXT
    assert print_program(parse_json(print_json(program))) == TEXT
    assert symbols(program) == [0, 1]


@pytest.mark.parametrize("sizes", [(3, 2), (1, 1), (0, 5)])
def test_run_program_takes_the_sizes_of_its_inputs(sizes: tuple[int, int]) -> None:
    n, m = sizes
    given = inputs(n, m)
    results = gptrs.run_program(parse_program(TEXT), given, backend="ref")
    product = given["x"] @ given["w"]
    np.testing.assert_allclose(results[0], product, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(results[1], np.concatenate([given["b"], np.arange(n)]))
    np.testing.assert_array_equal(results[2], np.pad(given["x"], ((1, 1), (0, 0))))
    np.testing.assert_array_equal(results[3], np.stack([results[0]] * 2))
    np.testing.assert_array_equal(results[4], given["b"].reshape(n, 2))


def test_specialized_text() -> None:
    special = specialize(parse_program(TEXT), {0: 3, 1: 5})
    assert symbols(special) == []
    text = TEXT.replace("2*?0", "6").replace("3*?0", "9").replace("?0+2", "5")
    assert print_program(special) == text.replace("?0", "3").replace("?1", "5")
    assert specialize(special, {}) is special


def test_bind() -> None:
    program = parse_program(TEXT)
    assert bind(program, types(3, 2)) == {0: 3, 1: 2}


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("b", (7,), "input `b` must be `f32[2*?0]`, got `f32[7]`: axis 0 must be 6 (`2*?0`)"),
        ("w", (5, 2), "input `w` must be `f32[4, ?1]`, got `f32[5, 2]`: axis 0 must be 4"),
        ("x", (3,), "input `x` must be `f32[?0, 4]`, got `f32[3]`"),
    ],
)
def test_bind_refusals(name: str, shape: tuple[int, ...], message: str) -> None:
    found = types(3, 2) | {name: TensorType(dtypes.f32, shape)}
    with pytest.raises(UsageError, match=re.escape(message)):
        bind(parse_program(TEXT), found)


def test_one_symbol_in_two_places_must_be_one_size() -> None:
    text = "ptir.v0.5\nfunc @main(%x: f32[?0], %y: f32[2, ?0]) -> f32[?0] {\n  return %x\n}\n"
    given = {"x": TensorType(dtypes.f32, (3,)), "y": TensorType(dtypes.f32, (2, 4))}
    message = "`?0` is 3 by axis 0 of `x` and 4 by axis 1 of `y`"
    with pytest.raises(UsageError, match=re.escape(message)):
        bind(parse_program(text), given)


def test_specialize_refusals() -> None:
    program = parse_program(TEXT)
    with pytest.raises(ProgramError, match=re.escape("no size is given for ?1")):
        specialize(program, {0: 3})
    with pytest.raises(ProgramError, match=re.escape("`?0` is a size, which cannot be -1")):
        specialize(program, {0: -1, 1: 2})
    text = "ptir.v0.5\nfunc @main() -> ui4[?0] {\n"
    text += "  %0 = iota {shape = [?0], axis = 0, dtype = ui4} : ui4[?0]\n  return %0\n}\n"
    with pytest.raises(ProgramError, match=re.escape("with ?0 = 17: instruction 0 of `@main`")):
        specialize(parse_program(text), {0: 17})
    with pytest.raises(ProgramError, match="more than 2\\^48 elements"):
        specialize(parse_program(TEXT), {0: 2**40, 1: 2**40})


def test_a_symbol_that_no_input_gives() -> None:
    text = "ptir.v0.5\nfunc @main(%x: f32[2*?0]) -> f32[2*?0] {\n  return %x\n}\n"
    with pytest.raises(ProgramError, match=re.escape("no size is given for ?0")):
        gptrs.run_program(parse_program(text), {"x": np.zeros(4, np.float32)}, backend="ref")


def test_backends_refuse_symbolic_programs(backend) -> None:
    with pytest.raises(UnsupportedError, match=re.escape("symbolic dims, ?0")):
        compile_program(parse_program(TEXT), backend)
