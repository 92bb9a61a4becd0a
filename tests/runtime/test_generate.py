"""Generation: budgets, the ways it ends, caching and chunks, errors before any work."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gptrs.errors import ContextLengthError, ModelError, UsageError
from gptrs_runtime.generation.generate import GenerationOptions, generate, stream
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.load import load_model
from runtime.tiny_gpt2 import save_tiny_gpt2

GREEDY = Sampling(temperature=0)
PROMPT = [5, 9, 2]


@pytest.fixture(scope="module")
def greedy(model):
    """The outcome of 20 greedy tokens, which other ways of asking must reproduce."""
    return generate(model, PROMPT, max_tokens=20, sampling=GREEDY, ignore_eos=True)


def test_the_budget_of_tokens_is_used_up(model, greedy):
    assert greedy.finish_reason == "length"
    assert len(greedy.token_ids) == 20
    assert greedy.prompt_token_ids == tuple(PROMPT)
    assert greedy.text == model.tokenizer.decode(greedy.token_ids)


def test_uncached_equals_cached(model, greedy):
    uncached = generate(
        model, PROMPT, max_tokens=20, sampling=GREEDY, ignore_eos=True, use_cache=False
    )
    assert uncached.token_ids == greedy.token_ids


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
def test_the_prompt_may_be_cut_into_chunks(model, chunk):
    prompt = list(range(1, 31))
    options = GenerationOptions(8, GREEDY, ignore_eos=True, prefill_chunk=chunk)
    pieces = stream(model, prompt, options)
    list(pieces)
    whole = generate(model, prompt, max_tokens=8, sampling=GREEDY, ignore_eos=True)
    assert pieces.generation.token_ids == whole.token_ids


def test_pieces_add_up_to_the_text(model):
    options = GenerationOptions(40, Sampling(seed=3), ignore_eos=True)
    pieces = stream(model, "the cat", options)
    assert "".join(pieces) == pieces.generation.text
    assert pieces.generation.text == model.tokenizer.decode(pieces.generation.token_ids)


def test_a_seed_repeats_the_text(model):
    def sample(seed: int) -> tuple[int, ...]:
        return generate(model, PROMPT, max_tokens=12, sampling=Sampling(seed=seed)).token_ids

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


def test_a_token_that_ends_the_text_ends_it(directory, tmp_path, greedy):
    end = greedy.token_ids[4]
    first = greedy.token_ids.index(end)
    ending = save_tiny_gpt2(tmp_path / "ending", generation_config={"eos_token_id": [299, end]})
    model = load_model(ending, backend="ref")
    result = generate(model, PROMPT, max_tokens=20, sampling=GREEDY)
    assert result.finish_reason == "eos"
    assert result.token_ids == greedy.token_ids[: first + 1]
    assert result.text == model.tokenizer.decode(result.token_ids[:-1])
    ignoring = generate(model, PROMPT, max_tokens=20, sampling=GREEDY, ignore_eos=True)
    assert ignoring.token_ids == greedy.token_ids


def test_tokens_more_end_a_text_and_none_does_too_early(model):
    prompt, greedy = [5, 9, 2], {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    free = generate(model, prompt, **greedy).token_ids
    end = free[4]
    first = free.index(end) + 1
    cut = generate(model, prompt, stop_tokens=[end, end], **greedy)
    assert (cut.token_ids, cut.finish_reason) == (free[:first], "eos")
    late = generate(model, prompt, stop_tokens=[end], min_tokens=first, **greedy)
    assert len(late.token_ids) > first
    assert end not in late.token_ids[:first]
    with pytest.raises(UsageError, match="token 5000 is not in the vocabulary"):
        generate(model, prompt, stop_tokens=[5000], **greedy)


def test_an_end_is_shown_only_where_it_is_a_special_token_that_is_shown(model):
    asked = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    free = generate(model, PROMPT, **asked).token_ids
    end = next(token for token in free if model.tokenizer.decode([token]))
    shown = frozenset({"<tool>"})
    cut = generate(model, PROMPT, **asked, stop_tokens=[end], special=shown)
    assert cut.token_ids[-1] == end
    assert cut.text == model.tokenizer.decode(cut.token_ids[:-1])


def test_a_stop_string_ends_the_text_before_it(model):
    sampling = Sampling(seed=11)
    whole = generate(model, PROMPT, max_tokens=40, sampling=sampling, ignore_eos=True)
    stop = whole.text[10:14]
    cut = generate(model, PROMPT, max_tokens=40, sampling=sampling, stop=[stop], ignore_eos=True)
    assert cut.finish_reason == "stop"
    assert cut.text == whole.text[: whole.text.index(stop)]
    asked = {"max_tokens": 40, "sampling": sampling, "ignore_eos": True, "keep_stop": True}
    assert generate(model, PROMPT, stop=[stop], **asked).text == cut.text + stop
    end = whole.token_ids[5]
    kept = generate(model, PROMPT, stop_tokens=[end], **asked)
    assert kept.text == model.tokenizer.decode(kept.token_ids)
    assert kept.token_ids == whole.token_ids[: whole.token_ids.index(end) + 1]
    assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
    assert len(cut.token_ids) < len(whole.token_ids)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(("more", "count"), [("", 2), ("b", 3)])
def test_a_stop_string_may_have_a_special_token_that_is_not_shown(model, more, count, special):
    one, other = (model.tokenizer.number(piece) for piece in "ab")
    (mark,) = model.tokenizer.special_pieces()

    def dictated(tokens, logits):
        wanted = [one, model.tokenizer.number(mark), other, one, one][tokens.size - 1]
        logits[:] = np.where(np.arange(logits.size) == wanted, logits, -np.inf)
        return logits

    options = {"max_tokens": 4, "stop": [mark + more], "special": special, "ignore_eos": True}
    found = generate(model, [one], **options, logits_processors=[dictated])
    assert (found.text, len(found.token_ids), found.finish_reason) == ("a", count, "stop")


def test_a_stream_that_is_left_early_tells_what_there_is(model):
    pieces = stream(model, PROMPT, GenerationOptions(30, Sampling(seed=1), ignore_eos=True))
    text = "".join(itertools.islice(pieces, 5))
    assert pieces.generation.finish_reason == "interrupted"
    assert pieces.generation.text == text
    assert len(pieces.generation.token_ids) == 5


def test_without_a_number_the_model_decides_how_many_tokens(tmp_path):
    settings = {"generation_config": {"max_new_tokens": 7}}
    model = load_model(save_tiny_gpt2(tmp_path / "seven", **settings), backend="ref")
    assert len(generate(model, PROMPT, sampling=GREEDY, ignore_eos=True).token_ids) == 7


def test_without_any_number_the_context_is_filled_at_most(model):
    assert len(generate(model, PROMPT, sampling=GREEDY, ignore_eos=True).token_ids) == 61


def test_the_context_can_be_filled_to_the_last_position(model):
    result = generate(model, PROMPT, max_tokens=61, sampling=GREEDY, ignore_eos=True)
    assert len(result.token_ids) == 61


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        ([1] * 65, None, "65 prompt tokens do not fit into the context of 64"),
        ([1] * 64, None, "64 prompt tokens do not fit"),
        ([1] * 3, 62, "3 prompt tokens and 62 new ones do not fit"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(model, prompt, max_tokens, message):
    with pytest.raises(ContextLengthError, match=message):
        stream(model, prompt, GenerationOptions(max_tokens))


@pytest.mark.parametrize("token", [-1, 300, 10**30])
def test_unknown_tokens_are_named(model, token):
    with pytest.raises(UsageError, match=f"token {token} is not in the vocabulary of 300 tokens"):
        stream(model, [1, token])


def test_an_empty_prompt_begins_with_the_token_that_begins_a_text(model):
    assert generate(model, "", max_tokens=2).prompt_token_ids == (0,)


def test_an_empty_prompt_needs_such_a_token(tmp_path):
    directory = save_tiny_gpt2(tmp_path / "no_bos", bos_token_id=None)
    with pytest.raises(UsageError, match="the prompt is empty"):
        stream(load_model(directory, backend="ref"), "")


def test_a_prompt_that_is_not_unicode_is_refused(model):
    with pytest.raises(UsageError, match="not valid Unicode at character 1"):
        stream(model, "a\udc80")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "`max_tokens` must be at least 1"),
        ({"prefill_chunk": 0}, "prefill chunk must be at least 1"),
        ({"stop": ["a", ""]}, "stop string must not be empty"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        GenerationOptions(**options)


def test_a_model_without_tokenizer_takes_and_gives_tokens(tmp_path):
    model = load_model(save_tiny_gpt2(tmp_path / "bare", tokenizer=False), backend="ref")
    result = generate(model, PROMPT, max_tokens=5, sampling=GREEDY, ignore_eos=True)
    assert (result.text, len(result.token_ids)) == ("", 5)
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        stream(model, "text")
    with pytest.raises(UsageError, match="stop strings need a model with a tokenizer"):
        stream(model, PROMPT, GenerationOptions(stop=["x"]))


def test_timings_say_what_happened(model):
    one = generate(model, PROMPT, max_tokens=1, sampling=GREEDY).timings
    assert one.decode_tokens_per_s is None
    assert one.first_token_s > 0
    assert one.prompt_tokens_per_s == pytest.approx(3 / one.first_token_s)
    assert one.load_s == model.load_seconds
    more = generate(model, PROMPT, max_tokens=4, sampling=GREEDY, ignore_eos=True).timings
    assert more.decode_tokens_per_s > 0
    unstarted = stream(model, PROMPT).generation.timings
    assert (unstarted.first_token_s, unstarted.prompt_tokens_per_s) == (None, None)
