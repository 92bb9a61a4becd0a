"""Texts that grow far past a sliding window are those of transformers, and pages are given back."""

from __future__ import annotations

import pytest

import gptrs
from gptrs.nn.ragged_step import PAGE_SIZE
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.generation.setup import GenerationSetup
from models.llama_support import greedy_of, save_llama, some_tokens

pytest.importorskip("torch", reason="parity needs torch")
pytest.importorskip("transformers", reason="parity needs transformers")

NEW = 110
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "mistral": ("Mistral", {"sliding_window": 40}),
    "narrow": ("Mistral", {"sliding_window": 9, "num_key_value_heads": 1}),
    "ministral": (
        "Ministral",
        {
            "sliding_window": 33,
            "head_dim": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "qwen2": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
}


PROMPTS = [some_tokens(1, length)[0].tolist() for length in (100, 7, 45)]


@pytest.fixture(scope="module", params=VARIANTS)
def saved(request, tmp_path_factory):
    """A folder, and what transformers appends greedily to each prompt."""
    kind, settings = VARIANTS[request.param]
    folder = tmp_path_factory.mktemp("windows") / request.param
    save_llama(folder, kind, max_position_embeddings=320, **settings)
    return folder, [greedy_of(folder, prompt, NEW) for prompt in PROMPTS]


def test_texts_far_past_the_window(saved, backend_name):
    folder, expected = saved
    options = GenerationOptions(NEW, Sampling(temperature=0), ignore_eos=True, prefill_chunk=48)
    setup = GenerationSetup(gptrs.load_model(folder, backend=backend_name), options)
    texts = [setup.new_text(prompt) for prompt in PROMPTS]
    scheduler = setup.new_scheduler()
    for text in texts:
        scheduler.add(text)
    assert setup.cache is not None
    groups = setup.cache.pool.groups
    most = [0] * len(groups)
    while scheduler.busy:
        scheduler.step()
        most = [max(seen, group.held) for seen, group in zip(most, groups, strict=True)]
    assert [text.tokens for text in texts] == expected
    whole = sum(-(-(len(prompt) + NEW) // PAGE_SIZE) for prompt in PROMPTS)
    for group, held in zip(groups, most, strict=True):
        if group.layout.window is not None:
            assert held < 0.7 * whole, "pages that no later token sees were given back"
