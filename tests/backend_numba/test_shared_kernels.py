"""Elementwise kernels and reductions that threads share: every element once, the same bits."""

from __future__ import annotations

import math
from itertools import pairwise, product

import numpy as np
import pytest

from gptrs.backend.contract import InputRole
from gptrs.ir import dtypes, parse_program
from gptrs.ir.size_guards import SizeGuards, deciding
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.codegen.kernel import kernel
from gptrs_backend_numba.codegen.machine import pointer
from gptrs_backend_numba.codegen.tasks import MOST_RANGES, run_tasks_kernel
from gptrs_backend_numba.memory import POOL, address_of, aligned
from gptrs_backend_numba.schedule import PARALLEL_FROM, Context, KernelCall, ScheduleBuilder, blocks

RNG = np.random.default_rng(5)
THREADS = (2, 3, MOST_RANGES + 3)


def run(threads: int, text: str, *arrays: np.ndarray) -> np.ndarray:
    program = parse_program(f"ptir.v0.5\n{text}")
    executable = create(threads).compile(program, [InputRole.ARGUMENT] * len(arrays))
    return np.array(executable.run(list(arrays))[0])


def require_the_same_bits(text: str, *arrays: np.ndarray) -> np.ndarray:
    """Return the result, which must not depend on the number of threads."""
    one = run(1, text, *arrays)
    for threads in THREADS:
        assert run(threads, text, *arrays).tobytes() == one.tobytes()
    return one


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


@kernel
def counting_task(a, b, counts, geometry, task):
    """Count how often a task runs; nobody else has its number."""
    pointer(counts, np.uint8)[task] += 1
    return 0


@pytest.mark.parametrize("threads", [1, *THREADS])
@pytest.mark.parametrize("count", [0, 1, 2, MOST_RANGES + 1, 0xFFFF, 3 * 0xFFFF + 5])
def test_each_task_runs_once(threads: int, count: int) -> None:
    POOL.grow(threads)
    counts = aligned(count + 1)
    task = compiled_task(counting_task)
    for repeats in range(1, 4):
        counts[:] = 0
        for _ in range(repeats):
            compiled(run_tasks_kernel)(
                POOL.address, task, count, threads, 0, 0, address_of(counts), 0
            )
        assert (counts[:count] == repeats).all()
        assert counts[count] == 0


@pytest.mark.parametrize(
    "sizes", [(1,), (99_999,), (5, 40_000), (3, 700, 41), (1000, 3, 5000), (20_000, 2, 2)]
)
def test_blocks_cover_all_elements(sizes: tuple[int, ...]) -> None:
    found, count = blocks(sizes)
    assert count == math.prod(-(-size // block) for size, block in zip(sizes, found, strict=True))
    assert math.prod(found) <= 16_384
    partial = [axis for axis, size in enumerate(sizes) if 1 < found[axis] < size]
    assert len(partial) <= 1  # one axis is cut; those before it are walked over
    assert all(block == 1 for axis in partial for block in found[:axis])


CHAIN = """func @main(%x: f32[{x}], %y: f32[{y}], %z: f32[]) -> f32[{x}] {{
  %0 = logistic %x : f32[{x}]
  %1 = mul %0, %x : f32[{x}]
  %2 = broadcast_to %y {{shape = [{x}]}} : f32[{x}]
  %3 = mul %1, %2 : f32[{x}]
  %4 = broadcast_to %z {{shape = [{x}]}} : f32[{x}]
  %5 = add %3, %4 : f32[{x}]
  return %5
}}
"""


def chain(x: np.ndarray, y: np.ndarray) -> str:
    shapes = {name: ", ".join(map(str, a.shape)) for name, a in (("x", x), ("y", y))}
    return CHAIN.format(**shapes)


@pytest.mark.paths
@pytest.mark.parametrize("shape", [(50_001,), (3, 20_011), (130, 61, 17), (2, 5, 70, 100)], ids=str)
def test_a_chain_of_ops(shape: tuple[int, ...]) -> None:
    x, y, z = normal(*shape), normal(*shape[-1:]), np.array(0.5, np.float32)
    found = require_the_same_bits(chain(x, y), x, y, z)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(found, wide / (1 + np.exp(-wide)) * y + z, rtol=2e-5, atol=1e-6)


@pytest.mark.paths
def test_rows_alone_are_those_of_a_shared_kernel() -> None:
    x, y, z = normal(300, 333), normal(333), np.array(0.5, np.float32)
    whole = run(3, chain(x, y), x, y, z)
    for first, last in pairwise((0, 1, 8, 97)):
        part = np.ascontiguousarray(x[first:last])
        assert run(3, chain(part, y), part, y, z).tobytes() == whole[first:last].tobytes()


@pytest.mark.paths
def test_an_image_is_turned() -> None:
    x = normal(2, 3, 150, 91)
    text = """func @main(%x: f32[2, 3, 150, 91]) -> f32[2, 150, 91, 3] {
  %0 = transpose %x {permutation = [0, 2, 3, 1]} : f32[2, 150, 91, 3]
  return %0
}
"""
    assert require_the_same_bits(text, x).tobytes() == x.transpose(0, 2, 3, 1).tobytes()


@pytest.mark.parametrize("count", [2, 6])
def test_as_many_inputs_as_a_kernel_may_have(count: int) -> None:
    arrays = [normal(40_000) for _ in range(count)]
    type_ = "f32[40000]"
    steps = [f"  %s{i} = add %{f's{i - 1}' if i > 1 else 'x0'}, %x{i} : {type_}\n"
             for i in range(1, count)]  # fmt: skip
    parameters = ", ".join(f"%x{i}: {type_}" for i in range(count))
    text = f"func @main({parameters}) -> {type_} {{\n{''.join(steps)}  return %s{count - 1}\n}}\n"
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array
    assert require_the_same_bits(text, *arrays).tobytes() == total.tobytes()


def test_a_symbolic_size() -> None:
    text = """ptir.v0.5
func @main(%x: f32[?0, 9, ?1]) -> f32[?0, 9, ?1] {
  %0 = exp %x : f32[?0, 9, ?1]
  %1 = neg %0 : f32[?0, 9, ?1]
  return %1
}
"""
    guards = SizeGuards({0: 9, 1: 40})
    with deciding(SizeGuards({0: 9, 1: 40})):
        program = parse_program(text)
    executable = create(3).compile_symbolic(program, [InputRole.ARGUMENT], guards)
    for sizes in product((2, 77), (3, 500, 5000)):
        assert guards.accept(dict(enumerate(sizes)))
        x = normal(sizes[0], 9, sizes[1])
        (found,) = executable.run([x])
        np.testing.assert_allclose(found, -np.exp(x.astype(np.float64)), rtol=2e-6)


REDUCTIONS = [
    ((3, 900, 144), (1,)),
    ((3, 900, 144), (0, 1)),
    ((3, 900, 144), (2,)),
    ((3, 900, 144), (0, 2)),
    ((5, 7, 5000), (0,)),
    ((2000, 5, 16), (1,)),
    ((60_000,), (0,)),
]


@pytest.mark.paths
@pytest.mark.parametrize("kind", ["sum", "max"])
@pytest.mark.parametrize(("shape", "axes"), REDUCTIONS, ids=str)
def test_reductions(kind: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = normal(*shape)
    result = ", ".join(str(size) for axis, size in enumerate(shape) if axis not in axes)
    given = ", ".join(map(str, shape))
    text = (
        f"func @main(%x: f32[{given}]) -> f32[{result}] {{\n"
        f"  %0 = reduce %x {{kind = {kind}, axes = {list(axes)}}} : f32[{result}]\n"
        "  return %0\n}\n"
    )
    found = require_the_same_bits(text, x)
    want = getattr(x.astype(np.float64), kind)(axis=axes)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=2e-3 if kind == "sum" else 0)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_places_of_the_largest(axis: int) -> None:
    x = normal(700, 90)
    size = x.shape[1 - axis]
    text = (
        f"func @main(%x: f32[700, 90]) -> si64[{size}] {{\n"
        f"  %0 = argmax %x {{axis = {axis}, keepdims = false}} : si64[{size}]\n  return %0\n}}\n"
    )
    assert (require_the_same_bits(text, x) == x.argmax(axis)).all()


@pytest.mark.parametrize(("size", "threads"), [(PARALLEL_FROM - 1, 1), (PARALLEL_FROM, 4)])
def test_large_kernels_alone_are_shared(size: int, threads: int) -> None:
    builder = ScheduleBuilder(Context(4, {}, []), {}, ())
    x, out = (builder.fresh(dtypes.f32, (size,)) for _ in range(2))
    builder.copy(x, out)
    (step,) = builder.steps
    assert isinstance(step, KernelCall)
    assert (step.leading[3] if step.leading else 1) == threads
