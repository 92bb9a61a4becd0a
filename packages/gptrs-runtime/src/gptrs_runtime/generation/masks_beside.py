"""Masks of constrained decoding, computed in threads while an engine runs steps."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final

from gptrs_runtime.generation.generated_text import GeneratedText
from gptrs_runtime.generation.scheduled_text import Work

SLOW_SECONDS: Final = 0.005
"""A text counts as slow from this mean processor time per mask."""
_QUICK_THREADS: Final = 2
_PATIENCE_SECONDS: Final = 0.002
"""How long a step waits for a mask of a text that is not slow. Typical masks take 0.05 to 0.2 ms
and are ready before the logits, unless the threads get no processor."""
_IDLE_SECONDS: Final = 0.005


class MasksBeside:
    """Threads that compute masks while the model runs; slow texts share one thread.

    So texts with expensive forms wait for each other, and no other text waits for them.
    """

    def __init__(self) -> None:
        self._quick = ThreadPoolExecutor(_QUICK_THREADS, "gptrs-masks")
        self._slow = ThreadPoolExecutor(1, "gptrs-slow-masks")

    def begin(self, text: GeneratedText) -> Future[None]:
        """Start computing the mask of a text's next token."""
        return (self._slow if _is_slow(text) else self._quick).submit(text.prepare)

    def ready(self, work: Work) -> bool:
        """Return whether the mask of a text's next token is ready; waits briefly unless the text is
        slow."""
        mask = work.mask
        if mask is None or mask.done():
            return True
        if _is_slow(work.text):
            return False
        return bool(wait([mask], _PATIENCE_SECONDS).done)

    def wait_for_any(self, works: list[Work]) -> None:
        """Wait briefly for any of these masks."""
        masks = [work.mask for work in works if work.mask is not None]
        if masks:
            wait(masks, _IDLE_SECONDS, FIRST_COMPLETED)

    def close(self) -> None:
        """End the threads after their current masks."""
        for threads in (self._quick, self._slow):
            threads.shutdown(wait=False, cancel_futures=True)


def _is_slow(text: GeneratedText) -> bool:
    return text.prepare_seconds > SLOW_SECONDS
