"""Programs made at random give the reference backend's results, bit for bit in integers."""

from collections.abc import Sequence

import numpy as np
import pytest

from gptrs.backend.protocol import Backend, InputRole
from gptrs.ir import dtypes, print_program
from gptrs.ir.builder import Builder
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.elementwise import Add, Compare, Maximum, Mul, Select
from gptrs.ir.ops.indexing import DynamicSlice, DynamicUpdateSlice, Take
from gptrs.ir.ops.layout import BroadcastTo, Concat, Reshape, Slice, Transpose
from gptrs.ir.ops.reduction import Argmax, Reduce
from gptrs.ir.program import Program, Value
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.backend import create

reference = pytest.importorskip("gptrs_backend_ref.backend", reason="needs the reference backend")


class Author:
    """Writes a program: each step applies an op to values that earlier steps made."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.builder = Builder()
        self.values: list[Value] = []
        for shape in ((4, 6), (2, 3, 4), (6,), (4, 1)):
            self.values.append(self.builder.param(TensorType(dtypes.si32, shape)))
        self.starts = [self.builder.param(TensorType(dtypes.si64, (rank,))) for rank in range(5)]

    def pick(self) -> Value:
        return self.values[self.rng.integers(len(self.values))]

    def numbers(self, low: Sequence[int], high: Sequence[int]) -> tuple[int, ...]:
        return tuple(int(self.rng.integers(a, b + 1)) for a, b in zip(low, high, strict=True))

    def step(self) -> None:
        steps = [
            self.view, self.view, self.view, self.arithmetic, self.arithmetic, self.select,
            self.reduce, self.dot, self.concat, self.take, self.block, self.update,
        ]  # fmt: skip
        made = steps[self.rng.integers(len(steps))](self.pick())
        if made is not None and made.type.size <= 600 and made.type.rank <= 4:
            self.values.append(made)

    def view(self, x: Value) -> Value:
        shape = x.type.shape
        choice = self.rng.integers(4)
        if choice == 0:
            axes = tuple(int(axis) for axis in self.rng.permutation(len(shape)))
            return self.builder.emit(Transpose(axes), x)
        if choice == 1:
            target = (*(2,) * int(len(shape) < 4), *(3 if dim == 1 else dim for dim in shape))
            return self.builder.emit(BroadcastTo(target), x)
        if choice == 2:
            starts = self.numbers([0] * len(shape), [dim // 2 for dim in shape])
            steps = self.numbers([1] * len(shape), [2] * len(shape))
            sizes = tuple(
                -(-(dim - start) // by) for dim, start, by in zip(shape, starts, steps, strict=True)
            )
            return self.builder.emit(Slice(starts, sizes, steps), x)
        if x.type.size == 0:
            return self.builder.emit(Reshape(shape[::-1]), x)
        return self.builder.emit(Reshape((-1, 2) if x.type.size % 2 == 0 else (-1,)), x)

    def like(self, x: Value) -> Value:
        """A value of the type of `x`."""
        same = [value for value in self.values if value.type == x.type]
        return same[self.rng.integers(len(same))]

    def arithmetic(self, x: Value) -> Value:
        op = (Add(), Mul(), Maximum())[self.rng.integers(3)]
        return self.builder.emit(op, x, self.like(x))

    def select(self, x: Value) -> Value:
        less = self.builder.emit(Compare("lt"), x, self.like(x))
        return self.builder.emit(Select(), less, self.like(x), x)

    def reduce(self, x: Value) -> Value | None:
        rank = x.type.rank
        axes = tuple(axis for axis in range(rank) if self.rng.integers(2))
        if self.rng.integers(3) == 0 and axes and x.type.shape[axes[0]]:
            return self.builder.emit(Argmax(axes[0], keepdims=True, dtype=dtypes.si32), x)
        return self.builder.emit(Reduce("sum", axes, keepdims=True), x)

    def dot(self, x: Value) -> Value | None:
        for y in self.rng.permutation(np.array(self.values, object)):
            pairs = [
                (a, b)
                for a, m in enumerate(x.type.shape)
                for b, n in enumerate(y.type.shape)
                if m == n
            ]
            if pairs:
                left, right = pairs[self.rng.integers(len(pairs))]
                return self.builder.emit(DotGeneral((left,), (right,)), x, y)
        return None

    def concat(self, x: Value) -> Value | None:
        if x.type.rank == 0:
            return None
        return self.builder.emit(Concat(int(self.rng.integers(x.type.rank))), x, self.like(x))

    def take(self, x: Value) -> Value | None:
        if x.type.rank == 0 or x.type.shape[0] < 2:
            return None
        return self.builder.emit(Take(), x, self.builder.emit(Argmax(0), x))

    def block(self, x: Value) -> Value:
        sizes = self.numbers([0] * x.type.rank, x.type.shape)
        return self.builder.emit(DynamicSlice(sizes), x, self.starts[x.type.rank])

    def update(self, x: Value) -> Value:
        starts = self.starts[x.type.rank]
        return self.builder.emit(DynamicUpdateSlice(), x, self.block(self.like(x)), starts)


def written(seed: int) -> Program:
    author = Author(seed)
    for _ in range(30):
        author.step()
    return author.builder.program(*author.values[-4:], *author.values[:2])


def run(backend: Backend, program: Program, seed: int, donate: bool) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    types = [param.type for param in program.main.body.params]
    arrays = [rng.integers(-3, 5, t.shape).astype(t.dtype.numpy) for t in types]
    before = [array.copy() for array in arrays]
    roles = [InputRole.DONATED if donate else InputRole.ARGUMENT] * len(types)
    executable = backend.compile(program, roles)
    for _ in range(2):
        results = executable.run([array.copy() if donate else array for array in arrays])
    for array, kept in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, kept)
    return [backend.to_host(result) for result in results]


@pytest.mark.parametrize("seed", range(25))
def test_results_are_those_of_the_reference(seed: int) -> None:
    program = written(seed)
    expected = run(reference.create(None), program, seed, donate=False)
    for donate in (False, True):
        found = run(create(2), program, seed, donate)
        for have, want in zip(found, expected, strict=True):
            assert have.dtype == want.dtype
            np.testing.assert_array_equal(have, want, err_msg=print_program(program))
        for index, have in enumerate(found):
            assert not any(np.shares_memory(have, other) for other in found[:index])
