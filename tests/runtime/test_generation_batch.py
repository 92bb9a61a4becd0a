"""Batches of unequal prompts, and several texts for one: each the text that it is alone."""

from __future__ import annotations

import itertools

import pytest

from gptrs.errors import ContextLengthError, UsageError
from gptrs_runtime.generation.batch import Batches, Task
from gptrs_runtime.generation.generate import (
    GenerationOptions,
    generate_batch,
    generate_several,
    stream,
)
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.load import load_model
from runtime.tiny_gpt2 import save_tiny_gpt2

PROMPTS = [[5, 9, 2], [7], list(range(1, 31)), [4] * 12, [250, 3], [8, 8]]
GREEDY = Sampling(temperature=0)


def alone(model, prompt, options):
    pieces = stream(model, prompt, options)
    list(pieces)
    return pieces.generation


def outcome(generation):
    return (generation.text, generation.token_ids, generation.finish_reason)


def assert_as_alone(model, prompts, options, batch_size=4):
    together = generate_batch(model, prompts, options, batch_size=batch_size)
    assert [g.prompt_token_ids for g in together] == [tuple(prompt) for prompt in prompts]
    for prompt, generation in zip(prompts, together, strict=True):
        assert outcome(generation) == outcome(alone(model, prompt, options))


@pytest.fixture(scope="module")
def on_backend(directory, backend):
    return load_model(directory, backend=backend.name)


def test_greedy_texts_on_every_backend(on_backend):
    assert_as_alone(on_backend, PROMPTS, GenerationOptions(20, GREEDY, ignore_eos=True))


@pytest.mark.sample(16)
@pytest.mark.parametrize("batch_size", [1, 2, 6, pytest.param(50, marks=pytest.mark.long)])
def test_any_batch_size(model, batch_size):
    options = GenerationOptions(12, Sampling(seed=3, repetition_penalty=1.3), ignore_eos=True)
    assert_as_alone(model, PROMPTS, options, batch_size)


def test_texts_that_end_leave_the_others_alone(model, tmp_path):
    settings = {"eos_token_id": list(range(0, 300, 9))}
    ending = load_model(save_tiny_gpt2(tmp_path / "ending", generation_config=settings), "ref")
    options = GenerationOptions(25, Sampling(seed=5, temperature=3.0))
    assert_as_alone(ending, PROMPTS, options, 6)
    lengths = {len(g.token_ids) for g in generate_batch(ending, PROMPTS, options, batch_size=6)}
    assert len(lengths) > 2, "the test needs texts that end at different times"


@pytest.mark.long
def test_the_context_of_each_text_can_be_filled(model):
    batches = Batches(
        model,
        [Task([1] * 60, "a", 4), Task([5, 9], "b", 62), Task([7] * 9, "c", 55)],
        GenerationOptions(sampling=GREEDY, ignore_eos=True),
        3,
    )
    found = dict(batches)
    for number, (prompt, count) in enumerate([([1] * 60, 4), ([5, 9], 62), ([7] * 9, 55)]):
        expected = alone(model, prompt, GenerationOptions(count, GREEDY, ignore_eos=True))
        assert outcome(found[number]) == outcome(expected)


@pytest.mark.long
def test_contexts_may_shift_in_a_batch(model):
    options = GenerationOptions(90, GREEDY, ignore_eos=True, context_shift=True, keep=2)
    assert_as_alone(model, PROMPTS[:3], options)


def test_a_batch_without_cache(model):
    options = GenerationOptions(8, GREEDY, ignore_eos=True, use_cache=False)
    cached = GenerationOptions(8, GREEDY, ignore_eos=True)
    for without, with_cache in zip(
        generate_batch(model, PROMPTS, options),
        generate_batch(model, PROMPTS, cached),
        strict=True,
    ):
        assert without.token_ids == with_cache.token_ids


def test_texts_come_when_they_end(model):
    tasks = [Task([5], "a", 9), Task([6], "b", 2), Task([7], "c", 5), Task([8], "d", 1)]
    batches = Batches(model, tasks, GenerationOptions(sampling=GREEDY, ignore_eos=True), 3)
    assert [number for number, _ in batches] == [1, 3, 2, 0], "the fourth begins after the second"


def test_what_there_is_of_unfinished_texts(model):
    tasks = [Task([5], "a", 9), Task([6], "b", 2)]
    batches = Batches(model, tasks, GenerationOptions(sampling=GREEDY, ignore_eos=True), 2)
    list(itertools.islice(batches, 1))
    ((number, rest),) = batches.unfinished
    assert (number, len(rest.token_ids), rest.finish_reason) == (0, 2, "interrupted")


@pytest.mark.parametrize(
    ("prompts", "error", "message"),
    [
        ([[1], [1, 999]], UsageError, "prompt 1: token 999 is not in the vocabulary"),
        ([[1] * 64, [2]], ContextLengthError, "prompt 0: 64 prompt tokens do not fit"),
    ],
)
def test_all_prompts_are_checked_before_any_work(model, prompts, error, message):
    with pytest.raises(error, match=message):
        generate_batch(model, prompts)


def test_no_prompts_give_no_texts(model):
    assert generate_batch(model, []) == []
    with pytest.raises(UsageError, match="batch size must be at least 1"):
        generate_batch(model, [[1]], batch_size=0)
    with pytest.raises(UsageError, match="a prompt cache is for one prompt"):
        generate_batch(model, [[1]], GenerationOptions(prompt_cache="x.safetensors"))


def test_several_texts_for_one_prompt(model):
    options = GenerationOptions(12, Sampling(seed=7), ignore_eos=True)
    texts = generate_several(model, [5, 9, 2], 4, options)
    assert outcome(texts[0]) == outcome(alone(model, [5, 9, 2], options))
    assert len({text.token_ids for text in texts}) == 4, "each draws by itself"
    again = generate_several(model, [5, 9, 2], 2, options)
    assert [text.token_ids for text in again] == [text.token_ids for text in texts[:2]]
    greedy = GenerationOptions(12, GREEDY, ignore_eos=True)
    assert len({text.token_ids for text in generate_several(model, [5], 3, greedy)}) == 1
    with pytest.raises(UsageError, match="number of texts must be at least 1"):
        generate_several(model, [5], 0)
