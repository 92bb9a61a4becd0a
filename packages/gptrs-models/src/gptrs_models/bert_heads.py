"""Heads of encoders: scores of texts, of tokens, and of words for masked tokens.

`architectures` in config.json says which one a directory has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import cast

from gptrs import functionals as F
from gptrs.api import CheckpointError, ModelError, Module, Params, Tensor
from gptrs.nn import ACTIVATIONS, Embedding, Linear
from gptrs_models.bert_config import BertConfig

_SUFFIXES = {
    "ForSequenceClassification": "text",
    "ForTokenClassification": "token",
    "ForMaskedLM": "word",
}
"""The head that the end of an architecture's name tells of."""
_PRETRAINED = frozenset({"BertForPreTraining", "AlbertForPreTraining"})
"""Architectures with the head of masked words, and another one."""
_BODIES = ("Model", "PreTrainedModel")
_logger = logging.getLogger("gptrs")


def head_of(settings: Mapping[str, object]) -> str | None:
    """Return `text`, `token` or `word` for the head that config.json tells of, None for no head.

    A head that is none of these is not used, which a note says. ModelError if `architectures` is no
    list of names.
    """
    found: object = settings.get("architectures") or ()
    names = cast("list[object]", found) if isinstance(found, list) else []
    if (found != () and not names) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"`architectures` must be a list of names, found {found!r:.80}")
    for name in cast("list[str]", names)[:1]:
        if name in _PRETRAINED:
            _logger.info("the sentence head of %s is not used, that of masked words is", name)
            return "word"
        for suffix, head in _SUFFIXES.items():
            if name.endswith(suffix):
                return head
        if not name.endswith(_BODIES):
            _logger.info("the head of %.60s is not supported: the encoder alone is used", name)
    return None


def stored_head(head: str | None, config: BertConfig, params: Params) -> str | None:
    """Return `head` if its weights are there, else None, which a note says.

    Folders of sentence-transformers often name the head that a model was trained with, without it.
    """
    heads = config.heads
    names = {"text": heads.text_out, "token": heads.token_out, "word": heads.word_dense}
    if head is None or f"{names[head]}.weight" in params:
        return head
    _logger.info("config.json names a head without weights: the encoder alone is used")
    return None


def labels_of(settings: Mapping[str, object]) -> int:
    """Return the number of classes: entries of `id2label`, else `num_labels`, else 2."""
    table, count = settings.get("id2label"), settings.get("num_labels")
    if isinstance(table, Mapping) and table:
        return len(cast("Mapping[str, object]", table))
    if table is None and isinstance(count, int) and not isinstance(count, bool) and count > 0:
        return count
    if table is None and count is None:
        return 2
    raise ModelError("`id2label` or `num_labels` of a classifier must tell its classes")


class TextHead(Module):
    """Two affine layers on the state of the first token: the score of each class of a text."""

    def __init__(self, config: BertConfig, params: Params, body: Params, classes: int) -> None:
        heads, width = config.heads, config.hidden_size
        scope = body if heads.text_in_body else params
        self.dense = Linear(scope / heads.text_dense, width, width)
        self.out_proj = Linear(params / heads.text_out, width, classes)
        self._activation = ACTIVATIONS[heads.text_activation]

    def __call__(self, states: Tensor) -> Tensor:
        """[B, T, C] -> [B, classes]."""
        batch, _, width = states.shape
        first = F.reshape(F.slice_axis(states, 1, 0, 1), (batch, width))
        return self.out_proj(self._activation(self.dense(first)))


class TokenHead(Module):
    """An affine layer on each state: the score of each class of a token."""

    def __init__(self, config: BertConfig, params: Params, classes: int) -> None:
        self.classifier = Linear(params / config.heads.token_out, config.hidden_size, classes)

    def __call__(self, states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, classes]."""
        return self.classifier(states)


class WordHead(Module):
    """An affine layer, a norm and the scores of all tokens of the vocabulary.

    The last weight is that of the token embeddings, unless config.json says otherwise.
    """

    def __init__(
        self,
        config: BertConfig,
        params: Params,
        norm: Callable[[BertConfig, Params, int], Module],
        words: Embedding,
    ) -> None:
        heads, width = config.heads, config.embedding_size
        self.dense = Linear(params / heads.word_dense, config.hidden_size, width)
        self.LayerNorm = norm(config, params / heads.word_norm, width)
        self._activation = ACTIVATIONS[heads.word_activation or config.hidden_act]
        self.weight = (
            words.weight
            if config.tie_word_embeddings
            else params.tensor(f"{heads.word_out}.weight", (config.vocab_size, width))
        )
        names = (f"{heads.word_out}.bias", heads.word_bias)
        name = next((name for name in names if name in params), None)
        if name is None:
            raise CheckpointError(f"the head of masked words has neither {' nor '.join(names)}")
        self.bias = params.tensor(name, (config.vocab_size,))

    def __call__(self, states: Tensor) -> Tensor:
        """[..., C] -> [..., V]."""
        norm = cast("Callable[[Tensor], Tensor]", self.LayerNorm)
        x = norm(self._activation(self.dense(states)))
        return F.linear(x, self.weight, self.bias)
