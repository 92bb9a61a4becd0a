"""ViT, DeiT and DINOv2 agree with transformers on the same directories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gptrs
from gptrs.errors import ModelError
from models.image_models import (
    assert_close,
    images,
    save_random_model,
    torch_logits,
    torch_states,
)

pytest.importorskip("transformers", reason="parity needs transformers")
pytest.importorskip("torch", reason="parity needs torch")

SIZES = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": 20,
    "patch_size": 6,
}
CASES: dict[str, tuple[str, dict[str, object]]] = {
    "vit": ("ViTForImageClassification", {"qkv_bias": False}),
    "vit of relu": ("ViTForImageClassification", {"hidden_act": "relu", "layer_norm_eps": 1e-2}),
    "deit": ("DeiTForImageClassification", {}),
    "deit with a teacher": ("DeiTForImageClassificationWithTeacher", {}),
    "dinov2": ("Dinov2ForImageClassification", {"mlp_ratio": 2}),
    "dinov2_with_registers": (
        "Dinov2WithRegistersForImageClassification",
        {"num_register_tokens": 3, "mlp_ratio": 2},
    ),
    "dinov2 with gates": ("Dinov2ForImageClassification", {"use_swiglu_ffn": True}),
}


def save(folder: Path, name: str, **more: object) -> Path:
    """Save a model with random weights, scales and positions."""
    made, settings = CASES[name]
    kind = made.partition("For")[0]
    return save_random_model(folder, kind, made, **{**SIZES, **settings, **more})


@pytest.fixture(scope="module", params=CASES)
def directory(request, tmp_path_factory):
    """A directory for each case."""
    return save(tmp_path_factory.mktemp("vit") / "m", request.param)


def test_logits_are_those_of_transformers(directory, backend_name):
    model = gptrs.load_model(directory, backend=backend_name)
    pixels = images(2, 20, 20)
    assert_close(model.forward(pixels), torch_logits(directory, pixels))


def test_hidden_states_are_those_of_transformers(directory, backend_name):
    pixels = images(1, 20, 20)
    states = gptrs.load_model(directory, backend=backend_name).hidden_states(pixels)
    assert list(states) == ["embeddings", "layer.0", "layer.1"]
    for ours, theirs in zip(states.values(), torch_states(directory, pixels), strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["dinov2", "dinov2_with_registers"])
def test_dinov2_takes_images_of_other_sizes(tmp_path, backend_name, name):
    folder = save(tmp_path / "m", name)
    model = gptrs.load_model(folder, backend=backend_name)
    for height, width in ((26, 13), (12, 43)):
        pixels = images(1, height, width)
        assert_close(model.forward(pixels), torch_logits(folder, pixels))
    with pytest.raises(ModelError, match="smaller than a patch of 6"):
        model.forward(images(1, 5, 20))


def test_another_size_of_a_vit_is_refused(tmp_path):
    model = gptrs.load_model(save(tmp_path / "m", "vit"), backend="ref")
    with pytest.raises(ModelError, match="of 20 x 20 pixels got an image of 24 x 20"):
        model.forward(images(1, 20, 24))
    assert np.isfinite(model.forward(images(1, 20, 20))).all()
