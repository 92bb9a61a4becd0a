"""Elementwise instructions that one reader follows become one kernel; others stay apart."""

import numpy as np
import pytest

from gptrs.backend.contract import InputRole
from gptrs.errors import ExecutionError, UnsupportedError
from gptrs.ir import dtypes, parse_program
from gptrs.ir.builder import Builder
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.elementwise import Add, Neg, Pow, Tanh
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.passes.elementwise_groups import group

F32 = TensorType(dtypes.f32, (5,))
GELU = """ptir.v0.5
func @main(%x: f32[7], %bias: f32[7], %half: f32[7]) -> f32[7] {
  %0 = add %x, %bias : f32[7]
  %1 = mul %0, %half : f32[7]
  %2 = tanh %1 : f32[7]
  return %2
}
"""


def test_a_chain_is_one_call() -> None:
    executable = create(1).compile(parse_program(GELU), [InputRole.ARGUMENT] * 3)
    assert len(executable.schedule.calls) == 1
    x = np.linspace(-2, 2, 7, dtype=np.float32)
    (result,) = executable.run([x, x, np.full(7, 0.5, np.float32)])
    np.testing.assert_allclose(np.asarray(result), np.tanh(x), 1e-6)


def test_a_value_read_twice_or_returned_is_kept_in_memory() -> None:
    builder = Builder()
    x = builder.param(F32)
    shared = builder.emit(Tanh(), x)
    twice = builder.emit(Add(), builder.emit(Neg(), shared), shared)
    returned = builder.emit(Neg(), twice)
    program = builder.program(twice, returned)
    sizes = [len(unit.instructions) for unit in group(program.main.body)]
    assert sizes == [1, 2, 1]


def test_one_reader_may_use_a_value_on_both_sides() -> None:
    builder = Builder()
    exact = builder.emit(Neg(), builder.param(F32))
    program = builder.program(builder.emit(Add(), exact, exact))
    assert [len(unit.instructions) for unit in group(program.main.body)] == [2]


def test_long_and_wide_groups_are_cut() -> None:
    builder = Builder()
    total = builder.param(F32)
    for _ in range(40):
        total = builder.emit(Add(), total, builder.param(F32))
    units = group(builder.program(total).main.body)
    assert len(units) > 1
    assert all(len(unit.inputs) <= 6 for unit in units)
    assert sum(len(unit.instructions) for unit in units) == 40


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 3.0, -1.0])
def test_constant_powers(exponent: float) -> None:
    text = f"""ptir.v0.5
    func @main(%x: f32[6]) -> f32[6] {{
      %0 = constant {{value = splat({exponent})}} : f32[6]
      %1 = pow %x, %0 : f32[6]
      return %1
    }}
    """
    x = np.array([0.0, -0.0, 1.5, 1e20, np.inf, np.nan], np.float32)
    (result,) = create(1).compile(parse_program(text), [InputRole.ARGUMENT]).run([x])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(np.asarray(result), x ** np.float32(exponent), 3e-7)


def test_powers_of_different_constants_do_not_share_a_kernel() -> None:
    builder = Builder()
    x, y = builder.param(F32), builder.param(F32)
    executable = create(1).compile(
        builder.program(builder.emit(Pow(), x, y)), [InputRole.ARGUMENT] * 2
    )
    for exponent in (2.0, 3.0):
        base = np.full(5, 3, np.float32)
        (result,) = executable.run([base, np.full(5, exponent, np.float32)])
        np.testing.assert_allclose(np.asarray(result), 3**exponent)


def test_division_by_zero_inside_a_group_is_an_error() -> None:
    text = """ptir.v0.5
    func @main(%x: si32[3], %y: si32[3]) -> si32[3] {
      %0 = div %x, %y : si32[3]
      %1 = neg %0 : si32[3]
      return %1
    }
    """
    executable = create(1).compile(parse_program(text), [InputRole.ARGUMENT] * 2)
    x = np.array([7, -7, 3], np.int32)
    (result,) = executable.run([x, np.array([2, 2, -1], np.int32)])
    assert np.asarray(result).tolist() == [-3, 3, 3]
    with pytest.raises(ExecutionError, match=r"`div` of integers by zero, of si32\[3\], si32\[3\]"):
        executable.run([x, np.array([1, 0, 1], np.int32)])


def test_what_is_missing_is_named_before_anything_runs() -> None:
    builder = Builder()
    x = builder.param(TensorType(dtypes.f32, (2,)))
    unknown = [CustomCall(target, results=(x.type,)) for target in ("our.odd.v1", "their.odd.v1")]
    program = builder.program(*(builder.emit(op, x) for op in unknown))
    with pytest.raises(UnsupportedError, match=r"target `our.odd.v1` .*target `their.odd.v1`"):
        create(1).compile(program, [InputRole.ARGUMENT])
