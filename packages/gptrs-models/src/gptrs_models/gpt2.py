"""GPT-2 (Radford et al. 2019) as transformers saves it: config, blocks, model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import ConfigFields, Module, Params, Tensor
from gptrs.nn import (
    ACTIVATIONS,
    Axis,
    CacheSpec,
    CausalLMModule,
    Embedding,
    HookPoint,
    LayerCache,
    LayerNorm,
    Linear,
    RaggedStep,
    captured_once,
    merge_heads,
    split_heads,
)
from gptrs_models.causal_heads import TextClassifier, TokenClassifier, head_of, with_head


class GPT2Config(Struct, frozen=True):
    """The settings that shape the computation, under their names in config.json."""

    vocab_size: int
    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int
    n_inner: int
    activation_function: str
    layer_norm_epsilon: float
    scale_attn_weights: bool
    scale_attn_by_inverse_layer_idx: bool
    tie_word_embeddings: bool

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> GPT2Config:
        """Read config.json with transformers' defaults; ModelError names what is unsupported."""
        fields = ConfigFields(settings, "gpt2")
        fields.require("add_cross_attention", False)
        fields.require("quantization_config", None)
        n_embd = fields.integer("n_embd", 768)
        n_head = fields.integer("n_head", 12)
        if n_embd % n_head:
            raise ModelError(
                f"`n_embd` ({n_embd}) of a gpt2 model is not a multiple of `n_head` ({n_head})"
            )
        return cls(
            vocab_size=fields.integer("vocab_size", 50257),
            n_positions=fields.integer("n_positions", 1024),
            n_embd=n_embd,
            n_layer=fields.layers("n_layer", 12),
            n_head=n_head,
            n_inner=fields.integer("n_inner", 4 * n_embd),
            activation_function=fields.choice("activation_function", ACTIVATIONS, "gelu_new"),
            layer_norm_epsilon=fields.number("layer_norm_epsilon", 1e-5),
            scale_attn_weights=fields.boolean("scale_attn_weights", True),
            scale_attn_by_inverse_layer_idx=fields.boolean(
                "scale_attn_by_inverse_layer_idx", False
            ),
            tie_word_embeddings=fields.boolean("tie_word_embeddings", True),
        )


class Attention(Module):
    """Causal self-attention with one projection for query, key and value."""

    def __init__(self, config: GPT2Config, params: Params, layer: int) -> None:
        dim = config.n_embd
        self.c_attn = Linear(
            params / "c_attn", dim, 3 * dim, layout="in_out", axes=("embed", "heads")
        )
        heads = Axis("heads", config.n_head)
        self.c_proj = Linear(params / "c_proj", dim, dim, layout="in_out", axes=(heads, "embed"))
        self.n_heads = config.n_head
        self.scale = (dim // config.n_head) ** -0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            self.scale /= layer + 1
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()

    def __call__(self, x: Tensor, cache: LayerCache) -> Tensor:
        """[N, C] -> [N, C]."""
        query, key, value = (
            split_heads(part, self.n_heads) for part in F.split(self.c_attn(x), 3)
        )  # each (N, H, D)
        query, key, value = self.hook_q(query), self.hook_k(key), self.hook_v(value)
        return self.c_proj(merge_heads(cache.attend(query, key, value, scale=self.scale)))


class MLP(Module):
    """Two affine layers with the configured activation between them."""

    def __init__(self, config: GPT2Config, params: Params) -> None:
        dim, inner = config.n_embd, config.n_inner
        self.c_fc = Linear(params / "c_fc", dim, inner, layout="in_out", axes=("embed", "mlp"))
        self.c_proj = Linear(params / "c_proj", inner, dim, layout="in_out", axes=("mlp", "embed"))
        self.activation = ACTIVATIONS[config.activation_function]

    def __call__(self, x: Tensor) -> Tensor:
        """[N, C] -> [N, C]."""
        return self.c_proj(self.activation(self.c_fc(x)))


class Block(Module):
    """Attention and MLP, each after a layer norm and added to the residual stream."""

    def __init__(self, config: GPT2Config, params: Params, layer: int) -> None:
        self.ln_1 = LayerNorm(params / "ln_1", config.n_embd, config.layer_norm_epsilon)
        self.attn = Attention(config, params / "attn", layer)
        self.ln_2 = LayerNorm(params / "ln_2", config.n_embd, config.layer_norm_epsilon)
        self.mlp = MLP(config, params / "mlp")
        self.hook_resid_mid = HookPoint()

    @captured_once
    def __call__(self, x: Tensor, cache: LayerCache) -> Tensor:
        """[N, C] -> [N, C]."""
        x = self.hook_resid_mid(x + self.attn(self.ln_1(x), cache))
        return x + self.mlp(self.ln_2(x))


class GPT2(CausalLMModule):
    """The language model."""

    captures_on_disk = True

    def __init__(self, config: GPT2Config, params: Params) -> None:
        super().__init__(config.n_positions, config.vocab_size)
        self.config = config
        body = params / "transformer" if "transformer.wpe.weight" in params else params
        # Some files have the table that a tied layer shares under the name of that layer only.
        head = "lm_head.weight" in params
        lent = config.tie_word_embeddings and head and "wte.weight" not in body
        table = params / "lm_head" if lent else body / "wte"
        self.wte = Embedding(table, config.vocab_size, config.n_embd, "vocab")
        self.wpe = Embedding(body / "wpe", config.n_positions, config.n_embd)
        self.h = [Block(config, body / "h" / i, i) for i in range(config.n_layer)]
        self.ln_f = LayerNorm(body / "ln_f", config.n_embd, config.layer_norm_epsilon)
        # A checkpoint may have separate weights for a layer that the config calls tied.
        tied = config.tie_word_embeddings and not params.stores_apart("lm_head.weight", table)
        self.lm_head = (
            None
            if tied
            else Linear(
                params / "lm_head",
                config.n_embd,
                config.vocab_size,
                bias=False,
                axes=("embed", "vocab"),
            )
        )

    @override
    def cache_specs(self) -> list[CacheSpec]:
        config = self.config
        return [CacheSpec(config.n_head, config.n_embd // config.n_head)] * config.n_layer

    @override
    def states(self, step: RaggedStep[Tensor], caches: Sequence[LayerCache]) -> Iterator[Tensor]:
        x = self.wte(step.tokens) + self.wpe(step.positions)  # (N, C)
        yield x
        for block, cache in zip(self.h, caches, strict=True):
            x = block(x, cache)
            yield x

    @override
    def final_norm(self, x: Tensor) -> Tensor:
        return self.ln_f(x)

    @override
    def logits(self, x: Tensor) -> Tensor:
        return self.wte.unembed(x) if self.lm_head is None else self.lm_head(x)


def load(settings: Mapping[str, object], params: Params) -> GPT2 | TextClassifier | TokenClassifier:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    config, head = GPT2Config.from_settings(settings), head_of(settings)
    if head is None:
        return GPT2(config, params)
    headless = replace(config, tie_word_embeddings=True)
    return with_head(head, settings, params, config.n_embd, lambda: GPT2(headless, params))
