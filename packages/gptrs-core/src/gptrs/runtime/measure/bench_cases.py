"""Pieces of work that are measured: ours, and what a peer must offer to do the same."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from gptrs.errors import ContextLengthError, UsageError
from gptrs.runtime.generation.prefill import prefill
from gptrs.runtime.load import LoadedModel


class BenchCase(Protocol):
    """A piece of work that can be repeated."""

    def prepare(self) -> None:
        """Get ready for `run`; takes no part in the time."""
        ...

    def run(self) -> None:
        """Do the work."""
        ...


class PeerModel(Protocol):
    """The same model in another framework, with as many threads as ours."""

    @property
    def load_seconds(self) -> float:
        """How long loading it took."""
        ...

    def prefill(self, length: int) -> BenchCase:
        """Like `Prefill`."""
        ...

    def decode(self, context: int, count: int) -> BenchCase:
        """Like `Decode`."""
        ...

    def forward(self, inputs: np.ndarray) -> BenchCase:
        """Like `Forward`."""
        ...


class Prefill:
    """Reads a prompt of `length` tokens, as `generate` does, to the logits of the last one."""

    def __init__(self, model: LoadedModel, length: int) -> None:
        self._lm = model.causal_lm()
        require_room(self._lm.context_length, length)
        self._tokens = tokens_of(length, self._lm.vocab_size)

    def prepare(self) -> None:
        """An empty cache."""
        self.cache = self._lm.new_cache(1)

    def run(self) -> None:
        """All tokens, in the chunks of `generate`."""
        prefill(self._lm, self._tokens, self.cache)


class Decode:
    """Appends `count` tokens, one after another, to a context of `context` tokens."""

    def __init__(self, model: LoadedModel, context: int, count: int) -> None:
        self._lm = model.causal_lm()
        require_room(self._lm.context_length, context + count)
        self._prefill = Prefill(model, context)
        self._count = count
        self._token = tokens_of(1, self._lm.vocab_size)

    def prepare(self) -> None:
        """The context, and a first token that makes room for the others."""
        self._prefill.prepare()
        self._prefill.run()

    def run(self) -> None:
        """The greedy choice, as `generate` makes it, is part of each step."""
        for _ in range(self._count):
            logits = self._lm.step(self._token, self._prefill.cache)
            self._token = np.array([[int(np.argmax(logits[0]))]], np.int64)


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
