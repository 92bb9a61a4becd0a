"""Guessing ahead: every token is the one that comes without it, whatever is guessed."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import asdict

from gptrs.errors import UsageError
from gptrs.ir import dtypes
from gptrs_runtime.generation import scheduler
from gptrs_runtime.generation.generate import generate
from gptrs_runtime.generation.guessing import draft as draft_guesses
from gptrs_runtime.generation.guessing.draft import Balance, Odds, best_length
from gptrs_runtime.generation.guessing.guesser import PromptLookup
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.generation.setup import GenerationSetup
from gptrs_runtime.generation.step_times import StepTimes
from gptrs_runtime.load import load_model
from gptrs_runtime.serving.engine import Engine
from runtime.generation.fake_lm import VOCABULARY, FakeLM, FakeModel
from runtime.generation.tiny_lms import save_tiny_lm
from runtime.serving_models import PromptedModel
from support.guesses import guess_any_length

KINDS = [(None,), (40,), (None, 33), (7, None)]


class RepeatingLM(FakeLM):
    """Likes to go on as it did after the last token came before."""

    seconds = 0.0
    """The time that its steps take."""

    def step(self, step, buffers):
        self.seconds += 4 + len(step.tokens)
        return super().step(step, buffers)

    def _logits(self, step, buffers, text):
        logits = super()._logits(step, buffers, text)
        length, table = int(step.lengths[text]), step.page_tables[-1][text]
        seen = buffers.pools[-1][table].reshape(-1)[:length]
        places = np.flatnonzero(seen[:-1] == seen[-1])
        if len(places):
            logits[seen[places[-1] + 1] % self.vocab_size] += 14
        return logits


def fake_model(windows=(None,), lm=RepeatingLM, model=FakeModel):
    made = model(windows)
    made.lm = lm(windows)
    return made


@pytest.fixture
def any_length(monkeypatch):
    """Guesses of any length, whether they pay or not."""
    guess_any_length(monkeypatch, 11)


def finished(scheduler, texts):
    for text in texts:
        scheduler.add(text)
    steps = 0
    while scheduler.busy:
        told = [text for text, _ in scheduler.step()]
        assert len(set(map(id, told))) == len(told), "a text is told once a step"
        steps += 1
    return steps


@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", range(24))
def test_texts_are_those_without_guesses(seed, any_length):
    """Lookup, drafts good and bad, windows, shifting contexts, company, interrupts."""
    rng = random.Random(seed)
    windows = rng.choice(KINDS)
    model = fake_model(windows)
    shifts = rng.random() < 0.4
    plain = GenerationOptions(
        sampling=Sampling(rng.choice([0, 0.8]), seed=seed, repetition_penalty=1.01),
        context=rng.choice([60, 90]) if shifts else 200,
        context_shift=shifts,
        keep=rng.choice([0, 5]) if shifts else 0,
        prefill_chunk=rng.choice([9, 64]),
        logprobs=1,
        ignore_eos=rng.random() < 0.5,
    )
    drafts = [None, fake_model(windows), fake_model((None,), FakeLM), fake_model((12,))]
    setups = []
    for draft in drafts:
        fields = {
            **asdict(plain),
            "draft": draft,
            "prompt_lookup": draft is None or rng.random() < 0.3,
        }
        setups.append(GenerationSetup(model, GenerationOptions(**fields)))
    alone = GenerationSetup(fake_model(windows), plain)
    start = [rng.randrange(1, VOCABULARY) for _ in range(20)]
    texts, expected = [], []
    for number in range(8):
        prompt = [*start * rng.randint(0, 2), *start[: rng.randint(1, 9)]]
        count = rng.randint(1, 50)
        texts.append(rng.choice(setups).new_text(prompt, count, number))
        same = alone.new_text(prompt, count, number)
        finished(alone.new_scheduler(), [same])
        expected.append(same.generation())
    model.lm.fails = rng.choice([None, MemoryError()])
    model.lm.loses_pages = rng.random() < 0.5
    scheduler = setups[0].new_scheduler(rng.choice([2, None]))
    try:
        finished(scheduler, texts)
    except MemoryError:
        finished(scheduler, [])
    for text, same in zip(texts, expected, strict=True):
        made = text.generation()
        assert (made.token_ids, made.finish_reason) == (same.token_ids, same.finish_reason)
        assert made.logprobs == same.logprobs
    for setup in setups:
        for cache in filter(None, (setup.cache, setup._draft)):
            assert all(group.held == group.reserved == 0 for group in cache.pool.groups)


def test_what_comes_true_saves_steps(any_length):
    model = fake_model()
    for options in (
        GenerationOptions(sampling=Sampling(0), prompt_lookup=True),
        GenerationOptions(sampling=Sampling(0.5, seed=3), draft=fake_model()),
    ):
        setup = GenerationSetup(model, options)
        text = setup.new_text([1, 2, 3, 4, 5] * 4, 60)
        steps = finished(setup.new_scheduler(), [text])
        counts = text.generation().guesses
        assert counts is not None
        assert len(text.tokens) == steps + counts.accepted
        assert counts.accepted > 25


@pytest.mark.long
def test_sampling_keeps_the_distribution(any_length):
    """The third token of many texts is as frequent as the model says."""
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.1]))

    class SmallLM(FakeLM):
        vocab_size = 4

        def _logits(self, step, buffers, text):
            last = int(step.tokens[step.row_starts[text + 1] - 1])
            return np.roll(logits, last).astype(np.float32)

    class OtherLM(SmallLM):
        def _logits(self, step, buffers, text):
            return super()._logits(step, buffers, text)[::-1].copy()

    model, draft = fake_model(lm=SmallLM), fake_model(lm=OtherLM)
    counts = Counter()
    proposed = 0
    for seed in range(1500):
        options = GenerationOptions(
            sampling=Sampling(1.0, seed=seed), draft=draft, prompt_lookup=True, ignore_eos=True
        )
        setup = GenerationSetup(model, options)
        text = setup.new_text([2, 1, 2, 1, 2], 3)
        finished(setup.new_scheduler(), [text])
        counts[tuple(text.tokens[1:])] += 1
        proposed += text.generation().guesses.proposed
    assert proposed > 500
    first = np.roll(np.exp(logits), 2)
    matrix = np.stack([np.roll(np.exp(logits), token) for token in range(4)])
    second = first @ matrix
    expected = second[:, None] * matrix * 1500
    chi2 = sum(
        (counts[a, b] - expected[a, b]) ** 2 / expected[a, b] for a in range(4) for b in range(4)
    )
    assert chi2 < 37.7  # 15 degrees of freedom, p = 0.001


@pytest.mark.parametrize("kind", ["gpt2", "mistral"])
def test_real_models_give_the_same_bits(kind, tmp_path, any_length):
    """On numba; with a window, several texts, and a draft of another kind."""
    save_tiny_lm(tmp_path / "model", kind, dtypes.f32)
    save_tiny_lm(tmp_path / "draft", "llama", dtypes.f32)
    model, draft = (load_model(tmp_path / name, "numba", 1) for name in ("model", "draft"))
    prompt = [*range(5, 25), *range(5, 15)]
    fields = {"max_tokens": 40, "logprobs": 2, "ignore_eos": True, "seed": 5, "temperature": 0.05}
    plain = generate(model, prompt, **fields)
    for more in ({"prompt_lookup": True}, {"draft": draft}, {"draft": model}):
        made = generate(model, prompt, **fields, **more)
        assert (made.token_ids, made.logprobs) == (plain.token_ids, plain.logprobs)
        assert made.guesses.proposed > 0
    assert made.guesses.accepted > 10, "a model guesses itself"


def test_an_engine_guesses(any_length):
    model = fake_model(model=PromptedModel)
    prompts = [[1, 2, 3, 4] * (2 + number) for number in range(5)]
    expected = [generate(model, p, max_tokens=30, seed=1, ignore_eos=True) for p in prompts]
    with Engine(model, prompt_lookup=True, drafts={"fake": fake_model()}) as engine:
        streams = [
            engine.submit(p, max_tokens=30, seed=1, ignore_eos=True, answers=2) for p in prompts
        ]
        found = [stream.result() for stream in streams]
    assert [made[0].token_ids for made in found] == [made.token_ids for made in expected]
    assert sum(made.guesses.accepted for pair in found for made in pair) > 20


def test_guesses_that_lose_end(monkeypatch):
    """A model whose draft is always wrong: the time lost is a small share."""
    model, draft = fake_model(), fake_model(lm=FakeLM)
    lm = RepeatingLM()
    for module in (draft_guesses, scheduler):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: lm.seconds))
    model.lm = lm
    options = GenerationOptions(
        sampling=Sampling(0), draft=draft, prompt_lookup=True, ignore_eos=True
    )
    setup = GenerationSetup(model, options)
    text = setup.new_text([1, 2, 3], 150)
    finished(setup.new_scheduler(), [text])
    rows = [len(step.tokens) for step in model.lm.steps[1:]]
    plain = 5 * len(text.tokens)
    spent = sum(4 + count for count in rows)
    assert spent < plain * 1.03


def test_a_balance_allows_small_losses_only():
    balance = Balance()
    lost = 0.0
    for written in range(1000):
        if balance.allows(written):
            balance.record_guess(0, 0.5)
            lost += 0.5
    assert 2 < lost <= 1 + 0.01 * 1000 + 0.5


def test_the_best_length_follows_from_times_and_odds():
    def seconds(guessed):
        return 1 + 0.1 * guessed

    assert best_length(0.05, 32, 1, seconds) == 0
    assert best_length(0.5, 32, 1, seconds) in (2, 3)
    assert best_length(1.0, 32, 1, seconds) == 32
    assert best_length(1.0, 5, 1, seconds) == 5
    assert best_length(0.9, 0, 1, seconds) == 0
    assert best_length(0.3, 32, 8, seconds) == 0, "eight texts wait for each guess"


def test_odds_learn_and_recover():
    odds = Odds(2, 3)
    for _ in range(4):
        odds.record_guess(4, 0)
    low = odds.each
    assert low < 0.25
    for _ in range(100):
        odds.rest()
    assert odds.each > 0.6
    for _ in range(5):
        odds.record_guess(8, 8)
    assert odds.each > 0.97


def test_times_of_steps():
    times = StepTimes()
    assert times.estimate(1) is None
    for seconds in (9.0, 1.0, 1.5):
        times.record(1, seconds)
    assert times.estimate(1) == 1.0
    assert times.estimate(11) == pytest.approx(1.4), "unmeasured rows cost little at first"
    times.record(9, 100.0)  # compiled something
    assert times.estimate(9) == pytest.approx(1.32)
    times.record(9, 3.0)
    assert times.estimate(9) == 3.0
    assert times.estimate(5) == 2.0
    for _ in range(1200):
        times.record(1, 0.5)
    assert times.estimate(9) < 1, "what is old is forgotten"


def test_lookup_finds_the_latest_place_and_repeats():
    lookup = PromptLookup([1, 2, 3, 9, 1, 2, 3, 4, 1, 2])
    lookup.add([3])
    match = lookup.find()
    assert match is not None
    assert lookup.after(match, 6) == [4, 1, 2, 3, 4, 1]
    lookup.add([5])
    assert lookup.find() is None


def test_drafts_must_have_the_same_tokens(tmp_path):
    model, small = fake_model(), fake_model()
    small.lm.vocab_size = 40
    options = GenerationOptions(draft=small)
    with pytest.raises(UsageError, match="have 40 and 50 tokens"):
        GenerationSetup(model, options).new_text([1], 5)
    with pytest.raises(UsageError, match="needs a cache"):
        GenerationOptions(prompt_lookup=True, use_cache=False)
