"""Threads share the cache of a model, and a child may go on after a fork."""

from __future__ import annotations

import os
import random
import threading
import traceback

import pytest

from gptrs_runtime.generation.batch import generate_batch
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.generation.setup import GenerationSetup
from gptrs_runtime.load import load_model
from runtime.generation.fake_lm import FakeModel

OPTIONS = GenerationOptions(12, Sampling(temperature=0.9, seed=3), ignore_eos=True)


def random_prompts(count):
    rng = random.Random(count)
    start = [rng.randrange(1, 300) for _ in range(33)]
    return [
        start[: rng.choice([0, 20, 33])] + [rng.randrange(1, 300) for _ in range(rng.randint(1, 9))]
        for _ in range(count)
    ]


def tokens_of(model, prompts):
    return [text.token_ids for text in generate_batch(model, prompts, OPTIONS)]


def in_threads(*works):
    """Run functions together; the first error of theirs is raised."""
    errors: list[BaseException] = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_threads_generate_with_one_model(directory, backend):
    prompts = random_prompts(12)
    expected = tokens_of(load_model(directory, backend.name), prompts)
    model = load_model(directory, backend.name)
    found = {}

    def every_fourth(first):
        for number in range(first, len(prompts), 4):
            found[number] = tokens_of(model, prompts[number : number + 1])[0]

    in_threads(*(lambda first=first: every_fourth(first) for first in range(4)))
    assert [found[number] for number in range(12)] == expected
    pool = GenerationSetup(model, OPTIONS).cache.pool
    assert all(group.held == group.reserved == 0 for group in pool.groups)


def test_threads_add_and_cancel_texts_while_another_one_steps():
    setup = GenerationSetup(FakeModel(), OPTIONS)
    scheduler = setup.new_scheduler(4)
    kept = [setup.new_text(prompt) for prompt in [[1, 2]] * 20]
    ended = threading.Event()

    def add_and_cancel():
        try:
            for text in kept:
                scheduler.add(text)
                unwanted = setup.new_text([3, 4, 5])
                scheduler.add(unwanted)
                scheduler.cancel(unwanted)
        finally:
            ended.set()

    def step():
        while not ended.is_set() or scheduler.busy:
            scheduler.step()

    in_threads(step, add_and_cancel)
    assert {tuple(text.tokens) for text in kept} == {tuple(kept[0].tokens)}
    assert all(text.reason == "length" for text in kept)
    assert all(group.held == group.reserved == 0 for group in setup.cache.pool.groups)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("busy", [False, True])
def test_a_child_goes_on_after_a_fork(model, busy):
    """Also where another thread was in the middle of a step, which the child has not."""
    prompts = random_prompts(3)
    expected = tokens_of(model, prompts)
    cache = GenerationSetup(model, OPTIONS).cache
    inside, leave = threading.Event(), threading.Event()

    def occupy():
        with cache.exclusive():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=occupy)
    if busy:
        thread.start()
        inside.wait()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if tokens_of(model, prompts) == expected else 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    leave.set()
    if busy:
        thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert tokens_of(model, prompts) == expected
