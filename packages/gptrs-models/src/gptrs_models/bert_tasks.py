"""Encoders of the BERT family with the head that their config.json tells of."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gptrs import functionals as F
from gptrs.api import Params, Tensor, jit, tensor
from gptrs_models.bert import TEXT_AXES, Bert, Norm
from gptrs_models.bert_config import BertConfig
from gptrs_models.bert_heads import TextHead, TokenHead, WordHead, head_of, labels_of, stored_head
from gptrs_models.bert_kinds import read_config

PAIR_AXES = {**TEXT_AXES, "segments": ("B", "T")}


class TextClassifierBert(Bert):
    """The encoder with scores of the classes of a text, a `TextClassifier`."""

    capabilities = Bert.capabilities | {"text_classifier"}

    def __init__(self, config: BertConfig, params: Params, classes: int) -> None:
        super().__init__(config, params)
        self.head = TextHead(config, params, self.body, classes)
        self._score = jit(self._scores, dynamic=PAIR_AXES)

    def classify_texts(
        self, tokens: np.ndarray, segments: np.ndarray, mask: np.ndarray
    ) -> np.ndarray:
        """Return the logits of the classes of each text, f32 [B, classes].

        Tokens and segments are si64 [B, T], the mask is i1. ContextLengthError for too many tokens.
        """
        self.require_context(tokens)
        return self._score(tensor(tokens), tensor(segments), tensor(mask)).numpy()

    def _scores(self, tokens: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.last_state(tokens, mask, segments))


class TokenClassifierBert(Bert):
    """The encoder with scores of the classes of each token, a `TokenClassifier`."""

    capabilities = Bert.capabilities | {"token_classifier"}

    def __init__(self, config: BertConfig, params: Params, classes: int) -> None:
        super().__init__(config, params)
        self.head = TokenHead(config, params, classes)
        self._score = jit(self._scores, dynamic=TEXT_AXES)

    def classify_tokens(self, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the logits of the classes of each token, si64, i1 [B, T] -> f32 [B, T, classes].

        ContextLengthError for too many tokens.
        """
        self.require_context(tokens)
        return self._score(tensor(tokens), tensor(mask)).numpy()

    def _scores(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.last_state(tokens, mask))


class MaskedBert(Bert):
    """The encoder with scores of words for masked tokens, a `MaskedLM`."""

    capabilities = Bert.capabilities | {"masked_lm"}

    def __init__(self, config: BertConfig, params: Params) -> None:
        super().__init__(config, params)
        words = self.embeddings.word_embeddings
        self.head = WordHead(config, params, Norm, words)
        self._score = jit(self._scores, dynamic={**TEXT_AXES, "places": ("N",)})

    def predict_tokens(
        self, tokens: np.ndarray, mask: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """Return the logits of the vocabulary at places in the flat batch, f32 [N, V].

        Tokens si64 [B, T], mask i1 [B, T], places si64 [N] in [0, B * T). ContextLengthError for
        too many tokens.
        """
        self.require_context(tokens)
        return self._score(tensor(tokens), tensor(mask), tensor(places)).numpy()

    def _scores(self, tokens: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        states = self.last_state(tokens, mask)
        batch, length, width = states.shape
        return self.head(F.take(F.reshape(states, (batch * length, width)), places))


def load(settings: Mapping[str, object], params: Params) -> Bert:
    """Build the model, with the head that `architectures` tells of, from config.json and weights.

    ModelError if either is unsupported.
    """
    config = read_config(settings)
    head = stored_head(head_of(settings), config, params)
    if head == "text":
        return TextClassifierBert(config, params, labels_of(settings))
    if head == "token":
        return TokenClassifierBert(config, params, labels_of(settings))
    return MaskedBert(config, params) if head == "word" else Bert(config, params)
