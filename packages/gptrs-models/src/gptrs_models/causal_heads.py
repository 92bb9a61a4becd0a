"""Classification heads on language models: of a text, by its last token, or of each token."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

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

TEXT, TOKEN = "ForSequenceClassification", "ForTokenClassification"
_WITH_WORDS = ("ForCausalLM", "LMHeadModel")
_logger = logging.getLogger("gptrs")


class CausalEncoder(TextEncoderModule):
    """The hidden states of a language model; tokens see only earlier ones.

    So right padding changes nothing, and the mask is not needed.
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
    """A language model with a score for each class of a text, by the state of its last token.

    As in transformers, that is the last token other than the padding token, if config.json names
    one: a text that itself ends with the padding token is scored at the token before.
    """

    padding: int | None = None

    @override
    def text_scores(self, tokens: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        batch, length = tokens.shape
        states = self.last_state(tokens, mask)
        kept = mask
        if self.padding is not None:
            kept = F.logical_and(mask, F.not_equal(tokens, self.padding))
        indices = F.where(kept, F.reshape(F.arange(length), (1, length)), 0)
        last = F.reshape(F.max(indices, axis=1), (batch, 1, 1))
        rows = F.broadcast_to(last, (batch, 1, states.shape[2]))
        return self.head(F.squeeze(F.gather(states, rows, axis=1), 1))


class TokenClassifier(TokenClassifierModule, CausalEncoder):
    """A language model with a score for each class of a token."""


def head_of(settings: Mapping[str, object]) -> str | None:
    """Return the suffix of the architecture's name; None for a language model or its body.

    Logs a note for an unknown head. Raises ModelError for a head that answers questions.
    """
    name = next(iter(architectures(settings)), "")
    if name.endswith("ForQuestionAnswering"):
        raise ModelError(
            f"a `{settings.get('model_type')}` model with the head of {name:.60} is not supported",
            hint=f"supported are names that end in {_WITH_WORDS[0]}, {TEXT} and {TOKEN}, and "
            f"Model (vectors only)",
        )
    head = next((end for end in (TEXT, TOKEN) if name.endswith(end)), None)
    if head is None and "For" in name and not name.endswith(_WITH_WORDS):
        _logger.info("the head of %.60s is not known: the language model is loaded", name)
    return head


def lacks_words(settings: Mapping[str, object], head: str, tied: bool, params: Params) -> bool:
    """Return whether config.json names a body, and the weights have no word head `head`."""
    named = next(iter(architectures(settings)), _WITH_WORDS[0])
    return not (tied or named.endswith(_WITH_WORDS) or f"{head}.weight" in params)


def with_head(
    head: str,
    settings: Mapping[str, object],
    params: Params,
    width: int,
    make: Callable[[], CausalLMModule],
) -> TextClassifier | TokenClassifier:
    """Return the model of `make`, with states of `width`, with the head `head`."""
    fields = ConfigFields(settings, str(settings.get("model_type")))
    model = (TextClassifier if head == TEXT else TokenClassifier)(make())
    name = "score" if "score.weight" in params else "classifier"
    bias = head == TOKEN and fields.boolean("token_classification_bias", True)
    model.head = Linear(params / name, width, labels_of(settings), bias)
    if isinstance(model, TextClassifier) and fields.get("pad_token_id") is not None:
        model.padding = fields.integer("pad_token_id", minimum=-1)
    return model
