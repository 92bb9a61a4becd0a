"""The generation loop: choose a token for each text, run the model on these tokens, repeat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gptrs.runtime.generation.decode_batch import DecodeBatch
from gptrs.runtime.generation.generated_text import GeneratedText


def generate_step(
    texts: Sequence[GeneratedText], batch: DecodeBatch, logits: np.ndarray
) -> Iterator[tuple[int, str]]:
    """Grow the texts until all have ended; yield (index in `texts`, piece of text) for each token.

    `batch` runs the model on the contexts of the texts, and `logits` f32 [B, V] are those after
    their prompts. Texts that have ended leave the batch when they are half of it, or when it is
    prefilled again: each number of rows has programs of its own.
    """
    live = list(range(len(texts)))
    while True:
        for row, index in enumerate(live):
            if not texts[index].ended:
                yield index, texts[index].append(logits[row])
        running = [row for row, index in enumerate(live) if not texts[index].ended]
        if not running:
            return
        if len(running) < len(live) and (2 * len(running) <= len(live) or batch.must_prefill):
            batch.keep(running)
            live = [live[row] for row in running]
        logits = batch.decode()
