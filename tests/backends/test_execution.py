"""What every backend promises about whole programs: inputs, results, errors, threads, refusals."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from gptrs.backend.contract import Backend, Executable, InputRole
from gptrs.errors import ExecutionError, GptrsError, UnsupportedError
from gptrs.ir import dtypes
from gptrs.ir.builder import Builder
from gptrs.ir.literal_text import Literal
from gptrs.ir.op import OPS, Op, op
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.elementwise import Add, Div, Neg, StopGradient, Tanh
from gptrs.ir.ops.layout import BroadcastTo, Reshape, Slice, Transpose
from gptrs.ir.program import Program, Value
from gptrs.ir.tensor_type import TensorType

F32_2_3 = TensorType(dtypes.f32, (2, 3))


def program_of(body: Callable[..., list[Value]], *types: TensorType) -> Program:
    """The program whose results `body(builder, *params)` returns."""
    builder = Builder()
    params = [builder.param(type_, f"p{index}") for index, type_ in enumerate(types)]
    return builder.program(*body(builder, *params))


def compiled(
    backend: Backend, program: Program, role: InputRole = InputRole.ARGUMENT
) -> Executable:
    return backend.compile(program, [role] * len(program.main.body.params))


def run(backend: Backend, program: Program, *arrays: np.ndarray) -> list[np.ndarray]:
    outputs = compiled(backend, program).run([backend.to_device(array) for array in arrays])
    return [backend.to_host(output) for output in outputs]


def matrix() -> np.ndarray:
    return np.arange(6, dtype=np.float32).reshape(2, 3)


def test_values_are_used_more_than_once(backend: Backend) -> None:
    def body(builder: Builder, x: Value, w: Value) -> list[Value]:
        product = builder.emit(DotGeneral((1,), (0,)), x, w)
        total = builder.emit(Add(), product, product)
        return [builder.emit(Tanh(), builder.emit(Add(), total, product))]

    x, w = matrix() / 10, matrix().T.copy() / 10
    program = program_of(body, F32_2_3, TensorType(dtypes.f32, (3, 2)))
    (found,) = run(backend, program, x, w)
    np.testing.assert_allclose(found, np.tanh(3 * (x @ w)), rtol=1e-5, atol=1e-5)


def test_order_of_inputs_and_results(backend: Backend) -> None:
    def body(builder: Builder, x: Value, y: Value, z: Value) -> list[Value]:
        return [z, builder.emit(Neg(), y), x]

    arrays = [np.full((2,), value, np.float32) for value in (1, 2, 3)]
    found = run(backend, program_of(body, *[TensorType(dtypes.f32, (2,))] * 3), *arrays)
    assert [array.tolist() for array in found] == [[3, 3], [-2, -2], [1, 1]]


VIEWS: dict[str, Callable[[Builder, Value], list[Value]]] = {
    "input itself": lambda _, x: [x],
    "input twice": lambda _, x: [x, x],
    "stop_gradient": lambda b, x: [b.emit(StopGradient(), x)],
    "reshape": lambda b, x: [b.emit(Reshape((3, 2)), x)],
    "transpose": lambda b, x: [b.emit(Transpose((1, 0)), x)],
    "slice": lambda b, x: [b.emit(Slice((0, 1), (2, 2)), x)],
    "broadcast": lambda b, x: [b.emit(BroadcastTo((4, 2, 3)), x)],
    "result twice": lambda b, x: [b.emit(Neg(), x)] * 2,
    "result and view": lambda b, x: [y := b.emit(Neg(), x), b.emit(Transpose((1, 0)), y)],
    "view and result": lambda b, x: [b.emit(Reshape((6,)), y := b.emit(Neg(), x)), y],
}


@pytest.mark.parametrize("body", VIEWS.values(), ids=list(VIEWS))
def test_results_have_memory_of_their_own(
    backend: Backend, body: Callable[[Builder, Value], list[Value]]
) -> None:
    x = matrix()
    found = run(backend, program_of(body, F32_2_3), x)
    before = [array.copy() for array in found]
    for position, array in enumerate(found):
        array[...] = 100 + position
    np.testing.assert_array_equal(x, matrix())
    again = run(backend, program_of(body, F32_2_3), x)
    for old, new in zip(before, again, strict=True):
        np.testing.assert_array_equal(old, new)
    for position, array in enumerate(found):
        assert np.all(array == 100 + position)


def test_later_runs_leave_earlier_results(backend: Backend) -> None:
    executable = compiled(backend, program_of(lambda b, x: [b.emit(Neg(), x)], F32_2_3))
    (first,) = executable.run([backend.to_device(matrix())])
    executable.run([backend.to_device(matrix() + 50)])
    np.testing.assert_array_equal(backend.to_host(first), -matrix())


def test_changing_a_constant_that_was_returned(backend: Backend) -> None:
    value = Literal.of(matrix())
    executable = compiled(backend, program_of(lambda b: [b.emit(Constant(value))]))
    (first,) = executable.run([])
    backend.to_host(first)[...] = 9
    (second,) = executable.run([])
    np.testing.assert_array_equal(backend.to_host(second), matrix())


def test_inputs_in_any_memory_order_and_read_only(backend: Backend) -> None:
    program = program_of(lambda b, x: [b.emit(Neg(), x)], F32_2_3)
    read_only = matrix()
    read_only.flags.writeable = False
    layouts = [np.asfortranarray(matrix()), np.repeat(matrix(), 2, axis=1)[:, ::2], read_only]
    for x in [*layouts, matrix()[::-1, ::-1][::-1, ::-1]]:
        np.testing.assert_array_equal(run(backend, program, x)[0], -matrix())


def test_foreign_byte_order(backend: Backend) -> None:
    program = program_of(lambda b, x: [b.emit(Neg(), x)], F32_2_3)
    (found,) = run(backend, program, matrix().astype(matrix().dtype.newbyteorder()))
    np.testing.assert_array_equal(found, -matrix())


@pytest.mark.parametrize("role", InputRole)
def test_every_role_gives_the_same_result(backend: Backend, role: InputRole) -> None:
    def body(builder: Builder, x: Value, y: Value) -> list[Value]:
        return [builder.emit(Add(), x, builder.emit(Neg(), y)), builder.emit(Neg(), x)]

    executable = compiled(backend, program_of(body, F32_2_3, F32_2_3), role)
    inputs = [backend.to_device(array) for array in (matrix(), 2 * matrix())]
    difference, negative = map(backend.to_host, executable.run(inputs))
    np.testing.assert_array_equal(difference, -matrix())
    np.testing.assert_array_equal(negative, -matrix())


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "1"),
        ([matrix(), matrix()], "1"),
        ([matrix().T.copy()], r"f32\[2, 3\].*f32\[3, 2\]"),
        ([matrix().ravel()], r"f32\[2, 3\].*f32\[6\]"),
        ([matrix().astype(np.float64)], r"f32\[2, 3\].*f64\[2, 3\]"),
        ([matrix().astype(np.int32)], r"f32\[2, 3\].*si32\[2, 3\]"),
    ],
)
def test_inputs_that_do_not_fit(backend: Backend, inputs: list[np.ndarray], message: str) -> None:
    executable = compiled(backend, program_of(lambda b, x: [b.emit(Neg(), x)], F32_2_3))
    with pytest.raises(GptrsError, match=message):
        executable.run([backend.to_device(array) for array in inputs])


def test_an_executable_survives_an_execution_error(backend: Backend) -> None:
    type_ = TensorType(dtypes.si32, (2,))
    executable = compiled(backend, program_of(lambda b, x, y: [b.emit(Div(), x, y)], type_, type_))
    x, zero, two = (backend.to_device(np.array([value, 7], np.int32)) for value in (8, 0, 2))
    with pytest.raises(ExecutionError, match="zero"):
        executable.run([x, zero])
    assert backend.to_host(executable.run([x, two])[0]).tolist() == [4, 1]


def test_values_are_freed_after_their_last_use(backend: Backend) -> None:
    def body(builder: Builder, x: Value) -> list[Value]:
        for _ in range(30):
            x = builder.emit(Transpose((1, 0)), builder.emit(Tanh(), x))
        return [x]

    executable = compiled(backend, program_of(body, TensorType(dtypes.f32, (512, 512))))
    inputs = [backend.to_device(np.ones((512, 512), np.float32))]
    executable.run(inputs)
    tracemalloc.start()
    executable.run(inputs)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 2**20  # a value takes 1 MiB, all of them 60


def test_threads_share_an_executable(backend: Backend) -> None:
    def body(builder: Builder, x: Value) -> list[Value]:
        for _ in range(20):
            x = builder.emit(Neg(), builder.emit(Neg(), x))
        return [x]

    executable = compiled(backend, program_of(body, TensorType(dtypes.f32, (50, 50))))
    wrong: list[int] = []

    def work(number: int) -> None:
        x = np.full((50, 50), number, np.float32)
        for _ in range(20):
            (found,) = executable.run([backend.to_device(x)])
            if not np.array_equal(backend.to_host(found), x):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@op("unheard")
class Unheard(Op):
    """An op that no backend has."""

    def infer(self, x: TensorType) -> TensorType:
        return x


del OPS["unheard"]  # other tests go through all ops


def test_an_op_without_kernel_is_refused_before_running(backend: Backend) -> None:
    program = program_of(lambda b, x: [b.emit(Unheard(), b.emit(Neg(), x))], F32_2_3)
    with pytest.raises(UnsupportedError, match=rf"`{backend.name}`.*`unheard` of f32\[2, 3\]"):
        compiled(backend, program)
    assert backend.refusal(Neg(), [F32_2_3], [F32_2_3]) is None
