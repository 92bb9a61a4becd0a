"""Rotary settings: the two formats of config.json, and scaling that depends on the length."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs.nn import PagedTexts
from gptrs_models.llama_kinds import read_config
from models.llama_support import (
    DYNAMIC,
    LLAMA3,
    MINISTRAL3,
    YARN,
    assert_close,
    edit_config,
    greedy_of,
    logits_of,
    save_llama,
    some_tokens,
)

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

OLD_FORMATS = {
    "theta": {"rope_theta": 500.0},
    "linear": {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "rope_type": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "yarn_without_original": {"rope_scaling": {"type": "yarn", "factor": 4.0}},
    "original_beside": {
        "rope_scaling": {"type": "yarn", "factor": 4.0},
        "original_max_position_embeddings": 24,
    },
    "original_both": {"rope_scaling": YARN, "original_max_position_embeddings": 24},
    "llama3_without_original": {
        "rope_scaling": {k: v for k, v in LLAMA3.items() if not k.startswith("original")}
    },
    "theta_within": {
        "rope_theta": 500.0,
        "rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": 900.0},
    },
    "scaling_before_parameters": {
        "rope_scaling": {"type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_type": "default", "rope_theta": 77.0},
    },
    "empty_scaling": {
        "rope_scaling": {},
        "rope_parameters": {"rope_type": "default", "rope_theta": 77.0},
    },
    "yarn_null_factor": {"rope_scaling": {**YARN, "factor": None}},
}


@pytest.mark.parametrize("name", OLD_FORMATS)
def test_the_format_before_transformers_5(tmp_path, name, nothing_is_left_unread):
    """What transformers reads in these files, we read: the angles are compared in the logits."""
    folder = save_llama(tmp_path / "model")
    edit_config(folder, rope_parameters=None)
    edit_config(folder, **OLD_FORMATS[name])
    tokens = some_tokens(1, 50)
    model = gptrs.load_model(folder, backend="ref")
    if name == "scaling_before_parameters":
        assert nothing_is_left_unread == [("llama", ["rope_parameters"])]
    nothing_is_left_unread.clear()
    assert_close(model.forward(tokens), logits_of(folder, tokens))


@pytest.mark.parametrize("kind", ["gemma3_text", "olmo3"])
def test_windows_turn_by_their_own_base_in_the_format_before(kind):
    ours = read_config({"model_type": kind, "rope_theta": 5000.0})
    theirs = transformers.CONFIG_MAPPING[kind](rope_theta=5000.0).rope_parameters
    assert ours.rope.theta == theirs["full_attention"]["rope_theta"]
    assert ours.sliding_rope.theta == theirs["sliding_attention"]["rope_theta"]


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory):
    """Trained on 24 positions, scaled to 96."""
    folder = tmp_path_factory.mktemp("dynamic") / "model"
    return save_llama(folder, max_position_embeddings=24, rope_parameters=DYNAMIC)


def test_dynamic_scaling_grows_with_the_text(dynamic, backend_name):
    model = gptrs.load_model(dynamic, backend=backend_name)
    assert model.causal_lm().context_length == 96
    for length in (24, 25, 60):
        tokens = some_tokens(2, length)
        assert_close(model.forward(tokens), logits_of(dynamic, tokens))


@pytest.mark.parametrize("prompt", [9, 30])
def test_dynamic_scaling_of_a_generation(dynamic, backend_name, prompt):
    """Keys in the cache keep the frequencies of their step, as in transformers."""
    model = gptrs.load_model(dynamic, backend=backend_name)
    tokens = some_tokens(1, prompt)[0].tolist()
    ours = gptrs.generate(
        model, tokens, max_tokens=64, sampling=gptrs.Sampling(temperature=0), ignore_eos=True
    )
    assert list(ours.token_ids) == greedy_of(dynamic, tokens, 64)


def test_dynamic_scaling_of_unequal_texts(dynamic, backend_name):
    """Each row has the frequencies of its own length."""
    lm = gptrs.load_model(dynamic, backend=backend_name).causal_lm()
    tokens = some_tokens(3, 50)
    prompts = [row[start:] for row, start in zip(tokens, (0, 20, 45), strict=True)]
    together = PagedTexts(lm, 3, 51)
    first, following = together.append(prompts), together.append(tokens[:, :1])
    for row, prompt in enumerate(prompts):
        alone = PagedTexts(lm, 1, 51)
        assert_close(first[row : row + 1], alone.append([prompt]))
        assert_close(following[row : row + 1], alone.append(tokens[row : row + 1, :1]))


@pytest.mark.whole
@pytest.mark.parametrize(
    ("rope", "context"),
    [
        ({"rope_type": "default", "rope_theta": 10000.0}, 160),
        ({"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}, 400),
        (DYNAMIC, 640),
        (LLAMA3, 160),
        ({**YARN, "factor": 8.0}, 256),
        (YARN, 160),
    ],
)
def test_the_context_is_what_the_scaling_is_made_for(tmp_path, rope, context):
    folder = save_llama(tmp_path / "model", rope_parameters=rope)
    assert gptrs.load_model(folder, backend="ref").causal_lm().context_length == context


def test_queries_of_ministral3_grow_with_their_period(tmp_path):
    """Without growth the logits of the first period are the same, those behind are not."""
    settings = {"head_dim": 16, "rope_parameters": MINISTRAL3}
    folder = save_llama(tmp_path / "model", "Ministral3", **settings)
    tokens = some_tokens(1, 40)
    grown = gptrs.load_model(folder, backend="ref").forward(tokens)
    edit_config(folder, rope_parameters={**MINISTRAL3, "llama_4_scaling_beta": 0.0})
    plain = gptrs.load_model(folder, backend="ref").forward(tokens)
    np.testing.assert_array_equal(grown[:, :32], plain[:, :32])
    assert np.abs(grown[:, 32:] - plain[:, 32:]).max() > 1e-3
