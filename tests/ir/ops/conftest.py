"""What each row of an op table goes through: inference, the verifier and the text form."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from gptrs.errors import ProgramError
from gptrs.ir import OPS, Builder, Op, TensorType, parse_program, print_program, verify

Infer = Callable[[Op, str], str]
Refusal = Callable[[Op, str], str]
Registered = Callable[[ModuleType], set[str]]


@pytest.fixture
def infer(types_of: Callable[[str], list[TensorType]]) -> Infer:
    """The result types of an op on operands of these types, as text, after a round trip."""

    def run(op: Op, operands: str) -> str:
        builder = Builder()
        params = [builder.param(type_) for type_ in types_of(operands)]
        program = builder.program(*builder.emit_many(op, params).results)
        verify(program)
        text = print_program(program)
        again = parse_program(text)
        verify(again)
        assert print_program(again) == text
        (instruction,) = again.main.body.instructions
        assert instruction.op == op
        return " ".join(str(result.type) for result in instruction.results)

    return run


@pytest.fixture
def refusal(types_of: Callable[[str], list[TensorType]]) -> Refusal:
    """The message with which an op refuses operands of these types."""

    def run(op: Op, operands: str) -> str:
        with pytest.raises(ProgramError) as caught:
            op.result_types(types_of(operands))
        return str(caught.value)

    return run


@pytest.fixture
def registered() -> Registered:
    """The names of the ops that a family module defines."""

    def names(module: ModuleType) -> set[str]:
        return {name for name, cls in OPS.items() if cls.__module__ == module.__name__}

    return names
