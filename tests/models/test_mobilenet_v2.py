"""MobileNetV2 agrees with transformers and with torchvision's checkpoints, on every backend."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import cast

import numpy as np
import pytest

import gptrs
from gptrs.errors import ModelError
from gptrs.nn.image_classifier import ImageClassifierModule
from models.image_models import (
    LABELS,
    assert_close,
    images,
    module_logits,
    save_image_model,
    torch_logits,
    torch_states,
)
from models.torchvision_mobilenet_v2 import save_torchvision_mobilenet_v2

torch = pytest.importorskip("torch", reason="parity needs torch")

_NARROW = {"depth_multiplier": 0.25, "depth_divisible_by": 4, "min_depth": 4, "expand_ratio": 2}
VARIANTS: dict[str, dict[str, object]] = {
    "width_0.35": {"depth_multiplier": 0.35, "tf_padding": True},
    "width_1.4": {"depth_multiplier": 1.4, "expand_ratio": 1, "tf_padding": False},
    "narrow": {**_NARROW, "finegrained_output": False},
    "symmetric": {**_NARROW, "tf_padding": False, "layer_norm_eps": 1e-5},
    "dilated": {**_NARROW, "output_stride": 8},
    "dilated_symmetric": {**_NARROW, "output_stride": 16, "tf_padding": False},
    "expanding_stem": {**_NARROW, "first_layer_is_expansion": False, "hidden_act": "silu"},
    "background": {**_NARROW, "id2label": {n: f"class {n}" for n in range(1001)}, "label2id": None},
}


@pytest.fixture(scope="module", params=VARIANTS)
def directory(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("mobilenet") / request.param
    return save_image_model(folder, "MobileNetV2", **VARIANTS[request.param])


@pytest.fixture(scope="module")
def narrow(tmp_path_factory) -> Path:
    return save_image_model(tmp_path_factory.mktemp("mobilenet") / "m", "MobileNetV2", **_NARROW)


def test_logits(directory, backend):
    model = gptrs.load_model(directory, backend=backend.name)
    pixels = images(1, 27, 34)
    assert_close(model.forward(pixels), torch_logits(directory, pixels))


def test_hidden_states(narrow, backend):
    model = gptrs.load_model(narrow, backend=backend.name)
    pixels = images(1, 27, 34)
    classifier = cast("ImageClassifierModule", model.image_classifier())
    states = classifier.hidden_states(pixels)
    assert list(states) == [f"layer.{n}" for n in range(16)]
    for ours, theirs in zip(states.values(), torch_states(narrow, pixels), strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("width", [0.25, 0.6])
def test_torchvision_checkpoints(tmp_path, backend, width):
    network = save_torchvision_mobilenet_v2(tmp_path, width, classes=len(LABELS))
    model = gptrs.load_model(tmp_path, backend=backend.name)
    pixels = images(1, 27, 34)
    assert_close(model.forward(pixels), module_logits(network, pixels))


def test_config_does_not_change_what_torchvision_fixes(tmp_path, nothing_is_left_unread):
    network = save_torchvision_mobilenet_v2(tmp_path, 0.25, classes=3)
    config = {"model_type": "mobilenet_v2", "tf_padding": True, "depth_multiplier": 2.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    pixels = images(1, 32, 32)
    ours = gptrs.load_model(tmp_path, backend="ref").forward(pixels)
    assert nothing_is_left_unread == [("mobilenet_v2", ["tf_padding", "depth_multiplier"])]
    nothing_is_left_unread.clear()
    assert_close(ours, module_logits(network, pixels))


def test_a_batch_equals_its_images(narrow, backend):
    model = gptrs.load_model(narrow, backend=backend.name)
    pixels = images(3, 20, 17)
    together = model.forward(pixels)
    alone = np.concatenate([model.forward(pixels[row : row + 1]) for row in range(3)])
    assert_close(together, alone, 1e-6)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth_multiplier": 0}, "`depth_multiplier`.*must be above 0"),
        ({"depth_multiplier": 1e20}, "`depth_multiplier`.*must be above 0 and at most 1000"),
        ({"expand_ratio": "six"}, "`expand_ratio`.*must be a number >= 0"),
        ({"depth_divisible_by": 0}, "`depth_divisible_by`.*must be an integer >= 1"),
        ({"tf_padding": 1}, "`tf_padding`.*must be true or false"),
        ({"hidden_act": "soft"}, "`hidden_act`.*must be one of"),
        ({"quantization_config": {}}, "`quantization_config`"),
        ({"expand_ratio": 3}, r"expand_1x1\.convolution\.weight`.*the model needs"),
        ({"first_layer_is_expansion": False}, r"no tensor `mobilenet_v2\.conv_stem\.expand_1x1"),
    ],
)
def test_unsupported_settings_are_refused_by_name(narrow, tmp_path, settings, message):
    folder = shutil.copytree(narrow, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    with pytest.raises(ModelError, match=message):
        gptrs.load_model(folder)
