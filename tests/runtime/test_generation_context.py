"""A full context: refused, or shifted; fixed room; prompts in files; special tokens in texts."""

from __future__ import annotations

import numpy as np
import pytest

from gptrs.errors import CheckpointError, ContextLengthError, UsageError
from gptrs.runtime.generation.context import Context, ContextLimit
from gptrs.runtime.generation.generate import GenerationOptions, generate_several, stream
from gptrs.runtime.generation.prompt_cache import load_prompt_cache
from gptrs.runtime.generation.sampling import Sampling
from gptrs.runtime.load import load_model
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


def test_a_fixed_context_has_all_its_room_at_once(model):
    pieces = stream(model, [5, 9, 2], GenerationOptions(4, GREEDY, ignore_eos=True, context=33))
    next(pieces)
    cache = pieces.prompt_cache().cache
    assert (cache.capacity, cache.limit) == (33, 33)
    assert {keys.shape[2] for keys, _ in cache.buffers} == {33}


@pytest.mark.parametrize("context", [None, 40])
def test_a_prompt_is_kept_in_a_file(model, tmp_path, context):
    file = tmp_path / "prompt.safetensors"
    prompt = [5, 9, 2, 7, 7, 1]
    asked = {"prompt_cache": file, "context": context}
    first = generated(model, prompt, 6, **asked)
    assert load_prompt_cache(file, model).tokens == tuple(prompt)
    stored = file.read_bytes()
    assert generated(model, prompt, 6, **asked).token_ids == first.token_ids
    assert file.read_bytes() == stored, "the same prompt is not written again"
    longer = [*prompt, 3, 4]
    assert generated(model, longer, 6, **asked).token_ids == generated(model, longer, 6).token_ids
    assert load_prompt_cache(file, model).tokens == tuple(longer)
    several = GenerationOptions(6, GREEDY, ignore_eos=True, **asked)
    texts = generate_several(model, prompt, 2, several)
    assert [text.token_ids for text in texts] == [first.token_ids] * 2


def test_what_is_in_the_file_is_not_read_again(model, tmp_path, monkeypatch):
    file = tmp_path / "prompt.safetensors"
    prompt = list(range(1, 31))
    expected = generated(model, prompt, 3, prompt_cache=file).token_ids
    steps = []
    lm = model.causal_lm()
    step = lm.step
    monkeypatch.setattr(
        lm, "step", lambda tokens, cache: steps.append(tokens) or step(tokens, cache)
    )
    assert generated(model, prompt, 3, prompt_cache=file).token_ids == expected
    assert [tokens.shape[1] for tokens in steps] == [1, 1, 1]


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
        ({"keep": -1, "context_shift": True}, "keep must be at least 0"),
        ({"context": 0}, "the context must be at least 1"),
        ({"logprobs": -1}, "logprobs must be at least 0"),
        ({"prompt_cache": "a", "use_cache": False}, "a prompt cache needs a cache"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        GenerationOptions(**options)


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
