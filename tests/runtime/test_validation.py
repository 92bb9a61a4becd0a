"""A model beside a reference: here the same kind on other weights, and no torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gptrs import LoadedModel, load_model
from gptrs.errors import ModelError, UsageError
from gptrs_observe.compare.validation import Validation, ValidationOptions, validate
from gptrs_runtime.model_inputs import Batch, InputChoice, batch_of
from runtime.tiny_bert import save_tiny_bert
from runtime.tiny_gpt2 import save_tiny_gpt2

Change = Callable[[dict[str, np.ndarray]], object]


class OtherModel:
    """A model of gptrs as a reference."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model

    def output(self, inputs):
        if "text_embedder" in self._model.capabilities:
            return self._model.text_embedder().encode(inputs, np.ones(inputs.shape, bool))
        return self._model.forward(inputs)

    def hidden_states(self, inputs):
        return list(self._model.hidden_states(inputs).values())

    def greedy(self, prompt, count):
        rows, tokens = [], prompt.tolist()
        for _ in range(count):  # without a cache
            rows.append(self._model.forward(np.array([tokens]))[0, -1])
            tokens.append(int(rows[-1].argmax()))
        return np.stack(rows)

    def image(self, path):
        raise AssertionError(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_tiny_gpt2(tmp_path_factory.mktemp("validation") / "right", tokenizer=False)


@pytest.fixture(scope="module")
def model(folder) -> LoadedModel:
    return load_model(folder, backend="ref")


def _damaged(folder: Path, change: Change) -> OtherModel:
    save_tiny_gpt2(folder, tokenizer=False)
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})
    return OtherModel(load_model(folder, backend="ref"))


def _validated(model: LoadedModel, reference: OtherModel, **options) -> Validation:
    batch = batch_of(model, InputChoice(seed=3, count=2, length=12))
    chosen = ValidationOptions(**{"max_tokens": 4, "per_layer": True, **options})
    return validate(model, reference, batch, chosen)


def test_a_model_agrees_with_itself(model):
    found = _validated(model, OtherModel(model))
    assert found.agrees
    assert found.first_layer is None
    assert found.output.type == f"f32[2, 12, {model.causal_lm().vocab_size}]"
    assert [layer.name for layer in found.layers] == ["embeddings", "layer.0", "layer.1"]
    assert (found.top1, found.top5, found.cosine, found.images) == (1, 1, None, None)
    assert found.greedy is not None
    assert (found.greedy.count, found.greedy.equal, found.greedy.gap) == (4, 4, 0)


def test_the_layer_of_a_wrong_weight_is_named(model, tmp_path):
    def change(weights):
        weights["transformer.h.1.mlp.c_fc.weight"][3, 5] += 2

    found = _validated(model, _damaged(tmp_path / "m", change))
    assert not found.agrees
    assert found.first_layer is not None
    assert found.first_layer.name == "layer.1"
    assert [found.holds(layer) for layer in found.layers] == [True, True, False]
    assert not found.holds(found.output)


def test_without_layers_the_logits_tell(model, tmp_path):
    def change(weights):
        weights["transformer.ln_f.bias"][0] += 1

    found = _validated(model, _damaged(tmp_path / "m", change), per_layer=False)
    assert not found.agrees
    assert found.layers == ()


def test_the_tolerance_decides(model, tmp_path):
    def change(weights):
        weights["transformer.h.0.mlp.c_fc.weight"][0, 0] += 1e-3

    reference = _damaged(tmp_path / "m", change)
    error = _validated(model, reference).output.relative_max_error
    assert 0 < error < 0.1
    assert not _validated(model, reference, tolerance=error / 2, per_layer=False).agrees
    assert _validated(model, reference, tolerance=error, per_layer=False, max_tokens=0).agrees


def test_greedy_texts_part_where_the_reference_chooses_another_token(model):
    class Contrary(OtherModel):
        def greedy(self, prompt, count):
            logits = super().greedy(prompt, count)
            best = logits[2].argmax()
            other = (best + 1) % logits.shape[1]
            logits[2, other] = logits[2, best] + 0.25 * np.ptp(logits[2])
            return logits

    greedy = _validated(model, Contrary(model), per_layer=False)
    assert greedy.greedy is not None
    assert (greedy.greedy.count, greedy.greedy.equal) == (4, 2)
    assert greedy.greedy.gap > 0.05
    assert not greedy.agrees


def test_greedy_texts_may_part_where_two_tokens_are_equally_good(model):
    class Undecided(OtherModel):
        def greedy(self, prompt, count):
            logits = super().greedy(prompt, count)
            best = logits[1].argmax()
            logits[1, (best + 1) % logits.shape[1]] = logits[1, best] + 1e-6
            return logits

    found = _validated(model, Undecided(model), per_layer=False)
    assert found.greedy is not None
    assert found.greedy.equal == 1
    assert found.agrees


def test_greedy_texts_end_with_the_context(model):
    batch = Batch(np.ones((1, 62), np.int64), ("tokens",))
    found = validate(model, OtherModel(model), batch, ValidationOptions(max_tokens=9))
    assert found.greedy is not None
    assert found.greedy.count == 2
    batch = Batch(np.ones((1, 64), np.int64), ("tokens",))
    assert validate(model, OtherModel(model), batch, ValidationOptions()).greedy is None


def test_an_embedder_is_compared_by_its_vectors(tmp_path):
    model = load_model(save_tiny_bert(tmp_path / "a"), backend="ref")
    found = _validated(model, OtherModel(model))
    assert found.agrees
    assert (found.output.name, found.output.type) == ("vectors", "f32[2, 12, 16]")
    assert found.cosine == pytest.approx(1)
    assert (found.top1, found.top5, found.greedy) == (None, None, None)
    assert len(found.layers) == 3


def test_a_reference_with_other_states_cannot_be_compared(model):
    class Shallow(OtherModel):
        def hidden_states(self, inputs):
            return super().hidden_states(inputs)[:-1]

    with pytest.raises(ModelError, match=r"`right` has 3 of them here, 2 in the reference"):
        _validated(model, Shallow(model))


@pytest.mark.parametrize("tolerance", [-1.0, float("nan"), float("inf")])
def test_a_tolerance_is_a_number(tolerance):
    with pytest.raises(UsageError, match="a tolerance is a number >= 0, got"):
        ValidationOptions(tolerance=tolerance)
