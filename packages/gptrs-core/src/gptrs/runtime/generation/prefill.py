"""Prefill: reading a prompt into a key/value cache, a chunk of tokens at a time."""

from __future__ import annotations

import numpy as np

from gptrs.nn.kv_cache import KVCache
from gptrs.plugins.capabilities import CausalLM
from gptrs.runtime.generation.options import PREFILL_CHUNK


def prefill(
    lm: CausalLM, tokens: np.ndarray, cache: KVCache, chunk: int = PREFILL_CHUNK
) -> np.ndarray:
    """Append tokens si64 [B, T] to `cache`, `chunk` at a time; return the logits f32 [B, V] after.

    UsageError if T is 0, ContextLengthError if the tokens do not fit.
    """
    *starts, last = range(0, max(tokens.shape[1], 1), chunk)
    for start in starts:
        lm.step(tokens[:, start : start + chunk], cache)
    return lm.step(tokens[:, last:], cache)
