"""What is measured of a trained model: its loss on held-out text, and a sample of its text."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import GPT2LMHeadModel

EVALUATION_BATCH = 8


@torch.no_grad()
def held_out_loss(model: GPT2LMHeadModel, ids: torch.Tensor) -> float:
    """Return the mean loss of `model` on `ids` (i64 vector), in nats per token, computed in f32.

    The text is cut into windows of the model's context that do not overlap; each token but the
    first is predicted once, from what precedes it in its window.
    """
    if len(ids) < 2:
        raise ValueError(f"a loss needs at least 2 tokens of text, got {len(ids)}")
    model.eval()
    context = model.config.n_positions
    whole = (len(ids) - 1) // context * context
    batches = list(
        zip(
            ids[:whole].view(-1, context).split(EVALUATION_BATCH),
            ids[1 : whole + 1].view(-1, context).split(EVALUATION_BATCH),
            strict=True,
        )
    )
    if whole < len(ids) - 1:
        batches.append((ids[None, whole:-1], ids[None, whole + 1 :]))
    total = 0.0
    for inputs, targets in batches:
        logits = model(inputs, use_cache=False).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        total += loss.item()
    return total / (len(ids) - 1)


@torch.no_grad()
def sample_text(
    model: GPT2LMHeadModel, tokenizer: Tokenizer, prompt: str, max_tokens: int, seed: int
) -> str:
    """Return `prompt` and up to `max_tokens` tokens sampled by the model's generation settings."""
    model.eval()
    torch.manual_seed(seed)
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    generated = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        pad_token_id=model.config.eos_token_id,
    )
    return tokenizer.decode(generated[0].tolist())
