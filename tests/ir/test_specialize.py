"""Programs with symbolic dims: text, JSON, binding, specialization, execution."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gptrs
from gptrs.backend.contract import InputRole
from gptrs.capture.compilation import compile_program
from gptrs.errors import ProgramError, UnsupportedError, UsageError
from gptrs.ir import (
    OPS,
    Function,
    Instruction,
    Program,
    Region,
    TensorType,
    Value,
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
from gptrs.ir.symbolic_dim import symbol

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
      %5 = composite %a {kind = "half.v1", decomposition = @half, operands = "a"} : f32[?0, 2]
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


def test_inputs_without_a_name_go_by_their_position() -> None:
    text = "ptir.v0.5\nfunc @main(%0: f32[?0], %x: f32[?0]) -> f32[2*?0] {\n"
    text += "  %1 = concat %0, %x {axis = 0} : f32[2*?0]\n  return %1\n}\n"
    program = parse_program(text)
    given = {"arg0": np.ones(3, np.float32), "x": np.zeros(3, np.float32)}
    (result,) = gptrs.run_program(program, given, backend="ref")
    assert result.tolist() == [1, 1, 1, 0, 0, 0]
    with pytest.raises(UsageError, match=re.escape("`?0` is 2 by axis 0 of `arg0` and 3 by")):
        gptrs.run_program(program, given | {"arg0": np.ones(2, np.float32)}, backend="ref")


def test_two_inputs_of_one_name_are_refused() -> None:
    text = "ptir.v0.5\nfunc @main(%0: f32[2], %arg0: f32[2]) -> f32[2] {\n  return %0\n}\n"
    with pytest.raises(ProgramError, match="two parameters of `@main` have one name"):
        gptrs.run_program(parse_program(text), {"arg0": np.ones(2, np.float32)}, backend="ref")


LOOPS = """\
ptir.v0.5
func @double(%x: f32[?0]) -> f32[?0] {
  %0 = add %x, %x : f32[?0]
  return %0
}

func @main(%x: f32[?0], %xs: f32[?1, ?0]) -> (f32[?0], f32[?0], f32[?1, ?0]) {
  %0 = call %x {function = @double} : f32[?0]
  %3 = while %0
    condition(%a: f32[?0]) {
      %1 = constant {value = false} : i1[]
      return %1
    }
    body(%a: f32[?0]) {
      %2 = neg %a : f32[?0]
      return %2
    } : f32[?0]
  %5, %6 = scan %3, %xs {carry_count = 1}
    body(%a: f32[?0], %b: f32[?0]) {
      %4 = add %a, %b : f32[?0]
      return %4, %4
    } : (f32[?0], f32[?1, ?0])
  return %3, %5, %6
}
"""


@pytest.mark.parametrize(("n", "m"), [(2, 3), (4, 1), (0, 2), (3, 0)])
def test_loops_and_calls(n: int, m: int) -> None:
    program = parse_program(LOOPS)
    assert print_program(program) == LOOPS
    rng = np.random.default_rng(n)
    x, xs = (rng.integers(-9, 9, shape).astype(np.float32) for shape in ((n,), (m, n)))
    doubled, last, steps = gptrs.run_program(program, {"x": x, "xs": xs}, backend="ref")
    np.testing.assert_array_equal(doubled, 2 * x)
    np.testing.assert_array_equal(last, 2 * x + xs.sum(axis=0))
    np.testing.assert_array_equal(steps, 2 * x + xs.cumsum(axis=0))


def test_the_attributes_of_a_custom_call_are_specialized() -> None:
    text = """ptir.v0.5
func @main(%x: f32[?0]) -> f32[?0, 2] {
  %0 = custom_call %x {target = "test.pairs.v1", results = [f32[?0, 2]], attrs = {k = 1, \
shape = [?0, 2]}} : f32[?0, 2]
  return %0
}
"""
    program = parse_program(text)
    assert print_program(program) == text
    assert print_program(parse_json(print_json(program))) == text
    assert print_program(specialize(program, {0: 3})) == text.replace("?0", "3")


def test_a_malformed_program_is_an_error() -> None:
    stray = Value(TensorType(dtypes.f32, (symbol(0),)))
    instruction = Instruction(OPS["tanh"](), (stray,), (Value(stray.type),))
    other = Value(stray.type)
    for region in (Region((), (instruction,), ()), Region((other,), (), (stray,))):
        with pytest.raises(ProgramError, match=r"with \?0 = 2: .* is read before it is defined"):
            specialize(Program((Function("main", region),)), {0: 2})


def test_backends_refuse_symbolic_programs(backend) -> None:
    with pytest.raises(UnsupportedError, match=re.escape("symbolic dims, ?0")):
        compile_program(parse_program(TEXT), backend)
    with pytest.raises(UnsupportedError, match=re.escape("symbolic dims, ?0")):
        backend.compile(parse_program(TEXT), [InputRole.ARGUMENT] * 4)
