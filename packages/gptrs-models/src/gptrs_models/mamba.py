"""Mamba (Gu and Dao 2023): selective state spaces, without any attention.

Mamba 2 shares the model around the mixers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from msgspec import Struct
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api.models import ConfigFields, Module, Params, Tensor
from gptrs.nn import (
    ACTIVATIONS,
    CacheSpec,
    CausalLMModule,
    Embedding,
    LayerCache,
    Linear,
    RaggedStep,
    RMSNorm,
    captured_once,
    convolution_cache,
    state_cache,
)
from gptrs_models.short_convolution import CausalConvolution

CONTEXT = 2**20
"""The context length: nothing in the model limits a text."""


class Sizes(Struct, frozen=True):
    """Sizes around the mixers, and of their caches.

    A mixer keeps the last `kernel` vectors of width `convolved` (even), and a state of `state`
    numbers.
    """

    vocab_size: int
    hidden_size: int
    layers: int
    kernel: int
    convolved: int
    state: int
    epsilon: float
    tied: bool

    @property
    def caches(self) -> list[CacheSpec]:
        """The two caches of a layer; they share their pages."""
        window = max(2, self.kernel)
        return [convolution_cache(self.convolved, window), state_cache(self.state, window)]


class MambaConfig(Struct, frozen=True):
    """The settings of a mixer; `inner` is its width, `rank` the rank of the time step dt.

    `coefficient_epsilon` is that of norms of dt, B and C (Falcon Mamba); None: there are none.
    """

    sizes: Sizes
    inner: int
    state_size: int
    rank: int
    activation: str
    bias: bool
    convolution_bias: bool
    coefficient_epsilon: float | None

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> MambaConfig:
        """Read config.json with transformers' defaults; ModelError names what is unsupported."""
        kind = str(settings.get("model_type", "mamba"))
        fields = ConfigFields(settings, kind)
        fields.require("quantization_config", None)
        width = fields.integer("hidden_size", 768)
        rank = math.ceil(width / 16)
        if fields.get("time_step_rank", "auto") != "auto":
            rank = fields.integer("time_step_rank")
        # transformers also accepts a width in the file.
        inner = fields.integer("intermediate_size", int(fields.number("expand", 2) * width))
        if inner % 2:
            raise fields.error("intermediate_size", f"must be even, and is {inner} by `expand`")
        size = fields.integer("state_size", 16)
        return cls(
            sizes=Sizes(
                vocab_size=fields.integer("vocab_size", 50280),
                hidden_size=width,
                layers=fields.layers("num_hidden_layers", 32),
                kernel=fields.integer("conv_kernel", 4),
                convolved=inner,
                state=inner * size,
                epsilon=fields.number("layer_norm_epsilon", 1e-5),
                tied=fields.boolean("tie_word_embeddings", True),
            ),
            inner=inner,
            state_size=size,
            rank=rank,
            activation=fields.choice("hidden_act", ACTIVATIONS, "silu"),
            bias=fields.boolean("use_bias", False),
            convolution_bias=fields.boolean("use_conv_bias", True),
            coefficient_epsilon=(
                fields.number("mixer_rms_eps", 1e-6) if kind == "falcon_mamba" else None
            ),
        )


class Mixes(Protocol):
    """The substitute of attention in a layer, with the two caches of the layer."""

    def __call__(
        self, x: Tensor, positions: object, recent: LayerCache, states: LayerCache
    ) -> Tensor:
        """[N, C] -> [N, C]."""
        ...


class Mixer(Module):
    """A convolution and a linear recurrence with input-dependent coefficients, and a gate."""

    def __init__(self, config: MambaConfig, params: Params) -> None:
        inner, size, rank = config.inner, config.state_size, config.rank
        width, kernel = config.sizes.hidden_size, config.sizes.kernel
        self.in_proj = Linear(params / "in_proj", width, 2 * inner, config.bias)
        self.conv1d = CausalConvolution(params / "conv1d", inner, kernel, config.convolution_bias)
        self.x_proj = Linear(params / "x_proj", inner, rank + 2 * size, bias=False)
        self.dt_proj = Linear(params / "dt_proj", rank, inner)
        self.log_decay = params.tensor("A_log", (inner, size))
        self.skip = params.tensor("D", (inner,))
        self.out_proj = Linear(params / "out_proj", inner, width, config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.sizes = [rank, size, size]
        self._epsilon = config.coefficient_epsilon

    def __call__(
        self, x: Tensor, positions: object, recent: LayerCache, states: LayerCache
    ) -> Tensor:
        """[N, C] -> [N, C]; the order of tokens enters by the state."""
        del positions
        before, gate = F.split(self.in_proj(x), 2)
        inner = self.activation(self.conv1d(before, recent))
        step, into, out = F.split(self.x_proj(inner), self.sizes)
        if self._epsilon is not None:
            step, into, out = (F.rms_norm(x, None, self._epsilon) for x in (step, into, out))
        step = F.softplus(self.dt_proj(step))  # (N, I)
        decay = -F.exp(self.log_decay)  # (I, S)

        def advance(
            state: Tensor, time: Tensor, added: Tensor, into: Tensor, out: Tensor
        ) -> tuple[Tensor, Tensor]:
            kept = state * F.exp(F.expand_dims(time, 1) * decay)
            after = kept + F.expand_dims(added, 1) * F.expand_dims(into, 0)
            return after, F.sum(after * F.expand_dims(out, 0), axis=1)

        rows = [step, step * inner, into, out]
        told = states.recurrent(advance, rows, self.log_decay.shape)
        return self.out_proj((told + inner * self.skip) * F.silu(gate))


class Block(Module):
    """A mixer after a norm, added to the residual stream."""

    def __init__(self, sizes: Sizes, mixer: Callable[[Params], Mixes], params: Params) -> None:
        self.norm = RMSNorm(params / "norm", sizes.hidden_size, sizes.epsilon)
        self.mixer = mixer(params / "mixer")

    @captured_once
    def __call__(self, x: Tensor, recent: LayerCache, states: LayerCache) -> Tensor:
        """[N, C] -> [N, C]."""
        return x + self.mixer(self.norm(x), None, recent, states)


class Mamba(CausalLMModule):
    """The language model; each layer has two caches, for the convolution and for the state.

    `mixer` makes the mixer of a layer from its weights.
    """

    def __init__(self, sizes: Sizes, mixer: Callable[[Params], Mixes], params: Params) -> None:
        super().__init__(CONTEXT, sizes.vocab_size)
        self.sizes, width = sizes, sizes.hidden_size
        body = params / "backbone"
        name = "embedding" if "embedding.weight" in body else "embeddings"
        self.embeddings = Embedding(body / name, sizes.vocab_size, width)
        self.layers = [Block(sizes, mixer, body / "layers" / i) for i in range(sizes.layers)]
        self.norm_f = RMSNorm(body / "norm_f", width, sizes.epsilon)
        tied = sizes.tied and not params.stores_apart("lm_head.weight", body / name)
        self.lm_head = (
            None if tied else Linear(params / "lm_head", width, sizes.vocab_size, bias=False)
        )

    @override
    def cache_specs(self) -> list[CacheSpec]:
        return self.sizes.caches * self.sizes.layers

    @override
    def states(self, step: RaggedStep[Tensor], caches: Sequence[LayerCache]) -> Iterator[Tensor]:
        x = self.embeddings(step.tokens)  # (N, C)
        yield x
        for block, recent, states in zip(self.layers, caches[::2], caches[1::2], strict=True):
            x = block(x, recent, states)
            yield x

    @override
    def final_norm(self, x: Tensor) -> Tensor:
        return self.norm_f(x)

    @override
    def logits(self, x: Tensor) -> Tensor:
        return self.embeddings.unembed(x) if self.lm_head is None else self.lm_head(x)


def load(settings: Mapping[str, object], params: Params) -> Mamba:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    config = MambaConfig.from_settings(settings)
    return Mamba(config.sizes, partial(Mixer, config), params)
