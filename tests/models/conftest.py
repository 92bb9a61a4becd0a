"""Random-weight model directories, saved by transformers as a user's would be."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import pytest

from gptrs_runtime import load
from gptrs_runtime import unread as unread_module
from models.models_support import save_gpt2

GPT2_VARIANTS: dict[str, dict[str, object]] = {
    "tiny": {},
    "odd_heads": {"n_embd": 35, "n_head": 7, "n_layer": 3},
    "one_head": {"n_embd": 16, "n_head": 1},
    "untied": {"tie_word_embeddings": False},
    "inner": {"n_inner": 50, "activation_function": "gelu"},
    "relu": {"activation_function": "relu"},
    "silu": {"activation_function": "silu"},
    "tanh": {"activation_function": "tanh"},
    "unscaled": {"scale_attn_weights": False},
    "by_layer": {"scale_attn_by_inverse_layer_idx": True, "n_layer": 4},
    "epsilon": {"layer_norm_epsilon": 1e-2},
    "body_only": {"saved_as": "GPT2Model"},
    "half": {"saved_dtype": "float16"},
    "brain": {"saved_dtype": "bfloat16"},
    "sharded": {"max_shard_size": "20KB"},
}


@pytest.fixture(scope="session", params=GPT2_VARIANTS)
def gpt2_directory(request, tmp_path_factory) -> Path:
    """One directory for each variant of GPT-2."""
    folder = tmp_path_factory.mktemp("gpt2") / request.param
    return save_gpt2(folder, **GPT2_VARIANTS[request.param])


@pytest.fixture(scope="session")
def tiny_gpt2_directory(tmp_path_factory) -> Path:
    """A GPT-2 with nothing special."""
    return save_gpt2(tmp_path_factory.mktemp("gpt2") / "plain")


@pytest.fixture(scope="session")
def backend_name(backend) -> str:
    """The name of each backend under test, to load models by."""
    return backend.name


@pytest.fixture(autouse=True)
def nothing_is_left_unread(monkeypatch):
    """Whatever kind a test loads: what transformers saves of it is read, or known as harmless.

    A test that is about something unread clears the list.

    Some tests give settings to all kinds: those that are none of a kind's own may be told.
    """
    found: list[tuple[str, Sequence[str]]] = []

    def unread_of(settings, config, params):
        unread = unread_module.unread_of(settings, config, params)
        own = _own_settings(str(config.get("model_type")))
        known = [name for name in unread.settings if name.split(".")[-1] in own]
        found.append((str(config.get("model_type")), [*unread.weights, *known]))
        return unread

    monkeypatch.setattr(load, "unread_of", unread_of)
    yield found
    assert [each for each in found if each[1]] == []


@lru_cache(maxsize=256)
def _own_settings(kind: str) -> frozenset[str]:
    """The settings of a kind in transformers, in tables too; none of a kind that it lacks."""
    if "transformers" not in sys.modules:
        return frozenset()
    from transformers import CONFIG_MAPPING

    if kind not in CONFIG_MAPPING:
        return frozenset()
    settings = CONFIG_MAPPING[kind]().to_dict()
    tables = [value for value in settings.values() if isinstance(value, dict)]
    return frozenset().union(settings, *tables)
