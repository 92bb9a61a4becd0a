"""What the tests of engines share: a fake model that takes prompts, and waiting for a state."""

from __future__ import annotations

import time

from runtime.generation.fake_lm import FakeModel


class PromptedModel(FakeModel):
    """A fake model whose prompts are tokens."""

    def prompt_tokens(self, prompt):
        return list(prompt)


def eventually(condition, seconds=120):
    """Wait until `condition()` holds; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never held"
        time.sleep(0.002)
