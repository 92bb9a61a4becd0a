"""The driver looks at each instruction a few times, however the program is built."""

from __future__ import annotations

import pytest

from gptrs.ir import Builder, Op, Program, TensorType, dtypes, verify
from gptrs.ir.ops.elementwise import Exp, Tanh
from gptrs.ir.ops.layout import BroadcastTo, Concat, Reshape, Transpose
from gptrs.optimizer import recording
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.passes.layout_folding import RESHAPE_FOLDING
from gptrs.optimizer.pipeline import CANONICALIZATION
from optimizer.chains import F32, chain, op_names

LENGTH = 10_000


def steps_of(pass_: RewritePass, program: Program) -> tuple[int, Program]:
    with recording() as journal:
        optimized = pass_.apply(program)
    verify(optimized)
    return journal.steps, optimized


@pytest.mark.long
@pytest.mark.parametrize(
    "ops",
    [
        pytest.param([Reshape((6,)), Reshape((3, 2))], id="reshapes"),
        pytest.param([Transpose((1, 0)), Transpose((1, 0))], id="transposes"),
        pytest.param([Transpose((1, 0)), Reshape((2, 3)), Reshape((3, 2))], id="mixed"),
        pytest.param([Reshape((2, 3)), Transpose((0, 1)), BroadcastTo((2, 3))], id="identities"),
        pytest.param([Tanh(), Exp()], id="nothing to fold"),
    ],
)
def test_a_chain_takes_steps_in_proportion_to_its_length(ops: list[Op]):
    rounds = LENGTH // len(ops)
    steps, optimized = steps_of(CANONICALIZATION, chain(ops * rounds))
    assert steps <= 4 * LENGTH
    again, same = steps_of(CANONICALIZATION, optimized)
    assert same is optimized
    assert again == len(optimized.main.body.instructions)


@pytest.mark.long
def test_nested_opposites_vanish_in_steps_in_proportion_to_their_number():
    # T1 R1 T2 R2 ... R2' T2' R1' T1': each pair meets only when the one inside it is gone.
    there = [Transpose((1, 0, 2)), Reshape((2, 3, 1))] * (LENGTH // 4)
    back = [Reshape((3, 2, 1)), Transpose((1, 0, 2))] * (LENGTH // 4)
    program = chain(there + back, TensorType(dtypes.f32, (2, 3, 1)))
    steps, optimized = steps_of(CANONICALIZATION, program)
    assert op_names(optimized) == []
    assert steps <= 4 * LENGTH


def test_a_value_with_many_users_is_looked_at_once_for_each():
    builder = Builder()
    a = builder.param(F32, "x")
    # Every identity is replaced by `a`: its users must not be looked at again for each of them.
    same = [builder.emit(Reshape((2, 3)), a) for _ in range(LENGTH // 2)]
    flat = [builder.emit(Reshape((6,)), value) for value in same]
    program = builder.program(builder.emit(Concat(0), *flat))
    steps, optimized = steps_of(RESHAPE_FOLDING, program)
    assert len(optimized.main.body.instructions) == LENGTH // 2 + 1
    assert steps <= 4 * LENGTH


def test_a_shared_chain_with_every_value_returned():
    builder = Builder()
    value = builder.param(F32, "x")
    values = []
    for position in range(LENGTH // 10):
        value = builder.emit(Reshape((6,) if position % 2 else (3, 2)), value)
        values.append(value)
    program = builder.program(*values)
    steps, optimized = steps_of(RESHAPE_FOLDING, program)
    assert steps <= 4 * LENGTH // 10
    params = set(optimized.main.body.params)
    assert all(set(i.operands) == params for i in optimized.main.body.instructions)
