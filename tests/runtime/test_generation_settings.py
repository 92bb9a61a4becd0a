"""Settings of generation_config.json: limits, stop strings, suppressed tokens; what is ignored."""

from __future__ import annotations

import logging

import pytest

from gptrs.errors import ModelError, UsageError
from gptrs_runtime.generation.generate import generate
from gptrs_runtime.generation.logits_processors import TokenRules
from gptrs_runtime.generation.model_settings import (
    configured_max_tokens,
    configured_rules,
    configured_sampling,
    configured_stops,
)
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.load import load_model
from runtime.tiny_gpt2 import save_tiny_gpt2

GREEDY = Sampling(temperature=0)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, None),
        ({"max_new_tokens": 7}, 7),
        ({"max_length": 12}, 9),
        ({"max_new_tokens": 7, "max_length": 12}, 7),
        ({"max_new_tokens": None, "max_length": None}, None),
    ],
)
def test_how_many_tokens_the_model_asks_for(settings, expected):
    assert configured_max_tokens(settings, prompt_length=3) == expected


def test_a_prompt_beyond_the_length_that_the_model_asks_for():
    with pytest.raises(UsageError, match=r"3 tokens, and `max_length` .* is 3"):
        configured_max_tokens({"max_length": 3}, prompt_length=3)


@pytest.mark.parametrize(
    ("settings", "top_k"),
    [
        ({"do_sample": True, "temperature": 0.6}, 50),
        ({"do_sample": True, "top_k": None}, 50),
        ({"do_sample": True, "top_k": 7}, 7),
        ({"do_sample": True, "top_k": 0}, None),
        ({"do_sample": False}, None),
        ({}, None),
    ],
)
def test_a_model_that_samples_does_so_among_as_many_tokens_as_in_transformers(settings, top_k):
    assert configured_sampling(settings, temperature=0.5).top_k == top_k
    assert configured_sampling(settings, temperature=0.5, top_k=0).top_k is None


def test_suppressed_tokens_are_read():
    settings = {
        "suppress_tokens": [1, 2],
        "begin_suppress_tokens": [3],
        "min_new_tokens": 4,
        "no_repeat_ngram_size": 2,
        "min_length": 9,
        "bad_words_ids": [[1], [2, 3]],
        "sequence_bias": [[[1], 0.5], [[2, 3], -4]],
        "encoder_repetition_penalty": 2,
        "encoder_no_repeat_ngram_size": 3,
        "forced_bos_token_id": 0,
        "forced_eos_token_id": [5, 6],
        "exponential_decay_length_penalty": [7, 1.5],
    }
    words = ((1,), (2, 3))
    expected = TokenRules(
        *((1, 2), (3,), 4, 2),
        min_length=9,
        bad_words=words,
        biases=tuple(zip(words, (0.5, -4), strict=True)),
        encoder_repetition_penalty=2,
        encoder_no_repeat_ngram_size=3,
        forced_first=(0,),
        forced_last=(5, 6),
        length_decay=(7, 1.5),
    )
    assert configured_rules(settings) == expected
    assert configured_rules({"suppress_tokens": None}) == TokenRules()


@pytest.mark.parametrize(
    ("settings", "stops"),
    [({}, ()), ({"stop_strings": "END"}, ("END",)), ({"stop_strings": ["a", "b"]}, ("a", "b"))],
)
def test_stop_strings_are_read(settings, stops):
    assert configured_stops(settings) == stops


@pytest.mark.parametrize(
    ("read", "settings"),
    [
        (configured_stops, {"stop_strings": 3}),
        (configured_stops, {"stop_strings": ["a", ""]}),
        (configured_rules, {"suppress_tokens": [-1]}),
        (configured_rules, {"suppress_tokens": 5}),
        (configured_rules, {"begin_suppress_tokens": ["a"]}),
        (configured_rules, {"min_new_tokens": 1.5}),
        (configured_rules, {"bad_words_ids": [1, [2]]}),
        (configured_rules, {"bad_words_ids": [[]]}),
        (configured_rules, {"bad_words_ids": "a"}),
        (configured_rules, {"no_repeat_ngram_size": -2}),
        (configured_rules, {"sequence_bias": [[5, 1.0]]}),
        (configured_rules, {"sequence_bias": [[[5], "a"]]}),
        (configured_rules, {"sequence_bias": {"5": 1.0}}),
        (configured_rules, {"encoder_repetition_penalty": 0}),
        (configured_rules, {"exponential_decay_length_penalty": 1.5}),
        (configured_rules, {"exponential_decay_length_penalty": [1.5, 2]}),
        (configured_rules, {"forced_eos_token_id": "a"}),
        (configured_sampling, {"do_sample": True, "top_k": 2.5}),
        (configured_sampling, {"min_p": 3}),
        (configured_sampling, {"repetition_penalty": 0}),
        (lambda settings: configured_max_tokens(settings, 1), {"max_new_tokens": "many"}),
    ],
)
def test_malformed_settings_name_the_file(read, settings):
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        read(settings)


def test_penalties_do_not_make_a_model_sample():
    assert configured_sampling({"repetition_penalty": 1.2}) == Sampling(
        temperature=0, repetition_penalty=1.2
    )
    assert configured_sampling({"repetition_penalty": 1.2}, repetition_penalty=1.0).greedy
    assert configured_sampling({}, min_p=0.1) == Sampling(min_p=0.1)


def test_what_is_not_supported_is_said_once(tmp_path, caplog):
    settings = {"max_time": 4, "top_h": 0.5, "dola_layers": None, "guidance_scale": None}
    model = load_model(save_tiny_gpt2(tmp_path / "beams", generation_config=settings), "ref")
    with caplog.at_level(logging.WARNING, "gptrs"):
        for _ in range(2):
            generate(model, [1], max_tokens=1, sampling=GREEDY)
    assert [record.getMessage() for record in caplog.records] == [
        "generation_config.json of `beams`: `top_h`, `max_time` are not supported and ignored"
    ]


def test_tokens_beyond_the_vocabulary_are_told_once(tmp_path, caplog):
    settings = {
        **{"bad_words_ids": [[1, 5], [7, 300]], "suppress_tokens": [2, 10**6]},
        **{"eos_token_id": [2, 301], "pad_token_id": 302, "bos_token_id": -1},
    }
    model = load_model(save_tiny_gpt2(tmp_path / "other", generation_config=settings), "ref")
    with caplog.at_level(logging.WARNING, "gptrs"):
        for _ in range(2):
            generate(model, [1], max_tokens=1, sampling=GREEDY)
    told = "generation_config.json of `other`: `{}` has tokens that are ignored, such as {}"
    size = model.causal_lm().vocab_size
    assert [record.getMessage() for record in caplog.records] == [
        f"{told.format(key, token)}: the vocabulary has {size}"
        for key, token in (
            *(("suppress_tokens", 10**6), ("bad_words_ids", 300)),
            *(("eos_token_id", 301), ("pad_token_id", 302)),
        )
    ]


def test_stop_strings_of_the_model_end_its_texts(model, tmp_path):
    whole = generate(model, [5, 9, 2], max_tokens=30, sampling=Sampling(seed=3), ignore_eos=True)
    stop = whole.text[6:9]
    settings = {"stop_strings": [stop]}
    ending = load_model(save_tiny_gpt2(tmp_path / "stop", generation_config=settings), "ref")
    cut = generate(ending, [5, 9, 2], max_tokens=30, sampling=Sampling(seed=3), ignore_eos=True)
    assert (cut.finish_reason, cut.text) == ("stop", whole.text[: whole.text.index(stop)])


def test_several_tokens_end_a_text(model, tmp_path):
    whole = generate(model, [5], max_tokens=20, sampling=Sampling(seed=2), ignore_eos=True)
    first, second = whole.token_ids[6], whole.token_ids[11]
    settings = {"eos_token_id": [second, first]}
    ending = load_model(save_tiny_gpt2(tmp_path / "ends", generation_config=settings), "ref")
    cut = generate(ending, [5], max_tokens=20, sampling=Sampling(seed=2))
    end = min(whole.token_ids.index(first), whole.token_ids.index(second))
    assert (cut.finish_reason, cut.token_ids) == ("eos", whole.token_ids[: end + 1])
