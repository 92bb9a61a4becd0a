"""Heads of encoders: scores of texts, of tokens, and of words at masked tokens.

`architectures` in config.json selects the head.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Literal, TypeVar, cast

from msgspec import Struct

from gptrs import functionals as F
from gptrs.api import CheckpointError, ModelError
from gptrs.api.models import Module, Params, Tensor
from gptrs.nn import ACTIVATIONS, Embedding, Linear, TextEncoderModule

_SUFFIXES = {
    "ForSequenceClassification": "text",
    "ForTokenClassification": "token",
    "ForMaskedLM": "word",
}
"""The head by the suffix of an architecture's name."""
_PRETRAINED = frozenset({"BertForPreTraining", "AlbertForPreTraining"})
"""Architectures that have a second head besides that of masked words."""
_BODIES = ("Model", "PreTrainedModel")
_logger = logging.getLogger("gptrs")

Pooling = Literal["first", "mean", "late"]
"""A text head scores the first token, the mean of all tokens, or every token and averages the
scores."""


class Hidden(Struct, frozen=True):
    """The hidden layer of a head by the names of its weights: affine, activation, optional norm.

    `activation` None: the activation of the encoder. `in_body`: `dense` lies below the body.
    """

    dense: str
    activation: str | None
    norm: str | None = None
    bias: bool = True
    in_body: bool = False


class Heads(Struct, frozen=True):
    """Names of the weights of heads, and their parts.

    `word_bias` is the scope of the bias of word scores if it is not beside the weight at
    `word_out`; None: no bias.
    """

    text: Hidden
    word: Hidden | None
    word_out: str
    word_bias: str | None = ""
    text_out: str = "classifier"
    token: Hidden | None = None
    token_out: str = "classifier"
    pooling: Pooling = "first"


class HeadConfig(Struct, frozen=True, kw_only=True):
    """The part of the config of an encoder that heads read.

    With tied embeddings, words are scored by the token embeddings, of width `embedding_size`.
    """

    heads: Heads
    vocab_size: int
    hidden_size: int
    embedding_size: int
    hidden_act: str
    tie_word_embeddings: bool = True


class Body(TextEncoderModule):
    """An encoder that can get a head: it exposes its weights."""

    body: Params
    table: Params
    """The scope of the token embeddings."""

    @property
    def words(self) -> Embedding:
        """Return the token embeddings."""
        raise NotImplementedError


Config = TypeVar("Config")
Model = TypeVar("Model", bound=Body)
Norm = Callable[[Params, int], Callable[[Tensor], Tensor]]
"""Makes the norm of a kind from the weights in a scope, for a width."""


def with_head(
    classes: Mapping[str | None, Callable[[Config, Params], Model]],
    config: Config,
    sizes: HeadConfig,
    settings: Mapping[str, object],
    params: Params,
    norm: Norm,
) -> Model:
    """Return the encoder with the head that config.json names, if any.

    `classes` maps the heads of `head_of` to classes. Raises ModelError for unsupported settings,
    and CheckpointError for unsupported weights.
    """
    head = _stored_head(head_of(settings), sizes.heads, params)
    model = classes[head](config, params)
    if head == "text":
        model.head = TextHead(sizes, params, model.body, norm, labels_of(settings))
    elif head == "token":
        model.head = TokenHead(sizes, params, model.body, norm, labels_of(settings))
    elif head == "word":
        model.head = WordHead(sizes, params, model.body, norm, model)
    named = architectures(settings)[:1]
    # The weights of the unused head are expected, so that they are not reported as unread.
    if named and (named[0] in _PRETRAINED or (head is None and not named[0].endswith(_BODIES))):
        params.leave_out(model.body)
    return model


def head_of(settings: Mapping[str, object]) -> str | None:
    """Return `text`, `token` or `word` for the head that config.json names; None for no head.

    Other heads are left out with a note. ModelError if `architectures` is not a list of names.
    """
    found: object = settings.get("architectures") or ()
    names = cast("list[object]", found) if isinstance(found, list) else []
    if (found != () and not names) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"`architectures` must be a list of names, found {found!r:.80}")
    for name in cast("list[str]", names)[:1]:
        if name in _PRETRAINED:
            _logger.info("of the two heads of %s, only that of masked words is used", name)
            return "word"
        for suffix, head in _SUFFIXES.items():
            if name.endswith(suffix):
                return head
        if not name.endswith(_BODIES):
            _logger.info("the head of %.60s is not supported: the encoder alone is used", name)
    return None


def architectures(settings: Mapping[str, object]) -> list[str]:
    """Return the names in `architectures`; empty if it is no list."""
    found = settings.get("architectures")
    return [str(name) for name in cast("list[object]", found)] if isinstance(found, list) else []


_OTHER_HEADS = ("Classification", "QuestionAnswering", "CausalLM")


def require_no_head(settings: Mapping[str, object]) -> None:
    """Raise ModelError if config.json names a head that encoder-decoders here lack."""
    for name in architectures(settings)[:1]:
        if any(head in name for head in _OTHER_HEADS):
            raise ModelError(
                f"a `{settings.get('model_type')}` model with the head of {name:.60} is not"
                " supported",
                hint="...ForConditionalGeneration generates texts; for classes of texts see"
                " docs/text_heads.md",
            )


def _stored_head(head: str | None, heads: Heads, params: Params) -> str | None:
    """Return `head` if it has weights; otherwise log a note and return None.

    Folders of sentence-transformers often name the head of the training, but lack its weights.
    """
    words = heads.word_out if heads.word is None else heads.word.dense
    names = {"text": heads.text_out, "token": heads.token_out, "word": words}
    if head is None or f"{names[head]}.weight" in params:
        return head
    if head == "word" and heads.word is None:
        return head  # may be tied to the embeddings
    _logger.info("config.json names a head without weights: the encoder alone is used")
    return None


def labels_of(settings: Mapping[str, object]) -> int:
    """Return the number of classes: entries of `id2label`, else `num_labels`, else 2."""
    table, count = settings.get("id2label"), settings.get("num_labels")
    if isinstance(table, Mapping) and table:
        return len(cast("Mapping[str, object]", table))
    if table is None and isinstance(count, int) and not isinstance(count, bool) and count > 0:
        return count
    # The default of transformers.
    if table is None and count is None:
        return 2
    raise ModelError("a classifier needs its classes in `id2label` or `num_labels`")


class Transform(Module):
    """An affine layer, an activation and an optional norm before the scores."""

    def __init__(
        self,
        config: HeadConfig,
        hidden: Hidden,
        params: Params,
        body: Params,
        norm: Norm,
        width: int,
    ) -> None:
        scope = body if hidden.in_body else params
        self.dense = Linear(scope / hidden.dense, config.hidden_size, width, hidden.bias)
        self._activation = ACTIVATIONS[hidden.activation or config.hidden_act]
        self.norm = None if hidden.norm is None else norm(params / hidden.norm, width)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., width]."""
        x = self._activation(self.dense(x))
        return x if self.norm is None else self.norm(x)


class TextHead(Module):
    """The score of each class of a text, from one of its states or from their mean."""

    def __init__(
        self, config: HeadConfig, params: Params, body: Params, norm: Norm, classes: int
    ) -> None:
        heads, width = config.heads, config.hidden_size
        self.transform = Transform(config, heads.text, params, body, norm, width)
        self.classifier = Linear(params / heads.text_out, width, classes)
        self._pooling = heads.pooling

    def __call__(self, states: Tensor, mask: Tensor) -> Tensor:
        """[B, T, C] and i1 [B, T] -> [B, classes]."""
        if self._pooling == "late":
            return _mean(self.classifier(self.transform(states)), mask)
        if self._pooling == "mean":
            pooled = _mean(states, mask)
        else:
            pooled = F.squeeze(F.slice_axis(states, 1, 0, 1), 1)
        return self.classifier(self.transform(pooled))


def _mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the tokens of each text, [B, T, C] and i1 [B, T] -> [B, C]."""
    tokens = F.cast(F.reshape(mask, (*mask.shape, 1)), x.dtype)
    # By the number of tokens, not by the length: padding of a batch must not change a result.
    return F.sum(x * tokens, axis=1) / F.sum(tokens, axis=1)


class TokenHead(Module):
    """The score of each class of a token."""

    def __init__(
        self, config: HeadConfig, params: Params, body: Params, norm: Norm, classes: int
    ) -> None:
        heads, width = config.heads, config.hidden_size
        self.transform = (
            None
            if heads.token is None
            else Transform(config, heads.token, params, body, norm, width)
        )
        self.classifier = Linear(params / heads.token_out, width, classes)

    def __call__(self, states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, classes]."""
        return self.classifier(states if self.transform is None else self.transform(states))


class WordHead(Module):
    """The scores of all tokens of the vocabulary.

    The last weight is tied to the token embeddings, unless config.json says otherwise.
    """

    def __init__(
        self, config: HeadConfig, params: Params, body: Params, norm: Norm, model: Body
    ) -> None:
        heads, width = config.heads, config.embedding_size
        self.transform = (
            None if heads.word is None else Transform(config, heads.word, params, body, norm, width)
        )
        weight = f"{heads.word_out}.weight"
        tied = config.tie_word_embeddings and not params.stores_apart(weight, model.table)
        self.weight = (
            model.words.unembedding() if tied else params.tensor(weight, (config.vocab_size, width))
        )
        self.bias: Tensor | None = None
        if heads.word_bias is not None:
            # Checkpoints have the bias beside the head, in its last layer, or in both.
            names = [name for name in (f"{heads.word_out}.bias", heads.word_bias) if name]
            found = [name for name in names if name in params]
            if not found:
                raise CheckpointError(f"the head of masked words has neither {' nor '.join(names)}")
            self.bias = params.tensor(found[0], (config.vocab_size,))

    def __call__(self, states: Tensor) -> Tensor:
        """[..., C] -> [..., V]."""
        x = states if self.transform is None else self.transform(states)
        return F.linear(x, self.weight, self.bias)
