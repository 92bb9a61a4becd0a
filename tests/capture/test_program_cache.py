"""The program cache never lets two different graphs share an executable."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

import gptrs
from gptrs.capture import execute, primitives
from gptrs.capture.graph import GraphSlice
from gptrs.capture.parameter import Parameter
from gptrs.capture.program_cache import ProgramCache
from gptrs.capture.tensor import Tensor
from gptrs.ir.tensor_type import TensorType


@pytest.fixture(autouse=True)
def _on_backend(backend):
    with gptrs.use_backend(backend):
        yield


def _parameter(array: np.ndarray, name: str, backend: object) -> Tensor:
    parameter = Parameter(TensorType.of(array), hash(name), name, lambda: array, backend)
    return Tensor.of_parameter(parameter)


def test_operands_are_tied_to_inputs(backend):
    """(x @ p1) @ p2 and (x @ p2) @ p1 have the same ops and types, and different values."""
    rng = np.random.default_rng(0)
    x, p1, p2 = (rng.standard_normal((4, 4), np.float32) for _ in range(3))
    first, second = _parameter(p1, "p1", backend), _parameter(p2, "p2", backend)
    a = ((gptrs.tensor(x) @ first) @ second).numpy()
    b = ((gptrs.tensor(x) @ second) @ first).numpy()
    np.testing.assert_allclose(a, x @ p1 @ p2, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(b, x @ p2 @ p1, rtol=1e-4, atol=1e-4)


def test_one_input_twice_is_not_two_inputs():
    a, b = gptrs.tensor([1.0, 2.0]), gptrs.tensor([5.0, 7.0])
    assert primitives.sub(a, a).numpy().tolist() == [0, 0]
    assert primitives.sub(a, b).numpy().tolist() == [-4, -5]


def test_literals_attributes_and_shapes_are_part_of_the_key():
    x = gptrs.tensor([1.0, 2.0])
    variants = [
        x + 1,
        x + 2,
        x + 0.0,
        x + -0.0,
        gptrs.tensor([1.0]) + 1,
        primitives.reduce(x, "sum", [0]),
        primitives.reduce(x, "max", [0]),
        primitives.reduce(x, "sum", [0], keepdims=True),
    ]
    keys = [GraphSlice([variant.source]).key() for variant in variants]
    assert len(set(keys)) == len(keys)


def test_equal_structures_hit():
    execute.PROGRAM_CACHE.clear()
    for value in (1.0, 2.0, 3.0):
        y = primitives.tanh(primitives.exp(gptrs.tensor(np.full(3, value, np.float32))))
        np.testing.assert_allclose(y.numpy(), np.tanh(np.exp(np.full(3, value))), rtol=1e-5)
    statistics = execute.PROGRAM_CACHE.statistics
    assert (statistics.hits, statistics.misses) == (2, 1)


def _random_graph(seed: int) -> tuple[list[Tensor], Tensor, object]:
    """A graph over three inputs, the inputs, and a description of it that a key must tell apart."""
    rng = random.Random(seed)
    inputs = [gptrs.tensor(np.full((2, 2), float(i + 1), np.float32)) for i in range(3)]
    values, steps = list(inputs), []
    for _ in range(rng.randint(1, 4)):
        op = rng.choice(["add", "sub", "maximum", "transpose"])
        left, right = rng.randrange(len(values)), rng.randrange(len(values))
        if op == "transpose":
            values.append(primitives.transpose(values[left], (1, 0)))
            steps.append((op, left))
        else:
            values.append(getattr(primitives, op)(values[left], values[right]))
            steps.append((op, left, right))
    return inputs, values[-1], steps


def test_generated_graphs_never_collide():
    """Equal keys only for graphs that compute the same function of the same inputs in order."""
    seen: dict[object, np.ndarray] = {}
    for seed in range(600):
        _, result, _ = _random_graph(seed)
        graph = GraphSlice([result.source])
        # Values of the inputs in the order of the program's parameters complete the meaning.
        binding = tuple(float(np.asarray(leaf.buffer).flat[0]) for leaf in graph.leaves)
        value = result.numpy()
        known = seen.setdefault((graph.key(), binding), value)
        np.testing.assert_array_equal(known, value)
    assert len(seen) > 200


def test_least_recently_used_is_dropped():
    cache = ProgramCache(capacity=2)
    made: list[str] = []

    def make(key: str):
        def compile_it():
            made.append(key)
            return object()

        return cache.find_or_compile(key, compile_it)  # pyright: ignore

    for key in ("a", "b", "a", "c", "a", "b"):
        make(key)
    assert made == ["a", "b", "c", "b"]
    assert cache.statistics.entries == 2


def test_results_after_a_flush_are_new(backend):
    """Capturing a structure again after a flush gives new results, not those of the first."""
    for value, other in itertools.pairwise([1.0, 2.0, 3.0]):
        y = gptrs.tensor([value]) * 2
        z = gptrs.tensor([other]) * 2
        assert (y.numpy()[0], z.numpy()[0]) == (2 * value, 2 * other)
