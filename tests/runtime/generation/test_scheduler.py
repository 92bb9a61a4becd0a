"""Each text is the one that it is alone: in any company, chunks, pages found, and interrupts."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from msgspec.structs import replace

from gptrs.errors import CacheBudgetError, UsageError
from gptrs.nn.ragged_step import PAGE_SIZE
from gptrs_runtime.generation import scheduler as scheduler_module
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.generation.setup import GenerationSetup
from gptrs_runtime.generation.text_stream import TokenScores
from runtime.generation.fake_lm import VOCABULARY, FakeLM, FakeModel, PaddedBackend

KINDS = [(None,), (40,), (None, 33), (7, None)]


class Texts:
    """Random texts, each with what it is alone."""

    def __init__(self, seed, backend=None):
        self.rng = random.Random(seed)
        self.windows = self.rng.choice(KINDS)
        self.model = FakeModel(self.windows, backend)
        self.shared = [self.rng.randrange(1, VOCABULARY) for _ in range(100)]
        self.setup = GenerationSetup(self.model, self._options())

    def _options(self):
        shift = self.rng.random() < 0.3
        return GenerationOptions(
            sampling=Sampling(temperature=0.7, seed=3),
            prefill_chunk=self.rng.choice([1, 7, 64, 256]),
            context=self.rng.choice([70, 110] if shift else [140, 200]),
            context_shift=shift,
            keep=self.rng.choice([0, 3, 40]) if shift else 0,
            cache_budget=self.rng.choice([24_000, 100_000]),
        )

    def new(self, stream=0):
        start = self.shared[: self.rng.choice([0, 5, 40, 70])]
        own = [self.rng.randrange(1, VOCABULARY) for _ in range(self.rng.randint(1, 25))]
        return self.setup.new_text([*start, *own], self.rng.randint(1, 40), stream)

    def expected(self, text, stream=0):
        """The tokens and the reason of a text that is generated alone, its prompt at once."""
        options = replace(self.setup.options, prefill_chunk=256, cache_budget=None)
        alone = GenerationSetup(FakeModel(self.windows), options)
        made = alone.new_text(text.prompt, text._max_tokens, stream)
        run(alone.new_scheduler(), made)
        return made.tokens, made.reason


def run(scheduler, *texts):
    for text in texts:
        scheduler.add(text)
    while scheduler.busy:
        scheduler.step()


@pytest.mark.parametrize("seed", range(12))
def test_texts_that_get_room_as_they_grow_are_those_alone(seed, monkeypatch):
    """Also where the youngest has to go back, again and again, to those that wait."""
    monkeypatch.setattr(scheduler_module, "_ROOM", 17)
    monkeypatch.setattr(scheduler_module, "_LEAST_ROOM", 5)
    texts = Texts(seed)
    scheduler = texts.setup.new_scheduler(grows=True)
    again = []
    wait_again = scheduler._wait_again
    monkeypatch.setattr(
        scheduler, "_wait_again", lambda work: again.append(work) or wait_again(work)
    )
    made = [texts.new() for _ in range(12)]
    run(scheduler, *made)
    assert [(text.tokens, text.reason) for text in made] == [texts.expected(t) for t in made]
    assert idle(texts.setup)


def test_the_youngest_text_goes_back_where_there_is_no_room(monkeypatch):
    """So more texts begin than there is room for to their ends."""
    monkeypatch.setattr(scheduler_module, "_ROOM", 17)
    monkeypatch.setattr(scheduler_module, "_LEAST_ROOM", 5)
    setup = GenerationSetup(FakeModel(), GenerationOptions(cache_budget=16_000, ignore_eos=True))
    assert setup.cache.pool.groups[0].layout.most_pages * PAGE_SIZE < 3 * 200
    scheduler = setup.new_scheduler(grows=True)
    texts = [setup.new_text([number + 1] * 20, 180) for number in range(3)]
    for text in texts:
        scheduler.add(text)
    running = []
    while scheduler.busy:
        scheduler.step()
        running.append([texts.index(text) for text in scheduler.running])
    assert max(map(len, running)) > 1
    first_end = next(i for i, now in enumerate(running) if 0 not in now)
    assert all(0 in now for now in running[:first_end])  # the oldest is never sent back
    whole = {text.prompt: text.tokens for text in texts}
    alone = GenerationSetup(FakeModel(), GenerationOptions(ignore_eos=True))
    for text in texts:
        expected = alone.new_text(text.prompt, text._max_tokens)
        run(alone.new_scheduler(), expected)
        assert whole[text.prompt] == expected.tokens


def test_clients_take_turns():
    setup = GenerationSetup(FakeModel(), GenerationOptions(max_tokens=2, ignore_eos=True))
    scheduler = setup.new_scheduler(most_texts=1, grows=True)
    texts = {name: setup.new_text([number + 1]) for number, name in enumerate("aaaabc")
             for name in [f"{name}{number}"]}  # fmt: skip
    for name, text in texts.items():
        scheduler.add(text, client=name[0])
    order = []
    while scheduler.busy:
        scheduler.step()
        order += [n for n, t in texts.items() if t in scheduler.running and n not in order]
    assert order == ["a0", "b4", "c5", "a1", "a2", "a3"]


def test_a_flood_of_long_prompts_leaves_short_ones_their_room():
    setup = GenerationSetup(
        FakeModel(), GenerationOptions(max_tokens=2, ignore_eos=True, prefill_chunk=8)
    )
    scheduler = setup.new_scheduler(most_texts=12, grows=True)
    for number in range(20):
        scheduler.add(setup.new_text([number + 1] * 190))
    short = setup.new_text([99, 98, 97])
    scheduler.add(short)
    for _ in range(6):
        scheduler.step()
    assert short.ended


@pytest.mark.parametrize("seed", range(6))
def test_scores_are_those_of_a_forward_pass(seed):
    """In any company, in steps of bounded logits, and after a start over."""
    texts = Texts(seed)
    scheduler = texts.setup.new_scheduler(grows=True)
    scored = [texts.new() for _ in range(3)]
    for text in scored:
        text.to_score([*text.prompt[1:], 7], 2)
    for text in (*scored, *(texts.new() for _ in range(3))):
        scheduler.add(text)
    for number in itertools.count():
        if not scheduler.busy:
            break
        scheduler.step()
        if number == 2:
            texts.setup.cache._reset()
    for text in scored:
        logits = texts.model.causal_lm().forward(np.array([text.prompt]))[0]
        expected = [
            TokenScores.of(row, token, 2)
            for row, token in zip(logits, [*text.prompt[1:], 7], strict=True)
        ]
        assert text.scores == expected
        assert text.reason == "length"
        assert text.tokens == []


def idle(setup):
    """Whether no text holds anything of the cache, and each page is free or cached."""
    return all(
        group.held == group.reserved == 0 and group.cached + len(group._free) == group._used
        for group in setup.cache.pool.groups
    )


def steps_of(setup: GenerationSetup):
    """Return the steps that the fake model has run."""
    assert isinstance(setup.lm, FakeLM)
    return setup.lm.steps


@pytest.mark.sample(60)
@pytest.mark.parametrize("seed", range(200))
def test_random_texts_that_come_and_go(seed):
    texts = Texts(seed)
    scheduler = texts.setup.new_scheduler(texts.rng.choice([None, 2, 5]))
    made, cancelled = [], []
    while len(made) < 7 or scheduler.busy:
        if len(made) < 7 and texts.rng.random() < 0.4:
            made.append(texts.new())
            scheduler.add(made[-1])
        elif made and texts.rng.random() < 0.03:
            cancelled.append(texts.rng.choice(made))
            scheduler.cancel(cancelled[-1])
        scheduler.step()
    assert idle(texts.setup)
    for text in made:
        if text not in cancelled or text.ended:
            assert (text.tokens, text.reason) == texts.expected(text)


def test_alone_is_what_the_model_gives_without_a_cache():
    model = FakeModel()
    options = {"sampling": Sampling(temperature=0.7, seed=3)}
    found = []
    for use_cache in (True, False):
        setup = GenerationSetup(model, GenerationOptions(use_cache=use_cache, **options))
        text = setup.new_text([1, 2, 3] * 20, 40)
        run(setup.new_scheduler(), text)
        found.append(text.tokens)
    assert found[0] == found[1]


@pytest.mark.sample(16)
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("loses_pages", [False, True])
def test_a_step_that_was_interrupted_is_done_again(seed, loses_pages):
    texts = Texts(seed)
    scheduler = texts.setup.new_scheduler()
    made = [texts.new() for _ in range(6)]
    for text in made:
        scheduler.add(text)
    texts.model.lm.loses_pages = loses_pages
    interrupts = 0
    while scheduler.busy:
        if texts.rng.random() < 0.2 and interrupts < 6:
            texts.model.lm.fails = KeyboardInterrupt()
        try:
            scheduler.step()
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts
    assert idle(texts.setup)
    for text in made:
        assert (text.tokens, text.reason) == texts.expected(text)


@pytest.mark.parametrize("operation", ["admit", "extend", "commit", "release", "fork"])
def test_an_interrupt_between_changes_of_pages_begins_anew(operation, monkeypatch):
    texts = Texts(2)
    scheduler = texts.setup.new_scheduler()
    made = [texts.new(), texts.new()]
    copy = texts.setup.new_text(made[0].prompt, made[0]._max_tokens, 1)
    scheduler.add(made[0], [copy])
    scheduler.add(made[1])
    pool, cache = texts.setup.cache.pool, texts.setup.cache

    def interrupted(*arguments):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, operation, interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(scheduler)
    assert cache.pool is not pool
    run(scheduler)
    assert idle(texts.setup)
    for text in made:
        assert (text.tokens, text.reason) == texts.expected(text)
    if operation != "fork":  # an interrupt may take the copies of a prompt along
        assert (copy.tokens, copy.reason) == texts.expected(copy, 1)


def test_a_backend_without_symbols_sees_few_sizes():
    texts = Texts(5, PaddedBackend())
    made = [texts.new() for _ in range(12)]
    run(texts.setup.new_scheduler(), *made)
    for text in made:
        assert (text.tokens, text.reason) == texts.expected(text)
    for step in texts.model.lm.steps:
        sizes = [len(step.tokens), len(step.lengths), step.page_tables[0].shape[1]]
        assert all(size & (size - 1) == 0 for size in sizes)
        assert len(step.positions) == len(step.tokens) == len(step.slots[0])
        assert len(step.row_starts) == len(step.lengths) + 1


def test_prompts_that_begin_alike_are_read_once():
    setup = GenerationSetup(FakeModel(), GenerationOptions(3, prefill_chunk=64, ignore_eos=True))
    start = list(range(1, 41)) * 2
    texts = [setup.new_text([*start, number]) for number in range(1, 6)]
    run(setup.new_scheduler(), *texts)
    rows = [len(step.tokens) for step in steps_of(setup)]
    whole = len(start) // PAGE_SIZE * PAGE_SIZE
    assert rows[0] == whole, "the others wait for the pages that are being read"
    assert sum(rows) == whole + 5 * (len(start) + 1 - whole) + 5 * 2


def test_copies_share_the_pages_of_their_prompt():
    setup = GenerationSetup(FakeModel(), GenerationOptions(4, Sampling(seed=1), ignore_eos=True))
    prompt = [5] * 50
    first, *copies = (setup.new_text(prompt, stream=stream) for stream in range(4))
    scheduler = setup.new_scheduler()
    scheduler.add(first, copies)
    scheduler.step()
    assert setup.cache.pool.groups[0].held == 2
    run(scheduler)
    assert [len(step.tokens) for step in steps_of(setup)] == [50, 4, 4, 4]
    assert len({tuple(text.tokens) for text in (first, *copies)}) == 4
    assert idle(setup)


def test_decoding_goes_on_while_a_prompt_is_read():
    setup = GenerationSetup(FakeModel(), GenerationOptions(9, prefill_chunk=16, ignore_eos=True))
    scheduler = setup.new_scheduler()
    scheduler.add(setup.new_text([7, 7]))
    scheduler.step()
    scheduler.add(setup.new_text(list(range(1, 41))))
    for _ in range(3):
        scheduler.step()
    assert [len(step.tokens) for step in steps_of(setup)] == [2, 16, 16, 11]


def test_a_text_that_is_cancelled_makes_room():
    options = GenerationOptions(60, cache_budget=5000, ignore_eos=True)
    setup = GenerationSetup(FakeModel(), options)
    scheduler = setup.new_scheduler()
    first, second = setup.new_text([1] * 60), setup.new_text([2] * 60)
    scheduler.add(first)
    scheduler.add(second)
    scheduler.step()
    assert scheduler.running == [first]
    scheduler.cancel(first)
    scheduler.step()
    assert scheduler.running == [second]
    scheduler.close()
    assert idle(setup)
    assert not scheduler.busy
    with pytest.raises(CacheBudgetError, match="a text of 159 positions takes 5000 bytes"):
        scheduler.add(setup.new_text([3] * 100))


def test_pages_are_found_by_later_engines_of_the_model():
    model = FakeModel()
    for prompt in ([*range(1, 46)], [*range(1, 46), 3, 4]):
        setup = GenerationSetup(model, GenerationOptions(2, ignore_eos=True))
        run(setup.new_scheduler(), setup.new_text(prompt))
    assert [len(step.tokens) for step in model.lm.steps] == [45, 1, 2, 1]


def test_twenty_texts_wait_for_room_and_evict():
    options = GenerationOptions(30, Sampling(seed=3), cache_budget=7_000, ignore_eos=True)
    setup = GenerationSetup(FakeModel(), options)
    group, scheduler = setup.cache.pool.groups[0], setup.new_scheduler()
    texts = [setup.new_text([number, *range(1, 30 + number)]) for number in range(20)]
    for text in texts:
        scheduler.add(text)
    most = cached = 0
    while scheduler.busy:
        scheduler.step()
        most = max(most, len(scheduler.running))
        cached = max(cached, group.cached)
    assert 2 <= most <= 3, "6 pages: the others wait"
    assert cached > 0
    assert group.count == 6, "pages of texts that ended were taken again"
    alone = GenerationSetup(FakeModel(), replace(options, cache_budget=None))
    for text in texts:
        run(alone.new_scheduler(), expected := alone.new_text(text.prompt))
        assert text.tokens == expected.tokens


@pytest.mark.parametrize("together", [True, False])
def test_the_same_text_twice(together):
    setup = GenerationSetup(FakeModel(), GenerationOptions(9, Sampling(seed=3), ignore_eos=True))
    one, other = (setup.new_text([4, 5, 6] * 20) for _ in range(2))
    scheduler = setup.new_scheduler()
    if together:
        run(scheduler, one, other)
    else:
        run(scheduler, one)
        run(scheduler, other)
    assert one.tokens == other.tokens
    rows = sum(len(step.tokens) for step in steps_of(setup))
    assert rows == (60 + 28 + 16 if together else 60 + 1 + 16), "what is whole or left is shared"
    assert idle(setup)


@pytest.mark.parametrize("windows", [(40,), (7,), (None, 33)])
def test_contexts_with_windows_shift_as_without_a_cache(windows):
    found = []
    for use_cache in (True, False):
        options = GenerationOptions(
            120, Sampling(seed=3), context=70, context_shift=True, keep=5, ignore_eos=True
        )
        setup = GenerationSetup(FakeModel(windows), replace(options, use_cache=use_cache))
        text = setup.new_text([1, 2, 3, 4] * 10)
        run(setup.new_scheduler(), text)
        found.append(text.tokens)
    assert len(found[0]) == 120
    assert found[0] == found[1]


@pytest.mark.parametrize(("prompt", "count"), [([], 3), ([1], 0)])
def test_a_text_without_a_prompt_or_new_tokens_is_refused(prompt, count):
    setup = GenerationSetup(FakeModel(), GenerationOptions())
    with pytest.raises(UsageError, match=f"at least 1 each, got {len(prompt)} and {count}"):
        setup.new_text(prompt, count)
