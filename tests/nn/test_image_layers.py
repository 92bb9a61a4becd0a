"""Convolution and batch normalization layers compute what torch's do, channels last."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

import gptrs
from gptrs.checkpoint.param_source import FileSource
from gptrs.checkpoint.params import Params
from gptrs.errors import CheckpointError
from gptrs.nn import BatchNorm2d, Conv2d

torch = pytest.importorskip("torch", reason="parity needs torch")

X = np.random.default_rng(0).standard_normal((2, 9, 8, 6)).astype(np.float32)


def _params(module, folder, backend) -> Params:
    arrays = {name: value.numpy() for name, value in module.state_dict().items()}
    save_file(arrays, folder / "model.safetensors")
    return Params(FileSource.of_file(folder / "model.safetensors"), backend=backend)


def _theirs(module) -> np.ndarray:
    with torch.no_grad():
        return module(torch.from_numpy(X).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"bias": False, "stride": 2, "padding": 1},
        {"dilation": 2, "padding": 2, "groups": 3},
        {"groups": 6, "padding": 1},
    ],
)
def test_convolution(settings, tmp_path, backend):
    module = torch.nn.Conv2d(6, 12, 3, **settings)
    layer = Conv2d(_params(module, tmp_path, backend), 6, 12, 3, **settings)
    assert {name for name, _ in layer.named_tensors()} == set(module.state_dict())
    np.testing.assert_allclose(layer(gptrs.tensor(X)).numpy(), _theirs(module), atol=1e-5)


@pytest.mark.parametrize("epsilon", [1e-5, 0.1])
def test_batch_normalization(epsilon, tmp_path, backend):
    module = torch.nn.BatchNorm2d(6, epsilon).eval()
    with torch.no_grad():
        for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
            tensor.uniform_(0.2, 2)
    layer = BatchNorm2d(_params(module, tmp_path, backend), 6, epsilon)
    names = {name for name, _ in layer.named_tensors()}
    assert names == set(module.state_dict()) - {"num_batches_tracked"}
    np.testing.assert_allclose(layer(gptrs.tensor(X)).numpy(), _theirs(module), atol=1e-5)


def test_weights_of_another_shape_are_refused(tmp_path, backend):
    params = _params(torch.nn.Conv2d(6, 12, 3), tmp_path, backend)
    with pytest.raises(CheckpointError, match=r"the model needs `f32\[12, 3, 3, 3\]`"):
        Conv2d(params, 6, 12, 3, groups=2)
