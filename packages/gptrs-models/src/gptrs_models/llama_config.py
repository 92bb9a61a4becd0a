"""The config of a decoder of the Llama family: sizes, switches, names of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from gptrs.nn import CacheSpec, RopeSettings
from gptrs_models.delta_net import Delta
from gptrs_models.latent_attention import Latent
from gptrs_models.llama_experts import Experts
from gptrs_models.llama_positions import ADDED
from gptrs_models.mamba2 import MambaLayers
from gptrs_models.short_convolution import Convolution
from gptrs_models.sines import Sines

Norm = Literal["rms", "rms_offset", "layer", "layer_offset", "layer_weight", "layer_plain"]
"""A norm: RMS or LayerNorm. `_offset` stores its weights minus 1 (Gemma, Nemotron), `_weight` has
no bias (Cohere), `_plain` has neither weight nor bias (OLMo)."""

HeadNorm = Literal["rms", "rms_offset", "layer", "width", "each"]
"""The norm of queries and keys: a `Norm` over each head; "width": RMS over all heads together (OLMo
2); "each": over each head, with separate weights [H, D] (Cohere)."""


Order = Literal["before", "parallel", "after", "in_stream"]
"""How a block adds its halves: pre-norm; in parallel (GPT-J); post-norm (OPT 350M); added to the
normalized input (old BLOOM)."""


class Names(Struct, frozen=True):
    """Names of modules in a checkpoint; None: the kind lacks the module.

    `body` is the scope of everything except the head. `qkv` and `gate_up` are fused projections.
    `attention_in` and `mlp_in` are the norms before the two halves of a block, `attention_out` and
    `mlp_out` the norms after them.
    """

    body: str = "model"
    embed: str = "embed_tokens"
    positions: str | None = None
    embed_norm: str | None = None
    layers: str = "layers"
    attention: str = "self_attn"
    query: str = "q_proj"
    key: str = "k_proj"
    value: str = "v_proj"
    qkv: str | None = None
    output: str = "o_proj"
    query_norm: str = "q_norm"
    key_norm: str = "k_norm"
    mlp: str | None = "mlp"
    gate: str | None = "gate_proj"
    up: str = "up_proj"
    gate_up: str | None = None
    down: str = "down_proj"
    attention_in: str | None = "input_layernorm"
    attention_out: str | None = None
    mlp_in: str | None = "post_attention_layernorm"
    mlp_out: str | None = None
    norm: str = "norm"
    head: str = "lm_head"


class LlamaConfig(Struct, frozen=True):
    """The settings that shape the computation, under their names in config.json where it has one.

    `qkv_bias` and `output_bias`: which projections of attention have a bias; `sliding_layers`:
    which layers have the window; `unrotated_layers`: which have no rotary embedding. Layers with
    the window use `sliding_rope` if it is set. `qkv_groups`: `Names.qkv` holds queries, key and
    value of one group of heads after another (GPT-NeoX, Falcon), instead of all queries first;
    `qkv_shards` is the number of parts of queries, values and keys (CodeGen). `position_offset` is
    the row of `Names.positions` for position 0; `sines` are positions that are not learned (XGLM).
    `alibi` has the slope of each head, see `Alibi`; `alibi_rounded` rounds it as Falcon does.
    `latent` selects latent attention. `sinks`: an additional score per head beside those of the
    keys (gpt-oss). `attention_gate`: the output of attention is multiplied by gates that follow the
    query of each head (Qwen3-Next). `embedding_width` is the width of token embeddings; if it
    differs from `hidden_size`, matrices convert both ways (OPT 350M).
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_act: str
    rms_norm_eps: float
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    sliding_window: int | None
    sliding_layers: tuple[int, ...]
    rope: RopeSettings
    names: Names = Names()
    norm: Norm = "rms"
    head_norm: HeadNorm | None = None
    head_norm_after_rope: bool = False
    order: Order = "before"
    first_norm: bool = True
    final_norm: bool = True
    embedding_width: int | None = None
    up_first: bool = False
    down_bias: bool | None = None
    interleaved: bool = False
    qkv_groups: bool = False
    qkv_shards: int | None = None
    qkv_clip: float | None = None
    head_bias: bool = False
    sinks: bool = False
    attention_gate: bool = False
    latent: Latent | None = None
    convolution: Convolution | None = None
    delta: Delta | None = None
    mamba: MambaLayers | None = None
    sliding_rope: RopeSettings | None = None
    unrotated_layers: tuple[int, ...] = ()
    position_offset: int = 0
    sines: Sines | None = None
    alibi: tuple[float, ...] = ()
    alibi_rounded: bool = False
    experts: Experts | None = None
    attention_scale: float | None = None
    softcap: float | None = None
    logit_softcap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0

    @property
    def context_length(self) -> int:
        """The number of positions that the model is made for."""
        return self.rope.context

    @property
    def score_scale(self) -> float:
        """The factor by which attention multiplies scores."""
        return self.attention_scale or self.head_dim**-0.5

    def rope_of(self, layer: int) -> RopeSettings | None:
        """Return the rotary embedding of a layer; None for a layer without one."""
        if layer in self.unrotated_layers:
            return None
        own = self.sliding_rope if layer in self.sliding_layers else None
        return own or self.rope

    @property
    def rotates(self) -> bool:
        """Whether any layer uses a rotary embedding."""
        layers = range(self.num_hidden_layers)
        attends = [layer for layer in layers if self.other_mixer(layer) is None]
        return not self.alibi and any(self.rope_of(layer) is not None for layer in attends)

    def other_mixer(self, layer: int) -> Convolution | Delta | MambaLayers | None:
        """Return the mixer of a layer other than attention; None for a layer with attention."""
        found = (self.convolution, self.delta, self.mamba)
        return next((each for each in found if each is not None and layer in each.layers), None)

    def caches(self, layer: int) -> Sequence[CacheSpec]:
        """Return the caches of a layer: one, or two of a recurrent one."""
        other = self.other_mixer(layer)
        if other is not None:
            return other.caches
        if self.latent is not None:
            return [CacheSpec(1, self.latent.width, self.window(layer))]
        width = self.head_dim + (ADDED if self.alibi else 0)
        exact = bool(self.alibi)  # 8 bits would round positions
        return [CacheSpec(self.num_key_value_heads, width, self.window(layer), exact=exact)]

    def window(self, layer: int) -> int | None:
        """Return the number of keys that a query of the layer sees; None: all."""
        return self.sliding_window if layer in self.sliding_layers else None


def with_biases(config: LlamaConfig, attention: bool, mlp: bool) -> LlamaConfig:
    """Return the config with or without biases of all projections of attention, and of the MLP."""
    return replace(config, qkv_bias=attention, output_bias=attention, mlp_bias=mlp)
