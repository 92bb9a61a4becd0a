"""Programs put together by hand, each breaking one rule."""

from __future__ import annotations

import itertools
import time

import pytest

from gptrs.errors import ProgramError
from gptrs.ir import (
    DType,
    Function,
    Instruction,
    Literal,
    Op,
    Program,
    Region,
    TensorType,
    Value,
    dtypes,
    verify,
)
from gptrs.ir.ops.creation import Constant, Iota
from gptrs.ir.ops.elementwise import Add, Tanh
from gptrs.ir.ops.layout import Reshape
from gptrs.ir.ops.reduction import Reduce

F32 = TensorType(dtypes.f32, (2,))
X = Value(F32, "x")
Y = Value(F32)
Z = Value(F32)
TANH = Instruction(Tanh(), (X,), (Y,))


class Unregistered(Op):
    name = "tanh"

    def infer(self, x: TensorType) -> TensorType:
        return x


def main(params, instructions, results):
    return Program((Function("main", Region(tuple(params), tuple(instructions), tuple(results))),))


def typed(type_):
    return main([Value(type_)], [], [])


def test_good_programs():
    verify(main([X], [TANH], [Y, X, Y]))
    verify(main([], [], []))
    verify(main([Value(F32), Value(F32)], [], []))
    other = Function("other", Region((Value(F32, "x"),), (), ()))
    verify(Program((other, *main([X], [TANH], [Y]).functions)))


BAD = [
    (Program(()), "a program needs a function called `@main`"),
    (Program((Function("f", Region((), (), ())),)), "a program needs a function called `@main`"),
    (
        Program((*main([], [], []).functions, Function("a b", Region((), (), ())))),
        "a function cannot be called `a b`",
    ),
    (
        Program(main([], [], []).functions * 2),
        "two functions are called `@main`",
    ),
    (
        main([X, Value(F32, "x")], [], []),
        "`@main`: parameter `%x` is defined twice",
    ),
    (main([X, X], [], []), "`@main`: parameter `%x` is defined twice"),
    (main([Y, Y], [], []), "`@main`: a value of type `f32[2]` is defined twice"),
    (
        main([X], [TANH, TANH], [Y]),
        "instruction 1 of `@main`: a value of type `f32[2]` is defined twice",
    ),
    (
        main([X], [Instruction(Tanh(), (X,), (X,))], [X]),
        "instruction 0 of `@main`: a value of type `f32[2]` is defined twice",
    ),
    (
        main([X], [Instruction(Tanh(), (Y,), (Z,)), TANH], [Z]),
        "instruction 0 of `@main`: a value of type `f32[2]` is read before it is defined",
    ),
    (
        main([X], [Instruction(Tanh(), (Y,), (Y,))], [Y]),
        "instruction 0 of `@main`: a value of type `f32[2]` is read before it is defined",
    ),
    (
        main([X], [TANH], [Z]),
        "the results of `@main`: a value of type `f32[2]` is read before it is defined",
    ),
    (
        Program((*main([X], [], []).functions, Function("g", Region((), (), (X,))))),
        "the results of `@g`: a value of type `f32[2]` is read before it is defined",
    ),
    (
        Program((*main([X], [], []).functions, Function("g", Region((X,), (), ())))),
        "`@g`: a value of type `f32[2]` is defined twice",
    ),
    (
        main([X], [Instruction(Add(), (X,), (Y,))], [Y]),
        "instruction 0 of `@main`: `add` takes 2 operands (lhs, rhs), got 1",
    ),
    (
        main([X], [Instruction(Tanh(), (X,), (Value(TensorType(dtypes.f32, (3,))),))], []),
        "instruction 0 of `@main`: `tanh` gives (f32[2]), not (f32[3])",
    ),
    (
        main([X], [Instruction(Tanh(), (X,), ())], []),
        "instruction 0 of `@main`: `tanh` gives (f32[2]), not ()",
    ),
    (
        main([X], [Instruction(Tanh(), (X,), (Y, Z))], []),
        "instruction 0 of `@main`: `tanh` gives (f32[2]), not (f32[2], f32[2])",
    ),
    (
        main([X], [Instruction(Reduce("mean", (0,)), (X,), (Y,))], []),
        "instruction 0 of `@main`: `reduce` attribute `kind` must be one of"
        " sum, prod, max, min, and, or, got `mean`",
    ),
    (
        main([X], [Instruction(Reshape([2]), (X,), (Y,))], []),
        "instruction 0 of `@main`: `reshape` attribute `shape` must be"
        " a tuple of at most 1024 integers of 64 bits, got `[2]`",
    ),
    (
        main([X], [Instruction(Unregistered(), (X,), (Y,))], [Y]),
        "instruction 0 of `@main`: `Unregistered` is not a registered op",
    ),
    (
        main([X], [Instruction("tanh", (X,), (Y,))], [Y]),
        "instruction 0 of `@main`: `str` is not a registered op",
    ),
    (
        typed(TensorType(dtypes.f64, (2**45,))),
        "`@main`: `f64[35184372088832]` takes more than 2^47 bytes",
    ),
    (
        typed(TensorType(dtypes.f64, (2**45, 0))),
        "`@main`: `f64[35184372088832, 0]` takes more than 2^47 bytes",
    ),
    (
        main([], [Instruction(op := Iota((2**46,), 0, dtypes.si64), (), (Value(op.infer()),))], []),
        "instruction 0 of `@main`: `si64[70368744177664]` takes more than 2^47 bytes",
    ),
    (typed(TensorType(dtypes.f32, [2])), "`@main`: a shape is a tuple of integers, got `[2]`"),
    (
        typed(TensorType(dtypes.f32, (True,))),
        "`@main`: a shape is a tuple of integers, got `(True,)`",
    ),
    (
        typed(TensorType(DType("f128", "float", 128, dtypes.cf64.numpy), ())),
        "`@main`: `f128` is not one of the dtypes of PTIR",
    ),
]


@pytest.mark.parametrize(("program", "message"), BAD)
def test_broken_programs(program, message):
    with pytest.raises(ProgramError) as caught:
        verify(program)
    assert str(caught.value) == message


def test_the_largest_value_passes():
    verify(typed(TensorType(dtypes.f64, (2**44,))))


def chain(length):
    values = [Value(F32) for _ in range(length + 1)]
    instructions = [
        Instruction(Tanh(), (before,), (after,)) for before, after in itertools.pairwise(values)
    ]
    return main(values[:1], instructions, values[-1:])


def test_long_programs_take_linear_time():
    started = time.process_time()
    verify(chain(40_000))
    # A few tenths of a second; a check that is quadratic in the length takes minutes.
    assert time.process_time() - started < 20


def test_constant_is_verified_by_its_own_type():
    literal = Literal.full(1.0, dtypes.f32, (2,))
    verify(main([], [Instruction(Constant(literal), (), (Y,))], [Y]))
    other = Value(TensorType(dtypes.f32, ()))
    with pytest.raises(ProgramError, match=r"`constant` gives \(f32\[2\]\), not \(f32\[\]\)"):
        verify(main([], [Instruction(Constant(literal), (), (other,))], [other]))
