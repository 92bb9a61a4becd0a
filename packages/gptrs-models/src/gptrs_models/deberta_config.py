"""The config of a DeBERTa: sizes, switches, and the buckets of its distances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gptrs.api.models import ConfigFields
from gptrs.nn import ACTIVATIONS
from gptrs_models.bert_config import BertConfig, Names
from gptrs_models.encoder_heads import Heads, Hidden


@dataclass(frozen=True)
class DebertaConfig:
    """The settings that shape the computation.

    `bert` has those that BERT has, too. `span` is how many distances there are of either sign, 0
    for a model without them; `buckets` of them tell distances up to `most` apart, 0 all of them.
    `to_position` and `to_content` are the terms of scores, whose projections are those of the
    tokens if they are `shared`; `normed` embeddings of distances go through a norm. `positions`:
    whether embeddings have a term of the position. `joined`: queries, keys and values are of one
    product, as in the first version. `kernel` is the size of the convolution, 0 for
    none.
    """

    bert: BertConfig
    span: int
    buckets: int
    most: int
    to_position: bool
    to_content: bool
    shared: bool
    normed: bool
    positions: bool
    joined: bool
    kernel: int
    groups: int
    conv_act: str

    @property
    def terms(self) -> int:
        """Return how many terms scores have."""
        return 1 + self.to_position + self.to_content

    @property
    def heads(self) -> Heads:
        """The names of the weights of heads."""
        return self.bert.heads

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return self.bert.vocab_size

    @property
    def hidden_size(self) -> int:
        """The width of states."""
        return self.bert.hidden_size

    @property
    def embedding_size(self) -> int:
        """The width of embeddings of tokens."""
        return self.bert.embedding_size

    @property
    def hidden_act(self) -> str:
        """The activation in the layers."""
        return self.bert.hidden_act

    @property
    def tie_word_embeddings(self) -> bool:
        """Whether words are scored by the embeddings of tokens."""
        return self.bert.tie_word_embeddings


def read_config(settings: Mapping[str, object]) -> DebertaConfig:
    """Read config.json with transformers' defaults; ModelError names what is unsupported."""
    joined = settings.get("model_type") == "deberta"
    fields = ConfigFields(settings, "deberta-v2")
    if joined:
        own = fields.overlaid(dict.fromkeys(_SECOND), _FIRST)
        fields = ConfigFields(own, "deberta")
        fields.require("talking_head", False)
    fields.require("quantization_config", None)
    bert = _shared(fields)
    fields.require("attention_head_size", bert.hidden_size // bert.num_attention_heads)
    terms = _terms(fields)
    relative = fields.boolean("relative_attention", False)
    if relative and not terms:
        raise fields.error("pos_att_type", "must name c2p or p2c with `relative_attention`")
    most = _above_zero(fields, "max_relative_positions") or bert.max_position_embeddings
    buckets = _above_zero(fields, "position_buckets")
    kernel = fields.integer("conv_kernel_size", 0, minimum=0)
    if kernel and not kernel % 2:
        raise fields.error("conv_kernel_size", "must be odd")
    # `terms` divide the scores even of a model that does not compute them.
    return DebertaConfig(
        bert=bert,
        span=(buckets or most) if relative else 0,
        buckets=buckets,
        most=most,
        to_position="c2p" in terms,
        to_content="p2c" in terms,
        shared=fields.boolean("share_att_key", False),
        normed="layer_norm" in (fields.text("norm_rel_ebd", "none") or ""),
        positions=fields.boolean("position_biased_input", True),
        joined=joined,
        kernel=kernel,
        groups=fields.integer("conv_groups", 1),
        conv_act=fields.choice("conv_act", ACTIVATIONS, "tanh"),
    )


_FIRST = {
    **{"vocab_size": 50265, "hidden_size": 768, "intermediate_size": 3072},
    **{"num_hidden_layers": 12, "num_attention_heads": 12},
}
"""Defaults of the first version that are not those of the second one."""
_SECOND = (
    *("position_buckets", "share_att_key", "norm_rel_ebd", "conv_kernel_size"),
    "attention_head_size",
)
"""Settings that the first version ignores."""


def _above_zero(fields: ConfigFields, name: str) -> int:
    """Return a setting whose values below 1 stand for none, as 0."""
    return max(fields.integer(name, -1, minimum=-(2**31)), 0)


def _terms(fields: ConfigFields) -> tuple[str, ...]:
    """Return the terms of scores, of a list or of text like `c2p|p2c`."""
    found = fields.get("pos_att_type", [])
    words = found.lower().replace(" ", "").split("|") if isinstance(found, str) else found
    return (
        ConfigFields({"pos_att_type": words or None}, "deberta-v2").choices(
            "pos_att_type", ("c2p", "p2c")
        )
        or ()
    )


def _shared(fields: ConfigFields) -> BertConfig:
    width = fields.integer("hidden_size", 1536)
    heads = fields.integer("num_attention_heads", 24)
    if width % heads:
        raise fields.error("hidden_size", f"must be a multiple of the {heads} heads")
    fields.require("pooler_hidden_size", width)
    layers = fields.layers("num_hidden_layers", 24)
    return BertConfig(
        names=Names("deberta"),
        heads=_heads(fields),
        vocab_size=fields.integer("vocab_size", 128100),
        hidden_size=width,
        embedding_size=fields.integer("embedding_size", width),
        num_attention_heads=heads,
        intermediate_size=fields.integer("intermediate_size", 6144),
        hidden_act=fields.choice("hidden_act", ACTIVATIONS, "gelu"),
        max_position_embeddings=fields.integer("max_position_embeddings", 512),
        type_vocab_size=fields.integer("type_vocab_size", 0, minimum=0),
        layer_norm_eps=fields.number("layer_norm_eps", 1e-7),
        stored_layers=tuple(f"encoder.layer.{number}" for number in range(layers)),
        tie_word_embeddings=fields.boolean("tie_word_embeddings", True),
    )


def _heads(fields: ConfigFields) -> Heads:
    """Return the heads; that of words has another form without `legacy`."""
    pooler = Hidden("pooler.dense", fields.choice("pooler_hidden_act", ACTIVATIONS, "gelu"))
    if fields.boolean("legacy", True):
        scope, out = "cls.predictions.transform", "cls.predictions.decoder"
        bias = "cls.predictions.bias"
    else:
        scope = out = "lm_predictions.lm_head"
        bias = ""
    word = Hidden(f"{scope}.dense", None, f"{scope}.LayerNorm")
    return Heads(text=pooler, word=word, word_out=out, word_bias=bias)


def distance_buckets(config: DebertaConfig) -> np.ndarray:
    """Return the row of the embeddings of each distance from -T + 1 to T - 1, si32 [2 T - 1].

    T is the context. Half of the buckets of a sign are for one distance each, the rest for ever
    more (He et al. 2021, with the logarithms of DeBERTa v2).
    """
    most = config.bert.context_length - 1
    distance = np.arange(-most, most + 1)
    found = distance
    if config.buckets:
        middle = config.buckets // 2
        far = np.maximum(np.abs(distance), middle).astype(np.float32)
        growth = np.log(far / np.float32(middle)) / np.log(np.float32((config.most - 1) / middle))
        large = np.ceil(growth * np.float32(middle - 1)).astype(np.int64) + middle
        found = np.where(np.abs(distance) <= middle, distance, np.sign(distance) * large)
    return np.clip(found + config.span, 0, 2 * config.span - 1).astype(np.int32)
