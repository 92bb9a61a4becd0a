"""Encoders of the BERT family with the head that their config.json tells of."""

from __future__ import annotations

from collections.abc import Mapping

from gptrs.api.models import Params
from gptrs.nn import MaskedLMModule, TextClassifierModule, TokenClassifierModule
from gptrs_models.bert import Bert, Norm
from gptrs_models.bert_kinds import read_config
from gptrs_models.encoder_heads import with_head


class TextClassifierBert(TextClassifierModule, Bert):
    """The encoder with scores of the classes of a text."""


class TokenClassifierBert(TokenClassifierModule, Bert):
    """The encoder with scores of the classes of each token."""


class MaskedBert(MaskedLMModule, Bert):
    """The encoder with scores of words for masked tokens."""


CLASSES: dict[str | None, type[Bert]] = {
    None: Bert,
    "text": TextClassifierBert,
    "token": TokenClassifierBert,
    "word": MaskedBert,
}
"""The class for each head."""


def load(settings: Mapping[str, object], params: Params) -> Bert:
    """Build the model, with the head that `architectures` tells of, from config.json and weights.

    ModelError if either is unsupported.
    """
    config = read_config(settings)

    def norm(scope: Params, width: int) -> Norm:
        return Norm(config, scope, width)

    return with_head(CLASSES, config, settings, params, norm)
