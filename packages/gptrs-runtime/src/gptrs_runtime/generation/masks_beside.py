"""Masks of constrained decoding, computed by threads while an engine runs its steps."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final

from gptrs_runtime.generation.generated_text import GeneratedText
from gptrs_runtime.generation.scheduled_text import Work

SLOW_SECONDS: Final = 0.005
"""Processor time of the mask of a token, on average, from which a text is slow."""
_QUICK_THREADS: Final = 2
_PATIENCE_SECONDS: Final = 0.002
"""How long a step waits for a mask of a text that is not slow. Usual masks take 0.05 to 0.2 ms and
are there before the logits are, unless the threads find no processor."""
_IDLE_SECONDS: Final = 0.005


class MasksBeside:
    """Threads that compute masks while the model runs; those of slow texts have one together.

    So texts whose forms take much work wait for each other, and no other text for them.
    """

    def __init__(self) -> None:
        self._quick = ThreadPoolExecutor(_QUICK_THREADS, "gptrs-masks")
        self._slow = ThreadPoolExecutor(1, "gptrs-slow-masks")

    def begin(self, text: GeneratedText) -> Future[None]:
        """Begin the mask of the next token of a text."""
        return (self._slow if _is_slow(text) else self._quick).submit(text.prepare)

    def ready(self, work: Work) -> bool:
        """Return whether the next token of a text can be chosen; waits a little if it is near."""
        mask = work.mask
        if mask is None or mask.done():
            return True
        if _is_slow(work.text):
            return False
        return bool(wait([mask], _PATIENCE_SECONDS).done)

    def wait_for_any(self, works: list[Work]) -> None:
        """Wait a little until one of these masks is there."""
        masks = [work.mask for work in works if work.mask is not None]
        if masks:
            wait(masks, _IDLE_SECONDS, FIRST_COMPLETED)

    def close(self) -> None:
        """End the threads after the masks that they compute."""
        for threads in (self._quick, self._slow):
            threads.shutdown(wait=False, cancel_futures=True)


def _is_slow(text: GeneratedText) -> bool:
    return text.prepare_seconds > SLOW_SECONDS
