"""Tensors that a step has bound are the same in every run: backends may keep forms of them."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs.api.backends import Backend
from gptrs.backend.contract import InputRole
from gptrs.capture.events import CompileStart, ExecutionTraceSink, tracing
from gptrs.errors import ConsumedTensorError


class Roles(ExecutionTraceSink):
    """Keeps the roles of the inputs of programs."""

    def __init__(self) -> None:
        self.found: list[tuple[InputRole, ...]] = []

    def before_program(self, event: CompileStart) -> None:
        self.found.append(event.roles)


def matrix(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((40, 40)).astype(np.float32)


def test_bound_tensors_are_constants_and_arguments_are_not(backend: Backend) -> None:
    roles = Roles()
    with gptrs.use_backend(backend), tracing(roles):
        bound = gptrs.tensor(matrix(1))
        step = gptrs.jit(lambda x: x @ bound)
        step(gptrs.tensor(matrix(2))).numpy()
    assert roles.found == [(InputRole.ARGUMENT, InputRole.CONSTANT)]


def test_a_bound_tensor_and_an_argument_give_the_same_bits(backend: Backend) -> None:
    with gptrs.use_backend(backend):
        bound = gptrs.tensor(matrix(1))
        taking, binding = gptrs.jit(lambda x, w: x @ w), gptrs.jit(lambda x: x @ bound)
        for seed in (2, 3):
            x = gptrs.tensor(matrix(seed))
            np.testing.assert_array_equal(binding(x).numpy(), taking(x, bound).numpy())


def test_memory_of_a_bound_tensor_is_not_reused_when_it_is_donated(backend: Backend) -> None:
    """The step that takes it copies: kept forms of the memory stay those of its contents."""
    with gptrs.use_backend(backend):
        bound, x = gptrs.tensor(matrix(1)), gptrs.tensor(matrix(2))
        binding = gptrs.jit(lambda x: x @ bound)
        before = binding(x).numpy()
        update = gptrs.jit(lambda w: w + 1.0, donate="w")
        changed = update(bound)
        following = gptrs.jit(lambda x: x @ changed)
        np.testing.assert_allclose(following(x).numpy(), matrix(2) @ (matrix(1) + 1), atol=1e-4)
        np.testing.assert_allclose(before, matrix(2) @ matrix(1), atol=1e-4)
        with pytest.raises(ConsumedTensorError):
            binding(x)


def test_an_array_that_changes_later_is_not_seen(backend: Backend) -> None:
    with gptrs.use_backend(backend):
        array, x = matrix(1), gptrs.tensor(matrix(2))
        bound = gptrs.tensor(array)
        binding = gptrs.jit(lambda x: x @ bound)
        found = binding(x).numpy()
        array[:] = 0
        np.testing.assert_array_equal(binding(x).numpy(), found)
