"""Long random streams, made in several tasks, and quantization of operands that are views."""

import numpy as np
import pytest

import gptrs_backend_ref.backend as ref
from gptrs.backend.contract import InputRole
from gptrs.ir import dtypes, parse_program
from gptrs.ir.builder import Builder
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops.random import RngNormal, RngUniform
from gptrs.ir.program import Program
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.backend import create

SEEDS = (np.array([3, 2**64 - 700], np.uint64), np.array([2**64 - 1, 0], np.uint64))

QUANTIZED_VIEW = """ptir.v0.5
func @main(%x: f32[6, 5, 2], %scale: f16[2, 3, 5], %zero: si32[2, 3, 5]) -> si4[2, 6, 5] {
  %0 = transpose %x {permutation = [2, 0, 1]} : f32[2, 6, 5]
  %1 = quantize %0, %scale, %zero {dtype = si4, axis = 1, group_size = 2} : si4[2, 6, 5]
  return %1
}
"""


def run(program: Program, *inputs: np.ndarray, threads: int | None) -> np.ndarray:
    """The result; of the reference if `threads` is None."""
    backend = ref.create() if threads is None else create(threads)
    roles = [InputRole.ARGUMENT] * len(inputs)
    (result,) = backend.compile(program, roles).run(inputs)
    return np.asarray(result)


def streams() -> list[Op]:
    chosen: list[DType] = [dtypes.f16, dtypes.f32, dtypes.f64]
    normal = [RngNormal((3, 4099), dtype) for dtype in chosen]
    return [*normal, *(RngUniform((3, 4099), dtype) for dtype in (*chosen, dtypes.ui64))]


@pytest.mark.parametrize("op", streams(), ids=repr)
def test_streams_agree_bit_for_bit_on_any_number_of_threads(op: Op) -> None:
    builder = Builder()
    program = builder.program(builder.emit(op, builder.param(TensorType(dtypes.ui64, (2,)))))
    for seed in SEEDS:
        expected = run(program, seed, threads=None).tobytes()
        assert run(program, seed, threads=1).tobytes() == expected
        assert run(program, seed, threads=2).tobytes() == expected


def test_groups_of_a_transposed_tensor() -> None:
    rng = np.random.default_rng(5)
    inputs = (
        rng.normal(size=(6, 5, 2)).astype(np.float32) * 4,
        rng.uniform(0.5, 2, (2, 3, 5)).astype(np.float16),
        rng.integers(-3, 4, (2, 3, 5)).astype(np.int32),
    )
    program = parse_program(QUANTIZED_VIEW)
    found, expected = (run(program, *inputs, threads=threads) for threads in (2, None))
    np.testing.assert_array_equal(found.astype(np.int8), expected.astype(np.int8))
