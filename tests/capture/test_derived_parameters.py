"""What a program computes of parameters alone is computed once, and lives as long as they do."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.backend.contract import Backend
from gptrs.capture import compilation, execute
from gptrs.capture.parameter import Parameter
from gptrs.capture.tensor import Tensor
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType


class Weights:
    """Parameters that count how often they are read."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.reads: dict[str, int] = {}

    def parameter(self, name: str, key: int, value: float = 2.0) -> Parameter:
        def load() -> np.ndarray:
            self.reads[name] = self.reads.get(name, 0) + 1
            return np.full(4, value, np.float32)

        return Parameter(TensorType(dtypes.f32, (4,)), key, name, load, self.backend)


@pytest.fixture
def weights(backend) -> Weights:
    execute.program_cache.clear()
    return Weights(backend)


def scaled(x: Tensor, weight: Tensor, offset: Tensor) -> Tensor:
    return F.add(F.mul(x, F.add(weight, 1.0)), offset)


def test_the_sources_are_read_once_and_not_kept(weights):
    weight, offset = weights.parameter("w", 1), weights.parameter("o", 2, 0.5)
    step = gptrs.jit(lambda x: scaled(x, Tensor.of_parameter(weight), Tensor.of_parameter(offset)))
    for value in (1.0, 2.0, 3.0):
        x = gptrs.tensor(np.full(4, value, np.float32))
        assert step(x).numpy().tolist() == [3 * value + 0.5] * 4
    assert weights.reads == {"w": 1, "o": 1}
    assert not weight.loaded, "only what was made of it is held"
    assert offset.loaded


def test_a_source_that_the_program_reads_too_is_read_once(weights):
    weight = weights.parameter("w", 1)
    step = gptrs.jit(
        lambda x: F.add(
            F.mul(x, F.add(Tensor.of_parameter(weight), 1.0)), Tensor.of_parameter(weight)
        )
    )
    assert step(gptrs.tensor(np.ones(4, np.float32))).numpy().tolist() == [5] * 4
    assert weights.reads == {"w": 1}
    assert weight.loaded


def test_programs_share_what_they_derive(weights):
    """Another program, of another shape, finds what the first one made."""
    weight, offset = weights.parameter("w", 1), weights.parameter("o", 2)
    step = gptrs.jit(lambda x: scaled(x, Tensor.of_parameter(weight), Tensor.of_parameter(offset)))
    for rows in (1, 2, 3):
        assert step(gptrs.tensor(np.ones((rows, 4), np.float32))).shape == (rows, 4)
    assert step.compiled == 3
    assert weights.reads == {"w": 1, "o": 1}


def test_other_weights_derive_their_own(weights):
    first = weights.parameter("a", 1, 1.0)
    second = weights.parameter("b", 2, 5.0)
    offset = weights.parameter("o", 3, 0.0)
    x = gptrs.tensor(np.ones(4, np.float32))
    for parameter, expected in ((first, 2.0), (second, 6.0), (first, 2.0)):
        got = scaled(x, Tensor.of_parameter(parameter), Tensor.of_parameter(offset))
        assert got.numpy().tolist() == [expected] * 4


def test_equal_layers_share_a_program_whatever_their_weights_are_called(weights, monkeypatch):
    compiled: list[str] = []

    def noted(program, backend, roles, origin="program"):
        compiled.append(origin)
        return compile_program(program, backend, roles, origin)

    compile_program = compilation.compile_program
    monkeypatch.setattr(compilation, "compile_program", noted)
    monkeypatch.setattr(compilation, "_SMALL", 0)
    layers = [weights.parameter(f"layer_{key}", key, float(key)) for key in (1, 2, 3)]
    offset = weights.parameter("o", 4, 0.0)

    def run(x: Tensor) -> Tensor:
        for layer in layers:
            x = scaled(x, Tensor.of_parameter(layer), Tensor.of_parameter(offset))
        return x

    assert gptrs.jit(run)(gptrs.tensor(np.ones(4, np.float32))).numpy().tolist() == [24] * 4
    assert compiled == ["parameter"]


def test_small_ones_need_no_program(weights, monkeypatch):
    """NumPy moves them and does IEEE arithmetic, with the bits of a program."""

    def turned(weight: Tensor) -> Tensor:
        return F.div(F.transpose(F.reshape(weight, (2, 2)), (1, 0)), 3.0)

    def derived(key: int) -> np.ndarray:
        weight = weights.parameter(f"w{key}", key, 0.7)
        x = gptrs.tensor(np.zeros((2, 2), np.float32))
        return F.maximum(x, turned(Tensor.of_parameter(weight))).numpy()

    monkeypatch.setattr(compilation, "_SMALL", 0)
    expected = derived(1)
    monkeypatch.undo()
    monkeypatch.setattr(compilation, "compile_program", None)
    assert weights.backend.ieee_floats
    assert derived(2).tobytes() == expected.tobytes()


def test_equal_contents_under_other_recipes_differ(weights):
    weight = weights.parameter("w", 1, 4.0)
    x = gptrs.tensor(np.ones(4, np.float32))
    assert F.mul(x, F.add(Tensor.of_parameter(weight), 1.0)).numpy().tolist() == [5] * 4
    assert F.mul(x, F.sub(Tensor.of_parameter(weight), 1.0)).numpy().tolist() == [3] * 4


def test_it_goes_with_its_parameter(weights):
    weight, offset = weights.parameter("w", 1), weights.parameter("o", 2)
    x = gptrs.tensor(np.ones(4, np.float32))
    scaled(x, Tensor.of_parameter(weight), Tensor.of_parameter(offset)).numpy()
    (derived,) = weight._derived.values()
    gone = weakref.ref(derived)
    del derived, weight, offset
    execute.program_cache.clear()
    gc.collect()
    assert gone() is None


def test_nothing_is_derived_of_what_is_only_read(weights):
    """Looking at a weight must not keep what was looked at."""
    weight = weights.parameter("w", 1)
    assert F.add(Tensor.of_parameter(weight), 1.0).numpy().tolist() == [3] * 4
    assert not weight._derived
