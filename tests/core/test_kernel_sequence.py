"""`KernelSequence` runs the kernels of a backend: each once, in order, with what it asks for."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from gptrs.api.backends import InputRole, KernelSequence, OpTable, functional_arguments
from gptrs.api.programs import dtypes, ops, parse_program

ARGUMENT, DONATED = InputRole.ARGUMENT, InputRole.DONATED


class Box:
    """A tensor whose life can be watched."""

    def __init__(self, array):
        self.array = array


@pytest.fixture
def table():
    made = OpTable("boxes")
    plain = [dtypes.f32, dtypes.i1]
    made.register(ops.elementwise.Add, dtypes=plain)(lambda op, x, y: Box(x.array + y.array))
    made.register(ops.elementwise.Neg, dtypes=plain)(lambda op, x: Box(-x.array))
    made.register(ops.creation.Constant, dtypes=plain)(lambda op: Box(np.full(2, 2, np.float32)))

    def cond(op, then, otherwise, chosen, *operands):
        return (then if chosen.array else otherwise)(*operands)

    made.register(ops.control_flow.Cond, dtypes=[dtypes.i1])(cond)
    return made


def body(text):
    return parse_program("ptir.v0.5\n" + text).main.body


def call(operands, names, target="norm.v1"):
    given = f'{{target = "boxes.{target}", results = [f32[2]], operands = "{names}"}}'
    return f"custom_call {operands} {given} : f32[2]"


def test_values_are_dropped_after_their_last_use_and_constants_made_once(table):
    region = body("""
func @main(%x: f32[2]) -> (f32[2], f32[2]) {
  %c = constant {value = [2.0, 2.0]} : f32[2]
  %0 = neg %x : f32[2]
  %1 = add %0, %c : f32[2]
  %2 = neg %1 : f32[2]
  %3 = add %2, %c : f32[2]
  return %3, %x
}
""")
    alive: list[weakref.ref[Box]] = []
    most = 0

    def neg(op, x):
        nonlocal most
        most = max(most, sum(each() is not None for each in alive))
        made = Box(-x.array)
        alive.append(weakref.ref(made))
        return made

    sequence = KernelSequence(region, table.changed({ops.elementwise.Neg: lambda _: neg}))
    x = Box(np.array([1, 2], np.float32))
    for _ in range(2):
        found, same = sequence(x)
        assert found.array.tolist() == [1.0, 2.0]
        assert same is x
    assert most <= 1
    assert [str(each.type) for each in (*sequence.params, *sequence.results)] == ["f32[2]"] * 3


def test_regions_are_sequences(table):
    region = body("""
func @main(%p: i1[], %x: f32[2]) -> f32[2] {
  %0 = cond %p, %x
    then(%a: f32[2]) {
      %1 = neg %a : f32[2]
      return %1
    }
    else(%a: f32[2]) {
      return %a
    } : f32[2]
  return %0
}
""")
    sequence = KernelSequence(region, table)
    x = Box(np.ones(2, np.float32))
    for chosen in (True, False):
        (found,) = sequence(Box(np.array(chosen)), x)
        assert found.array.tolist() == ([-1, -1] if chosen else [1, 1])


def test_a_kernel_by_name_is_told_what_it_may_overwrite_and_shares_what_a_run_needs(table):
    seen = []

    @table.composite("norm.v1", by_name=True)
    def norm(x, weight, epsilon=1.0, *, donated, shared):
        seen.append((donated, epsilon, dict(shared)))
        shared["first"] = True
        return Box(x.array * weight.array)

    assert norm.__name__ == "norm"
    region = body(f"""
func @main(%x: f32[2], %y: f32[2], %w: f32[2]) -> f32[2] {{
  %0 = {call("%x, %w", "x weight")}
  %1 = {call("%y, %w", "x weight")}
  %2 = add %0, %1 : f32[2]
  %3 = add %2, %y : f32[2]
  return %3
}}
""")
    sequence = KernelSequence(region, table, [DONATED, DONATED, ARGUMENT])
    arrays = [Box(np.array(each, np.float32)) for each in ([1, 2], [3, 4], [5, 6])]
    for _ in range(2):
        (found,) = sequence(*arrays)
        assert found.array.tolist() == [23.0, 40.0]
    # `y` is read once more, so that it must not change.
    assert seen == [(("x",), 1.0, {}), ((), 1.0, {"first": True})] * 2


def test_names_of_operands_that_are_no_names_are_not_code(table):
    """A program may come from anywhere."""
    given = []

    @table.composite("norm.v1", by_name=True)
    def norm(shared=None, **arguments):
        given.append(sorted(arguments))
        return next(iter(arguments.values()))

    region = body(f"""
func @main(%x: f32[2]) -> f32[2] {{
  %0 = {call("%x", "x=print(1)")}
  return %0
}}
""")
    x = Box(np.ones(2, np.float32))
    assert KernelSequence(region, table)(x) == (x,)
    assert given == [["x=print(1)"]]


def test_a_kernel_that_takes_the_call_gets_its_arguments_by_a_function(table):
    table.composite("norm.v1")(lambda call, *tensors: functional_arguments(call, tensors)["x"])
    region = body(
        f"func @main(%x: f32[2]) -> f32[2] {{\n  %0 = {call('%x', 'x')}\n  return %0\n}}\n"
    )
    x = Box(np.ones(2, np.float32))
    assert KernelSequence(region, table)(x) == (x,)


def test_a_prepared_kernel_is_made_once_for_each_instruction(table):
    seen = []

    def sub(op, operands, results):
        seen.append((op.name, [str(each) for each in (*operands, *results)]))
        return lambda x, y: Box(x.array - y.array)

    table.register(ops.elementwise.Sub, dtypes=[dtypes.f32], prepared=True)(sub)
    region = body("""
func @main(%x: f32[2], %y: f32[2]) -> f32[2] {
  %0 = sub %x, %y : f32[2]
  %1 = neg %0 : f32[2]
  return %1
}
""")
    sequence = KernelSequence(region, table)
    for _ in range(2):
        (found,) = sequence(Box(np.array([5, 1], np.float32)), Box(np.array([2, 4], np.float32)))
        assert found.array.tolist() == [-3, 3]
    assert seen == [("sub", ["f32[2]"] * 3)]
