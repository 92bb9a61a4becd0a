"""Beam search gives the texts of transformers: its settings, ends, several results, sources."""

from __future__ import annotations

import json
import shutil
from typing import Any

import numpy as np
import pytest

import gptrs
from gptrs.errors import CacheBudgetError, ModelError, UsageError
from gptrs_runtime.serving.engine import Engine
from models import seq2seq_models
from models.llama_support import save_llama
from models.models_support import _load, save_gpt2
from runtime.tiny_gpt2 import save_tiny_gpt2

torch = pytest.importorskip("torch", reason="parity needs torch")
pytest.importorskip("transformers", reason="parity needs transformers")
PROMPT = [5, 9, 2, 33, 41]
SETTINGS: list[dict[str, Any]] = [
    {"beams": 2},
    {"beams": 4, "length_penalty": 2.0},
    {"beams": 4, "length_penalty": -1.0},
    {"beams": 3, "early_stopping": True},
    {"beams": 5, "early_stopping": "never", "length_penalty": 0.5},
    {"beams": 4, "repetition_penalty": 1.4},
]


def theirs(model: Any, prompt: list[int], count: int, **settings: Any) -> list[list[int]]:
    """Return the new tokens of the texts that transformers finds, the best first."""
    asked = {"num_return_sequences": 1, **settings}
    asked["num_beams"] = asked.pop("beams")
    with torch.no_grad():
        found = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones((1, len(prompt)), dtype=torch.long),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
            **asked,
        )
    begin = 1 if model.config.is_encoder_decoder else len(prompt)
    return [trimmed(row[begin:].tolist(), asked.get("eos_token_id")) for row in found]


def trimmed(tokens: list[int], ends: Any) -> list[int]:
    """Return the tokens up to the first that ends a text: others are padding."""
    ends = [ends] if isinstance(ends, int) else ends or []
    places = [place for place, token in enumerate(tokens) if token in ends]
    return tokens[: places[0] + 1] if places else tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_gpt2(tmp_path_factory.mktemp("beams") / "gpt2", eos_token_id=[3, 50, 61])


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_texts_are_those_of_transformers(folder, backend_name, settings):
    model = gptrs.load_model(folder, backend=backend_name)
    wanted = theirs(_load(folder), PROMPT, 14, eos_token_id=[3, 50, 61], **settings)
    assert list(gptrs.generate(model, PROMPT, max_tokens=14, **settings).token_ids) == wanted[0]


def test_probabilities_are_renormalized_where_the_file_says_so(folder, tmp_path):
    settings = {"eos_token_id": [3, 50, 61], "repetition_penalty": 2.0, "renormalize_logits": True}
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    model = gptrs.load_model(tmp_path, backend="ref")
    wanted = theirs(_load(folder), PROMPT, 14, beams=3, **settings)
    assert list(gptrs.generate(model, PROMPT, max_tokens=14, beams=3).token_ids) == wanted[0]
    plain = {**settings, "renormalize_logits": False}
    assert wanted != theirs(_load(folder), PROMPT, 14, beams=3, **plain)


@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:1]], ids=len)
def test_what_the_file_says_of_tokens_counts(folder, tmp_path, prompt):
    settings = {
        "eos_token_id": [3, 50, 61],
        "sequence_bias": [[[token], 0.4] for token in range(0, 60, 2)] + [[[8, 3], -2.0]],
        "encoder_repetition_penalty": 1.5,
        "encoder_no_repeat_ngram_size": 2,
        "forced_bos_token_id": 9,
        "forced_eos_token_id": 61,
        "exponential_decay_length_penalty": [3, 0.5],
        "begin_suppress_tokens": [9, 10, 12],
    }
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    model = gptrs.load_model(tmp_path, backend="ref")
    for beams in (1, 3):
        wanted = theirs(_load(folder), prompt, 12, beams=beams, **settings)
        found = gptrs.generate(model, prompt, max_tokens=12, beams=beams)
        assert list(found.token_ids) == wanted[0]


def test_several_texts_are_the_best_ones(folder, backend_name):
    model = gptrs.load_model(folder, backend=backend_name)
    asked = {"beams": 4, "eos_token_id": [3, 50, 61], "num_return_sequences": 3}
    found = gptrs.generate_several(model, PROMPT, 3, beams=4, max_tokens=12)
    assert [list(each.token_ids) for each in found] == theirs(_load(folder), PROMPT, 12, **asked)
    reasons = ["eos" if each.token_ids[-1] in (3, 50, 61) else "length" for each in found]
    assert [each.finish_reason for each in found] == reasons
    with pytest.raises(UsageError, match="2 beams give as many texts, asked for 3"):
        gptrs.generate_several(model, PROMPT, 3, beams=2)


@pytest.mark.parametrize("kind", ["Llama", "Mistral"])
def test_long_prompts_windows_and_small_chunks(tmp_path, backend_name, kind):
    settings = {"sliding_window": 12} if kind == "Mistral" else {}
    folder = save_llama(tmp_path / "m", kind, **settings)
    prompt = (np.arange(45) * 7 % 90).tolist()
    model = gptrs.load_model(folder, backend=backend_name)
    ends = sorted(model.eos_tokens)
    wanted = theirs(_load(folder), prompt, 20, beams=4, eos_token_id=ends or None)
    options = gptrs.GenerationOptions(20, beams=4, prefill_chunk=16)
    found = gptrs.generate(model, prompt, options)
    assert list(found.token_ids) == wanted[0]
    assert found.text == ""
    again = gptrs.generate(model, prompt, options)
    assert again.token_ids == found.token_ids
    batch = gptrs.generate_batch(model, [prompt[:9], prompt], options)
    assert batch[1].token_ids == found.token_ids
    without = gptrs.GenerationOptions(20, beams=4, use_cache=False)
    assert gptrs.generate(model, prompt, without).token_ids == found.token_ids


@pytest.mark.parametrize("case", ["t5", "bart", "marian"])
def test_texts_about_sources(tmp_path, backend_name, case):
    folder = seq2seq_models.save_seq2seq(tmp_path / "m", case)
    model = gptrs.load_model(folder, backend=backend_name)
    source = [4, 8, 15, 16, 23, 42, 1]
    ends = sorted(model.eos_tokens)
    for settings in ({"beams": 4}, {"beams": 3, "length_penalty": 0.6, "early_stopping": True}):
        reference = seq2seq_models.reference(folder)
        wanted = theirs(reference, source, 10, eos_token_id=ends, use_cache=False, **settings)
        found = gptrs.generate(model, source, max_tokens=10, **settings)
        assert list(found.token_ids) == wanted[0]


def test_beams_of_the_file_count_unless_a_caller_says_otherwise(tmp_path, caplog):
    for penalty in (0.7, 0, -1.0, -100, 100):
        settings = {"num_beams": 3, "length_penalty": penalty, "early_stopping": True}
        folder = save_tiny_gpt2(tmp_path / str(penalty), generation_config=settings)
        model = gptrs.load_model(folder, "ref")
        asked = gptrs.generate(
            model, [1, 2], max_tokens=8, beams=3, length_penalty=penalty, early_stopping=True
        )
        assert gptrs.generate(model, [1, 2], max_tokens=8).token_ids == asked.token_ids
    greedy = gptrs.generate(model, [1, 2], max_tokens=8, beams=1)
    plain = gptrs.load_model(save_tiny_gpt2(tmp_path / "plain"), "ref")
    assert greedy.token_ids == gptrs.generate(plain, [1, 2], max_tokens=8).token_ids
    assert "length_penalty" not in caplog.text
    for name, wrong in (
        ("num_beams", 0),
        ("early_stopping", "always"),
        ("length_penalty", 101),
        ("length_penalty", -101),
        ("length_penalty", True),
    ):
        settings = {"num_beams": 2, name: wrong}
        folder = save_tiny_gpt2(tmp_path / f"{name} {wrong}", generation_config=settings)
        with pytest.raises(ModelError, match=name):
            gptrs.generate(gptrs.load_model(folder, "ref"), [1])


@pytest.mark.whole
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 0}, "the number of beams must be at least 1, got 0"),
        ({"beams": 257}, "256 beams at most"),
        ({"length_penalty": 2.0}, "need beams"),
        ({"length_penalty": float("nan"), "beams": 2}, "must be a number from -100 to 100"),
        ({"length_penalty": 101, "beams": 2}, "must be a number from -100 to 100"),
        ({"early_stopping": True, "beams": 1}, "need beams"),
        ({"beams": 2, "temperature": 0.5}, "`sampling` does not go with beams"),
        ({"beams": 2, "logprobs": 1}, "`logprobs` does not go with beams"),
        ({"beams": 2, "prompt_lookup": True}, "`prompt_lookup` does not go with beams"),
        ({"beams": 2, "context_shift": True}, "`context_shift` does not go with beams"),
        ({"num_beams": 2}, "did you mean `beams`"),
    ],
)
def test_what_does_not_go_with_beams_is_refused(tmp_path, options, message):
    model = gptrs.load_model(save_tiny_gpt2(tmp_path / "m"), "ref")
    with pytest.raises(UsageError, match=message):
        gptrs.generate(model, [1], **options)


def test_an_engine_has_no_beams(tmp_path, caplog):
    settings = {"num_beams": 3}
    model = gptrs.load_model(save_tiny_gpt2(tmp_path / "m", generation_config=settings), "ref")
    with Engine(model) as engine:
        with pytest.raises(UsageError, match="an engine has no beams"):
            engine.submit([1], beams=2)
        stream = engine.submit([1, 2], max_tokens=5)
        assert len(stream.result()[0].token_ids) == 5
    assert [one.getMessage().split(": ")[1] for one in caplog.records] == [
        "`num_beams` is not supported and ignored"
    ]


def test_pages_are_given_back_and_too_few_are_an_error(tmp_path):
    model = gptrs.load_model(save_tiny_gpt2(tmp_path / "m"), "ref")
    for _ in range(3):
        gptrs.generate(model, [1, 2, 3], max_tokens=20, beams=6)
    from gptrs.ir import dtypes
    from gptrs_runtime.generation.paged_cache import paged_cache

    cache = paged_cache(model, dtypes.f32, None)
    assert [group.held for group in cache.pool.groups] == [0] * len(cache.pool.groups)
    with pytest.raises(CacheBudgetError, match="no room for 200 beams"):
        gptrs.generate(model, [1, 2, 3], max_tokens=20, beams=200, cache_budget="100KB")
