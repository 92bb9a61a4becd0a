"""Models of the Llama family with what their config.json tells of: causal or not, and a head."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import cast

from typing_extensions import override

from gptrs import functionals as F
from gptrs.api import ConfigFields, ModelError, Params, Tensor
from gptrs.nn import Linear, TextClassifierModule, TokenClassifierModule
from gptrs_models import llama, rotary_encoder, rotary_encoder_kinds
from gptrs_models.encoder_heads import Heads, Hidden, labels_of
from gptrs_models.llama import Llama
from gptrs_models.llama_kinds import read_config
from gptrs_models.rotary_encoder import RotaryEncoder
from gptrs_models.rotary_encoder_kinds import RotaryConfig, require_alone

_TEXT, _TOKEN = "ForSequenceClassification", "ForTokenClassification"
_logger = logging.getLogger("gptrs")


class TextClassifier(TextClassifierModule, RotaryEncoder):
    """A decoder with scores of the classes of a text, by the state of its last token.

    That is the last one that is not the token of padding, if config.json names one, as in
    transformers: a text that ends with that token is scored before it.
    """

    padding: int | None = None

    @override
    def text_scores(self, tokens: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        batch, length = tokens.shape
        states = self.last_state(tokens, mask)
        kept = mask
        if self.padding is not None:
            kept = F.logical_and(mask, F.not_equal(tokens, self.padding))
        places = F.where(kept, F.reshape(F.arange(length), (1, length)), 0)
        last = F.reshape(F.max(places, axis=1), (batch, 1, 1))
        rows = F.broadcast_to(last, (batch, 1, states.shape[2]))
        return self.head(F.squeeze(F.gather(states, rows, axis=1), 1))


class TokenClassifier(TokenClassifierModule, RotaryEncoder):
    """A decoder with scores of the classes of each token."""


def load(settings: Mapping[str, object], params: Params) -> Llama | RotaryEncoder:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    head = _head(settings)
    if settings.get("use_bidirectional_attention") is True:
        if head is not None:
            raise ModelError(f"a model that is not causal with the head {head} is not supported")
        kind = str(settings.get("model_type"))
        if kind not in rotary_encoder_kinds.KINDS:
            raise ModelError(f"a `{kind}` model that is not causal is not supported")
        return rotary_encoder.load(settings, params)
    if head is None:
        return llama.load(settings, params)
    return _classifier(head, settings, params)


def _head(settings: Mapping[str, object]) -> str | None:
    """Return the end of the name of the architecture, None for a language model or its body.

    A note tells of a head that is not known.
    """
    found = settings.get("architectures")
    names = cast("list[object]", found) if isinstance(found, list) else []
    name = str(names[0]) if names else ""
    head = next((end for end in (_TEXT, _TOKEN) if name.endswith(end)), None)
    if head is None and "For" in name and not name.endswith(("ForCausalLM", "LMHeadModel")):
        _logger.info("the head of %.60s is not known: it is loaded as a language model", name)
    return head


def _classifier(
    head: str, settings: Mapping[str, object], params: Params
) -> TextClassifier | TokenClassifier:
    fields = ConfigFields(settings, str(settings.get("model_type")))
    layers = read_config(settings)
    if layers.alibi or layers.sines is not None or layers.names.positions is not None:
        raise fields.error("architectures", "may name no head for kinds without a rotary embedding")
    if layers.convolution is not None or layers.delta is not None:
        raise fields.error("architectures", "may name no head for kinds with convolutions")
    hidden = Hidden("score", None)
    config = RotaryConfig(
        layers,
        Heads(text=hidden, word=None, word_out=layers.names.head),
        layers.sliding_window if layers.sliding_layers else None,
        causal=True,
    )
    require_alone(config, fields.get("model_type"))
    model = (TextClassifier if head == _TEXT else TokenClassifier)(config, params)
    bias = head == _TOKEN and fields.boolean("token_classification_bias", True)
    model.head = Linear(params / "score", layers.hidden_size, labels_of(settings), bias)
    if isinstance(model, TextClassifier) and fields.get("pad_token_id") is not None:
        model.padding = fields.integer("pad_token_id", minimum=-1)
    return model
