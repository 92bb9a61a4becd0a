"""What depends on parameters alone is cut out as recipes, if that pays and may be done ahead."""

from __future__ import annotations

import numpy as np
import pytest

from fuzzing.differential import run
from gptrs.ir import Program, parse_program, print_program, verify
from gptrs.ir.printer import print_region
from gptrs.optimizer.parameter_folding import fold_parameters
from gptrs.optimizer.split import Recipe, Split
from gptrs_conformance.program_generator import random_inputs, random_program


def split(text: str, *constant: str) -> Split:
    program = parse_program("ptir.v0.5\n" + text)
    verify(program)
    return fold_parameters(program, [name in constant for name in program.inputs])


def recipes(found: Split) -> list[Recipe]:
    return [source for source in found.inputs if isinstance(source, Recipe)]


def run_split(found: Split, inputs: list[np.ndarray]) -> list[np.ndarray]:
    values: list[np.ndarray] = []
    for source in found.inputs:
        if isinstance(source, int):
            values.append(inputs[source])
            continue
        verify(source.program)
        given = zip(source.program.inputs, source.inputs, strict=True)
        (made,) = run(source.program, {name: inputs[number] for name, number in given})
        values.append(made)
    verify(found.program)
    return run(found.program, dict(zip(map(str, range(len(values))), values, strict=True)))


BATCH_NORM = """
func @main(%x: f32[4, 3], %mean: f32[3], %variance: f32[3], %weight: f32[3]) -> f32[4, 3] {
  %tiny = constant {value = 0.001} : f32[]
  %wide = broadcast_to %tiny {shape = [3]} : f32[3]
  %safe = add %variance, %wide : f32[3]
  %inverse = rsqrt %safe : f32[3]
  %scale = mul %weight, %inverse : f32[3]
  %rows = broadcast_to %scale {shape = [4, 3]} : f32[4, 3]
  %means = broadcast_to %mean {shape = [4, 3]} : f32[4, 3]
  %centered = sub %x, %means : f32[4, 3]
  %y = mul %centered, %rows : f32[4, 3]
  return %y
}
"""


def test_any_number_of_parameters_and_constants():
    found = split(BATCH_NORM, "mean", "variance", "weight")
    (recipe,) = recipes(found)
    assert found.inputs == (0, 1, recipe)
    assert recipe.inputs == (2, 3)
    (scale,) = found.program.main.body.params[2:]
    assert str(scale.type) == "f32[3]"
    ops = [made.op.name for made in found.program.main.body.instructions]
    assert ops == ["broadcast_to", "broadcast_to", "sub", "mul"]
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=shape).astype(np.float32) for shape in ((4, 3), 3, 3, 3)]
    inputs[2] = abs(inputs[2])
    program = parse_program("ptir.v0.5\n" + BATCH_NORM)
    names = list(program.inputs)
    (wanted,) = run(program, dict(zip(names, inputs, strict=True)))
    (given,) = run_split(found, inputs)
    assert given.tobytes() == wanted.tobytes()


def test_without_parameters_nothing_is_folded():
    program = parse_program("ptir.v0.5\n" + BATCH_NORM)
    found = fold_parameters(program, [False] * 4)
    assert found == Split(program, (0, 1, 2, 3))
    assert found.program is program


def test_what_is_only_returned_is_not_kept():
    text = """
func @main(%w: f32[4], %x: f32[4]) -> (f32[4], f32[4]) {
  %0 = exp %w : f32[4]
  %1 = neg %w : f32[4]
  %2 = add %1, %x : f32[4]
  return %0, %2
}
"""
    found = split(text, "w")
    (recipe,) = recipes(found)
    assert [made.op.name for made in recipe.program.main.body.instructions] == ["neg"]
    assert [made.op.name for made in found.program.main.body.instructions] == ["exp", "add"]


def test_a_parameter_that_nothing_reads_is_left_out():
    found = split(
        """
func @main(%x: f32[2], %unread: f32[2], %w: f32[2], %y: f32[2]) -> f32[2] {
  %0 = add %x, %w : f32[2]
  return %0
}
""",
        "unread",
        "w",
    )
    assert found.inputs == (0, 2, 3), "an argument stays, read or not"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("%0 = reshape %w {shape = [512, 4]} : f32[512, 4]", "a view"),
        ("%0 = broadcast_to %w {shape = [3, 2048]} : f32[3, 2048]", "a repetition"),
        ("%0 = cast %w {dtype = f64} : f64[2048]", "a wider type"),
        ("%0 = concat %w, %w, %w {axis = 0} : f32[6144]", "more than there was"),
    ],
)
def test_what_does_not_pay_stays(line: str, why: str):
    result = line.rsplit(" : ")[1]
    text = (
        f"func @main(%w: f32[2048], %x: {result}) -> {result} {{\n  {line}\n"
        f"  %1 = add %0, %x : {result}\n  return %1\n}}\n"
    )
    assert not recipes(split(text, "w")), why


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_a_weight_is_not_widened_ahead(dtype: str):
    """Neither by a cast nor by what is computed of one; a vector may be."""
    text = f"""
func @main(%x: f32[3, 64], %w: {dtype}[64, 64], %s: {dtype}[64, 1],
           %b: {dtype}[64]) -> f32[3, 64] {{
  %wide = cast %w {{dtype = f32}} : f32[64, 64]
  %scale = cast %s {{dtype = f32}} : f32[64, 1]
  %scales = broadcast_to %scale {{shape = [64, 64]}} : f32[64, 64]
  %scaled = mul %wide, %scales : f32[64, 64]
  %y = dot_general %x, %scaled {{contract_lhs = [1], contract_rhs = [0]}} : f32[3, 64]
  %bias = cast %b {{dtype = f32}} : f32[64]
  %rows = broadcast_to %bias {{shape = [3, 64]}} : f32[3, 64]
  %z = add %y, %rows : f32[3, 64]
  return %z
}}
"""
    found = split(text, "w", "s", "b")
    params = [str(param.type) for param in found.program.main.body.params]
    assert params == ["f32[3, 64]", f"{dtype}[64, 64]", "f32[64, 1]", "f32[64]"]
    turned = text.replace("mul %wide, %scales", "transpose %wide {permutation = [1, 0]}")
    params = [str(param.type) for param in split(turned, "w", "s", "b").program.main.body.params]
    assert f"{dtype}[64, 64]" in params
    assert "f32[64, 64]" not in params


def test_random_numbers_are_drawn_each_time():
    text = """
func @main(%seed: ui64[2], %x: f32[2]) -> f32[2] {
  %0 = rng_uniform %seed {shape = [2], dtype = f32} : f32[2]
  %1 = neg %0 : f32[2]
  %2 = add %1, %x : f32[2]
  return %2
}
"""
    assert not recipes(split(text, "seed"))


def test_of_several_results_only_the_derived_one_leaves():
    text = """
func @main(%w: f32[64], %x: si32[4]) -> (f32[4], si32[4]) {
  %v, %i = top_k %w {k = 4} : (f32[4], si32[4])
  %s = add %i, %x : si32[4]
  return %v, %s
}
"""
    found = split(text, "w")
    assert len(recipes(found)) == 1
    assert [made.op.name for made in found.program.main.body.instructions] == ["top_k", "add"]
    rng = np.random.default_rng(1)
    inputs = [rng.normal(size=64).astype(np.float32), np.arange(4, dtype=np.int32)]
    program = parse_program("ptir.v0.5\n" + text)
    wanted = run(program, {"w": inputs[0], "x": inputs[1]})
    for given, value in zip(run_split(found, inputs), wanted, strict=True):
        assert given.tobytes() == value.tobytes()


def test_equal_recipes_have_equal_texts():
    """So that what one program derived, another one finds."""
    first, second = (recipes(split(BATCH_NORM, "variance", "weight"))[0] for _ in range(2))
    assert print_program(first.program) == print_program(second.program)


def _folded(program: Program, every: int) -> Split:
    count = len(program.main.body.params)
    return fold_parameters(program, [number % every != 0 for number in range(count)])


@pytest.mark.long
def test_random_programs_keep_every_bit():
    derived = 0
    for seed in range(150):
        program = random_program(seed, size=30)
        inputs = random_inputs(program, seed)
        wanted = run(program, inputs)
        for every in (2, 100):
            found = _folded(program, every)
            derived += len(recipes(found))
            for given, value in zip(run_split(found, list(inputs.values())), wanted, strict=True):
                assert given.tobytes() == value.tobytes(), f"seed {seed}"
    assert derived >= 20


LAYERS = """
func @layer(%x: f32[4, 3], %weight: f32[3], %shift: f32[3]) -> f32[4, 3] {
  %scale = exp %weight : f32[3]
  %rows = broadcast_to %scale {shape = [4, 3]} : f32[4, 3]
  %moved = sqrt %shift : f32[3]
  %shifts = broadcast_to %moved {shape = [4, 3]} : f32[4, 3]
  %scaled = mul %x, %rows : f32[4, 3]
  %y = add %scaled, %shifts : f32[4, 3]
  return %y
}
func @main(%x: f32[4, 3], %v: f32[3], %w: f32[3], %s: f32[3], %given: f32[3]) -> f32[4, 3] {
  %0 = call %x, %v, %s {function = @layer} : f32[4, 3]
  %1 = call %0, %w, %given {function = @layer} : f32[4, 3]
  return %1
}
"""


def test_functions_take_what_is_derived_of_constants_in_all_their_calls():
    found = split(LAYERS, "v", "w", "s")
    first, second = recipes(found)
    assert first.program is second.program
    assert (first.inputs, second.inputs) == ((1,), (2,))
    assert found.inputs == (0, 3, 4, first, second)
    ops = [made.op.name for made in found.program.functions[0].body.instructions]
    assert "exp" not in ops
    assert "sqrt" in ops, "one call passes an argument"
    rng = np.random.default_rng(2)
    shapes = [(4, 3), (3,), (3,), (3,), (3,)]
    inputs = [rng.uniform(1, 2, shape).astype(np.float32) for shape in shapes]
    whole = run(
        parse_program("ptir.v0.5\n" + LAYERS),
        dict(zip("xvws", inputs, strict=False)) | {"given": inputs[4]},
    )
    np.testing.assert_array_equal(run_split(found, inputs)[0], whole[0])


STEPS = """
func @main(%x: f32[2, 4], %codes: si8[4, 4], %scale: f32[], %n: si64[]) -> (f32[2, 4], f32[4, 4]) {
  %wide = cast %codes {dtype = f32} : f32[4, 4]
  %scales = broadcast_to %scale {shape = [4, 4]} : f32[4, 4]
  %weight = mul %wide, %scales : f32[4, 4]
  %i = constant {value = 0} : si64[]
  %last, %end, %y, %w = while %i, %n, %x, %weight
    condition(%i0: si64[], %n0: si64[], %x0: f32[2, 4], %w0: f32[4, 4]) {
      %more = compare %i0, %n0 {direction = lt} : i1[]
      return %more
    }
    body(%i1: si64[], %n1: si64[], %x1: f32[2, 4], %w1: f32[4, 4]) {
      %one = constant {value = 1} : si64[]
      %next = add %i1, %one : si64[]
      %product = dot_general %x1, %w1 {contract_lhs = [1], contract_rhs = [0]} : f32[2, 4]
      return %next, %n1, %product, %w1
    } : (si64[], si64[], f32[2, 4], f32[4, 4])
  %states, %same = scan %y, %weight, %wide {carry_count = 2}
    body(%x2: f32[2, 4], %w2: f32[4, 4], %row: f32[4]) {
      %rows = broadcast_to %row {shape = [2, 4]} : f32[2, 4]
      %sum = add %x2, %rows : f32[2, 4]
      %z = dot_general %sum, %w2 {contract_lhs = [1], contract_rhs = [0]} : f32[2, 4]
      return %z, %w2
    } : (f32[2, 4], f32[4, 4])
  return %states, %w
}
"""


def test_loops_decode_the_weights_that_they_read(monkeypatch):
    """Kernels read stored weights: each step of a loop must see how its own are decoded."""
    monkeypatch.setattr("gptrs.optimizer.parameter_folding.GROWTH_ALLOWED", 0)
    found = split(STEPS, "codes", "scale")
    assert not recipes(found)
    *_, loop, scan = (made for made in found.program.main.body.instructions if made.regions)
    assert [value.type.dtype.name for value in loop.operands] == [
        "si64",
        "si64",
        "f32",
        "si8",
        "f32",
    ]
    assert [value.type.dtype.name for value in scan.operands] == ["f32", "si8", "f32", "f32"]
    assert all("cast" in print_region(made.regions[-1]) for made in (loop, scan))
    inputs = [np.ones((2, 4), np.float32), np.arange(16, dtype=np.int8).reshape(4, 4)]
    inputs += [np.array(0.25, np.float32), np.array(3)]
    names = parse_program("ptir.v0.5\n" + STEPS)
    expected = run(names, dict(zip(names.inputs, inputs, strict=True)))
    for one, other in zip(run_split(found, inputs), expected, strict=True):
        np.testing.assert_array_equal(one, other)
