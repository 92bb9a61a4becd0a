"""Models of the Llama family, causal or not, with the head that config.json names."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from gptrs.api import ModelError
from gptrs.api.models import ConfigFields, Params
from gptrs_models import rotary_encoder, rotary_encoder_kinds
from gptrs_models.causal_heads import (
    CausalEncoder,
    TextClassifier,
    TokenClassifier,
    head_of,
    lacks_words,
    with_head,
)
from gptrs_models.llama import Llama
from gptrs_models.llama_config import LlamaConfig
from gptrs_models.llama_heads import EagleDraft, is_eagle
from gptrs_models.llama_kinds import read_config
from gptrs_models.rotary_encoder import RotaryEncoder
from gptrs_models.rotary_encoder_kinds import require_alone


def load(
    settings: Mapping[str, object], params: Params
) -> Llama | RotaryEncoder | CausalEncoder | EagleDraft:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    if is_eagle(params):
        fields = ConfigFields(settings, str(settings.get("model_type")))
        fields.without_effect("draft_vocab_size")  # the rows of its head say it
        first = fields.boolean("norm_before_residual", False)
        return EagleDraft(read_config(settings), params, first)
    head = head_of(settings)
    if settings.get("use_bidirectional_attention") is True:
        if head is not None:
            raise ModelError(f"a model that is not causal with the head {head} is not supported")
        kind = str(settings.get("model_type"))
        if kind not in rotary_encoder_kinds.KINDS:
            raise ModelError(f"a `{kind}` model that is not causal is not supported")
        return rotary_encoder.load(settings, params)
    config = read_config(settings)
    if head is not None:
        return _classifier(head, config, settings, params)
    if lacks_words(settings, config.names.head, config.tie_word_embeddings, params):
        return CausalEncoder(Llama(_headless(config, settings), params))
    return Llama(config, params)


def _classifier(
    head: str, config: LlamaConfig, settings: Mapping[str, object], params: Params
) -> TextClassifier | TokenClassifier:
    kind = str(settings.get("model_type"))
    if config.embedding_width not in (None, config.hidden_size):
        fields = ConfigFields(settings, kind)
        raise fields.error("architectures", "may name no head if embeddings have another width")
    headless = _headless(config, settings)
    width = config.hidden_size
    return with_head(head, settings, params, width, lambda: Llama(headless, params))


def _headless(config: LlamaConfig, settings: Mapping[str, object]) -> LlamaConfig:
    """Return the config of the body; ModelError if texts would depend on others of a batch."""
    require_alone(config, settings.get("model_type"))
    return replace(config, tie_word_embeddings=True, head_bias=False)
