"""BERT (Devlin et al. 2019) as transformers saves it: config, layers, model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gptrs import functionals as F
from gptrs.api import (
    ConfigFields,
    ContextLengthError,
    ModelError,
    Module,
    Params,
    Tensor,
    jit,
    tensor,
)
from gptrs.nn import ACTIVATIONS, Embedding, Linear, captured_once, merge_heads, split_heads


@dataclass(frozen=True)
class BertConfig:
    """The settings that shape the computation, under their names in config.json."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> BertConfig:
        """Read config.json with transformers' defaults; ModelError names what is unsupported."""
        fields = ConfigFields(settings, "bert")
        fields.require("position_embedding_type", "absolute")
        fields.require("is_decoder", False)
        fields.require("add_cross_attention", False)
        fields.require("quantization_config", None)
        width = fields.integer("hidden_size", 768)
        heads = fields.integer("num_attention_heads", 12)
        if width % heads:
            raise ModelError(
                f"`hidden_size` ({width}) of a bert model is no multiple of"
                f" `num_attention_heads` ({heads})"
            )
        return cls(
            vocab_size=fields.integer("vocab_size", 30522),
            hidden_size=width,
            num_hidden_layers=fields.integer("num_hidden_layers", 12),
            num_attention_heads=heads,
            intermediate_size=fields.integer("intermediate_size", 3072),
            hidden_act=fields.choice("hidden_act", ACTIVATIONS, "gelu"),
            max_position_embeddings=fields.integer("max_position_embeddings", 512),
            type_vocab_size=fields.integer("type_vocab_size", 2),
            layer_norm_eps=fields.number("layer_norm_eps", 1e-12),
        )


class Norm(Module):
    """Layer normalization, whose weights older checkpoints call `gamma` and `beta`."""

    def __init__(self, config: BertConfig, params: Params) -> None:
        names = ("gamma", "beta") if "gamma" in params else ("weight", "bias")
        self.weight, self.bias = (params.tensor(name, (config.hidden_size,)) for name in names)
        self._epsilon = config.layer_norm_eps

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize the last axis of `x`."""
        return F.layer_norm(x, self.weight, self.bias, self._epsilon)


class Embeddings(Module):
    """Sum of token, position and first token-type embeddings, normalized."""

    def __init__(self, config: BertConfig, params: Params) -> None:
        width = config.hidden_size
        self.word_embeddings = Embedding(params / "word_embeddings", config.vocab_size, width)
        self.position_embeddings = Embedding(
            params / "position_embeddings", config.max_position_embeddings, width
        )
        self.token_type_embeddings = Embedding(
            params / "token_type_embeddings", config.type_vocab_size, width
        )
        self.LayerNorm = Norm(config, params / "LayerNorm")

    def __call__(self, tokens: Tensor) -> Tensor:
        """Int [B, T] -> [B, T, C]."""
        first_type = F.slice_axis(self.token_type_embeddings.weight, 0, 0, 1)  # (1, C)
        places = F.slice_axis(self.position_embeddings.weight, 0, 0, tokens.shape[1])  # (T, C)
        return self.LayerNorm(self.word_embeddings(tokens) + first_type + places)


class SelfAttention(Module):
    """Self-attention of each token to all tokens of its text."""

    def __init__(self, config: BertConfig, params: Params) -> None:
        width = config.hidden_size
        self.query = Linear(params / "query", width, width)
        self.key = Linear(params / "key", width, width)
        self.value = Linear(params / "value", width, width)
        self.n_heads = config.num_attention_heads

    def __call__(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, C] and the mask of visible keys, i1 [B, 1, 1, T] -> [B, T, C]."""
        query, key, value = (
            F.swap_axes(split_heads(layer(x), self.n_heads), 1, 2)
            for layer in (self.query, self.key, self.value)
        )  # each (B, H, T, D)
        mixed = F.attention(query, key, value, mask=mask)  # (B, H, T, D)
        return merge_heads(F.swap_axes(mixed, 1, 2))


class Residual(Module):
    """An affine layer with a residual connection, then layer normalization."""

    def __init__(self, config: BertConfig, params: Params, inputs: int) -> None:
        self.dense = Linear(params / "dense", inputs, config.hidden_size)
        self.LayerNorm = Norm(config, params / "LayerNorm")

    def __call__(self, x: Tensor, before: Tensor) -> Tensor:
        """[B, T, inputs] and [B, T, C] -> [B, T, C]."""
        return self.LayerNorm(self.dense(x) + before)


class Attention(Module):
    """Self-attention and its projection."""

    def __init__(self, config: BertConfig, params: Params) -> None:
        self.self = SelfAttention(config, params / "self")
        self.output = Residual(config, params / "output", config.hidden_size)

    def __call__(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, C] and the mask of visible keys, i1 [B, 1, 1, T] -> [B, T, C]."""
        return self.output(self.self(x, mask), x)


class Intermediate(Module):
    """An affine layer with the configured activation."""

    def __init__(self, config: BertConfig, params: Params) -> None:
        self.dense = Linear(params / "dense", config.hidden_size, config.intermediate_size)
        self._activation = ACTIVATIONS[config.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, intermediate_size]."""
        return self._activation(self.dense(x))


class Layer(Module):
    """Attention and two affine layers, each with a residual connection and a norm after it."""

    def __init__(self, config: BertConfig, params: Params) -> None:
        self.attention = Attention(config, params / "attention")
        self.intermediate = Intermediate(config, params / "intermediate")
        self.output = Residual(config, params / "output", config.intermediate_size)

    @captured_once
    def __call__(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, C] and the mask of visible keys, i1 [B, 1, 1, T] -> [B, T, C]."""
        x = self.attention(x, mask)
        return self.output(self.intermediate(x), x)


class Encoder(Module):
    """The layers, one after another."""

    def __init__(self, config: BertConfig, params: Params) -> None:
        self.layer = [Layer(config, params / "layer" / i) for i in range(config.num_hidden_layers)]


class Bert(Module):
    """The encoder, a `TextEmbedder`; heads of the checkpoint, such as the pooler, are ignored."""

    capabilities = frozenset({"text_embedder", "hidden_states"})

    def __init__(self, config: BertConfig, params: Params) -> None:
        self.config = config
        body = params / "bert" if "bert.embeddings.word_embeddings.weight" in params else params
        self.embeddings = Embeddings(config, body / "embeddings")
        self.encoder = Encoder(config, body / "encoder")
        self._encode = jit(self._last_state, dynamic={"tokens": ("B", "T"), "mask": ("B", "T")})
        self._collect = jit(self._named_states, dynamic={"tokens": ("B", "T")})

    @property
    def context_length(self) -> int:
        """Return the largest number of tokens of a text."""
        return self.config.max_position_embeddings

    @property
    def vocab_size(self) -> int:
        """Return the number of token ids."""
        return self.config.vocab_size

    def encode(self, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the vector of each token: si64 [B, T] and i1 [B, T] -> f32 [B, T, C].

        ContextLengthError if T is above `context_length`.
        """
        self._require_context(tokens)
        return self._encode(tensor(tokens), tensor(mask)).numpy()

    def hidden_states(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Return the embeddings and the state after each layer, si64 [B, T] -> f32 [B, T, C].

        ContextLengthError if T is above `context_length`.
        """
        self._require_context(inputs)
        return {name: state.numpy() for name, state in self._collect(tensor(inputs)).items()}

    def _last_state(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self._states(tokens, mask)[-1]

    def _named_states(self, tokens: Tensor) -> dict[str, Tensor]:
        states = self._states(tokens, None)
        names = ["embeddings", *(f"layer.{index}" for index in range(len(states) - 1))]
        return dict(zip(names, states, strict=True))

    def _states(self, tokens: Tensor, mask: Tensor | None) -> list[Tensor]:
        """Return the embeddings and the state after each layer; i1 [B, T] masks padding."""
        batch, length = tokens.shape
        seen = None if mask is None else F.reshape(mask, (batch, 1, 1, length))
        states = [self.embeddings(tokens)]
        for layer in self.encoder.layer:
            states.append(layer(states[-1], seen))
        return states

    def _require_context(self, tokens: np.ndarray) -> None:
        if tokens.shape[1] > self.context_length:
            raise ContextLengthError(
                f"{tokens.shape[1]} tokens do not fit into the context of {self.context_length}"
            )


def load(settings: Mapping[str, object], params: Params) -> Bert:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    return Bert(BertConfig.from_settings(settings), params)
