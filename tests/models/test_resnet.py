"""ResNet agrees with transformers and with torchvision's checkpoints, on every backend."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import cast

import numpy as np
import pytest

import gptrs
from gptrs.errors import CheckpointError, ModelError
from gptrs.nn.image_classifier import ImageClassifierModule
from models.image_models import (
    LABELS,
    assert_close,
    images,
    module_logits,
    reference,
    save_image_model,
    torch_logits,
    torch_states,
)
from models.torchvision_resnet import save_torchvision_resnet

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

_BASIC = {"layer_type": "basic", "embedding_size": 8, "hidden_sizes": [8, 12, 16, 24]}
_BOTTLENECK = {"layer_type": "bottleneck", "embedding_size": 8, "hidden_sizes": [16, 24, 32, 48]}
VARIANTS: dict[str, dict[str, object]] = {
    "resnet18": {**_BASIC, "depths": [2, 2, 2, 2]},
    "resnet34": {**_BASIC, "depths": [3, 4, 6, 3]},
    "resnet50": {**_BOTTLENECK, "depths": [3, 4, 6, 3]},
    "resnet101": {**_BOTTLENECK, "depths": [3, 4, 23, 3]},
    "downsampled_first": {
        **{**_BASIC, "depths": [1, 1], "hidden_sizes": [8, 12]},
        "downsample_in_first_stage": True,
    },
    "downsampled_in_1x1": {**_BOTTLENECK, "depths": [1, 2, 1, 1], "downsample_in_bottleneck": True},
    "silu": {**_BOTTLENECK, "depths": [1, 1, 1, 1], "hidden_act": "silu"},
    "two_channels": {**_BASIC, "depths": [1, 1, 1, 1], "num_channels": 2},
    "two_classes": {**_BASIC, "depths": [1, 1, 1, 1], "id2label": None, "label2id": None},
    "half": {**_BASIC, "depths": [1, 1, 1, 1], "saved_dtype": "float16"},
    "sharded": {**_BASIC, "depths": [1, 1, 1, 1], "max_shard_size": "20KB"},
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.exhaustive if name == "resnet101" else ())
        for name in VARIANTS
    ],
)
def directory(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("resnet") / request.param
    return save_image_model(folder, "ResNet", **VARIANTS[request.param])


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    settings = {**_BASIC, "depths": [1, 1, 1, 1]}
    return save_image_model(tmp_path_factory.mktemp("resnet") / "plain", "ResNet", **settings)


def test_logits(directory, backend):
    model = gptrs.load_model(directory, backend=backend.name)
    pixels = images(2, 39, 50, reference(directory).config.num_channels)
    assert_close(model.forward(pixels), torch_logits(directory, pixels))


def test_hidden_states(plain, backend):
    model = gptrs.load_model(plain, backend=backend.name)
    pixels = images(1, 39, 50)
    classifier = cast("ImageClassifierModule", model.image_classifier())
    states = classifier.hidden_states(pixels)
    expected = torch_states(plain, pixels)
    assert list(states) == ["embeddings", *(f"layer.{n}" for n in range(len(expected) - 1))]
    for ours, theirs in zip(states.values(), expected, strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("layer_type", "depths"), [("basic", (2, 1, 2, 1)), ("bottleneck", (1, 2, 1, 1))]
)
def test_torchvision_checkpoints(tmp_path, backend, layer_type, depths):
    network = save_torchvision_resnet(tmp_path, layer_type, depths, classes=len(LABELS))
    model = gptrs.load_model(tmp_path, backend=backend.name)
    pixels = images(2, 39, 50)
    assert_close(model.forward(pixels), module_logits(network, pixels))


def test_a_torchvision_checkpoint_needs_no_more_than_its_kind(tmp_path):
    network = save_torchvision_resnet(tmp_path, "basic", (1, 1, 1, 1), classes=5)
    config = {"model_type": "resnet", "depths": [9], "hidden_act": "gelu"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    pixels = images(1, 32, 32)
    ours = gptrs.load_model(tmp_path, backend="ref").forward(pixels)
    assert_close(ours, module_logits(network, pixels))


def test_a_batch_equals_its_images(plain, backend):
    model = gptrs.load_model(plain, backend=backend.name)
    pixels = images(3, 33, 40)
    together = model.forward(pixels)
    alone = np.concatenate([model.forward(pixels[row : row + 1]) for row in range(3)])
    assert_close(together, alone, 1e-6)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layer_type": "wide"}, "`layer_type`.*must be one of basic, bottleneck"),
        ({"depths": [1, 1]}, "`depths` of a `resnet` model must have the 4 stages"),
        ({"depths": []}, "`depths`.*must be a list of integers >= 1, found `\\[\\]`"),
        ({"hidden_sizes": [8, "x"]}, "`hidden_sizes`.*must be a list of integers"),
        ({"hidden_act": "soft"}, "`hidden_act`.*must be one of"),
        ({"quantization_config": {}}, "`quantization_config`"),
        ({"embedding_size": 16}, r"embedder\.convolution\.weight`.*needs `f32\[16, 3, 7, 7\]`"),
        ({"depths": [1, 1, 1, 10**9]}, r"no tensor `resnet\.encoder\.stages\.3\.layers\.1"),
        ({"id2label": {"0": "cat"}}, r"`classifier\.1\.weight`.*needs `f32\[1, 24\]`"),
        ({"id2label": "cat"}, "`id2label` of an image model must name each class"),
        ({"id2label": None, "num_labels": 0}, "`num_labels`.*must be an integer >= 1"),
    ],
)
def test_unsupported_settings_are_refused_by_name(plain, tmp_path, settings, message):
    folder = shutil.copytree(plain, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    with pytest.raises(ModelError, match=message):
        gptrs.load_model(folder)


def test_a_checkpoint_of_the_body_alone_lacks_the_classifier(tmp_path):
    config = transformers.ResNetConfig(**_BASIC, depths=[1, 1, 1, 1])
    transformers.ResNetModel(config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="has no tensor"):
        gptrs.load_model(tmp_path)
