"""What is measured of a trained model: its loss on held-out text, and a sample of its text."""

from __future__ import annotations

import numpy as np

import gptrs
from gptrs_runtime.loaded_model import LoadedModel


def held_out_loss(model: LoadedModel, ids: np.ndarray) -> float:
    """Return the mean loss of `model` on `ids`, in nats per token.

    The text is cut into windows of the model's context that do not overlap; each token but the
    first is predicted once, from what precedes it in its window.
    """
    if len(ids) < 2:
        raise ValueError(f"a loss needs at least 2 tokens of text, got {len(ids)}")
    lm = model.causal_lm()
    tokens, context, total = ids.astype(np.int64), lm.context_length, 0.0
    for start in range(0, len(tokens) - 1, context):
        window = tokens[start : start + context + 1]
        logits = lm.forward(window[None, :-1])[0].astype(np.float64)
        largest = logits.max(-1)
        sums = np.log(np.exp(logits - largest[:, None]).sum(-1)) + largest
        total += float((sums - logits[np.arange(len(sums)), window[1:]]).sum())
    return total / (len(tokens) - 1)


def sample_text(model: LoadedModel, prompt: str, most: int, seed: int) -> str:
    """Return `prompt` and at most so many tokens, drawn as the model's generation settings say."""
    sampled = gptrs.generate(model, prompt, max_tokens=most, seed=seed)
    return prompt + sampled.text
