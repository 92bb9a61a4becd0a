"""The cache of a prompt is saved, taken up again by prompts that begin alike, and checked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gptrs.checkpoint.formats.tensor_archive import write_archive
from gptrs.errors import CheckpointError, UsageError
from gptrs.runtime.generation.model_identity import model_identity
from gptrs.runtime.generation.prompt_cache import _digest, load_prompt_cache, save_prompt_cache
from gptrs.runtime.load import load_model

PROMPT = np.random.default_rng(5).integers(1, 200, 20).tolist()


def _run(model, prompt: list[int], cache=None, done: int = 0):
    """The cache with the rest of a prompt, and the logits after it."""
    lm = model.causal_lm()
    cache = cache or lm.new_cache(1)
    return cache, lm.step(np.array([prompt[done:]]), cache)


@pytest.fixture(scope="module")
def expected(model):
    """The logits after the prompt."""
    return _run(model, PROMPT)[1]


def _saved(model, folder: Path, suffix: str) -> Path:
    path = folder / f"prompt{suffix}"
    save_prompt_cache(path, model, PROMPT, _run(model, PROMPT)[0])
    return path


@pytest.fixture(scope="module", params=[".safetensors", ".gptrsten"])
def saved(request, model, tmp_path_factory) -> Path:
    """A file in each format."""
    return _saved(model, tmp_path_factory.mktemp("cache"), request.param)


@pytest.fixture(scope="module")
def safetensors(model, tmp_path_factory) -> Path:
    """A file whose arrays the test may replace."""
    return _saved(model, tmp_path_factory.mktemp("cache"), ".safetensors")


def _edited(saved: Path, folder: Path, **arrays: np.ndarray | None) -> Path:
    """A copy of the file with arrays replaced, or left out."""
    path = folder / "edited.safetensors"
    found = {**load_file(saved), **arrays}
    save_file({name: array for name, array in found.items() if array is not None}, path)
    return path


def test_the_same_prompt_runs_its_last_token_only(saved, model, expected):
    loaded = load_prompt_cache(saved, model)
    assert list(loaded.tokens) == PROMPT
    done = loaded.reuse(PROMPT)
    assert done == len(PROMPT) - 1 == loaded.cache.length
    _, logits = _run(model, PROMPT, loaded.cache, done)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shared", [0, 1, 12, 20])
def test_another_prompt_runs_what_is_its_own(saved, model, shared):
    prompt = [*PROMPT[:shared], 250, 3, 251, 252]
    loaded = load_prompt_cache(saved, model)
    assert loaded.reuse(prompt) == shared
    _, logits = _run(model, prompt, loaded.cache, shared)
    np.testing.assert_allclose(logits, _run(model, prompt)[1], rtol=1e-5, atol=1e-6)


def test_a_shorter_prompt_is_part_of_it(saved, model):
    loaded = load_prompt_cache(saved, model)
    assert loaded.reuse(PROMPT[:7]) == 6
    _, logits = _run(model, PROMPT[:7], loaded.cache, 6)
    np.testing.assert_allclose(logits, _run(model, PROMPT[:7])[1], rtol=1e-5, atol=1e-6)


def test_a_copy_of_the_model_elsewhere_is_the_same_model(saved, directory, tmp_path, expected):
    other = load_model(shutil.copytree(directory, tmp_path / "copy"), backend="ref")
    loaded = load_prompt_cache(saved, other)
    _, logits = _run(other, PROMPT, loaded.cache, loaded.reuse(PROMPT))
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


def _with_other_setting(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "layer_norm_epsilon": 1e-4}))


def _with_other_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("c_fc.weight"))
    weights[name] = weights[name] * np.float32(1.01)
    save_file(weights, folder / "model.safetensors")


def _with_other_tokenizer(folder: Path) -> None:
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text + "\n")


def _without_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_with_other_setting, "model"),
        (_with_other_weights, "model"),
        (_with_other_tokenizer, "tokenizer"),
        (_without_tokenizer, "tokenizer"),
    ],
)
def test_another_model_or_tokenizer_is_refused(safetensors, directory, tmp_path, change, what):
    folder = shutil.copytree(directory, tmp_path / "other")
    change(folder)
    other = load_model(folder, backend="ref")
    with pytest.raises(CheckpointError, match=f"made with another {what} than that of `other`"):
        load_prompt_cache(safetensors, other)


def test_identities_are_stable(model, directory):
    again = load_model(directory, backend="ref")
    assert model_identity(model) == model_identity(again)


def test_damaged_files_are_refused(saved, model, tmp_path):
    data = bytearray(saved.read_bytes())
    path = tmp_path / saved.name
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(data), 60).tolist():
        damaged = data.copy()
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=saved.stem):
            load_prompt_cache(path, model)
    for length in (0, 7, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=saved.stem):
            load_prompt_cache(path, model)


def test_other_files_are_refused(safetensors, model, directory, tmp_path):
    with pytest.raises(CheckpointError, match="is no file of a cached prompt"):
        load_prompt_cache(directory / "model.safetensors", model)
    with pytest.raises(CheckpointError, match=r"none\.safetensors"):
        load_prompt_cache(tmp_path / "none.safetensors", model)
    about = json.loads(load_file(safetensors)["prompt_cache"].tobytes())
    newer = np.frombuffer(json.dumps({**about, "layout": 2}).encode(), np.uint8)
    with pytest.raises(CheckpointError, match="has layout 2 of a cached prompt, 1 is read"):
        load_prompt_cache(_edited(safetensors, tmp_path, prompt_cache=newer), model)
    for change in ({"digest": None}, {"tokens": np.array([1, 2])}, {"tokens": None}):
        with pytest.raises(CheckpointError, match="is damaged"):
            load_prompt_cache(_edited(safetensors, tmp_path, **change), model)


def test_a_consistent_file_that_does_not_fit_is_refused(safetensors, model, tmp_path):
    arrays = load_file(safetensors)
    del arrays["digest"]
    path = tmp_path / "forged.safetensors"
    changes = [
        ({"tokens": np.zeros(500, np.int64)}, "500 tokens do not fit"),
        ({"tokens": np.zeros(3, np.int64)}, "does not fit the model: the state of a cache needs"),
        ({"tokens": np.zeros(20, np.float32)}, "does not name its tokens"),
        ({"tokens": np.zeros((2, 10), np.int64)}, "does not name its tokens"),
    ]
    for change, message in changes:
        forged = {**arrays, **change}
        write_archive(path, {**forged, "digest": _digest(forged)})
        with pytest.raises(CheckpointError, match=message):
            load_prompt_cache(path, model)


def test_only_the_cache_of_one_prompt_is_saved(model, tmp_path):
    path = tmp_path / "cache.safetensors"
    cache, _ = _run(model, PROMPT)
    for tokens, of in ((PROMPT[:-1], cache), (PROMPT, cache.repeated(2)), ([], cache)):
        with pytest.raises(UsageError, match="is not that of one prompt"):
            save_prompt_cache(path, model, tokens, of)
    with pytest.raises(UsageError, match="names no format of tensors"):
        save_prompt_cache(tmp_path / "cache.bin", model, PROMPT, cache)
    assert not list(tmp_path.iterdir())
