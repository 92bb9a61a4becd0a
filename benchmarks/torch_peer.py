"""transformers on torch, eager: the peer that is always compared with where it is installed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import torch
import transformers
from peer_cases import PeerDecode, PeerPrefill

from gptrs_observe.measure.bench_cases import BenchCase, DecodeCase, random_prompts

TorchState: TypeAlias = tuple[torch.Tensor, object]
"""The next tokens si64 [B, 1], and the cache of those before."""


class TorchModel:
    """A causal language model of transformers as it is, eager, with its own cache."""

    def __init__(self, folder: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        transformers.utils.logging.disable_progress_bar()
        # The first time imports the model's module, which is no part of loading.
        transformers.AutoModelForCausalLM.from_pretrained(folder)
        started = time.perf_counter()
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        self.load_seconds = time.perf_counter() - started
        self._vocab_size = int(self._model.config.vocab_size)

    def prefill(self, prompts: Iterator[list[int]]) -> BenchCase:
        """The prompt in one step; only the logits of the last token are computed."""
        return PeerPrefill(self, prompts)

    def decode(self, context: int, count: int, texts: int = 1) -> DecodeCase:
        """One token after another, each the likeliest, of all texts in one step."""
        return PeerDecode(self, random_prompts([context], self._vocab_size), count, texts)

    def begin(self, prompts: list[list[int]]) -> TorchState:
        """See `SteppedTexts`."""
        cache = transformers.DynamicCache(config=self._model.config)
        return self._append(torch.tensor(prompts), cache)

    def step(self, state: TorchState) -> TorchState:
        """See `SteppedTexts`."""
        return self._append(*state)

    def _append(self, tokens: torch.Tensor, cache: object) -> TorchState:
        with torch.inference_mode():
            found = self._model(
                input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
        return found.logits[:, -1].argmax(-1, keepdim=True), found.past_key_values
