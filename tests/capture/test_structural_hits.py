"""Graphs of equal structure share a program, and none that differ do."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import gptrs
from gptrs.capture import execute, primitives
from gptrs.capture.parameter import Parameter
from gptrs.capture.tensor import Tensor
from gptrs.ir.tensor_type import TensorType


def _parameter(array: np.ndarray, name: str, backend: object) -> Tensor:
    parameter = Parameter(TensorType.of(array), hash(name), name, lambda: array, backend)
    return Tensor.of_parameter(parameter)


def test_operands_are_tied_to_inputs(backend):
    """(x @ p1) @ p2 and (x @ p2) @ p1 have the same ops and types, and different values."""
    rng = np.random.default_rng(0)
    x, p1, p2 = (rng.standard_normal((4, 4), np.float32) for _ in range(3))
    first, second = _parameter(p1, "p1", backend), _parameter(p2, "p2", backend)
    with gptrs.use_backend(backend):
        a = ((gptrs.tensor(x) @ first) @ second).numpy()
        b = ((gptrs.tensor(x) @ second) @ first).numpy()
    np.testing.assert_allclose(a, x @ p1 @ p2, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(b, x @ p2 @ p1, rtol=1e-4, atol=1e-4)


def test_one_input_twice_is_not_two_inputs(backend):
    with gptrs.use_backend(backend):
        a, b = gptrs.tensor([1.0, 2.0]), gptrs.tensor([5.0, 7.0])
        assert primitives.sub(a, a).numpy().tolist() == [0, 0]
        assert primitives.sub(a, b).numpy().tolist() == [-4, -5]


def test_equal_structures_hit_and_results_are_new(backend):
    """Capturing a structure again after a flush computes anew, from the inputs of now."""
    execute.program_cache.clear()
    with gptrs.use_backend(backend):
        kept = [gptrs.tensor([value]) * 2 for value in (1.0, 2.0, 3.0)]
        for value, tensor in zip((1.0, 2.0, 3.0), kept, strict=True):
            again = gptrs.tensor([value + 10]) * 2
            assert (tensor.item(), again.item()) == (2 * value, 2 * value + 20)
        assert [tensor.item() for tensor in kept] == [2, 4, 6]
    statistics = execute.program_cache.statistics
    assert (statistics.hits, statistics.misses) == (5, 1)


def test_threads_that_flush_one_structure_compile_it_once(backend):
    execute.program_cache.clear()
    barrier = threading.Barrier(8)

    def compute(value: int) -> complex:
        with gptrs.use_backend(backend):
            x = gptrs.tensor([float(value)])
            barrier.wait()
            return primitives.neg(primitives.abs(x)).item()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(compute, range(8))) == [-value for value in range(8)]
    statistics = execute.program_cache.statistics
    assert (statistics.hits, statistics.misses) == (7, 1)
