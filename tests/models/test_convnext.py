"""ConvNeXt and ConvNeXt V2 agree with transformers on the same directories."""

from __future__ import annotations

from pathlib import Path

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

CASES: dict[str, tuple[str, dict[str, object]]] = {
    "convnext": ("ConvNext", {"layer_norm_eps": 1e-3}),
    "convnext without scales": ("ConvNext", {"layer_scale_init_value": 0.0, "hidden_act": "relu"}),
    "convnextv2": ("ConvNextV2", {"patch_size": 3}),
}


def save(folder: Path, name: str) -> Path:
    """Save a model with random weights and scales."""
    kind, settings = CASES[name]
    sizes = {"hidden_sizes": [8, 12], "depths": [1, 2], "num_stages": 2}
    made = f"{kind}ForImageClassification"
    return save_random_model(folder, kind, made, **{**sizes, **settings})


@pytest.fixture(scope="module", params=CASES)
def directory(request, tmp_path_factory):
    """A directory for each case."""
    return save(tmp_path_factory.mktemp("convnext") / "m", request.param)


def test_logits_and_states_are_those_of_transformers(directory, backend_name):
    model = gptrs.load_model(directory, backend=backend_name)
    pixels = images(2, 29, 26)
    assert_close(model.forward(pixels), torch_logits(directory, pixels))
    states = model.hidden_states(pixels)
    assert list(states) == ["embeddings", "layer.0", "layer.1"]
    for ours, theirs in zip(states.values(), torch_states(directory, pixels), strict=True):
        assert_close(ours, theirs)


def test_depths_of_another_number_of_stages_are_refused(tmp_path):
    from models.llama_support import edit_config

    folder = save(tmp_path / "m", "convnext")
    edit_config(folder, depths=[1, 2, 1])
    with pytest.raises(ModelError, match=r"`depths`.*the 2 stages"):
        gptrs.load_model(folder, backend="ref")
