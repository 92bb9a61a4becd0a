"""A model is the same from a folder and from one file, whatever its kind and its other files."""

from __future__ import annotations

import numpy as np
import pytest

from fuzzing.tiny_models import CONFIGS, save_tiny_model
from gptrs.backend.contract import Backend
from gptrs.plugins.descriptions import ModelPlugin
from gptrs.plugins.manager import manager
from gptrs_models.kinds import KINDS
from gptrs_runtime.chat.template import chat_template_of
from gptrs_runtime.converting.convert import convert
from gptrs_runtime.embedding.embed import embed
from gptrs_runtime.load import load_model
from gptrs_runtime.loaded_model import LoadedModel
from runtime.tiny_bert import module, save_dense, save_sentence_bert
from runtime.tiny_chat import save_tiny_chat
from runtime.tiny_resnet import save_tiny_resnet


def result_of(model: LoadedModel) -> np.ndarray:
    """Return what a tiny model of any kind computes first."""
    tokens = np.array([[1, 2, 3]])
    image = np.linspace(0, 1, 3 * 32 * 32, dtype=np.float32).reshape(1, 3, 32, 32)
    if "image_classifier" in model.capabilities:
        return model.forward(image)
    if "image_embedder" in model.capabilities:
        return model.image_embedder().embed_images(image)
    if "causal_lm" in model.capabilities:
        return model.forward(tokens)
    if "seq2seq" in model.capabilities:
        state = model.seq2seq().read_sources(tokens, np.ones(tokens.shape, np.bool_))
        return state.source[0][0].numpy()
    if "transcriber" in model.capabilities:
        heard = model.transcriber()
        state = heard.hear(np.ones((1, heard.mel_bins, heard.frames), np.float32))
        return state.source[0][0].numpy()
    if "sound_transcriber" in model.capabilities:
        sound = np.linspace(-1, 1, 1500, dtype=np.float32)[None]
        return model.sound_transcriber().hear_sounds(sound, [1500]).source[0][0].numpy()
    if "ctc" in model.capabilities:
        return model.ctc().score_frames(np.linspace(-1, 1, 90, dtype=np.float32)[None], [90])
    return model.text_embedder().encode(tokens, np.ones(tokens.shape, np.bool_))


@pytest.mark.long
@pytest.mark.parametrize("kind", CONFIGS)
def test_from_one_file(tmp_path, backend: Backend, kind):
    if backend.name != "ref":
        pytest.skip("how weights are read does not depend on the backend")
    folder = save_tiny_model(tmp_path / "m", kind, backend)
    convert(folder, tmp_path / "m.gptrschk")
    expected = result_of(load_model(folder, backend.name))
    model = load_model(tmp_path / "m.gptrschk", backend.name)
    assert (model.kind, model.name) == (kind, "m")
    np.testing.assert_array_equal(result_of(model), expected)


OF_TENSORS = {"mobilenet_v3"}
"""Kinds whose structure follows from the tensors: none can be made of settings alone."""


ROWS = [kind for family in KINDS for kind in family.kinds if kind not in OF_TENSORS]
MOST_BYTES = 1_200_000
"""Of a tiny model; widths of MobileNets have a least size."""


@pytest.mark.long
@pytest.mark.parametrize("kind", ROWS)
def test_a_kind_has_a_tiny_model_from_its_row_alone(tmp_path, reference: Backend, kind):
    folder = save_tiny_model(tmp_path / "m", kind, reference)
    assert (folder / "model.safetensors").stat().st_size < MOST_BYTES
    assert np.isfinite(result_of(load_model(folder, reference.name))).all()


def test_every_structure_is_among_them():
    factories = {manager().model_factory(kind) for kind in CONFIGS}
    for record in manager().records(ModelPlugin):
        if record.distribution == "gptrs-models" and record.name not in OF_TENSORS:
            assert manager().model_factory(record.name) in factories, record.name


def test_the_settings_of_images_come_along(tmp_path):
    folder = save_tiny_resnet(tmp_path / "m")
    convert(folder, tmp_path / "m.gptrschk")
    one, other = (load_model(path, "ref") for path in (folder, tmp_path / "m.gptrschk"))
    assert one.image_processor == other.image_processor


def test_the_modules_of_sentence_transformers_come_along(tmp_path):
    folder = save_sentence_bert(
        tmp_path / "m", {"pooling_mode_mean_tokens": True}, module("Dense", "2_Dense")
    )
    save_dense(folder / "2_Dense", outputs=5)
    convert(folder, tmp_path / "m.gptrschk")
    convert(tmp_path / "m.gptrschk", tmp_path / "back")
    paths = (folder, tmp_path / "m.gptrschk", tmp_path / "back")
    one, *others = (embed(load_model(path, "ref"), ["the cat sat", "a dog"]) for path in paths)
    assert one.shape == (2, 5)
    for other in others:
        np.testing.assert_array_equal(other, one)


def test_the_template_of_a_chat_comes_along(tmp_path):
    folder = save_tiny_chat(tmp_path / "m")
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }} ü")
    convert(folder, tmp_path / "m.gptrschk")
    model = load_model(tmp_path / "m.gptrschk", "ref")
    one, other = (
        chat_template_of(files, "m") for files in (load_model(folder, "ref").files, model.files)
    )
    assert one == other
    assert one.source.endswith("ü")
