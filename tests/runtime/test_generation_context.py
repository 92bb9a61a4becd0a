"""A full context: refused, or shifted; fixed room; prompts in files; special tokens in texts."""

from __future__ import annotations

import numpy as np
import pytest

from gptrs.errors import CacheBudgetError, CheckpointError, ContextLengthError, UsageError
from gptrs.ir import dtypes
from gptrs_runtime.generation.context import Context, ContextLimit
from gptrs_runtime.generation.generate import (
    GenerationOptions,
    generate_batch,
    generate_several,
    stream,
)
from gptrs_runtime.generation.paged_cache import paged_cache
from gptrs_runtime.generation.prompt_cache import load_prompt_cache
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.load import load_model
from runtime.steps import rows_of_steps
from runtime.tiny_gpt2 import END, save_tiny_gpt2

GREEDY = Sampling(temperature=0)


def generated(model, prompt, max_tokens, **options):
    options = {"sampling": GREEDY, "ignore_eos": True, **options}
    pieces = stream(model, prompt, GenerationOptions(max_tokens, **options))
    list(pieces)
    return pieces.generation


@pytest.mark.parametrize(
    ("keep", "expected"), [(0, [6, 7, 8, 9, 10]), (2, [0, 1, 7, 8, 9, 10]), (7, [*range(7), 10])]
)
def test_what_stays_when_a_context_shifts(keep, expected):
    context = Context(range(10), ContextLimit(10, shift=True, keep=keep))
    assert not context.moved
    context.append(10)
    assert context.moved
    assert context.tokens == expected


def test_a_shift_must_forget_something():
    with pytest.raises(UsageError, match="at most 8 can be kept"):
        ContextLimit(10, shift=True, keep=9)


@pytest.mark.long
def test_texts_go_on_beyond_the_context(model):
    # What is generated after each shift is what the shortened text alone gives.
    done = generated(model, [5, 9, 2], 100, context_shift=True, keep=3)
    assert len(done.token_ids) == 100
    tokens = [5, 9, 2]
    for token in done.token_ids:
        if len(tokens) > 64:
            tokens = [*tokens[:3], *tokens[-30:]]
        assert int(model.forward(np.array([tokens]))[0, -1].argmax()) == token
        tokens.append(token)
    uncached = generated(model, [5, 9, 2], 100, context_shift=True, keep=3, use_cache=False)
    assert uncached.token_ids == done.token_ids


def test_a_prompt_that_is_too_long_shifts_at_once(model):
    prompt = np.random.default_rng(0).integers(0, 300, 200).tolist()
    done = generated(model, prompt, 5, context_shift=True, keep=4)
    assert done.prompt_token_ids == tuple(prompt)
    kept = [*prompt[:4], *prompt[-30:]]
    assert done.token_ids == generated(model, kept, 5).token_ids


def test_a_smaller_context_is_the_limit(model):
    whole = generated(model, [5, 9, 2], 17)
    assert generated(model, [5, 9, 2], 17, context=20).token_ids == whole.token_ids
    with pytest.raises(ContextLengthError, match="3 prompt tokens and 18 new ones do not fit"):
        generated(model, [5, 9, 2], 18, context=20)
    with pytest.raises(ContextLengthError, match="context of 64 tokens, asked for 65"):
        generated(model, [5], 1, context=65)


def saved_tokens(file, model):
    return load_prompt_cache(file, model, paged_cache(model, dtypes.f32, None)).tokens


@pytest.mark.parametrize("context", [None, 40])
def test_a_prompt_is_kept_in_a_file(model, tmp_path, context):
    file = tmp_path / "prompt.safetensors"
    prompt = [5, 9, 2, 7, 7, 1]
    asked = {"prompt_cache": file, "context": context}
    first = generated(model, prompt, 6, **asked)
    assert saved_tokens(file, model) == tuple(prompt)
    stored = file.read_bytes()
    assert generated(model, prompt, 6, **asked).token_ids == first.token_ids
    assert file.read_bytes() == stored, "the same prompt is not written again"
    longer = [*prompt, 3, 4]
    assert generated(model, longer, 6, **asked).token_ids == generated(model, longer, 6).token_ids
    assert saved_tokens(file, model) == tuple(longer)
    several = GenerationOptions(6, GREEDY, ignore_eos=True, **asked)
    texts = generate_several(model, prompt, 2, several)
    assert [text.token_ids for text in texts] == [first.token_ids] * 2


def test_what_is_in_the_file_is_not_read_again(model, directory, tmp_path, monkeypatch):
    file = tmp_path / "prompt.safetensors"
    prompt = list(range(1, 41))
    expected = generated(model, prompt, 3, prompt_cache=file).token_ids
    other = load_model(directory, "ref")
    read = rows_of_steps(other, monkeypatch)
    assert generated(other, prompt, 3, prompt_cache=file).token_ids == expected
    assert read == [1, 1, 1]


def test_files_that_cannot_be_used_are_refused_before_any_work(model, tmp_path):
    file = tmp_path / "prompt.safetensors"
    other = load_model(save_tiny_gpt2(tmp_path / "other", n_head=2), "ref")
    generated(other, [5, 9], 1, prompt_cache=file)
    with pytest.raises(CheckpointError, match="another model"):
        stream(model, [5, 9], GenerationOptions(1, prompt_cache=file))
    with pytest.raises(CheckpointError, match="folder does not exist"):
        stream(model, [5], GenerationOptions(1, prompt_cache=tmp_path / "no" / "p.safetensors"))
    with pytest.raises(UsageError, match="names no format"):
        stream(model, [5], GenerationOptions(1, prompt_cache=tmp_path / "prompt.bin"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 3}, "add --context-shift"),
        ({"keep": -1, "context_shift": True}, "`keep` must be at least 0"),
        ({"context": 0}, "the context must be at least 1"),
        ({"logprobs": -1}, "`logprobs` must be at least 0"),
        ({"prompt_cache": "a", "use_cache": False}, "a prompt cache needs a cache"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        GenerationOptions(**options)


@pytest.mark.long
def test_texts_keep_to_the_budget_of_the_cache(model):
    # A page takes 2 layers * 2 * 32 positions * 32 components * 4 bytes = 16 KiB.
    small = {"cache_budget": "48KiB"}
    whole = generated(model, [5, 9, 2], 60)
    assert generated(model, [5, 9, 2], 60, **small).token_ids == whole.token_ids
    half = {"cache_budget": "32KiB"}
    with pytest.raises(
        CacheBudgetError, match=r"62 positions takes 32768 bytes.*raise --cache-bud"
    ):
        generated(model, [5, 9, 2], 60, **half)
    prompts = [[5, 9, 2], [7] * 9, [3]]
    options = GenerationOptions(20, GREEDY, ignore_eos=True, **half)
    alone = [generated(model, prompt, 20).token_ids for prompt in prompts]
    assert [g.token_ids for g in generate_batch(model, prompts, options)] == alone, "they wait"
    several = generate_several(model, prompts[0], 3, options)
    assert {text.token_ids for text in several} == {alone[0]}
    with pytest.raises(CacheBudgetError, match="prompt 1: a text of 59 positions"):
        generate_batch(model, [[1], [2] * 40], options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache_dtype": "f64"}, "elements of f32, bf16, f16, q8, got `'f64'`"),
        ({"cache_budget": "much"}, "must be a size above 0, found `'much'`"),
        ({"cache_budget": "1kB"}, r"cache of 1 kB holds no page of 32 positions"),
    ],
)
def test_a_cache_that_makes_no_sense_is_refused(model, options, message):
    with pytest.raises(UsageError, match=message):
        stream(model, [5], GenerationOptions(**options))


def test_the_environment_may_describe_the_cache(model, monkeypatch):
    monkeypatch.setenv("GPTRS_CACHE_BUDGET", "32KiB")
    monkeypatch.setenv("GPTRS_CACHE_DTYPE", "bf16")
    assert len(generated(model, [5, 9, 2], 60).token_ids) == 60, "bf16 takes half of the room"
    with pytest.raises(CacheBudgetError):
        generated(model, [5, 9, 2], 60, cache_dtype="f32")


@pytest.mark.parametrize("dtype", ["bf16", "f16", "q8"])
def test_the_cache_may_have_smaller_elements(model, dtype):
    whole = generated(model, [5, 9, 2], 12, logprobs=1)
    small = generated(model, [5, 9, 2], 12, logprobs=1, cache_dtype=dtype)
    exact, rounded = (done.logprobs[1].logprob for done in (whole, small))
    assert exact != rounded
    assert exact == pytest.approx(rounded, abs=0.1)


def test_a_stream_that_is_not_finished_keeps_its_pages(model):
    options = GenerationOptions(20, GREEDY, ignore_eos=True, cache_budget="32KiB")
    first = stream(model, [5, 9, 2], options)
    next(first)
    second = stream(model, [7], options)
    with pytest.raises(CacheBudgetError, match="other texts that have not ended hold"):
        next(second)
    first.close()
    assert len(list(stream(model, [7], options))) == 20


def test_special_tokens_are_shown_where_asked(model, tmp_path):
    whole = generated(model, [5], 20, sampling=Sampling(seed=2))
    end = whole.token_ids[7]
    settings = {"eos_token_id": end}
    ending = load_model(save_tiny_gpt2(tmp_path / "end", generation_config=settings), "ref")
    asked = {"sampling": Sampling(seed=2), "ignore_eos": False}
    hidden, shown = (generated(ending, [5], 20, special=s, **asked) for s in (False, True))
    assert hidden.token_ids == shown.token_ids
    assert hidden.text == model.tokenizer.decode(hidden.token_ids[:-1])
    assert shown.text == model.tokenizer.decode(shown.token_ids, special=True)
    assert model.tokenizer.decode([0], special=True) == END
    assert model.tokenizer.decode([0]) == ""
