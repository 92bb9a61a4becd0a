"""Operands larger than a task, a chunk or a run: the same results as the reference backend."""

from collections.abc import Sequence

import numpy as np
import pytest

from gptrs.backend.contract import Backend, InputRole
from gptrs.ir.builder import Builder
from gptrs.ir.dtypes import f32, si32, si64
from gptrs.ir.literal_text import Literal, Scalar
from gptrs.ir.op import Op
from gptrs.ir.ops.indexing import ScatterReduce, SegmentReduce
from gptrs.ir.ops.layout import Pad, Reverse, Tile
from gptrs.ir.ops.normalization import LayerNorm
from gptrs.ir.ops.reduction import Cumulative
from gptrs.ir.ops.sorting import Sort, TopK
from gptrs.ir.ops.window import ExtractPatches, ReduceWindow
from gptrs.ir.program import Program
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.backend import create
from gptrs_backend_ref.backend import create as create_reference

RNG = np.random.default_rng(11)


def whole(*shape: int, low: int = -9, high: int = 10) -> np.ndarray:
    """Integral f32 values, few enough that sums are exact and that many are equal."""
    return RNG.integers(low, high, shape).astype(np.float32)


def numbers(*shape: int, below: int) -> np.ndarray:
    """si64 values in [0, below)."""
    return RNG.integers(0, below, shape)


SCATTERED = (whole(300, 64), numbers(500, 64, below=300), whole(500, 64))
ROWS = (whole(700, 90), numbers(700, below=40))
IMAGE = whole(2, 37, 150, 24)
CASES: list[tuple[Op, Sequence[np.ndarray]]] = [
    (Sort(axis=1), [whole(3, 5000), whole(3, 5000)]),
    (Sort(axis=0, descending=True), [whole(1000, 7), whole(1000, 7)]),
    (Sort(axis=0), [np.arange(40_000)[::-1].copy()]),
    (TopK(k=50, axis=1), [whole(4, 30_000, low=-40_000, high=40_000)]),
    (TopK(k=50, axis=0), [np.arange(20_000, dtype=np.float32)]),
    (TopK(k=3, axis=0, largest=False, indices_dtype=si64), [whole(400, 11)]),
    (TopK(k=900, axis=0, indices_dtype=si32), [whole(1000, 2)]),
    (Cumulative("sum", axis=1), [whole(40, 3000)]),
    (Cumulative("max", axis=0, reverse=True), [whole(2000, 30)]),
    (Cumulative("sum", axis=1, reverse=True, exclusive=True), [whole(3, 900, 20)]),
    (ScatterReduce(axis=0, kind="add"), SCATTERED),
    (ScatterReduce(axis=0, kind="replace"), SCATTERED),
    (ScatterReduce(axis=1, kind="max"), (whole(9, 200), numbers(8, 900, below=200), whole(8, 900))),
    (SegmentReduce("sum", num_segments=41), ROWS),
    (SegmentReduce("min", num_segments=41), ROWS),
    (ReduceWindow("max", (1, 3, 3, 1), (1, 2, 2, 1), (0, 0, 1, 1, 1, 1, 0, 0)), [IMAGE]),
    (ReduceWindow("sum", (1, 1, 3, 2), (1, 1, 2, 2), (0, 0, 0, 0, 2, 1, 1, 1)), [IMAGE]),
    (ReduceWindow("sum", (1, 4, 3, 1), None, None, (1, 2, 5, 1)), [IMAGE]),
    (ReduceWindow("max", (1, 7), (1, 3), (0, 0, 5, 4)), [whole(3, 20_000)]),
    (ReduceWindow("sum", (5, 1), None, (2, 2, 0, 0)), [whole(50, 9000)]),
    (ExtractPatches((3, 3), None, (1, 1, 1, 1)), [IMAGE]),
    (ExtractPatches((2, 3), (2, 1), (0, 3, 4, 0), (1, 6), Scalar(Literal.full(7, f32))), [IMAGE]),
    (ExtractPatches((9,), (4,), (8, 8)), [whole(2, 9000, 3)]),
    (Pad((3, -2), (-4, 7), (2, 0), Scalar(Literal.full(5, f32))), [whole(90, 200)]),
    (Tile((3, 1, 2)), [whole(40, 9, 30)]),
    (Reverse((0, 2)), [whole(40, 9, 300)]),
]


def program_of(op: Op, operands: Sequence[np.ndarray]) -> Program:
    builder = Builder()
    params = [builder.param(TensorType.of(operand)) for operand in operands]
    results = builder.emit_many(op, params).results
    return builder.program(*results)


def run(backend: Backend, program: Program, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    executable = backend.compile(program, [InputRole.ARGUMENT] * len(operands))
    buffers = executable.run([backend.to_device(operand) for operand in operands])
    return [backend.to_host(buffer) for buffer in buffers]


@pytest.mark.sample(8)
@pytest.mark.parametrize(("op", "operands"), CASES, ids=lambda item: getattr(item, "name", ""))
def test_the_same_as_the_reference(op: Op, operands: Sequence[np.ndarray]) -> None:
    program = program_of(op, operands)
    expected = run(create_reference(), program, operands)
    for threads in (1, 3):
        for found, want in zip(run(create(threads), program, operands), expected, strict=True):
            assert found.dtype == want.dtype
            assert found.tobytes() == want.tobytes()


@pytest.mark.parametrize("axis", [0, 1])
def test_layer_norm_of_many_rows_does_not_depend_on_threads(axis: int) -> None:
    x = RNG.normal(3, 2, (300, 200)).astype(np.float32)
    scale, bias = RNG.normal(size=(2, x.shape[axis])).astype(np.float32)
    operands = [x, scale, bias]
    program = program_of(LayerNorm(epsilon=1e-5, axis=axis), operands)
    (want,) = run(create_reference(), program, operands)
    (one,), (many,) = (run(create(threads), program, operands) for threads in (1, 3))
    assert one.tobytes() == many.tobytes()
    np.testing.assert_allclose(one, want, rtol=2e-5, atol=2e-6)
