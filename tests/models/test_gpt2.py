"""GPT-2 agrees with transformers on the same directory, on every installed backend."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import cast

import numpy as np
import pytest

import gptrs
from gptrs.errors import ContextLengthError, ModelError, UsageError
from gptrs.nn import CausalLMModule, PagedTexts
from models.models_support import assert_greedy, greedy_tokens, save_gpt2, torch_logits

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

TOLERANCE = 1e-4
"""Largest error of a logit, relative to the largest logit."""


def _assert_close(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= TOLERANCE * np.abs(theirs).max()


def _tokens(batch: int, length: int, vocabulary: int = 97) -> np.ndarray:
    return np.random.default_rng(length).integers(0, vocabulary, (batch, length))


@pytest.fixture(scope="module")
def tiny(tiny_gpt2_directory, backend_name):
    return gptrs.load_model(tiny_gpt2_directory, backend=backend_name)


def test_logits(gpt2_directory, backend_name):
    model = gptrs.load_model(gpt2_directory, backend=backend_name)
    for tokens in (_tokens(1, 1), _tokens(1, 19), _tokens(3, 8)):
        _assert_close(model.forward(tokens), torch_logits(gpt2_directory, tokens))


def test_a_head_of_its_own_in_a_file_that_ties_it_is_used(tmp_path, backend_name):
    folder = save_gpt2(tmp_path / "untied", tie_word_embeddings=False)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"tie_word_embeddings": false,', ""))
    tokens = _tokens(1, 12)
    model = gptrs.load_model(folder, backend=backend_name)
    _assert_close(model.forward(tokens), torch_logits(folder, tokens))


def test_greedy_tokens(gpt2_directory, backend_name):
    model = gptrs.load_model(gpt2_directory, backend=backend_name)
    prompt = _tokens(1, 9)[0].tolist()
    ours = gptrs.generate(
        model, prompt, max_tokens=64, sampling=gptrs.Sampling(temperature=0), ignore_eos=True
    )
    assert_greedy(partial(torch_logits, gpt2_directory), prompt, ours.token_ids, 64)


def test_cached_equals_uncached(tiny):
    prompt = _tokens(1, 5)[0].tolist()
    greedy = gptrs.Sampling(temperature=0)
    runs = [
        gptrs.generate(
            tiny, prompt, max_tokens=80, sampling=greedy, ignore_eos=True, use_cache=use_cache
        ).token_ids
        for use_cache in (True, False)
    ]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("chunk", [1, 7, 64, 65, 200])
def test_chunked_prefill_equals_whole(tiny, chunk):
    lm = tiny.causal_lm()
    tokens = _tokens(2, 130)
    texts = PagedTexts(lm, 2, 130)
    steps = [texts.append(tokens[:, at : at + chunk]) for at in range(0, 130, chunk)]
    assert texts.lengths == [130, 130]
    _assert_close(steps[-1], lm.forward(tokens)[:, -1])


def test_batched_equals_single(tiny):
    lm = tiny.causal_lm()
    tokens = _tokens(3, 12)
    together = PagedTexts(lm, 3, 12)
    batched = [together.append(tokens[:, :10])]
    batched += [together.append(tokens[:, i : i + 1]) for i in (10, 11)]
    for row in range(3):
        alone = PagedTexts(lm, 1, 12)
        single = [alone.append(tokens[row : row + 1, :10])]
        single += [alone.append(tokens[row : row + 1, i : i + 1]) for i in (10, 11)]
        for many, one in zip(batched, single, strict=True):
            _assert_close(many[row : row + 1], one)


def test_two_generations_do_not_mix(tiny):
    lm = tiny.causal_lm()
    a, b = _tokens(1, 8), _tokens(1, 9)
    first, second = PagedTexts(lm, 1, 16), PagedTexts(lm, 1, 16)
    first.append(a)
    second.append(b)
    next_token = np.array([[3]])
    _assert_close(first.append(next_token), lm.forward(np.concatenate([a, next_token], 1))[:, -1])


def test_steps_of_any_size_share_a_handful_of_programs(tiny_gpt2_directory, backend_name):
    lm = gptrs.load_model(tiny_gpt2_directory, backend=backend_name).causal_lm()
    for counts in ([1], [2], [150], [16], [17], [3, 40], [5, 1, 1, 90], [1] * 8, [7] * 16):
        texts = PagedTexts(lm, len(counts), 160)
        texts.append([_tokens(1, count)[0] for count in counts])
        texts.append([[3]] * len(counts))
    assert cast("CausalLMModule", lm)._step.compiled <= 6


def test_the_cache_refuses_what_exceeds_the_context(tiny):
    texts = PagedTexts(tiny.causal_lm(), 1, 192)
    texts.append(_tokens(1, 160))
    with pytest.raises(ContextLengthError, match="161 tokens do not fit into the context of 160"):
        texts.append(_tokens(1, 1))
    assert texts.lengths == [160]
    assert texts.buffers.usable


def test_forward_refuses_other_inputs(tiny):
    with pytest.raises(UsageError, match=r"integer array \[B, T\]"):
        tiny.forward(np.zeros((1, 3), np.float32))
    with pytest.raises(UsageError, match="exceed the context of 160"):
        tiny.forward(np.zeros((1, 161), np.int64))
    with pytest.raises(UsageError, match="token 97 is not in the vocabulary of 97"):
        tiny.forward(np.array([[1, 97]]))


@pytest.mark.whole
@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("add_cross_attention", True, "`add_cross_attention`.*supported as False only"),
        ("activation_function", "soft", "`activation_function`.*must be one of gelu"),
        ("n_head", 5, r"`n_embd` \(32\).*not a multiple of `n_head` \(5\)"),
        ("n_layer", "two", "`n_layer`.*must be an integer >= 1, found `.two.`"),
        ("layer_norm_epsilon", -1, "`layer_norm_epsilon`.*must be a number >= 0"),
        ("quantization_config", {"bits": 4}, "`quantization_config`"),
        ("n_embd", 64, r"`transformer\.wte\.weight`.*\[97, 64\]"),
    ],
)
def test_unsupported_settings_are_refused_by_name(
    tiny_gpt2_directory, tmp_path, setting, value, message
):
    folder = shutil.copytree(tiny_gpt2_directory, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, setting: value}))
    with pytest.raises(ModelError, match=message):
        gptrs.load_model(folder)


@pytest.mark.exhaustive
def test_the_124m_size_once(tmp_path, backend_name):
    sizes = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_head": 12}
    sizes["n_layer"] = 2 if backend_name == "ref" else 12  # the reference takes long
    folder = save_gpt2(tmp_path / "gpt2", initializer_range=0.05, **sizes)
    model = gptrs.load_model(folder, backend=backend_name)
    tokens = _tokens(1, 60, 50257)  # and eight more, which is over the first bucket of the cache
    _assert_close(model.forward(tokens), torch_logits(folder, tokens))
    prompt = tokens[0].tolist()
    ours = gptrs.generate(
        model, prompt, max_tokens=8, sampling=gptrs.Sampling(temperature=0), ignore_eos=True
    )
    assert list(ours.token_ids) == greedy_tokens(folder, prompt, 8)


def test_eager_mode_gives_the_same_logits(tiny, monkeypatch):
    tokens = _tokens(2, 6)
    compiled = tiny.forward(tokens)
    monkeypatch.setenv("GPTRS_EAGER", "1")
    _assert_close(tiny.forward(tokens), compiled)


def test_two_threads_may_use_one_model(tiny):
    lm = tiny.causal_lm()
    prompts = [_tokens(1, length) for length in (5, 6, 7, 8)]
    expected = [lm.forward(tokens) for tokens in prompts]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            for ours, theirs in zip(pool.map(lm.forward, prompts), expected, strict=True):
                np.testing.assert_array_equal(ours, theirs)
