"""The bases of text encoders: batches of token ids in, vectors and head scores out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from typing_extensions import override

from gptrs import functionals as F
from gptrs.capture.jitting.jit import jit
from gptrs.capture.tensor import Tensor, tensor
from gptrs.errors import ContextLengthError
from gptrs.ir import dtypes
from gptrs.nn.layers import Computation, Module

_TEXT_AXES = {"tokens": ("B", "T"), "mask": ("B", "T")}
"""The symbolic axes of a batch of texts."""
_PAIR_AXES = {**_TEXT_AXES, "segments": ("B", "T")}
_TEXTS: Final = (dtypes.si64, ("batch", "sequence"))
"""Element type and sizes of tokens, and of data about each token."""


class TextEncoderModule(Module):
    """Base class with the capabilities `text_embedder` and `hidden_states`.

    A model defines its computation in `states`; a batch of texts is si64 [B, T], with padding where
    the mask, i1 [B, T], is false.
    """

    capabilities = frozenset({"text_embedder", "hidden_states"})
    head: Callable[..., Tensor]
    """Computes scores from states, in subclasses that have a head."""

    def __init__(self, context_length: int, vocab_size: int) -> None:
        self._context_length = context_length
        self._vocab_size = vocab_size
        self._encode = jit(self._vectors, dynamic=_TEXT_AXES)
        self._collect = jit(self._named_states, dynamic={"tokens": ("B", "T")})

    @property
    def context_length(self) -> int:
        """Return the largest number of tokens of a text."""
        return self._context_length

    @property
    def vocab_size(self) -> int:
        """Return the number of token ids."""
        return self._vocab_size

    def states(
        self, tokens: Tensor, mask: Tensor | None, segments: Tensor | None = None
    ) -> Sequence[Tensor]:
        """Return the embeddings and the state after each layer, each [B, T, C].

        The last one is the output of the encoder, after its final norm if it has one. Without a
        mask there is no padding, without segments every token is of the first text of a pair.
        """
        raise NotImplementedError

    def encode(self, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the vector of each token: si64 [B, T] and i1 [B, T] -> f32 [B, T, C].

        ContextLengthError if T is above `context_length`.
        """
        self.require_context(tokens)
        return self._encode(Tensor.of_batch(tokens), Tensor.of_batch(mask)).numpy()

    def hidden_states(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Return the embeddings and the state after each layer, si64 [B, T] -> f32 [B, T, C].

        ContextLengthError if T is above `context_length`.
        """
        self.require_context(inputs)
        return {name: state.numpy() for name, state in self._collect(tensor(inputs)).items()}

    def computation(self) -> Computation:
        """Return the computation of the model on texts, including its head if it has one."""
        names = ("input_ids", "attention_mask")
        return Computation(self._named_vectors, {name: _TEXTS for name in names}, {})

    def _named_vectors(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        return {"last_hidden_state": self.last_state(input_ids, attention_mask != 0)}

    def last_state(self, tokens: Tensor, mask: Tensor, segments: Tensor | None = None) -> Tensor:
        """Return the last of `states`, [B, T, C]."""
        return self.states(tokens, mask, segments)[-1]

    def require_context(self, tokens: np.ndarray) -> None:
        """Raise ContextLengthError for texts [B, T] that are too long."""
        if tokens.shape[1] > self.context_length:
            raise ContextLengthError(
                f"{tokens.shape[1]} tokens do not fit into the context of {self.context_length}"
            )

    def _vectors(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.last_state(tokens, mask)

    def _named_states(self, tokens: Tensor) -> dict[str, Tensor]:
        states = self.states(tokens, None)
        names = ["embeddings", *(f"layer.{index}" for index in range(len(states) - 1))]
        return dict(zip(names, states, strict=True))


class TextClassifierModule(TextEncoderModule):
    """An encoder with scores of the classes of a text, a `TextClassifier`.

    `head` takes states [B, T, C] and the mask i1 [B, T], and returns logits [B, classes].
    """

    capabilities = TextEncoderModule.capabilities | {"text_classifier"}

    def classify_texts(
        self, tokens: np.ndarray, segments: np.ndarray, mask: np.ndarray
    ) -> np.ndarray:
        """Return the logits of the classes of each text, f32 [B, classes].

        Tokens and segments are si64 [B, T], the mask is i1. ContextLengthError for too many tokens.
        """
        self.require_context(tokens)
        given = (Tensor.of_batch(each) for each in (tokens, segments, mask))
        return self._score(*given).numpy()

    @override
    def computation(self) -> Computation:
        names = ("input_ids", "attention_mask", "token_type_ids")

        def scores(
            input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
        ) -> dict[str, Tensor]:
            return {"logits": self.text_scores(input_ids, token_type_ids, attention_mask != 0)}

        return Computation(scores, {name: _TEXTS for name in names}, {})

    @cached_property
    def _score(self) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        return jit(self.text_scores, dynamic=_PAIR_AXES)

    def text_scores(self, tokens: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        """Return the logits of the classes of each text, as `classify_texts` does."""
        return self.head(self.last_state(tokens, mask, segments), mask)


class TokenClassifierModule(TextEncoderModule):
    """An encoder with scores of the classes of each token, a `TokenClassifier`.

    `head` takes states [B, T, C] and returns logits [B, T, classes].
    """

    capabilities = TextEncoderModule.capabilities | {"token_classifier"}

    def classify_tokens(self, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the logits of the classes of each token, si64, i1 [B, T] -> f32 [B, T, classes].

        ContextLengthError for too many tokens.
        """
        self.require_context(tokens)
        return self._score(Tensor.of_batch(tokens), Tensor.of_batch(mask)).numpy()

    @override
    def _named_vectors(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        return {"logits": self._scores(input_ids, attention_mask != 0)}

    @cached_property
    def _score(self) -> Callable[[Tensor, Tensor], Tensor]:
        return jit(self._scores, dynamic=_TEXT_AXES)

    def _scores(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.last_state(tokens, mask))


class MaskedLMModule(TextEncoderModule):
    """An encoder with vocabulary scores for masked tokens, a `MaskedLM`.

    `head` takes states [N, C] and returns logits [N, V].
    """

    capabilities = TextEncoderModule.capabilities | {"masked_lm"}

    def predict_tokens(
        self, tokens: np.ndarray, mask: np.ndarray, positions: np.ndarray
    ) -> np.ndarray:
        """Return the logits of the vocabulary at positions in the flat batch, f32 [N, V].

        Tokens si64 [B, T], mask i1 [B, T], positions si64 [N] in [0, B * T). ContextLengthError for
        too many tokens.
        """
        self.require_context(tokens)
        return self._score(tensor(tokens), tensor(mask), tensor(positions)).numpy()

    @override
    def _named_vectors(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        states = self.last_state(input_ids, attention_mask != 0)
        batch, length, width = states.shape
        scores = self.head(F.reshape(states, (batch * length, width)))
        return {"logits": F.reshape(scores, (batch, length, scores.shape[-1]))}

    @cached_property
    def _score(self) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        return jit(self._scores, dynamic={**_TEXT_AXES, "positions": ("N",)})

    def _scores(self, tokens: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        states = self.last_state(tokens, mask)
        batch, length, width = states.shape
        return self.head(F.take(F.reshape(states, (batch * length, width)), positions))
