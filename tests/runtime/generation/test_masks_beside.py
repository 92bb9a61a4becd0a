"""Forms whose masks take long: their texts lose their own turns, and no other text its own."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from gptrs_runtime.generation.masks_beside import MasksBeside
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.setup import GenerationSetup
from runtime.generation.fake_lm import FakeModel

OPTIONS = GenerationOptions(max_tokens=6, ignore_eos=True)


class SlowMask:
    """A processor that allows even tokens alone, once `go` is set."""

    def __init__(self, go, seconds=0.0):
        self.go, self.prepare_seconds = go, seconds
        self.prepared: list[tuple[int, str]] = []
        self.error: Exception | None = None

    def prepare(self, tokens):
        assert self.go.wait(120)
        if self.error is not None:
            raise self.error
        self.prepared.append((tokens.size, threading.current_thread().name))

    def __call__(self, tokens, logits):
        logits[1::2] = -np.inf
        return logits


@pytest.fixture
def masks():
    made = MasksBeside()
    yield made
    made.close()


def text_of(setup, mask, prompt):
    text = setup.new_text(prompt)
    if mask is not None:
        text._processors._processors = (mask,)
    return text


def alone(mask, prompt):
    setup = GenerationSetup(FakeModel(), OPTIONS)
    text = text_of(setup, mask, prompt)
    scheduler = setup.new_scheduler()
    scheduler.add(text)
    while scheduler.busy:
        scheduler.step()
    return text.tokens


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_a_text_without_its_mask_lets_the_others_pass(masks, seconds):
    go = threading.Event()
    slow = SlowMask(go, seconds)
    setup = GenerationSetup(FakeModel(), OPTIONS)
    scheduler = setup.new_scheduler(masks=masks)
    held, free = text_of(setup, slow, [1, 2, 3]), text_of(setup, None, [4, 5])
    scheduler.add(held)
    scheduler.add(free)
    while not free.ended:
        scheduler.step()
    assert held.tokens == []
    go.set()
    while scheduler.busy:
        scheduler.step()
    thread = "gptrs-slow-masks" if seconds else "gptrs-masks"
    assert [size for size, _ in slow.prepared] == [3, 4, 5, 6, 7, 8]
    assert all(name.startswith(thread) for _, name in slow.prepared)
    assert held.tokens == alone(SlowMask(go), [1, 2, 3])
    assert free.tokens == alone(None, [4, 5])


def test_copies_have_masks_of_their_own(masks):
    go = threading.Event()
    go.set()
    setup = GenerationSetup(FakeModel(), OPTIONS)
    scheduler = setup.new_scheduler(masks=masks)
    texts = [text_of(setup, SlowMask(go), [1, 2, 3]) for _ in range(3)]
    scheduler.add(texts[0], texts[1:])
    while scheduler.busy:
        scheduler.step()
    assert [text.tokens for text in texts] == [alone(SlowMask(go), [1, 2, 3])] * 3


def test_an_error_of_a_mask_is_that_of_its_text(masks):
    go, failed = threading.Event(), []
    go.set()
    bad = SlowMask(go)
    bad.error = ValueError("a fault of the mask")
    setup = GenerationSetup(FakeModel(), OPTIONS)
    scheduler = setup.new_scheduler(masks=masks, when_failed=lambda *each: failed.append(each))
    held, free = text_of(setup, bad, [1, 2, 3]), text_of(setup, None, [4, 5])
    scheduler.add(held)
    scheduler.add(free)
    while scheduler.busy:
        scheduler.step()
    assert failed == [(held, bad.error)]
    assert free.tokens == alone(None, [4, 5])


def test_a_text_that_waits_can_be_cancelled(masks):
    go = threading.Event()
    setup = GenerationSetup(FakeModel(), OPTIONS)
    scheduler = setup.new_scheduler(masks=masks)
    held = text_of(setup, SlowMask(go), [1, 2, 3])
    scheduler.add(held)
    for _ in range(3):
        begun = time.monotonic()
        scheduler.step()
        assert time.monotonic() - begun < 60
    scheduler.cancel(held)
    assert not scheduler.busy
    go.set()
