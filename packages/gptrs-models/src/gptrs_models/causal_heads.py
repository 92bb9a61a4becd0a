"""Heads of classes on language models: classes of a text, by its last token, or of each token."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from typing_extensions import override

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import ConfigFields, Params, Tensor
from gptrs.nn import (
    CausalLMModule,
    Linear,
    TextClassifierModule,
    TextEncoderModule,
    TokenClassifierModule,
)
from gptrs_models.encoder_heads import architectures, labels_of
from gptrs_models.llama import Llama
from gptrs_models.llama_config import LlamaConfig
from gptrs_models.llama_kinds import KINDS, read_config

TEXT, TOKEN = "ForSequenceClassification", "ForTokenClassification"
_WITH_WORDS = ("ForCausalLM", "LMHeadModel")
_logger = logging.getLogger("gptrs")


class CausalEncoder(TextEncoderModule):
    """The states of a language model, whose tokens see those before them alone.

    So padding behind a text changes nothing, and the mask plays no part.
    """

    def __init__(self, model: CausalLMModule) -> None:
        super().__init__(model.context_length, model.vocab_size)
        self.model = model

    @override
    def states(
        self, tokens: Tensor, mask: Tensor | None, segments: Tensor | None = None
    ) -> Sequence[Tensor]:
        return self.model.whole_states(tokens)


class TextClassifier(TextClassifierModule, CausalEncoder):
    """A language model with scores of the classes of a text, by the state of its last token.

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


class TokenClassifier(TokenClassifierModule, CausalEncoder):
    """A language model with scores of the classes of each token."""


def head_of(settings: Mapping[str, object]) -> str | None:
    """Return the end of the name of the architecture, None for a language model or its body.

    A note tells of a head that is not known. ModelError for one that answers questions.
    """
    name = next(iter(architectures(settings)), "")
    if name.endswith("ForQuestionAnswering"):
        raise ModelError(
            f"a `{settings.get('model_type')}` model with the head of {name:.60} is not supported",
            hint=f"supported are names that end in {_WITH_WORDS[0]}, {TEXT} and {TOKEN}, and Model,"
            " which has vectors alone",
        )
    head = next((end for end in (TEXT, TOKEN) if name.endswith(end)), None)
    if head is None and "For" in name and not name.endswith(_WITH_WORDS):
        _logger.info("the head of %.60s is not known: the language model is loaded", name)
    return head


def lacks_words(settings: Mapping[str, object], head: str, tied: bool, params: Params) -> bool:
    """Whether config.json names a body without the `head` of words, and no weights make up one."""
    named = next(iter(architectures(settings)), _WITH_WORDS[0])
    return not (tied or named.endswith(_WITH_WORDS) or f"{head}.weight" in params)


def with_head(
    head: str,
    settings: Mapping[str, object],
    params: Params,
    width: int,
    make: Callable[[], CausalLMModule],
) -> TextClassifier | TokenClassifier:
    """Return the model that `make` makes, whose states have `width`, with the head `head`."""
    fields = ConfigFields(settings, str(settings.get("model_type")))
    model = (TextClassifier if head == TEXT else TokenClassifier)(make())
    name = "score" if "score.weight" in params else "classifier"
    bias = head == TOKEN and fields.boolean("token_classification_bias", True)
    model.head = Linear(params / name, width, labels_of(settings), bias)
    if isinstance(model, TextClassifier) and fields.get("pad_token_id") is not None:
        model.padding = fields.integer("pad_token_id", minimum=-1)
    return model


# The language models within models that also see or hear, for texts alone.


Settings = Mapping[str, object]

TEXT_KINDS = {
    "aya_vision": "cohere2",
    "cohere2_vision": "cohere2",
    "deepseek_vl": "llama",
    "gemma3": "gemma3_text",
    "idefics2": "mistral",
    "internvl": "qwen2",
    "lfm2_vl": "lfm2",
    "llava": "llama",
    "llava_next": "llama",
    "llava_onevision": "qwen2",
    "mistral3": "mistral",
    "qwen2_5_vl": "qwen2",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "voxtral": "llama",
}
"""The kind of the language model where config.json names none."""
SAME_TEXTS = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}
"""Language models that are another kind as long as all tokens are those of a text."""
BODIES = (
    *("model.language_model", "language_model.model", "model.text_model"),
    *("language_model", "text_model", "model", ""),
)
"""Where the language model may lie in a checkpoint, by the versions that saved it."""
HEADS = ("lm_head", "language_model.lm_head")


def read_text(settings: Settings, params: Params) -> LlamaConfig:
    """Read the config of the language model; ModelError if its kind is not one of Llama's family.

    Older files have its settings beside those of the other parts. The head is the embedding's
    unless there are weights of one.
    """
    fields = ConfigFields(settings, str(settings.get("model_type")))
    fields.require("quantization_config", None)
    found = fields.get("text_config", settings)
    if not isinstance(found, Mapping):
        raise fields.error("text_config", "must be an object")
    own = cast("Settings", found)
    kind = TEXT_KINDS[str(settings["model_type"])]
    if own is not settings and own.get("model_type") is not None:
        kind = SAME_TEXTS.get(str(own["model_type"]), str(own["model_type"]))
    if kind not in KINDS:
        raise fields.error("text_config", f"has the `model_type` {kind!r:.80}")
    rope = {name: _one_axis(own[name]) for name in _ROPES if own.get(name) is not None}
    config = read_config(
        ConfigFields(own, kind).overlaid({**rope, "model_type": kind, "tie_word_embeddings": True})
    )
    word = f"{config.names.embed}.weight"
    bodies = (body for body in BODIES if (f"{body}.{word}" if body else word) in params)
    head = next((head for head in HEADS if f"{head}.weight" in params), HEADS[0])
    names = replace(config.names, body=next(bodies, BODIES[0]), head=head)
    experts = config.experts
    if experts is not None and settings["model_type"] == "qwen3_vl_moe":
        experts = replace(experts, turned=True)
    # transformers leaves Cohere's factor of the logits to the language model that stands alone.
    scale = 1.0 if kind.startswith("cohere") else config.logit_scale
    return replace(config, names=names, logit_scale=scale, experts=experts)


_ROPES = ("rope_parameters", "rope_scaling")


def _one_axis(found: object) -> object:
    """Return rotary settings without sections for time, height and width: one number in a text."""
    if not isinstance(found, Mapping):
        return found
    given = cast("Settings", found)
    own = {key: value for key, value in given.items() if not key.startswith("mrope_")}
    return {key: "default" if value == "mrope" else value for key, value in own.items()}


def load(settings: Settings, params: Params) -> Llama:
    """Build the language model; a note tells that it reads texts alone."""
    kind, found = settings.get("model_type"), settings.get("architectures")
    names = cast("list[object]", found) if isinstance(found, list) else []
    if any(str(name).endswith("Classification") for name in names):
        raise ModelError(f"a `{kind}` model with a head for classes is not supported")
    config = read_text(settings, params)
    model = Llama(config, params)
    params.leave_out(params / config.names.body if config.names.body else None)
    _logger.info("of the `%s` model the language model alone is loaded: it reads texts only", kind)
    return model
