"""A step hands its weights to an executable that binds them once, in one piece that stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import gptrs
from gptrs.backend.contract import BoundInputs, Buffer, Executable, InputRole
from gptrs.capture import events
from gptrs.capture.parameter import Parameter
from gptrs.capture.tensor import Tensor
from gptrs.ir.program import Program
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_ref.backend import RefBackend


class Binding(Executable):
    """Runs another executable, and notes what it is given."""

    def __init__(self, inner: Executable, roles: Sequence[InputRole]) -> None:
        self.inner, self.roles = inner, roles
        self.bound: list[BoundInputs] = []
        self.flat = 0

    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        self.flat += 1
        return self.inner.run(inputs)

    def run_bound(self, inputs: Sequence[Buffer], bound: BoundInputs) -> list[Buffer]:
        self.bound.append(bound)
        assert set(self.roles[len(inputs) :]) <= {InputRole.PARAMETER}
        assert InputRole.PARAMETER not in self.roles[: len(inputs)]
        return self.inner.run([*inputs, *bound.buffers])


class BindingBackend(RefBackend):
    def __init__(self) -> None:
        super().__init__()
        self.made: list[Binding] = []

    def compile(self, program: Program, roles: Sequence[InputRole]) -> Any:
        self.made.append(Binding(super().compile(program, roles), roles))
        return self.made[-1]


@pytest.fixture
def engine() -> BindingBackend:
    return BindingBackend()


def weight(value: float, engine: BindingBackend) -> Tensor:
    array = np.full(2, value, np.float32)
    key = int(value)
    return Tensor.of_parameter(
        Parameter(TensorType.of(array), key, f"w{key}", lambda: array, engine)
    )


def test_a_step_binds_its_weights_once_and_constants_anew(engine: BindingBackend) -> None:
    first, second, constant = weight(2, engine), weight(3, engine), gptrs.tensor([10.0, 10.0])
    step = gptrs.jit(lambda x: x * first + constant * second)
    for x in (1.0, 2.0, 3.0):
        assert step(gptrs.tensor([x, x])).numpy().tolist() == [2 * x + 30] * 2
    (made,) = [each for each in engine.made if each.bound]
    assert len(made.bound) == 3
    assert len(set(map(id, made.bound))) == 1
    assert not made.flat


def test_who_traces_sees_a_run_with_all_inputs(engine: BindingBackend) -> None:
    w = weight(2, engine)
    step = gptrs.jit(lambda x: x * w)
    with events.tracing(events.ExecutionTraceSink()):
        assert step(gptrs.tensor([1.0, 1.0])).numpy().tolist() == [2, 2]
    made = engine.made[-1]
    assert (made.flat, made.bound) == (1, [])
    assert step(gptrs.tensor([3.0, 3.0])).numpy().tolist() == [6, 6]
    assert (made.flat, len(made.bound)) == (1, 1)


def test_bound_inputs_keep_their_buffers(engine: BindingBackend) -> None:
    arrays = [np.zeros(2), np.ones(2)]
    bound = BoundInputs(iter(arrays))
    assert list(map(id, bound.buffers)) == list(map(id, arrays))
    assert bound.identities == set(map(id, arrays))
