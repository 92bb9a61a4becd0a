"""Layers find their weights under the names of the checkpoint and list them again."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

import gptrs
from gptrs.checkpoint.param_source import FileSource
from gptrs.checkpoint.params import Params
from gptrs.errors import CheckpointError
from gptrs.nn import Embedding, LayerNorm, Linear, Module, merge_heads, split_heads


class Pair(Module):
    """A module with a list of modules and an optional weight."""

    def __init__(self, params: Params) -> None:
        self.table = Embedding(params / "table", 5, 3)
        self.layers = [Linear(params / "layers" / i, 3, 3, bias=i == 0) for i in range(2)]
        self.norm = LayerNorm(params / "norm", 3, 1e-5)
        self._hidden = 3


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {
        "table.weight": (5, 3),
        "layers.0.weight": (3, 3),
        "layers.0.bias": (3,),
        "layers.1.weight": (3, 3),
        "norm.weight": (3,),
        "norm.bias": (3,),
    }
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


@pytest.fixture
def params(arrays, tmp_path, backend) -> Params:
    save_file(arrays, tmp_path / "model.safetensors")
    return Params(FileSource.of_file(tmp_path / "model.safetensors"), backend=backend)


def test_names_are_those_of_the_checkpoint(params, arrays):
    listed = dict(Pair(params).named_tensors())
    assert listed.keys() == arrays.keys()
    for name, tensor in listed.items():
        np.testing.assert_array_equal(tensor.numpy(), arrays[name])


def test_layers_compute(params, arrays):
    pair = Pair(params)
    x = pair.table(gptrs.tensor([1, 4]))
    expected = arrays["table.weight"][[1, 4]]
    np.testing.assert_array_equal(x.numpy(), expected)
    hidden = expected @ arrays["layers.0.weight"].T + arrays["layers.0.bias"]
    np.testing.assert_allclose(pair.layers[0](x).numpy(), hidden, rtol=1e-4, atol=1e-5)
    scores = pair.table.unembed(x)
    np.testing.assert_allclose(
        scores.numpy(), expected @ arrays["table.weight"].T, rtol=1e-4, atol=1e-5
    )


def test_a_weight_of_another_shape_is_refused(params):
    with pytest.raises(CheckpointError, match=r"table\.weight"):
        Embedding(params / "table", 5, 4)


def test_heads_are_split_and_merged_back():
    x = np.arange(2 * 3 * 8, dtype=np.float32).reshape(2, 3, 8)
    heads = split_heads(gptrs.tensor(x), 4)
    assert heads.shape == (2, 3, 4, 2)
    np.testing.assert_array_equal(heads.numpy()[1, 1, 2], x[1, 1, 4:6])
    np.testing.assert_array_equal(merge_heads(heads).numpy(), x)
