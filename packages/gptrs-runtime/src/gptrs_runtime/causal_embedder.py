"""A language model as an embedder: the vectors of its tokens are its last states."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class CausalStates(Protocol):
    """A causal language model that shows its hidden states."""

    @property
    def context_length(self) -> int:
        """Most positions that the model can attend to."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        ...

    def hidden_states(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Return the states by name, in the order of computation."""
        ...


class CausalEmbedder:
    """A `TextEmbedder` made of a language model, as sentence-transformers makes one.

    A token sees those before it alone, so that padding behind a text changes nothing in it.
    """

    def __init__(self, model: CausalStates) -> None:
        self._model = model

    @property
    def context_length(self) -> int:
        """Most tokens of a text."""
        return self._model.context_length

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self._model.vocab_size

    def encode(self, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the state after the final norm, si64 [B, T] -> f32 [B, T, C].

        ContextLengthError if T is too large.
        """
        del mask  # padding lies behind the text
        *_, last = self._model.hidden_states(tokens).values()
        return last
