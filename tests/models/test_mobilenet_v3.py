"""MobileNetV3 agrees with torch under the names of torchvision and of timm."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gptrs
from gptrs.errors import ModelError
from models.image_models import LABELS, assert_close, images, module_logits
from models.torch_mobilenet_v3 import network_of, save_mobilenet_v3, timm_state

torch = pytest.importorskip("torch", reason="parity needs torch")
save_file = pytest.importorskip("safetensors.torch").save_file

PRETRAINED = {"input_size": [3, 32, 32], "crop_pct": 0.9, "num_classes": len(LABELS)}


@pytest.mark.sample(1)
@pytest.mark.parametrize("form", ["small", "large"])
def test_torchvision_checkpoints(tmp_path, backend_name, form):
    network = save_mobilenet_v3(tmp_path, form)
    model = gptrs.load_model(tmp_path, backend=backend_name)
    pixels = images(1, 43, 50)
    assert_close(model.forward(pixels), module_logits(network, pixels))
    states = model.hidden_states(pixels)
    layers = list(network.features)[:-1]
    x, names = torch.from_numpy(pixels), ["embeddings", *(f"layer.{i}" for i in range(15))]
    assert list(states) == names[: len(layers)]
    with torch.no_grad():
        for layer, found in zip(layers, states.values(), strict=True):
            x = layer(x)
            assert_close(found, x.numpy())


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(31, 36))
def test_five_draws_of_weights(tmp_path, backend_name, seed):
    network = save_mobilenet_v3(tmp_path, ("small", "large")[seed % 2], seed)
    pixels = images(1, 43, 50)
    found = gptrs.load_model(tmp_path, backend=backend_name).forward(pixels)
    assert_close(found, module_logits(network, pixels))


@pytest.mark.sample(1)
@pytest.mark.parametrize("architecture", ["mobilenetv3_small_100", "tf_mobilenetv3_large_075"])
def test_timm_folders(tmp_path, backend_name, architecture):
    form, tf = architecture.split("_")[-2], architecture.startswith("tf_")
    network = network_of(form, same=tf, epsilon=1e-3 if tf else 1e-5)
    save_file(timm_state(network, form), tmp_path / "model.safetensors")
    config = {"architecture": architecture, "global_pool": "avg", "pretrained_cfg": PRETRAINED}
    names = {"label_names": list(LABELS.values()), "num_classes": len(LABELS)}
    (tmp_path / "config.json").write_text(json.dumps({**config, **names}))
    model = gptrs.load_model(tmp_path, backend=backend_name)
    pixels = images(2, 43, 50)
    assert_close(model.forward(pixels), module_logits(network, pixels))
    assert model.config["id2label"] == {str(n): label for n, label in LABELS.items()}


def test_a_batch_equals_its_images(tmp_path):
    save_mobilenet_v3(tmp_path)
    model = gptrs.load_model(tmp_path, backend="ref")
    pixels = images(3, 35, 33)
    alone = np.concatenate([model.forward(pixels[row : row + 1]) for row in range(3)])
    # NumPy multiplies matrices of other heights by other kernels.
    assert_close(model.forward(pixels), alone, 4e-6)


def test_other_structures_are_refused(tmp_path):
    state = network_of("small").state_dict()
    fewer = {name: value for name, value in state.items() if not name.startswith("features.11.")}
    save_file(fewer, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "mobilenet_v3"}')
    with pytest.raises(ModelError, match="has 11 blocks or 15, this one has 10"):
        gptrs.load_model(tmp_path, backend="ref")
