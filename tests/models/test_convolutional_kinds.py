"""RegNet, MobileNetV1 and EfficientNet agree with transformers on the same directories."""

from __future__ import annotations

import importlib
import json

import numpy as np
import pytest

import gptrs
from gptrs.errors import ModelError
from gptrs_runtime.images.settings import image_processor_of
from models.image_models import assert_close, images, save_image_model, torch_logits, torch_states

transformers = pytest.importorskip("transformers", reason="parity needs transformers")
pytest.importorskip("torch", reason="parity needs torch")

REGNET = {
    "embedding_size": 12,
    "hidden_sizes": [16, 24, 32],
    "depths": [1, 2, 1],
    "groups_width": 8,
}
EFFICIENT = {
    "width_coefficient": 0.6,
    "depth_coefficient": 1.1,
    "hidden_dim": 768,
    "in_channels": [32, 16, 24],
    "out_channels": [16, 24, 40],
    "kernel_sizes": [3, 5, 3],
    "strides": [1, 2, 2],
    "num_block_repeats": [1, 2, 1],
    "expand_ratios": [1, 6, 4],
    "depthwise_padding": [2],
}
CASES = {
    "regnet": ("RegNet", REGNET),
    "regnet x": ("RegNet", {**REGNET, "layer_type": "x", "downsample_in_first_stage": False}),
    "mobilenet_v1": ("MobileNetV1", {"depth_multiplier": 0.3}),
    "mobilenet_v1 of torch": ("MobileNetV1", {"depth_multiplier": 0.26, "tf_padding": False}),
    "efficientnet": ("EfficientNet", EFFICIENT),
}


@pytest.fixture(scope="module", params=CASES)
def directory(request, tmp_path_factory):
    """A directory for each case."""
    kind, settings = CASES[request.param]
    return save_image_model(tmp_path_factory.mktemp("kinds") / "m", kind, **settings)


def test_logits_are_those_of_transformers(directory, backend_name):
    model = gptrs.load_model(directory, backend=backend_name)
    pixels = images(2, 37, 42)
    assert_close(model.forward(pixels), torch_logits(directory, pixels))


def test_hidden_states_are_those_of_transformers(directory):
    pixels = images(1, 33, 40)
    states = gptrs.load_model(directory, backend="ref").hidden_states(pixels)
    theirs = torch_states(directory, pixels)
    if len(theirs) == len(states) + 1:  # one after the stem, which repeats
        theirs = theirs[1:]
    for ours, state in zip(states.values(), theirs, strict=True):
        assert_close(ours, state)


PROCESSORS = {
    "MobileNetV1": {},
    "EfficientNet": {"size": {"height": 40, "width": 30}},
    "EfficientNet of an offset": {"size": 36, "rescale_offset": True, "rescale_factor": 1 / 127.5},
    "EfficientNet divided once": {"include_top": False, "image_std": [0.4, 0.3, 0.2]},
}


@pytest.mark.whole
@pytest.mark.parametrize("name", PROCESSORS)
def test_pictures_are_prepared_as_transformers_does(tmp_path, name):
    image = pytest.importorskip("PIL.Image", reason="the reference decodes with Pillow")
    kind = f"{name.split()[0]}ImageProcessor"
    module = f"transformers.models.{MODULES[name.split()[0]]}"
    theirs = getattr(importlib.import_module(module), f"{kind}Pil")(**PROCESSORS[name])
    theirs.save_pretrained(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (50, 61, 3), dtype=np.uint8)
    expected = theirs(image.fromarray(pixels), return_tensors="np")["pixel_values"][0]
    settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
    ours = image_processor_of(Files(settings), kind)(pixels)
    assert np.abs(ours - expected).max() <= 1e-6


MODULES = {
    "MobileNetV1": "mobilenet_v1.image_processing_pil_mobilenet_v1",
    "EfficientNet": "efficientnet.image_processing_pil_efficientnet",
}


class Files:
    """The files of a model, of which only preprocessor_config.json is there."""

    def __init__(self, settings: dict[str, object]) -> None:
        self._settings = settings

    def read_json(self, name: str) -> dict[str, object] | None:
        """Return the settings under their name."""
        return self._settings if name == "preprocessor_config.json" else None


def test_another_pooling_is_refused(tmp_path):
    folder = save_image_model(tmp_path / "m", "EfficientNet", **EFFICIENT, pooling_type="max")
    with pytest.raises(ModelError, match="`pooling_type`"):
        gptrs.load_model(folder, backend="ref")
