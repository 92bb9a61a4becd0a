"""Llama and its relatives agree with transformers on the same directory, on every backend."""

from __future__ import annotations

from functools import partial
from typing import cast

import numpy as np
import pytest

import gptrs
from gptrs.errors import ContextLengthError
from gptrs.nn import CausalLMModule, PagedTexts
from models.llama_support import (
    VARIANTS,
    assert_close,
    edit_config,
    fresh_model,
    greedy_of,
    logits_of,
    save_llama,
    save_variant,
    some_tokens,
)
from models.models_support import assert_greedy, torch_logits

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

GREEDY = gptrs.Sampling(temperature=0)


ONLY_LOGITS = ("body_only", "all_heads", "pretraining_tp", "half", "brain", "sharded")
"""Variants of what is stored: they run the programs of another one."""


@pytest.fixture(scope="session", params=VARIANTS)
def llama_directory(request, tmp_path_factory):
    """One directory for each variant."""
    return save_variant(tmp_path_factory.mktemp("llama") / request.param, request.param)


def test_logits_and_greedy_tokens(llama_directory, backend_name):
    model = gptrs.load_model(llama_directory, backend=backend_name)
    tokens = some_tokens(3, 40)
    assert_close(model.forward(tokens), logits_of(llama_directory, tokens))
    if llama_directory.name not in ONLY_LOGITS:
        prompt = tokens[0, :9].tolist()
        ours = gptrs.generate(model, prompt, max_tokens=64, sampling=GREEDY, ignore_eos=True)
        if llama_directory.name == "dynamic":  # what a long text becomes depends on its steps
            assert list(ours.token_ids) == greedy_of(llama_directory, prompt, 64)
        else:
            assert_greedy(partial(torch_logits, llama_directory), prompt, ours.token_ids, 64)


@pytest.mark.parametrize("name", ["plain", "qwen3_switches"])
def test_hidden_states(tmp_path, backend_name, name):
    folder = save_variant(tmp_path / name, name)
    tokens = some_tokens(2, 11)
    with torch.no_grad():
        output = fresh_model(folder)(torch.from_numpy(tokens), output_hidden_states=True)
    model = gptrs.load_model(folder, backend=backend_name)
    assert "hidden_states" in model.capabilities
    ours = model.hidden_states(tokens)
    assert list(ours) == ["embeddings", "layer.0", "layer.1"]
    for state, theirs in zip(ours.values(), output.hidden_states, strict=True):
        assert_close(state, theirs.numpy())


def test_weights_of_a_layer_that_only_the_config_ties_are_used(tmp_path, backend_name):
    folder = save_llama(tmp_path / "untied")
    edit_config(folder, tie_word_embeddings=True)
    tokens = some_tokens(1, 12)
    model = gptrs.load_model(folder, backend=backend_name)
    assert_close(model.forward(tokens), logits_of(folder, tokens))


def test_every_weight_is_asked_for(llama_directory):
    """A name that is not read would be a part of the model that is left out."""
    model = gptrs.load_model(llama_directory, backend="ref")
    module = cast("CausalLMModule", model.causal_lm())
    names = {name for name, _ in module.named_tensors()}
    saved = fresh_model(llama_directory)
    expected = {name.removeprefix("model.") for name, _ in saved.named_parameters()}
    assert names == expected


def test_the_cache_refuses_what_exceeds_the_context(tmp_path, backend_name):
    lm = gptrs.load_model(save_variant(tmp_path / "m", "mistral"), backend=backend_name).causal_lm()
    texts = PagedTexts(lm, 1, 192)
    texts.append(some_tokens(1, 160))
    with pytest.raises(ContextLengthError, match="161 tokens do not fit into the context of 160"):
        texts.append(some_tokens(1, 1))
    assert texts.lengths == [160]


def test_a_text_of_one_token_at_every_place(tmp_path, backend_name):
    """Steps of one token from the first on, so that no prefill hides what decoding does."""
    folder = save_variant(tmp_path / "m", "qwen2_window")
    lm = gptrs.load_model(folder, backend=backend_name).causal_lm()
    tokens = some_tokens(1, 45)
    texts = PagedTexts(lm, 1, 45)
    steps = [texts.append(tokens[:, place : place + 1]) for place in range(45)]
    theirs = logits_of(folder, tokens)
    assert_close(np.stack(steps, 1), theirs)
    assert_close(lm.forward(tokens[:, :1]), theirs[:, :1])
