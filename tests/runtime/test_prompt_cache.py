"""The pages of a prompt are saved, found again by prompts that begin alike, and checked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gptrs
from gptrs.checkpoint.formats.tensor_archive import write_archive
from gptrs.errors import CheckpointError, UsageError
from gptrs.ir import dtypes
from gptrs_runtime.generation.paged_cache import PagedCache
from gptrs_runtime.generation.prompt_cache import (
    PromptPages,
    _digest,
    load_prompt_cache,
    save_prompt_cache,
)
from gptrs_runtime.generation.text_cache import Row, model_identity
from gptrs_runtime.load import load_model

PROMPT = np.random.default_rng(5).integers(1, 200, 40).tolist()


def new_cache(model, dtype=dtypes.f32) -> PagedCache:
    """A cache that has seen nothing."""
    return PagedCache(model.causal_lm(), model.backend, dtype, None)


def run(cache: PagedCache, prompt: list[int]):
    """The text of a prompt, how many of its tokens were known, and the logits after it."""
    text = cache.admit(prompt, 64, 64)
    known = text.length
    return text, known, cache.run([Row(text, prompt[known:])])[0]


def load(path: Path, model):
    """A new cache with the pages in a file."""
    cache = new_cache(model)
    pages = load_prompt_cache(path, model, cache)
    cache.add_pages(pages.tokens, pages.groups)
    return cache


@pytest.fixture(scope="module")
def expected(model):
    """The logits after the prompt."""
    return run(new_cache(model), PROMPT)[2]


def _saved(model, folder: Path, suffix: str, dtype=dtypes.f32) -> Path:
    path = folder / f"prompt{suffix}"
    cache = new_cache(model, dtype)
    text, _, _ = run(cache, PROMPT)
    pages = PromptPages(tuple(PROMPT), cache.read_pages(text))
    save_prompt_cache(path, model, cache, pages)
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
    _, known, logits = run(load(saved, model), PROMPT)
    assert known == len(PROMPT) - 1
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shared", [0, 1, 32, 36, 40])
def test_another_prompt_runs_what_is_its_own(saved, model, shared):
    prompt = [*PROMPT[:shared], 250, 3, 251, 252]
    _, known, logits = run(load(saved, model), prompt)
    assert known == shared
    np.testing.assert_allclose(logits, run(new_cache(model), prompt)[2], rtol=1e-5, atol=1e-6)


def test_a_shorter_prompt_is_part_of_it(saved, model):
    _, known, logits = run(load(saved, model), PROMPT[:7])
    assert known == 6
    alone = run(new_cache(model), PROMPT[:7])[2]
    np.testing.assert_allclose(logits, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [dtypes.bf16, dtypes.f16])
def test_smaller_elements_are_kept_as_they_are(model, tmp_path, dtype):
    path = _saved(model, tmp_path, ".safetensors", dtype)
    cache = new_cache(model, dtype)
    pages = load_prompt_cache(path, model, cache)
    cache.add_pages(pages.tokens, pages.groups)
    _, known, logits = run(cache, PROMPT)
    assert known == len(PROMPT) - 1
    again = run(new_cache(model, dtype), PROMPT)[2]
    np.testing.assert_allclose(logits, again, rtol=1e-3, atol=1e-3)
    with pytest.raises(CheckpointError, match="made with another dtype"):
        load_prompt_cache(path, model, new_cache(model))


def test_a_copy_of_the_model_elsewhere_is_the_same_model(saved, directory, tmp_path, expected):
    other = load_model(shutil.copytree(directory, tmp_path / "copy"), backend="ref")
    _, known, logits = run(load(saved, other), PROMPT)
    assert known == len(PROMPT) - 1
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


def _with_other_setting(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "layer_norm_epsilon": 1e-4}))


def _with_other_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("c_fc.weight"))
    weights[name] = weights[name] * np.float32(1.01)
    save_file(weights, folder / "model.safetensors")


def _with_another_row_of_the_embedding(folder: Path) -> None:
    """Change the vector of one token of the prompt."""
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("wte.weight"))
    weights[name][PROMPT[3]] += np.float32(0.5)
    save_file(weights, folder / "model.safetensors")


def _with_another_last_byte(folder: Path) -> None:
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)


def _with_other_overrides(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["runtime"] = {"functional_overrides": {"gelu": "prefer=portable"}}
    (folder / "config.json").write_text(json.dumps(config))


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
        (_with_another_row_of_the_embedding, "model"),
        (_with_another_last_byte, "model"),
        (_with_other_overrides, "model"),
        (_with_other_tokenizer, "tokenizer"),
        (_without_tokenizer, "tokenizer"),
    ],
)
def test_another_model_or_tokenizer_is_refused(safetensors, directory, tmp_path, change, what):
    folder = shutil.copytree(directory, tmp_path / "other")
    change(folder)
    other = load_model(folder, backend="ref")
    with pytest.raises(CheckpointError, match=f"made with another {what} than that of `other`"):
        load(safetensors, other)


def test_files_of_two_models_that_changed_places_are_refused(safetensors, directory, tmp_path):
    folder = shutil.copytree(directory, tmp_path / "other")
    _with_another_row_of_the_embedding(folder)
    other = load_model(folder, backend="ref")
    with pytest.raises(CheckpointError, match="made with another model"):
        load(_saved(other, tmp_path, ".safetensors"), load_model(directory, backend="ref"))
    with pytest.raises(CheckpointError, match="made with another model"):
        load(safetensors, other)


def test_other_overrides_in_force_are_refused(safetensors, model):
    with (
        gptrs.overrides({"gelu": "prefer=portable"}),
        pytest.raises(CheckpointError, match="made with another model"),
    ):
        load(safetensors, model)


def test_a_file_of_another_backend_is_refused(safetensors, directory):
    other = load_model(directory, backend="numba")
    with pytest.raises(CheckpointError, match="made with another backend than that of"):
        load(safetensors, other)


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
            load(path, model)
    for length in (0, 7, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=saved.stem):
            load(path, model)


def test_other_files_are_refused(safetensors, model, directory, tmp_path):
    with pytest.raises(CheckpointError, match="is not a file of a cached prompt"):
        load(directory / "model.safetensors", model)
    with pytest.raises(CheckpointError, match=r"none\.safetensors"):
        load(tmp_path / "none.safetensors", model)
    about = json.loads(load_file(safetensors)["prompt_cache"].tobytes())
    older = np.frombuffer(json.dumps({**about, "layout": 1}).encode(), np.uint8)
    with pytest.raises(CheckpointError, match=r"has layout 1 .* 3 is read; remove the file"):
        load(_edited(safetensors, tmp_path, prompt_cache=older), model)
    for change in ({"digest": None}, {"tokens": np.array([1, 2])}, {"tokens": None}):
        with pytest.raises(CheckpointError, match="is damaged"):
            load(_edited(safetensors, tmp_path, **change), model)


def test_a_consistent_file_that_does_not_fit_is_refused(safetensors, model, tmp_path):
    arrays = load_file(safetensors)
    del arrays["digest"]
    path = tmp_path / "forged.safetensors"
    changes = [
        ({"tokens": np.zeros(500, np.int64)}, "500 tokens do not fit"),
        ({"tokens": np.zeros(3, np.int64)}, "does not fit the model: `layer.0.keys` must be"),
        ({"tokens": np.zeros(40, np.float32)}, "does not name its tokens"),
        ({"tokens": np.zeros((2, 20), np.int64)}, "does not name its tokens"),
    ]
    for change, message in changes:
        forged = {**arrays, **change}
        write_archive(path, {**forged, "digest": _digest(forged)})
        with pytest.raises(CheckpointError, match=message):
            load(path, model)


def test_only_the_pages_of_the_tokens_are_saved(model, tmp_path):
    path = tmp_path / "cache.safetensors"
    cache = new_cache(model)
    groups = cache.read_pages(run(cache, PROMPT)[0])
    for tokens in (PROMPT[:30], [*PROMPT] * 2, []):
        with pytest.raises(UsageError, match=f"these are not pages of {len(tokens)} tokens"):
            save_prompt_cache(path, model, cache, PromptPages(tuple(tokens), groups))
    pages = PromptPages(tuple(PROMPT), groups)
    with pytest.raises(UsageError, match="names no format of tensors"):
        save_prompt_cache(tmp_path / "cache.bin", model, cache, pages)
    assert not list(tmp_path.iterdir())


def test_pages_of_8_bits_go_there_and_back(model, tmp_path):
    """To the bit what the cache that wrote them computes."""
    path = _saved(model, tmp_path, ".safetensors", dtypes.si8)
    wanted = run(new_cache(model, dtypes.si8), PROMPT)[2]
    cache = new_cache(model, dtypes.si8)
    pages = load_prompt_cache(path, model, cache)
    assert {array.dtype for group in pages.groups for array in group} == {np.dtype(np.int8)}
    cache.add_pages(pages.tokens, pages.groups)
    _, known, logits = run(cache, PROMPT)
    assert known == len(PROMPT) - 1
    np.testing.assert_allclose(logits, wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(CheckpointError):
        load_prompt_cache(path, model, new_cache(model))
