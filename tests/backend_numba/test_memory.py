"""What is written where: donated buffers in place, everything else never touched or handed out."""

import gc
import weakref

import numpy as np
import pytest

from gptrs.backend.contract import InputRole
from gptrs.errors import UsageError
from gptrs.ir import parse_program
from gptrs_backend_numba.backend import NumbaBackend, create
from gptrs_backend_numba.memory import address_of, dense_address
from gptrs_backend_numba.run.executable import NumbaExecutable

ARGUMENT, PARAMETER, DONATED = InputRole.ARGUMENT, InputRole.PARAMETER, InputRole.DONATED

UPDATE = """ptir.v0.5
func @main(%cache: f32[4, 3], %row: f32[1, 3], %starts: si32[2]) -> f32[4, 3] {
  %0 = dynamic_update_slice %cache, %row, %starts : f32[4, 3]
  return %0
}
"""


VIEW = """%v = reshape %cache {shape = [2, 2]} : f32[2, 2]
      %1 = reshape %v {shape = [4]} : f32[4]"""


@pytest.fixture(scope="module")
def numba() -> NumbaBackend:
    return create(1)


def compiled(numba: NumbaBackend, text: str, *roles: InputRole) -> NumbaExecutable:
    return numba.compile(parse_program(text), roles)


def arrays() -> list[np.ndarray]:
    cache = np.zeros((4, 3), np.float32)
    return [cache, np.ones((1, 3), np.float32), np.array([2, 0], np.int32)]


def address(array: object) -> int:
    return np.asarray(array).__array_interface__["data"][0]


def test_a_donated_operand_is_updated_in_place(numba: NumbaBackend) -> None:
    inputs = arrays()
    (result,) = compiled(numba, UPDATE, DONATED, ARGUMENT, ARGUMENT).run(inputs)
    assert address(result) == address(inputs[0])
    assert np.asarray(result).sum(1).tolist() == [0, 0, 3, 0]


@pytest.mark.parametrize("role", [ARGUMENT, PARAMETER])
def test_one_that_is_not_donated_is_left_alone(numba: NumbaBackend, role: InputRole) -> None:
    inputs = arrays()
    (result,) = compiled(numba, UPDATE, role, ARGUMENT, ARGUMENT).run(inputs)
    assert not np.shares_memory(np.asarray(result), inputs[0])
    assert not inputs[0].any()
    assert np.asarray(result).sum(1).tolist() == [0, 0, 3, 0]


def test_what_the_backend_shares_with_the_host_is_never_written(numba: NumbaBackend) -> None:
    inputs = arrays()
    executable = compiled(numba, UPDATE, DONATED, ARGUMENT, ARGUMENT)
    (result,) = executable.run([numba.to_device(array) for array in inputs])
    assert not inputs[0].any()
    (again,) = executable.run([result, *inputs[1:]])
    assert address(again) == address(result)


def test_a_buffer_given_twice_is_not_overwritten_under_the_other(numba: NumbaBackend) -> None:
    text = """ptir.v0.5
    func @main(%a: f32[4], %b: f32[4], %x: f32[1], %at: si32[1]) -> (f32[4], f32[4]) {
      %0 = dynamic_update_slice %a, %x, %at : f32[4]
      %1 = neg %b : f32[4]
      return %0, %1
    }
    """
    both = np.array([1, 2, 3, 4], np.float32)
    executable = compiled(numba, text, DONATED, ARGUMENT, ARGUMENT, ARGUMENT)
    first, second = executable.run([both, both, np.zeros(1, np.float32), np.array([1], np.int32)])
    assert np.asarray(first).tolist() == [1, 0, 3, 4]
    assert np.asarray(second).tolist() == [-1, -2, -3, -4]
    assert both.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("%1 = neg %cache : f32[4]", [-1, -2, -3, -4]),
        (VIEW, [1, 2, 3, 4]),
        ("%1 = stop_gradient %cache : f32[4]", [1, 2, 3, 4]),
    ],
    ids=["computed", "view", "alias"],
)
def test_a_value_read_after_the_update_keeps_the_old_elements(
    numba: NumbaBackend, use: str, expected: list[float]
) -> None:
    text = f"""ptir.v0.5
    func @main(%cache: f32[4], %x: f32[1], %at: si32[1]) -> (f32[4], f32[4]) {{
      %0 = dynamic_update_slice %cache, %x, %at : f32[4]
      {use}
      return %0, %1
    }}
    """
    executable = compiled(numba, text, DONATED, ARGUMENT, ARGUMENT)
    inputs = [np.arange(1, 5, dtype=np.float32), np.zeros(1, np.float32), np.array([0], np.int32)]
    updated, old = executable.run(inputs)
    assert np.asarray(updated).tolist() == [0, 2, 3, 4]
    assert np.asarray(old).tolist() == expected
    assert not np.shares_memory(np.asarray(updated), np.asarray(old))


def test_an_elementwise_chain_reads_the_operand_before_it_is_overwritten(
    numba: NumbaBackend,
) -> None:
    # `%0` joins the kernel of `%2`, which runs after the update of `%cache`.
    text = """ptir.v0.5
    func @main(%cache: f32[4], %x: f32[1], %at: si32[1]) -> (f32[4], f32[4]) {
      %0 = neg %cache : f32[4]
      %1 = dynamic_update_slice %cache, %x, %at : f32[4]
      %2 = add %0, %1 : f32[4]
      return %1, %2
    }
    """
    executable = compiled(numba, text, DONATED, ARGUMENT, ARGUMENT)
    inputs = [np.arange(1, 5, dtype=np.float32), np.zeros(1, np.float32), np.array([0], np.int32)]
    updated, difference = executable.run(inputs)
    assert np.asarray(updated).tolist() == [0, 2, 3, 4]
    assert np.asarray(difference).tolist() == [-1, 0, 0, 0]


def test_an_update_from_the_operand_itself(numba: NumbaBackend) -> None:
    text = """ptir.v0.5
    func @main(%x: si32[5], %at: si32[1]) -> si32[5] {
      %0 = slice %x {starts = [0], sizes = [4]} : si32[4]
      %1 = dynamic_update_slice %x, %0, %at : si32[5]
      return %1
    }
    """
    executable = compiled(numba, text, DONATED, ARGUMENT)
    (result,) = executable.run([np.arange(5, dtype=np.int32), np.array([1], np.int32)])
    assert np.asarray(result).tolist() == [0, 0, 1, 2, 3]


def test_an_intermediate_is_updated_without_a_copy(numba: NumbaBackend) -> None:
    text = """ptir.v0.5
    func @main(%x: f32[4], %y: f32[1], %at: si32[1]) -> f32[4] {
      %0 = neg %x : f32[4]
      %1 = dynamic_update_slice %0, %y, %at : f32[4]
      %2 = dynamic_update_slice %1, %y, %at : f32[4]
      return %2
    }
    """
    executable = compiled(numba, text, ARGUMENT, ARGUMENT, ARGUMENT)
    calls = executable.schedule.calls
    assert len({id(call.write.storage) for call in calls if call.write.shape == (4,)}) == 1
    inputs = [np.ones(4, np.float32), np.zeros(1, np.float32), np.array([2], np.int32)]
    assert np.asarray(executable.run(inputs)[0]).tolist() == [-1, -1, 0, -1]


def test_results_of_one_run_outlive_the_next(numba: NumbaBackend) -> None:
    text = """ptir.v0.5
    func @main(%x: f32[64]) -> (f32[64], f32[64], f32[8, 8]) {
      %0 = neg %x : f32[64]
      %1 = reshape %0 {shape = [8, 8]} : f32[8, 8]
      return %0, %0, %1
    }
    """
    executable = compiled(numba, text, ARGUMENT)
    first = [np.asarray(r) for r in executable.run([np.ones(64, np.float32)])]
    second = [np.asarray(r) for r in executable.run([np.full(64, 2, np.float32)])]
    everything = [*first, *second]
    assert all((result == -1).all() for result in first)
    for index, result in enumerate(everything):
        assert result.flags.writeable
        assert not any(np.shares_memory(result, other) for other in everything[:index])


def test_no_array_of_the_caller_is_kept_alive(numba: NumbaBackend) -> None:
    executable = compiled(numba, UPDATE, DONATED, PARAMETER, ARGUMENT)
    inputs = arrays()
    watched = [weakref.ref(array) for array in inputs]
    result = executable.run(inputs)[0]
    watched.append(weakref.ref(np.asarray(result)))
    del inputs, result
    gc.collect()
    assert [reference() for reference in watched] == [None] * 4


def test_another_parameter_at_the_same_place_is_noticed(numba: NumbaBackend) -> None:
    text = "ptir.v0.5\nfunc @main(%w: f32[2]) -> f32[2] {\n  %0 = neg %w : f32[2]\n  return %0\n}\n"
    executable = compiled(numba, text, PARAMETER)
    for value in range(20):
        weights = np.full(2, value, np.float32)
        for _ in range(2):
            assert np.asarray(executable.run([weights])[0]).tolist() == [-value] * 2
        strided = np.full(4, 100, np.float32)[::2]
        assert np.asarray(executable.run([strided])[0]).tolist() == [-100] * 2
        assert np.asarray(executable.run([weights])[0]).tolist() == [-value] * 2


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_strided_unaligned_and_big_endian_memory(numba: NumbaBackend, offset: int) -> None:
    text = "ptir.v0.5\nfunc @main(%x: f32[3]) -> f32[3] {\n  %0 = neg %x : f32[3]\n  return %0\n}\n"
    executable = compiled(numba, text, ARGUMENT)
    raw = np.zeros(offset + 12, np.uint8)
    unaligned = raw[offset:].view(np.float32)
    unaligned[:] = [1, 2, 3]
    strided = np.array([1, 9, 2, 9, 3, 9], np.float32)[::2]
    for array in (unaligned, strided, unaligned.astype(">f4")):
        (result,) = executable.run([numba.to_device(array)])
        assert np.asarray(result).tolist() == [-1, -2, -3]
    (result,) = executable.run([strided])
    assert np.asarray(result).tolist() == [-1, -2, -3]


def test_addresses_read_out_of_arrays_are_those_that_numpy_tells() -> None:
    whole = np.zeros((3, 5), np.int16)
    odd = np.zeros(9, np.uint8)[1:].view(np.int64)
    for array in (whole, whole[1:, 2:], whole[::-1].T, odd, np.empty(0), np.asarray(1.5)):
        assert address_of(array) == address(array)
        is_dense = array.flags.c_contiguous and array.flags.aligned
        assert dense_address(array) == (address(array) if is_dense else None)


def test_inputs_of_another_type_are_refused(numba: NumbaBackend) -> None:
    executable = compiled(numba, UPDATE, ARGUMENT, ARGUMENT, ARGUMENT)
    inputs = arrays()
    inputs[0] = np.zeros((3, 4), np.float32)
    with pytest.raises(UsageError, match=r"input 0 must be `f32\[4, 3\]`, got `f32\[3, 4\]`"):
        executable.run(inputs)
    with pytest.raises(UsageError, match="takes 3 inputs, got 2"):
        executable.run(inputs[:2])
