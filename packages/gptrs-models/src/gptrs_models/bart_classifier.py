"""BART with a head for classes of texts, such as bart-large-mnli (zero-shot classification)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import ConfigFields, Params, Tensor, tensor
from gptrs.nn import DecoderCache, Embedding, KeysValues, Linear, TextClassifierModule
from gptrs_models.bart import BartConfig, Decoder, Encoder, stored
from gptrs_models.bart_blocks import source_views
from gptrs_models.encoder_heads import labels_of


class WholeText(DecoderCache):
    """Stands for the cache of a layer where all tokens of a text come at once."""

    def __init__(self, source: KeysValues, mask: Tensor) -> None:
        super().__init__(source, source, mask, tensor(0))

    @override
    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        return F.attention(query, key, value, mask=bias, scale=scale, causal=True)


class BartClassifier(TextClassifierModule):
    """The encoder-decoder reads a text twice; the state of its last end token is scored.

    The decoder reads it one token later, behind the token with which texts begin.
    """

    capabilities = frozenset({"text_classifier"})

    def __init__(self, config: BartConfig, settings: Mapping[str, object], params: Params) -> None:
        super().__init__(config.max_position_embeddings, config.vocab_size)
        fields, model, width = ConfigFields(settings, "bart"), params / "model", config.width
        self._start = fields.integer("decoder_start_token_id", 2, minimum=0)
        self._end = fields.integer("eos_token_id", 2, minimum=0)
        words = stored(model, ("shared", "encoder.embed_tokens", "decoder.embed_tokens"))
        embedding = Embedding(words, config.vocab_size, width, "vocab")
        self.encoder = Encoder(config, model / "encoder", embedding)
        self.decoder = Decoder(config, model / "decoder", embedding)
        scope = params / "classification_head"
        self.dense = Linear(scope / "dense", width, width)
        self.out_proj = Linear(scope / "out_proj", width, labels_of(settings))

    @override
    def states(
        self, tokens: Tensor, mask: Tensor | None, segments: Tensor | None = None
    ) -> Sequence[Tensor]:
        seen = F.equal(tokens, tokens) if mask is None else mask
        sources = source_views(self.decoder.layers, self.encoder(tokens, seen))
        caches = [WholeText(source, seen) for source in sources]
        first = F.slice_axis(tokens, 1, 0, 1)
        later = F.slice_axis(tokens, 1, 0, tokens.shape[1] - 1)
        shifted = F.concat([first * 0 + self._start, later], axis=1)
        return [self.decoder(shifted, None, caches)]

    @override
    def text_scores(self, tokens: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        batch, length = tokens.shape
        states = self.last_state(tokens, mask)
        ends = F.logical_and(mask, F.equal(tokens, self._end))
        places = F.where(ends, F.reshape(F.arange(length), (1, length)), 0)
        last = F.reshape(F.max(places, axis=1), (batch, 1, 1))
        rows = F.broadcast_to(last, (batch, 1, states.shape[2]))
        state = F.squeeze(F.gather(states, rows, axis=1), 1)
        return self.out_proj(F.tanh(self.dense(state)))

    @override
    def classify_texts(
        self, tokens: np.ndarray, segments: np.ndarray, mask: np.ndarray
    ) -> np.ndarray:
        if not ((tokens == self._end) & mask).any(axis=1).all():
            raise ModelError(
                f"a text has no token {self._end}, whose state a `bart` classifier scores",
                hint="the model's tokenizer puts it at the end of a text",
            )
        return super().classify_texts(tokens, segments, mask)
