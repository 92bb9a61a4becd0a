"""transformers on torch, eager: the peer that is always compared with where it is installed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import transformers

from gptrs.runtime.measure.bench_cases import BenchCase, DecodeCase, random_prompts


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
        return _TorchPrefill(self, prompts)

    def decode(self, context: int, count: int) -> DecodeCase:
        """One token after another, each the likeliest."""
        return _TorchDecode(self, context, count)

    def forward(self, inputs: np.ndarray) -> BenchCase:
        """All logits."""
        return _TorchForward(self, inputs)

    def prompts(self, length: int) -> Iterator[list[int]]:
        """The prompts that our side reads."""
        return random_prompts([length], self._vocab_size)

    def step(self, tokens: object, cache: object) -> tuple[object, object]:
        """The likeliest next token, and the cache with these."""
        with torch.inference_mode():
            found = self._model(
                input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
        return found.logits[:, -1].argmax(-1, keepdim=True), found.past_key_values

    def logits(self, inputs: np.ndarray) -> np.ndarray:
        """Of every position."""
        with torch.inference_mode():
            tokens = torch.from_numpy(inputs)
            return self._model(input_ids=tokens, use_cache=False).logits.numpy()


class _TorchPrefill:
    def __init__(self, model: TorchModel, prompts: Iterator[list[int]]) -> None:
        self._model, self._prompts = model, prompts

    def prepare(self) -> None:
        self._tokens = torch.tensor([next(self._prompts)])

    def run(self) -> None:
        self.state = self._model.step(self._tokens, None)


class _TorchDecode:
    def __init__(self, model: TorchModel, context: int, count: int) -> None:
        self._model, self._count = model, count
        self._prefill = _TorchPrefill(model, model.prompts(context))
        self.gaps: list[float] = []

    def prepare(self) -> None:
        self._prefill.prepare()
        self._prefill.run()

    def run(self) -> None:
        self.gaps = []
        token, cache = self._prefill.state
        for _ in range(self._count):
            started = time.perf_counter()
            token, cache = self._model.step(token, cache)
            self.gaps.append(time.perf_counter() - started)


class _TorchForward:
    def __init__(self, model: TorchModel, inputs: np.ndarray) -> None:
        self._model, self._inputs = model, inputs

    def prepare(self) -> None:
        return

    def run(self) -> None:
        self._model.logits(self._inputs)
