"""Mamba 2 (Dao and Gu 2024): state spaces of heads with one decay rate each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

from msgspec import Struct

from gptrs import functionals as F
from gptrs.api.models import ConfigFields, Module, Params, Tensor
from gptrs.nn import ACTIVATIONS, CacheSpec, LayerCache, Linear, split_heads
from gptrs_models.mamba import Mamba, Sizes
from gptrs_models.short_convolution import CausalConvolution

_NO_END: dict[str, object] = {"__float__": "Infinity"}
"""The spelling of infinity in config.json."""


class Mamba2Config(Struct, frozen=True):
    """The settings of a mixer: G groups of heads of width P, states of S vectors.

    The heads of a group share the input and output vectors (B and C). `limits` bound the time step;
    None: unbounded.
    """

    sizes: Sizes
    heads: int
    head_dim: int
    groups: int
    state_size: int
    limits: tuple[float, float | None]
    activation: str
    bias: bool
    convolution_bias: bool

    @property
    def inner(self) -> int:
        """The total width of all heads."""
        return self.heads * self.head_dim

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> Mamba2Config:
        """Read config.json with transformers' defaults; ModelError names what is unsupported."""
        fields = ConfigFields(settings, "mamba2")
        fields.require("quantization_config", None)
        heads, head_dim = fields.integer("num_heads", 128), fields.integer("head_dim", 64)
        groups, size = fields.integer("n_groups", 8), fields.integer("state_size", 128)
        width, inner = fields.integer("hidden_size", 4096), heads * head_dim
        if int(fields.number("expand", 2) * width) != inner:
            raise fields.error("expand", f"times `hidden_size` must be {inner}, all heads together")
        if heads % groups:
            raise fields.error("n_groups", f"must divide the {heads} heads")
        if inner % 2:
            raise fields.error("head_dim", f"times `num_heads` must be even, and is {inner}")
        return cls(
            sizes=Sizes(
                vocab_size=fields.integer("vocab_size", 32768),
                hidden_size=width,
                layers=fields.layers("num_hidden_layers", 64),
                kernel=fields.integer("conv_kernel", 4),
                convolved=inner + 2 * groups * size,
                state=inner * size,
                epsilon=fields.number("layer_norm_epsilon", 1e-5),
                tied=fields.boolean("tie_word_embeddings", False),
            ),
            heads=heads,
            head_dim=head_dim,
            groups=groups,
            state_size=size,
            limits=time_limits(fields),
            activation=fields.choice("hidden_act", ACTIVATIONS, "silu"),
            bias=fields.boolean("use_bias", False),
            convolution_bias=fields.boolean("use_conv_bias", True),
        )


def time_limits(fields: ConfigFields) -> tuple[float, float | None]:
    """Read the limits of the time step; None: unbounded."""
    found = fields.get("time_step_limit", [0.0, _NO_END])
    ends = cast("list[object]", found) if isinstance(found, list) else []
    if len(ends) != 2:
        raise fields.error("time_step_limit", "must be a list of two numbers")
    low, high = (ConfigFields({"time_step_limit": end}, "mamba2") for end in ends)
    # JSON has no infinity; transformers 5 writes it as `_NO_END`.
    end = None if ends[1] in (_NO_END, math.inf) else high.number("time_step_limit")
    return low.number("time_step_limit"), end


class GatedNorm(Module):
    """RMS normalization of `x * silu(gate)` over each of `groups` parts of the last axis."""

    def __init__(self, params: Params, width: int, groups: int, epsilon: float) -> None:
        self.weight = params.tensor("weight", (width,))
        self._groups = groups
        self._epsilon = epsilon

    def __call__(self, x: Tensor, gate: Tensor) -> Tensor:
        """[N, C] twice -> [N, C]."""
        # Gated before the norm (`norm_before_gate=False` of mamba_ssm); the weight covers the whole
        # width, each norm one group.
        parts = split_heads(x * F.silu(gate), self._groups)
        return F.reshape(F.rms_norm(parts, epsilon=self._epsilon), x.shape) * self.weight


class Mixer(Module):
    """A convolution and a linear recurrence for each head, followed by a gated norm.

    The limits of the time step apply to prefill and decode alike; transformers ignores them in
    steps of one token.
    """

    def __init__(self, config: Mamba2Config, params: Params) -> None:
        heads, inner, sizes = config.heads, config.inner, config.sizes
        width, shared = sizes.hidden_size, config.groups * config.state_size
        self.in_proj = Linear(
            params / "in_proj", width, inner + sizes.convolved + heads, config.bias
        )
        self.conv1d = CausalConvolution(
            params / "conv1d", sizes.convolved, sizes.kernel, config.convolution_bias
        )
        self.time_bias = params.tensor("dt_bias", (heads,))
        self.log_decay = params.tensor("A_log", (heads,))
        self.skip = params.tensor("D", (heads,))
        self.norm = GatedNorm(params / "norm", inner, config.groups, sizes.epsilon)
        self.out_proj = Linear(params / "out_proj", inner, width, config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.projected, self.convolved = [inner, sizes.convolved, heads], [inner, shared, shared]
        self.groups, self.group_heads = config.groups, heads // config.groups
        self.head_dim, self.state_size = config.head_dim, config.state_size
        self.limits = config.limits

    def __call__(
        self, x: Tensor, positions: object, recent: LayerCache, states: LayerCache
    ) -> Tensor:
        """[N, C] -> [N, C]; the order of tokens enters by the state."""
        del positions
        rows, (groups, heads, width) = x.shape[0], (self.groups, self.group_heads, self.head_dim)
        gate, mixed, time = F.split(self.in_proj(x), self.projected)
        inner, into, out = F.split(self.activation(self.conv1d(mixed, recent)), self.convolved)
        time = F.clamp(F.softplus(time + self.time_bias), *self.limits)  # (N, H)
        # The checkpoint stores log(-A); A is negative, so the state decays (Dao and Gu 2024).
        kept = F.exp(time * -F.exp(self.log_decay))
        inner = F.reshape(inner, (rows, groups * heads, width))
        added = inner * F.expand_dims(time, 2)
        inputs = [
            F.reshape(kept, (rows, groups, heads, 1, 1)),
            F.reshape(added, (rows, groups, heads, 1, width)),
            # B and C belong to a group and broadcast over its heads, without copies.
            F.reshape(into, (rows, groups, 1, self.state_size, 1)),
            F.reshape(out, (rows, groups, 1, self.state_size, 1)),
        ]
        told = states.recurrent(_advance, inputs, (groups, heads, self.state_size, width))
        # `D` skips the state: it multiplies the input before the time step scales it.
        told = F.reshape(told, inner.shape) + inner * F.expand_dims(self.skip, 1)
        return self.out_proj(self.norm(F.reshape(told, gate.shape), gate))


class MambaLayers(Struct, frozen=True):
    """The layers with a Mamba 2 mixer instead of attention, and its sizes."""

    layers: tuple[int, ...]
    sizes: Mamba2Config

    @classmethod
    def read(
        cls,
        fields: ConfigFields,
        layers: tuple[int, ...],
        vocab_size: int,
        width: int,
        epsilon: float,
        activation: str,
    ) -> MambaLayers:
        """Read the sizes of mixers in a decoder's config.json; ModelError if they do not fit."""
        heads, groups = fields.integer("mamba_n_heads", 128), fields.integer("mamba_n_groups", 1)
        size = fields.integer("mamba_d_state", 256)
        inner = int(fields.number("mamba_expand", 2) * width)
        if inner % heads or inner % 2 or heads % groups:
            raise fields.error(
                "mamba_n_heads", f"must divide {inner}, and be a multiple of {groups}"
            )
        if fields.get("mamba_d_head", "auto") not in ("auto", inner // heads):
            raise fields.error("mamba_d_head", f"must be {inner // heads}")
        sizes = Sizes(
            vocab_size=vocab_size,
            hidden_size=width,
            layers=len(layers),
            kernel=fields.integer("mamba_d_conv", 4),
            convolved=inner + 2 * groups * size,
            state=inner * size,
            epsilon=epsilon,
            tied=False,
        )
        mixer = Mamba2Config(
            sizes=sizes,
            heads=heads,
            head_dim=inner // heads,
            groups=groups,
            state_size=size,
            limits=time_limits(fields),
            activation=activation,
            bias=fields.boolean("mamba_proj_bias", False),
            convolution_bias=fields.boolean("mamba_conv_bias", True),
        )
        return cls(layers, mixer)

    @property
    def caches(self) -> Sequence[CacheSpec]:
        """The two caches of a layer; they share their pages."""
        return self.sizes.sizes.caches

    def mixer(self, layer: Params, width: int, activation: str, epsilon: float) -> Mixer:
        """Return the mixer of a layer with the weights in its scope."""
        del width, activation, epsilon
        return Mixer(self.sizes, layer / "mamba")


def _advance(
    state: Tensor, kept: Tensor, added: Tensor, into: Tensor, out: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the next state, (G, H / G, S, P), and the output, (G, H / G, P)."""
    # The output reads the new state, so a token sees its own input.
    after = state * kept + into * added
    return after, F.sum(after * out, axis=2)


def load(settings: Mapping[str, object], params: Params) -> Mamba:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    config = Mamba2Config.from_settings(settings)
    return Mamba(config.sizes, partial(Mixer, config), params)
