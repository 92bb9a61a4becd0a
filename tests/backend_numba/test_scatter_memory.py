"""What scattering writes where: in place if it may, never under a reader, nothing on an error."""

import numpy as np
import pytest

from gptrs.backend.contract import InputRole
from gptrs.errors import ExecutionError
from gptrs.ir import dtypes, parse_program
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.run.executable import NumbaExecutable

SI4 = dtypes.si4.numpy
ARGUMENT, DONATED = InputRole.ARGUMENT, InputRole.DONATED

SCATTER = """ptir.v0.5
func @main(%x: DTYPE[4], %at: si4[2], %new: DTYPE[2]) -> DTYPE[4] {
  %0 = scatter_reduce %x, %at, %new {axis = 0, kind = add} : DTYPE[4]
  return %0
}
"""


def compiled(text: str, *roles: InputRole) -> NumbaExecutable:
    return create(1).compile(parse_program(text), roles)


@pytest.mark.parametrize("dtype", ["f32", "si8", "f16"])
def test_a_donated_operand(dtype: str) -> None:
    executable = compiled(SCATTER.replace("DTYPE", dtype), DONATED, ARGUMENT, ARGUMENT)
    kind = {"f32": np.float32, "si8": np.int8, "f16": np.float16}[dtype]
    x = np.arange(4).astype(kind)
    address = x.ctypes.data
    (result,) = executable.run([x, np.array([3, 3]).astype(SI4), np.array([10, 20]).astype(kind)])
    found = np.asarray(result)
    assert found.tolist() == [0, 1, 2, 33]
    # Floats of 16 bits are added in f32, which takes other memory.
    assert (found.ctypes.data == address) == (dtype != "f16")


@pytest.mark.parametrize("wrong", [4, 7, -1, -8])
def test_nothing_is_written_when_an_index_is_out_of_range(wrong: int) -> None:
    executable = compiled(SCATTER.replace("DTYPE", "f32"), DONATED, ARGUMENT, ARGUMENT)
    x = np.arange(4, dtype=np.float32)
    with pytest.raises(ExecutionError, match=rf"index {wrong} .*axis 0 .*size 4"):
        executable.run([x, np.array([0, wrong]).astype(SI4), np.ones(2, np.float32)])
    assert x.tolist() == [0, 1, 2, 3]


def test_updates_that_are_the_operand_itself() -> None:
    text = """ptir.v0.5
    func @main(%x: f32[3], %at: si64[3]) -> f32[3] {
      %0 = scatter_reduce %x, %at, %x {axis = 0, kind = replace} : f32[3]
      return %0
    }
    """
    executable = compiled(text, DONATED, ARGUMENT)
    (result,) = executable.run([np.array([1, 2, 3], np.float32), np.array([2, 0, 1])])
    assert np.asarray(result).tolist() == [2, 3, 1]


def test_ids_of_rows_without_elements_are_checked() -> None:
    text = """ptir.v0.5
    func @main(%x: f32[2, 0], %ids: si32[2]) -> f32[3, 0] {
      %0 = segment_reduce %x, %ids {kind = sum, num_segments = 3} : f32[3, 0]
      return %0
    }
    """
    executable = compiled(text, ARGUMENT, ARGUMENT)
    with pytest.raises(ExecutionError, match="index 3 is out of range for axis 0 of size 3"):
        executable.run([np.zeros((2, 0), np.float32), np.array([0, 3], np.int32)])
