"""CLIP, SigLIP and bodies of ViTs agree with transformers on the same directories."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gptrs
from gptrs.errors import ModelError, UsageError
from models.image_models import assert_close, images, save_random_model

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

TEXT: dict[str, object] = {
    **{"vocab_size": 53, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"intermediate_size": 24, "max_position_embeddings": 12, "eos_token_id": 4},
    **{"bos_token_id": 0, "pad_token_id": 1},
}
VISION: dict[str, object] = {
    **{"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3},
    **{"intermediate_size": 20, "image_size": 20, "patch_size": 6},
}
WIDE = {**TEXT, "hidden_size": 24, "projection_size": 24}
CASES: dict[str, tuple[str, str, dict[str, object]]] = {
    "clip": (
        "CLIP",
        "CLIPModel",
        {"text_config": TEXT, "vision_config": VISION, "projection_dim": 10},
    ),
    "clip of before": (
        "CLIP",
        "CLIPModel",
        {
            "text_config": {**TEXT, "eos_token_id": 2, "hidden_act": "gelu"},
            "vision_config": {**VISION, "hidden_act": "gelu"},
            "projection_dim": 10,
        },
    ),
    "clip_vision_model": ("CLIPVision", "CLIPVisionModelWithProjection", VISION),
    "clip_vision_model alone": ("CLIPVision", "CLIPVisionModel", VISION),
    "siglip": ("Siglip", "SiglipModel", {"text_config": WIDE, "vision_config": VISION}),
    "siglip_vision_model": ("SiglipVision", "SiglipVisionModel", VISION),
    "vit": ("ViT", "ViTModel", VISION),
    "deit": ("DeiT", "DeiTModel", VISION),
    "dinov2": ("Dinov2", "Dinov2Model", {**VISION, "mlp_ratio": 2}),
}
COMPILED = ("clip", "siglip", "dinov2")


def save(folder, name):
    made, part, settings = CASES[name]
    return save_random_model(folder, made, part, **settings)


@pytest.fixture(scope="module", params=CASES)
def directory(request, tmp_path_factory, backend_name):
    """A directory for each case."""
    if backend_name != "ref" and request.param not in COMPILED:
        pytest.skip("some are enough where each one compiles")
    return save(tmp_path_factory.mktemp("clip") / request.param.replace(" ", "_"), request.param)


def load_theirs(folder):
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    return getattr(transformers, name).from_pretrained(folder, dtype=torch.float32).eval()


def test_vectors_of_images(directory, backend_name):
    model = gptrs.load_model(directory, backend=backend_name)
    theirs, pixels = load_theirs(directory), images(3, 20, 20)
    with torch.no_grad():
        given = torch.from_numpy(pixels)
        if hasattr(theirs, "get_image_features"):
            wanted = theirs.get_image_features(given).pooler_output
        else:
            output = theirs(given)
            kind = model.kind
            wanted = output.get("image_embeds") if "image_embeds" in output else None
            if wanted is None and kind in ("vit", "deit", "dinov2"):
                wanted = output.last_hidden_state[:, 0]
            elif wanted is None:
                wanted = output.pooler_output
    assert_close(model.image_embedder().embed_images(pixels), wanted.numpy())
    with pytest.raises(ModelError, match="has no logits"):
        model.forward(pixels)
    states = model.hidden_states(pixels)
    assert list(states) == ["embeddings", "layer.0", "layer.1"]


@pytest.mark.parametrize("name", ["clip", "clip of before", "siglip"])
def test_vectors_and_scores_of_texts(name, tmp_path, backend_name):
    if backend_name != "ref" and name not in COMPILED:
        pytest.skip("some are enough where each one compiles")
    folder = save(tmp_path / "m", name)
    model = gptrs.load_model(folder, backend=backend_name)
    theirs = load_theirs(folder)
    length = 12 if name == "siglip" else 8
    tokens = np.random.default_rng(1).integers(5, 50, (3, length))
    end = 52 if name == "clip of before" else 4
    for row, at in enumerate((length - 1, 3, 5)):
        tokens[row, at:] = end
    pixels = images(2, 20, 20)
    with torch.no_grad():
        wanted = theirs(input_ids=torch.from_numpy(tokens), pixel_values=torch.from_numpy(pixels))
        plain = theirs.get_text_features(torch.from_numpy(tokens)).pooler_output
    scorer = model.image_text()
    assert_close(scorer.embed_texts(tokens), plain.numpy())
    scale, bias = scorer.scale_and_bias()
    ours = [model.image_embedder().embed_images(pixels), scorer.embed_texts(tokens)]
    first, second = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in ours)
    assert_close(
        (first @ second.T * scale + bias).astype(np.float32), wanted.logits_per_image.numpy()
    )


def test_unsupported_settings_are_refused(tmp_path):
    folder = save(tmp_path / "m", "siglip_vision_model")
    model = gptrs.load_model(folder, backend="ref")
    with pytest.raises(ModelError, match="of 20 x 20 pixels got an image of 24 x 20"):
        model.image_embedder().embed_images(images(1, 20, 24))
    with pytest.raises(ModelError, match="does not compare images with texts"):
        model.image_text()
    with pytest.raises(UsageError, match=r"takes images of floats \[B, 3, H, W\]"):
        model.checked_inputs(np.ones((1, 2), np.int64))
    path = folder / "config.json"
    settings = json.loads(path.read_text())
    for wrong, message in (
        ({"vision_use_head": False}, "is supported as True only"),
        ({"architectures": ["SiglipForImageClassification"]}, "head of 'SiglipForImage.* is not"),
        ({"patch_size": 40}, "must be at most `image_size`"),
    ):
        path.write_text(json.dumps({**settings, **wrong}))
        with pytest.raises(ModelError, match=message):
            gptrs.load_model(folder, backend="ref")
