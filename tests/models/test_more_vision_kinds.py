"""BEiT, BiT, DINOv3 and Swin agree with transformers on the same directories."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gptrs
from gptrs.errors import ModelError
from gptrs_models.beit import read_config as read_beit
from gptrs_runtime.images.settings import image_processor_of
from models.image_models import (
    assert_close,
    images,
    save_random_model,
    torch_logits,
    torch_states,
    torch_vectors,
)

transformers = pytest.importorskip("transformers", reason="parity needs transformers")
torch = pytest.importorskip("torch", reason="parity needs torch")

BIT = {"embedding_size": 8, "hidden_sizes": [16, 40], "depths": [2, 1], "num_groups": 4}
SWIN = {
    "image_size": 30,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [2, 3],
    "num_heads": [2, 4],
    "window_size": 4,
    "mlp_ratio": 1.5,
}
DINO = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": 20,
    "patch_size": 6,
}
PLACES = {"use_relative_position_bias": True, "use_mask_token": True}
BEIT = {**DINO, "patch_size": 5, **PLACES}
CLASSIFIERS: dict[str, tuple[str, dict[str, object]]] = {
    "beit": ("Beit", BEIT),
    "beit of shared places": (
        "Beit",
        {
            **{**BEIT, "use_shared_relative_position_bias": True, "layer_norm_eps": 1e-2},
            **{"use_absolute_position_embeddings": True, "hidden_act": "relu"},
        },
    ),
    "data2vec-vision": (
        "Data2VecVision",
        {
            **{**BEIT, "use_relative_position_bias": False, "use_mean_pooling": False},
            "use_shared_relative_position_bias": True,
        },
    ),
    "data2vec-vision without places": (
        "Data2VecVision",
        {**DINO, "layer_scale_init_value": 0.0, "use_absolute_position_embeddings": True},
    ),
    "bit": ("Bit", BIT),
    "bit padded dynamically": (
        "Bit",
        {**BIT, "global_padding": "same", "embedding_dynamic_padding": True},
    ),
    "bit of bottlenecks": (
        "Bit",
        {
            **BIT,
            "layer_type": "bottleneck",
            "output_stride": 8,
            "hidden_sizes": [16, 24, 32],
            "depths": [1, 2, 2],
        },
    ),
    "swin": ("Swin", SWIN),
    "swin with positions": (
        "Swin",
        {**SWIN, "image_size": 32, "use_absolute_embeddings": True, "qkv_bias": False},
    ),
    "swin of small windows": ("Swin", {**SWIN, "window_size": 3, "hidden_act": "relu"}),
}
ENCODERS: dict[str, tuple[str, dict[str, object]]] = {
    "beit": ("Beit", {**BEIT, "use_absolute_position_embeddings": True}),
    "data2vec-vision": ("Data2VecVision", BEIT),
    "data2vec-vision of first tokens": (
        "Data2VecVision",
        {**BEIT, "use_shared_relative_position_bias": True, "use_mean_pooling": False},
    ),
    "dinov3": ("DINOv3ViT", {**DINO, "num_register_tokens": 3, "rope_theta": 50.0}),
    "dinov3 with gates": (
        "DINOv3ViT",
        {
            **DINO,
            "use_gated_mlp": True,
            "hidden_act": "silu",
            "key_bias": True,
            "proj_bias": False,
            "mlp_bias": False,
        },
    ),
    "swin": ("Swin", SWIN),
}


@pytest.fixture(scope="module", params=CLASSIFIERS)
def classifier(request, tmp_path_factory):
    """A directory for each case of a classifier, and the side of its images."""
    kind, settings = CLASSIFIERS[request.param]
    folder = tmp_path_factory.mktemp("vision") / "m"
    save_random_model(folder, kind, f"{kind}ForImageClassification", **settings)
    return folder, settings.get("image_size", 41)


@pytest.fixture(scope="module", params=ENCODERS)
def encoder(request, tmp_path_factory):
    """A directory for each case of an encoder, and its model of transformers."""
    kind, settings = ENCODERS[request.param]
    folder = tmp_path_factory.mktemp("vision") / "m"
    save_random_model(folder, kind, f"{kind}Model", **settings)
    return folder, transformers.AutoModel.from_pretrained(folder).eval()


def test_logits_are_those_of_transformers(classifier, backend_name):
    folder, size = classifier
    pixels = images(2, size, size)
    model = gptrs.load_model(folder, backend=backend_name)
    assert_close(model.forward(pixels), torch_logits(folder, pixels))


def test_hidden_states_are_those_of_transformers(classifier):
    folder, size = classifier
    pixels = images(1, size, size)
    states = gptrs.load_model(folder, backend="ref").hidden_states(pixels)
    for ours, theirs in zip(states.values(), torch_states(folder, pixels), strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("size", [(30, 30), (38, 27)])
def test_vectors_are_those_of_transformers(encoder, backend_name, size):
    folder, theirs = encoder
    pixels = images(2, *size)
    model = gptrs.load_model(folder, backend=backend_name)
    assert_close(model.image_embedder().embed_images(pixels), torch_vectors(theirs, pixels))


@pytest.mark.parametrize("head", ["MaskedImageModeling", "SemanticSegmentation"])
def test_other_heads_of_beit_are_refused(tmp_path, head):
    folder = save_random_model(tmp_path / "m", "Beit", "BeitModel", **BEIT)
    _change(folder, architectures=[f"BeitFor{head}"])
    with pytest.raises(ModelError, match=f"for classes of images, or without one; .*{head}'"):
        gptrs.load_model(folder, backend="ref")


def test_vectors_of_a_beit_with_a_head_are_those_of_its_pooler(tmp_path):
    folder = tmp_path / "m"
    save_random_model(folder, "Data2VecVision", "Data2VecVisionForImageClassification", **BEIT)
    theirs = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    pixels = images(2, 20, 20)
    model = gptrs.load_model(folder, backend="ref")
    wanted = torch_vectors(theirs.data2vec_vision, pixels)
    assert_close(model.image_embedder().embed_images(pixels), wanted)


@pytest.mark.parametrize("kind", ["beit", "data2vec-vision"])
def test_defaults_of_beit_are_those_of_transformers(kind):
    theirs = transformers.CONFIG_MAPPING[kind]().to_dict()
    assert read_beit({"model_type": kind}) == read_beit({**theirs, "model_type": kind})


def test_an_image_below_the_windows_of_swin_is_refused(tmp_path):
    folder = save_random_model(tmp_path / "m", "Swin", "SwinModel", **SWIN)
    model = gptrs.load_model(folder, backend="ref")
    with pytest.raises(ModelError, match="leaves 3 tokens a side in the last stage"):
        model.image_embedder().embed_images(images(1, 30, 12))


def test_a_wider_bit_is_refused(tmp_path):
    folder = tmp_path / "m"
    save_random_model(folder, "Bit", "BitForImageClassification", **BIT)
    _change(folder, width_factor=2)
    with pytest.raises(ModelError, match="`width_factor`"):
        gptrs.load_model(folder, backend="ref")


def _change(folder: Path, **settings: object) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **settings}))


class Files(dict):
    """The JSON files of a model, in memory."""

    def read_json(self, name: str):
        """Return the file, None without it."""
        return self.get(name)


def test_pictures_of_dinov3_are_scaled_before_they_are_resized():
    """As torchvision does it, which transformers' processor of this kind needs."""
    pytest.importorskip("PIL.Image", reason="images need Pillow")
    pixels = np.random.default_rng(0).integers(0, 256, (50, 91, 3), dtype=np.uint8)
    scaled = torch.from_numpy(pixels).permute(2, 0, 1)[None] * (1 / 255)
    resized = torch.nn.functional.interpolate(
        scaled, (40, 33), mode="bilinear", antialias=True, align_corners=False
    )[0]
    mean, std = (
        torch.tensor(numbers)[:, None, None]
        for numbers in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    settings = {
        "image_processor_type": "DINOv3ViTImageProcessorFast",
        "size": {"height": 40, "width": 33},
    }
    ours = image_processor_of(Files({"preprocessor_config.json": settings}), "")(pixels)
    assert np.abs(ours - ((resized - mean) / std).numpy()).max() <= 5e-6
