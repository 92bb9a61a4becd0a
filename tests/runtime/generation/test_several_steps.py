"""Several steps in one run of the model give the texts that they give one by one."""

from __future__ import annotations

import random
from typing import cast

import numpy as np
import pytest
from msgspec.structs import replace

import gptrs
from gptrs.capture.backend_calls import steps_at_once
from gptrs.errors import ExecutionError, PluginError
from gptrs.ir import dtypes
from gptrs.nn import CausalLMModule
from gptrs.nn.greedy_steps import greedy_steps
from gptrs.nn.page_buffers import PagedTexts
from gptrs.nn.ragged_step import own_pages, ragged_step
from gptrs.plugins.capabilities import RepeatingLM
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.generation.setup import GenerationSetup
from runtime.generation.fake_lm import VOCABULARY, FakeBackend, FakeLM, FakeModel, LoopingBackend
from runtime.generation.tiny_lms import save_tiny_lm

GREEDY = Sampling(temperature=0.0)


class Texts:
    """Random texts of a model whose backend takes 5 steps at once; a few draw their tokens."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.windows = self.rng.choice([(None,), (40,), (None, 33), (7, None)])
        self.model = FakeModel(self.windows, LoopingBackend())
        shift = self.rng.random() < 0.3
        options = GenerationOptions(
            sampling=GREEDY,
            prefill_chunk=self.rng.choice([3, 64, 256]),
            context=self.rng.choice([70, 110] if shift else [140, 200]),
            context_shift=shift,
            keep=self.rng.choice([0, 3, 40]) if shift else 0,
        )
        drawn = replace(options, sampling=Sampling(temperature=0.7, seed=3))
        self.setups = [GenerationSetup(self.model, each) for each in (options, drawn)]

    def new(self, draws=0.1):
        setup = self.setups[self.rng.random() < draws]
        prompt = [self.rng.randrange(1, VOCABULARY) for _ in range(self.rng.randint(1, 60))]
        return setup.new_text(prompt, self.rng.randint(1, 40)), setup.options

    def expected(self, text, options):
        """The tokens and the reason of a text on a backend that takes one step at a time."""
        alone = GenerationSetup(FakeModel(self.windows), options)
        made = alone.new_text(text.prompt, text._max_tokens)
        run(alone.new_scheduler(), made)
        return made.tokens, made.reason


def run(scheduler, *texts):
    for text in texts:
        scheduler.add(text)
    while scheduler.busy:
        scheduler.step()


@pytest.mark.sample(16)
@pytest.mark.parametrize("seed", range(40))
def test_random_texts_that_come_and_go(seed):
    texts = Texts(seed)
    scheduler = texts.setups[0].new_scheduler(texts.rng.choice([None, 2, 5]))
    made, interrupts = [], 0
    while len(made) < 7 or scheduler.busy:
        if len(made) < 7 and texts.rng.random() < 0.5:
            made.append(texts.new())
            scheduler.add(made[-1][0])
        if texts.rng.random() < 0.1 and interrupts < 4:
            texts.model.lm.fails = KeyboardInterrupt()
            texts.model.lm.loses_pages = texts.rng.random() < 0.5
        try:
            scheduler.step()
        except KeyboardInterrupt:
            interrupts += 1
    for text, options in made:
        assert (text.tokens, text.reason) == texts.expected(text, options)
    assert texts.setups[0].cache is not None
    assert all(not group.held for group in texts.setups[0].cache.pool.groups)


def ran(options, backend=None, prompt=(1, 2, 3)):
    """Return how many steps a text takes one by one, and in how many runs it takes several."""
    model = FakeModel((None,), backend or LoopingBackend())
    setup = GenerationSetup(model, options)
    run(setup.new_scheduler(), setup.new_text(prompt))
    assert isinstance(model.lm, FakeLM)
    return len(model.lm.steps), [int(steps.limit) for steps in model.lm.greedy]


PLAIN = GenerationOptions(13, GREEDY, ignore_eos=True)


@pytest.mark.parametrize(
    ("options", "steps", "runs"),
    [
        (PLAIN, 1, [5, 5, 2]),
        (replace(PLAIN, steps_at_once=3), 1, [3] * 4),
        (replace(PLAIN, steps_at_once=99), 1, [5, 5, 2]),
        (PLAIN.for_stream(), 13, []),
        (replace(PLAIN, steps_at_once=4).for_stream(), 1, [4] * 3),
        (replace(PLAIN, sampling=Sampling(top_k=1)), 1, [5, 5, 2]),
        (replace(PLAIN, sampling=Sampling(seed=1)), 13, []),
        (replace(PLAIN, logprobs=0), 13, []),
        (replace(PLAIN, logits_processors=[lambda tokens, logits: logits]), 13, []),
        (replace(PLAIN, sampling=replace(GREEDY, repetition_penalty=1.1)), 13, []),
    ],
)
def test_texts_that_nobody_looks_at_take_several_steps(options, steps, runs):
    assert ran(options) == (steps, runs)
    assert ran(options, FakeBackend()) == (13, [])


def test_a_text_that_streams_holds_the_others_to_single_steps():
    model = FakeModel((None,), LoopingBackend())
    setups = [GenerationSetup(model, options) for options in (PLAIN, PLAIN.for_stream())]
    texts = [setup.new_text([1, 2, 3]) for setup in setups]
    scheduler = setups[0].new_scheduler()
    run(scheduler, *texts)
    assert texts[0].tokens == texts[1].tokens
    assert not model.lm.greedy


def test_the_first_steps_of_a_model_are_single_ones():
    class Patient(LoopingBackend):
        single_steps_first = 4

    model = FakeModel((None,), Patient())
    setup = GenerationSetup(model, PLAIN)
    for _ in range(2):
        run(setup.new_scheduler(), setup.new_text([1, 2, 3]))
    assert len(model.lm.steps) == 1 + 4 + 1, "those of prompts are more"
    assert [int(steps.limit) for steps in model.lm.greedy] == [5, 3, 5, 5, 2]


def test_a_run_is_short():
    """As many steps as take 50 ms: new texts and cancellations wait for its end."""
    model = FakeModel((None,), LoopingBackend())
    setup = GenerationSetup(model, PLAIN)
    assert setup.cache is not None
    for _ in range(2):
        setup.cache.times.record(1, 0.02)
    run(setup.new_scheduler(), setup.new_text([1, 2, 3]))
    assert [int(steps.limit) for steps in model.lm.greedy] == [2] * 6


def test_a_backend_asks_for_one_step_at_least():
    class NoSteps(FakeBackend):
        steps_at_once = 0

    with pytest.raises(PluginError, match="`steps_at_once` of backend `fake` is 0"):
        steps_at_once(NoSteps())


def texts_of(model, options):
    prompts = [[5, 6, 7], list(range(40)), [9] * 30]
    return [made.token_ids for made in gptrs.generate_batch(model, prompts, options)]


def counted_runs(monkeypatch):
    """Return a list that gets the number of steps of each run."""
    counts = []
    whole = CausalLMModule.greedy_steps

    def counted(self, steps, buffers):
        counts.append(int(steps.limit))
        return whole(self, steps, buffers)

    monkeypatch.setattr(CausalLMModule, "greedy_steps", counted)
    return counts


@pytest.mark.long
@pytest.mark.parametrize("variant", ["gpt2", "qwen2"])
def test_real_models(variant, tmp_path, backend, monkeypatch):
    """Texts of unequal lengths, over the end of a page and in windows."""
    folder = save_tiny_lm(tmp_path, variant, dtypes.f32)
    options = GenerationOptions(11, GREEDY, ignore_eos=True)
    by_one = texts_of(gptrs.load_model(folder, backend), options.for_stream())
    monkeypatch.setattr(type(backend), "steps_at_once", 4, raising=False)
    monkeypatch.setattr(type(backend), "single_steps_first", 0)
    counts = counted_runs(monkeypatch)
    assert texts_of(gptrs.load_model(folder, backend), options) == by_one
    assert counts == [4, 4, 2]


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"weights": "q4"},
        {"weights": "q8", "precision": "f32"},
        {"weights": "q4", "precision": "bf16"},
    ],
)
def test_weights_of_each_type_give_the_same_bits(how):
    """In a loop, kernels read the same stored weights, so that logits are equal bit for bit."""
    lm = gptrs.load_model("demo", "numba", **how).causal_lm()
    prompts = [[5, 11, 2], [19, 7, 3]]
    texts = PagedTexts(lm, 2, 64)
    start = tokens = texts.append(prompts).argmax(-1)
    first = ragged_step(tokens[:, None], texts.lengths, [own_pages(2, 64)])
    logits = []
    for _ in range(3):
        logits.append(texts.append(tokens[:, None]))
        tokens = logits[-1].argmax(-1)
    texts = PagedTexts(lm, 2, 64)
    assert np.array_equal(texts.append(prompts).argmax(-1), start)
    steps = greedy_steps(first, [3] * 2, [frozenset()] * 2, 3, 16)
    found = cast("RepeatingLM", lm).greedy_steps(steps, texts.buffers)
    assert np.array_equal(found.tokens[:3], [each.argmax(-1) for each in logits])
    assert np.array_equal(found.logits[:3], [each.max(-1) for each in logits])


def test_states_that_take_nothing_back_go_step_by_step(tmp_path, monkeypatch):
    folder = save_tiny_lm(tmp_path, "mamba", dtypes.f32)
    backend = gptrs.get_backend("ref")
    monkeypatch.setattr(type(backend), "steps_at_once", 4, raising=False)
    counts = counted_runs(monkeypatch)
    texts_of(gptrs.load_model(folder, backend), GenerationOptions(4, GREEDY, ignore_eos=True))
    assert not counts


def test_a_logit_that_is_not_finite_is_an_error():
    model = FakeModel((None,), LoopingBackend())
    setup = GenerationSetup(model, PLAIN)
    scheduler, text = setup.new_scheduler(), setup.new_text([1, 2, 3])
    scheduler.add(text)
    scheduler.step()
    whole = model.lm._repeated

    def broken(step, buffers):
        logits = whole(step, buffers)
        return np.where(step.lengths[:, None] == 6, np.nan, logits).astype(np.float32)

    model.lm._repeated = broken
    (grown,) = scheduler.step()
    assert grown[0] is text
    assert len(text.tokens) == 3, "those before it come first"
    with pytest.raises(ExecutionError, match="the largest logit of the next token is nan"):
        scheduler.step()
