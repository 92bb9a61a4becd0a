"""Models of other formats: what their inputs are for, and what is read out of their outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from gptrs.api.importers import ModelInput
from gptrs.api.programs import dtypes
from gptrs.checkpoint.formats.tensor_archive import write_archive
from gptrs.errors import ModelError, PluginError, UnsupportedError, UsageError
from gptrs_backend_ref.backend import create
from gptrs_observe.compare.agreement import output_agreements
from gptrs_runtime.imported.batch import imported_batch, random_batch
from gptrs_runtime.imported.scores import ImageFiles, LoadedImport, run_scores
from gptrs_runtime.model_inputs import InputChoice

IMAGE = ModelInput("pixels", dtypes.f32, ("n", 3, 4, 6))
LAST = ModelInput("pixels", dtypes.ui8, (1, "h", "w", 3))
IDS = ModelInput("input_ids", dtypes.si64, ("n", "t"))
MASK = ModelInput("attention_mask", dtypes.si64, ("n", "t"))
SCALE = ModelInput("scale", dtypes.f32, ("k",))


class Model:
    """Gives the arrays that it was made with, whatever it takes."""

    def __init__(self, inputs: tuple[ModelInput, ...], outputs: object) -> None:
        self.inputs: Mapping[str, ModelInput] = {each.name: each for each in inputs}
        self.found = outputs
        self.outputs = tuple(outputs) if isinstance(outputs, dict) else ()

    def __call__(self, *arrays: object, **named: object) -> dict[str, np.ndarray]:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found  # pyright: ignore[reportReturnType]


def loaded(folder: Path, inputs: tuple[ModelInput, ...], outputs: object) -> LoadedImport:
    model = Model(inputs, outputs)
    return LoadedImport(folder / "m.any", "any", model, create(None), 0.0)


def batch(folder: Path, inputs: tuple[ModelInput, ...], **choice: object):
    model = Model(inputs, {})
    return imported_batch(model, InputChoice(**choice), {}, ImageFiles(folder / "m.any"))  # pyright: ignore[reportArgumentType]


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    images = pytest.importorskip("PIL.Image", reason="images are read by Pillow")
    levels = np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8)
    images.fromarray(levels).save(tmp_path / "a.png")
    return tmp_path / "a.png"


def test_an_image_is_prepared_for_the_size_that_the_model_states(picture, caplog):
    caplog.set_level("INFO", "gptrs")
    found = batch(picture.parent, (IMAGE,), files=(picture, picture))
    assert found.arrays["pixels"].shape == (2, 3, 4, 6)
    assert found.arrays["pixels"].dtype == np.float32
    assert found.rows == (str(picture), str(picture))
    assert "cropped to 4 x 6, and normalized as for ImageNet" in caplog.text


def test_settings_beside_the_model_or_named_prepare_images(picture):
    settings = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": 4, "width": 6},
        "image_mean": [0, 0, 0],
        "image_std": [1, 1, 1],
    }
    named = picture.parent / "elsewhere" / "p.json"
    named.parent.mkdir()
    named.write_text(json.dumps(settings | {"rescale_factor": 1 / 510}))
    (picture.parent / "preprocessor_config.json").write_text(json.dumps(settings))
    model = Model((IMAGE,), {})
    choice = InputChoice(files=(picture,))
    ways = (None, named)
    files = [ImageFiles(picture.parent / "m.any", way) for way in ways]
    beside, other = (imported_batch(model, choice, {}, way).arrays["pixels"] for way in files)
    assert 0 <= beside.min() <= beside.max() <= 1
    np.testing.assert_allclose(other, beside / 2, rtol=1e-6)


def test_bytes_with_channels_last_are_not_normalized(picture):
    pixels = batch(picture.parent, (LAST,), files=(picture,)).arrays["pixels"]
    assert pixels.shape == (1, 224, 224, 3)
    assert pixels.dtype == np.uint8
    assert pixels.max() > 100
    with pytest.raises(UsageError, match="takes 1 images at once, got 2"):
        batch(picture.parent, (LAST,), files=(picture, picture))


def test_tokens_bring_what_goes_with_them(tmp_path):
    arrays = batch(tmp_path, (MASK, IDS), tokens=(5, 6, 7)).arrays
    assert arrays["input_ids"].tolist() == [[5, 6, 7]]
    assert arrays["attention_mask"].tolist() == [[1, 1, 1]]
    with pytest.raises(UsageError, match="no input is given for `scale: f32"):
        batch(tmp_path, (IDS, SCALE), tokens=(5,))
    with pytest.raises(UsageError, match="has no tokenizer"):
        batch(tmp_path, (IDS,), prompt="hello")


def test_tensors_go_where_their_names_say(tmp_path):
    write_archive(tmp_path / "x.npz", {"input_ids": np.array([[3]]), "scale": np.ones(2, "f4")})
    arrays = batch(tmp_path, (IDS, MASK, SCALE), files=(tmp_path / "x.npz",)).arrays
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "input_ids": [[3]],
        "attention_mask": [[1]],
        "scale": [1, 1],
    }
    with pytest.raises(UsageError, match="the model has no input `input_ids`"):
        batch(tmp_path, (SCALE, MASK), files=(tmp_path / "x.npz",))
    lone = batch(tmp_path, (SCALE,), files=(tmp_path / "x.npz",), key="scale").arrays
    assert list(lone) == ["scale"]


def test_made_up_inputs_have_the_usual_sizes():
    arrays = random_batch(Model((IDS, MASK, LAST), {}), 1, {"h": 8}, 2, 5)
    assert [arrays[each].shape for each in arrays] == [(2, 5), (2, 5), (1, 8, 224, 3)]
    assert arrays["attention_mask"].tolist() == [[1] * 5] * 2
    with pytest.raises(UsageError, match="the size `k` of `scale"):
        random_batch(Model((SCALE,), {}), 1, {})


def test_scores_are_found_and_named(tmp_path):
    (tmp_path / "config.json").write_text('{"id2label": {"0": "cat", "1": "dog"}}')
    logits = np.array([[0, 1], [2, 0]], np.float16)
    outputs = {"mask": np.zeros((2, 2), np.int64), "scores": logits}
    result = run_scores(loaded(tmp_path, (IMAGE,), outputs), {}, 1)
    assert (result.output, result.are_probabilities) == ("scores", False)
    assert [score.name for (score,) in result.best] == ["dog", "cat"]
    assert result.best[0][0].probability == pytest.approx(1 / (1 + np.exp(-1)))
    three = {"scores": np.array([[0.5, 0.25, 0.25]], np.float32), "logits": logits}
    assert run_scores(loaded(tmp_path, (IMAGE,), three), {}).output == "logits"


def test_probabilities_stay_as_they_are_and_labels_that_do_not_fit_are_left(tmp_path):
    (tmp_path / "config.json").write_text('{"id2label": {"0": "cat", "1": "dog"}}')
    outputs = {"y": np.array([[0.5, 0.25, 0.25]], np.float32).reshape(1, 3, 1, 1)}
    result = run_scores(loaded(tmp_path, (IMAGE,), outputs), {})
    assert result.are_probabilities
    assert [score.probability for score in result.best[0]] == [0.5, 0.25, 0.25]
    assert result.best[0][0].name == "LABEL_0"


def test_scores_of_tokens_are_those_of_the_last_position(tmp_path):
    logits = np.zeros((1, 2, 4), np.float32)
    logits[0, 1, 3] = 1
    result = run_scores(loaded(tmp_path, (IDS,), {"logits": logits}), {})
    assert (result.best[0][0].index, result.are_tokens) == (3, True)
    with pytest.raises(UsageError, match=r"returns no scores of classes .* `logits` \[1, 2, 4\]"):
        run_scores(loaded(tmp_path, (IMAGE,), {"logits": logits}), {})


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (ValueError("oops"), "oops"),
        ([1], "a `list`, arrays by name"),
        ({"y": 1}, "gave a `int`"),
    ],
)
def test_a_model_that_breaks_is_blamed_on_its_importer(tmp_path, monkeypatch, outputs, message):
    blamed: list[BaseException] = []

    class Plugins:
        def broken(self, point: object, name: str, error: BaseException) -> PluginError:
            blamed.append(error)
            return PluginError(f"`{name}`: {error}")

    monkeypatch.setattr("gptrs_runtime.imported.scores.manager", Plugins)
    with pytest.raises(PluginError, match=message):
        loaded(tmp_path, (), outputs).run({})
    assert len(blamed) == 1
    refused = UnsupportedError("no such operator")
    with pytest.raises(UnsupportedError, match="no such operator"):
        loaded(tmp_path, (), refused).run({})
    with pytest.raises(UnsupportedError, match="show no program"):
        loaded(tmp_path, (), {}).program({})


def test_outputs_are_compared_by_name():
    ours = {"y": np.array([0, 1.0001], np.float32), "i": np.array([1, 2])}
    (one,) = output_agreements(ours, {"y": np.array([0, 1], np.float32)})
    assert one.relative_max_error == pytest.approx(1e-4, rel=0.01)
    (same,) = output_agreements(ours, {"i": np.array([1, 2], np.int32)})
    assert same.relative_max_error == 0
    (off,) = output_agreements(ours, {"i": np.array([1, 3])})
    assert off.relative_max_error == np.inf
    with pytest.raises(UsageError, match="no output is called `z`"):
        output_agreements(ours, {"z": np.zeros(1)})
    with pytest.raises(ModelError, match="`y` cannot be compared"):
        output_agreements(ours, {"y": np.zeros(2, np.int64)})
