"""SigLIP 2 agrees with transformers about images of unlike aspects."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs.errors import ModelError
from gptrs_runtime.images.settings import image_processor_of
from models.image_models import assert_close, images, save_random_model

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")
pytest.importorskip("PIL.Image", reason="images need Pillow")

from transformers.models.siglip2.image_processing_pil_siglip2 import (  # noqa: E402
    Siglip2ImageProcessorPil,
    convert_image_to_patches,
)

PATCH = 5
TEXT = {
    **{"vocab_size": 53, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"intermediate_size": 24, "max_position_embeddings": 12, "projection_size": 24},
}
VISION = {
    **{"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3},
    **{"intermediate_size": 20, "num_patches": 16, "patch_size": PATCH},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("siglip2") / "m"
    settings = {"text_config": TEXT, "vision_config": VISION}
    return save_random_model(made, "Siglip2", "Siglip2Model", **settings)


def theirs(folder):
    return transformers.Siglip2Model.from_pretrained(folder, dtype=torch.float32).eval()


def patches_of(pixels: np.ndarray, most: int) -> dict:
    """What transformers' processor makes of an image [3, H, W] that is normalized already."""
    rows, columns = (side // PATCH for side in pixels.shape[1:])
    patches = convert_image_to_patches(pixels, PATCH)
    filled = np.zeros((1, most, patches.shape[1]), np.float32)
    filled[0, : len(patches)] = patches
    mask = torch.zeros(1, most, dtype=torch.int32)
    mask[0, : len(patches)] = 1
    return {
        "pixel_values": torch.from_numpy(filled),
        "pixel_attention_mask": mask,
        "spatial_shapes": torch.tensor([[rows, columns]]),
    }


@pytest.mark.parametrize("grid", [(4, 4), (2, 7), (6, 3), (1, 1)])
def test_vectors_of_images_are_those_of_transformers(folder, backend_name, grid):
    pixels = images(1, grid[0] * PATCH, grid[1] * PATCH)
    with torch.no_grad():
        given = patches_of(pixels[0], 24)
        wanted = theirs(folder).get_image_features(**given).pooler_output.numpy()
    model = gptrs.load_model(folder, backend=backend_name)
    assert_close(model.image_embedder().embed_images(pixels), wanted)


def test_vectors_of_texts_are_those_of_transformers(folder):
    tokens = np.random.default_rng(1).integers(0, 50, (2, 12))
    with torch.no_grad():
        wanted = theirs(folder).get_text_features(torch.from_numpy(tokens)).pooler_output.numpy()
    assert_close(gptrs.load_model(folder, backend="ref").image_text().embed_texts(tokens), wanted)


def test_the_half_for_images_is_a_kind(tmp_path):
    made = tmp_path / "m"
    save_random_model(made, "Siglip2Vision", "Siglip2VisionModel", **VISION)
    reference = transformers.Siglip2VisionModel.from_pretrained(made).eval()
    pixels = images(1, 2 * PATCH, 5 * PATCH)
    with torch.no_grad():
        wanted = reference(**patches_of(pixels[0], 16)).pooler_output.numpy()
    model = gptrs.load_model(made, backend="ref")
    assert model.kind == "siglip2_vision_model"
    assert_close(model.image_embedder().embed_images(pixels), wanted)
    with pytest.raises(ModelError, match="smaller than a patch of 5"):
        model.image_embedder().embed_images(images(1, 4, 20))


class Files(dict):
    """The JSON files of a model, in memory."""

    def read_json(self, name: str):
        """Return the file, None without it."""
        return self.get(name)


@pytest.mark.parametrize("most", [4, 30, 256])
def test_images_are_prepared_as_transformers_does(most):
    settings = {"patch_size": PATCH, "max_num_patches": most}
    made = Siglip2ImageProcessorPil(**settings)
    named = {"image_processor_type": "Siglip2ImageProcessorFast", **settings}
    ours = image_processor_of(Files({"preprocessor_config.json": named}), "")
    for size in [(50, 40), (97, 33), (20, 133), (1, 7), (64, 64)]:
        levels = np.random.default_rng(size).integers(0, 256, (*size, 3), np.uint8)
        expected = made(levels, input_data_format="channels_last")
        found = convert_image_to_patches(ours(levels), PATCH)
        np.testing.assert_array_equal(found, expected["pixel_values"][0][: len(found)])
        assert len(found) == np.prod(expected["spatial_shapes"][0]) <= most
