"""Pieces of work that are measured: ours, and what a peer must offer to do the same."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from gptrs.errors import ContextLengthError, UsageError
from gptrs.runtime.generation.generate import GenerationOptions, TextStream, stream
from gptrs.runtime.generation.sampling import Sampling
from gptrs.runtime.load import LoadedModel

Tokens = list[int]


class BenchCase(Protocol):
    """A piece of work that can be repeated."""

    def prepare(self) -> None:
        """Get ready for `run`; takes no part in the time."""
        ...

    def run(self) -> None:
        """Do the work."""
        ...


class DecodeCase(BenchCase, Protocol):
    """A `BenchCase` that generates tokens one after another."""

    gaps: list[float]
    """Seconds that each token of the last run took."""


class PeerModel(Protocol):
    """The same model in another framework, with as many threads as ours."""

    @property
    def load_seconds(self) -> float:
        """How long loading it took."""
        ...

    def prefill(self, prompts: Iterator[Tokens]) -> BenchCase:
        """Like `Prefill`."""
        ...

    def decode(self, context: int, count: int) -> DecodeCase:
        """Like `Decode`."""
        ...

    def forward(self, inputs: np.ndarray) -> BenchCase:
        """Like `Forward`."""
        ...


class Prefill:
    """Reads a prompt to the choice of the first token; each run takes the next of `prompts`.

    Prompts should differ, so that none is found in a cache.
    """

    def __init__(self, model: LoadedModel, prompts: Iterator[Tokens]) -> None:
        self._model = model
        self._prompts = prompts

    def prepare(self) -> None:
        """Take the next prompt."""
        self._stream = _greedy(self._model, next(self._prompts), 1)

    def run(self) -> None:
        """Read it whole, in the chunks of `generate`, and choose a token."""
        next(self._stream)


class Decode:
    """Generates `count` tokens, one after another, after a context of `context` tokens.

    UsageError and ContextLengthError as those of `require_room`.
    """

    def __init__(self, model: LoadedModel, context: int, count: int) -> None:
        self._model = model
        lm = model.causal_lm()
        require_room(lm.context_length, context)
        require_room(lm.context_length, context + count)
        self._prompts = random_prompts([context], lm.vocab_size)
        self._count = count
        self.gaps: list[float] = []

    def prepare(self) -> None:
        """Read the context and choose the first token."""
        # The token that is chosen last is not read, hence one more of them.
        self._stream = _greedy(self._model, next(self._prompts), self._count + 1)
        next(self._stream)

    def run(self) -> None:
        """Read each token, and choose the likeliest next one."""
        self.gaps = list(_seconds_of_each(self._stream))


class Forward:
    """Runs the model once on an array that it takes."""

    def __init__(self, model: LoadedModel, inputs: np.ndarray) -> None:
        self._model = model
        self._inputs = inputs

    def prepare(self) -> None:
        """Nothing to do."""

    def run(self) -> None:
        """All logits, as an array of NumPy."""
        self._model.forward(self._inputs)


def random_prompts(lengths: Sequence[int], vocab_size: int, seed: int = 0) -> Iterator[Tokens]:
    """Yield prompts of these lengths, over and over, with other random tokens each time.

    The same ones for the same arguments, so that a peer reads what we read.
    """
    random = np.random.default_rng([seed, *lengths])
    for length in itertools.cycle(lengths):
        yield random.integers(0, vocab_size, length, np.int64).tolist()


def tokens_of(length: int, vocab_size: int) -> np.ndarray:
    """Made-up tokens si64 [1, length], the same each time."""
    random = np.random.default_rng(0)
    return random.integers(0, vocab_size, (1, length), np.int64)


def require_room(context: int, wanted: int) -> None:
    """UsageError or ContextLengthError unless 1 <= wanted <= context."""
    if wanted < 1:
        raise UsageError(f"a measurement needs 1 or more tokens, got {wanted}")
    if wanted > context:
        raise ContextLengthError(
            f"{wanted} tokens do not fit into the context of {context} tokens",
            hint="measure with fewer tokens",
        )


def _greedy(model: LoadedModel, prompt: Tokens, count: int) -> TextStream:
    options = GenerationOptions(count, Sampling(temperature=0.0), ignore_eos=True)
    return stream(model, prompt, options)


def _seconds_of_each(stream: TextStream) -> Iterator[float]:
    before = time.perf_counter()
    for _ in stream:
        now = time.perf_counter()
        yield now - before
        before = now
