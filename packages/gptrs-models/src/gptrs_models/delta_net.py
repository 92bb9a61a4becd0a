"""Gated delta nets (Yang et al. 2024) instead of attention: Qwen3-Next and Qwen3.5.

The state of a text is a linear map from keys to values for each head. Each token decays it, then
moves its output for the token's key toward the token's value.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gptrs import functionals as F
from gptrs.api.models import ConfigFields, Module, Params, Tensor
from gptrs.nn import (
    ACTIVATIONS,
    CacheSpec,
    LayerCache,
    Linear,
    RMSNorm,
    convolution_cache,
    state_cache,
)
from gptrs_models.short_convolution import CausalConvolution

_EPSILON = 1e-6
"""Added to the squared norm of keys and queries."""


class Delta(Struct, frozen=True):
    """The layers with a delta net, and its sizes: K key heads, each for R value heads.

    The input projections are two matrices ordered by heads if `joined` (Qwen3-Next), else four
    (Qwen3.5). In GGUF files the larger one of Qwen3-Next is `parted`, and value heads are `tiled`:
    value head v is of key head v % K, not v // R.
    """

    layers: tuple[int, ...]
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    joined: bool = True
    parted: bool = False
    tiled: bool = False

    @classmethod
    def read(cls, fields: ConfigFields, layers: tuple[int, ...], joined: bool) -> Delta | None:
        """Read the sizes in config.json; None without layers. ModelError if they do not fit."""
        keys = fields.integer("linear_num_key_heads", 16)
        values = fields.integer("linear_num_value_heads", 32)
        if values % keys:
            raise fields.error("linear_num_value_heads", f"must be a multiple of {keys}")
        value_dim = fields.integer("linear_value_head_dim", 128)
        if values * value_dim % 2:
            raise fields.error("linear_value_head_dim", f"times {values} heads must be even")
        if not layers:
            return None
        return cls(
            layers,
            keys,
            values,
            fields.integer("linear_key_head_dim", 128),
            value_dim,
            fields.integer("linear_conv_kernel_dim", 4),
            joined,
            fields.boolean("linear_parted_projections", not joined),
            fields.boolean("linear_tiled_heads", False),
        )

    @property
    def keys(self) -> int:
        """The total width of all key heads."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """The total width of all value heads; even."""
        return self.value_heads * self.value_dim

    @property
    def caches(self) -> Sequence[CacheSpec]:
        """The caches of a layer: convolution and state, which share their pages."""
        window = max(2, self.kernel)
        recent = convolution_cache(2 * self.keys + self.values, window)
        return recent, state_cache(self.values * self.key_dim, window)

    def mixer(self, layer: Params, width: int, activation: str, epsilon: float) -> DeltaNet:
        """Return the delta net of a layer with the weights in its scope."""
        # Other programs must not take weights of another order for theirs.
        scope = "tiled_linear_attn" if self.tiled else "linear_attn"
        return DeltaNet(self, layer / scope, width, activation, epsilon)


class DeltaNet(Module):
    """A convolution, the delta rule with decay, and a gated norm."""

    def __init__(
        self, delta: Delta, params: Params, width: int, activation: str, epsilon: float
    ) -> None:
        keys, values, heads = delta.keys, delta.values, delta.value_heads
        self.joined, self.parted, self.tiled = delta.joined, delta.parted, delta.tiled
        mixed = {"qkvz": 2 * (keys + values)}
        rates = {"ba": 2 * heads} if delta.joined else {"b": heads, "a": heads}
        sizes = {**({"qkv": 2 * keys + values, "z": values} if delta.parted else mixed), **rates}
        self.into = [
            Linear(params / f"in_proj_{name}", width, size, bias=False)
            for name, size in sizes.items()
        ]
        self.conv1d = CausalConvolution(
            params / "conv1d", 2 * keys + values, delta.kernel, bias=False
        )
        self.time_bias = params.tensor("dt_bias", (heads,))
        self.log_decay = params.tensor("A_log", (heads,))
        self.norm = RMSNorm(params / "norm", delta.value_dim, epsilon)
        self.out_proj = Linear(params / "out_proj", values, width, bias=False)
        self.activation = ACTIVATIONS[activation]
        repeated = heads // delta.key_heads
        outer, inner = (delta.key_heads, repeated)[:: -1 if delta.tiled else 1]
        self.shape = outer, inner, delta.key_dim, delta.value_dim

    def __call__(
        self, x: Tensor, positions: object, recent: LayerCache, states: LayerCache
    ) -> Tensor:
        """[N, C] -> [N, C]; the order of tokens enters by the state."""
        del positions
        rows, (outer, inner, key_dim, value_dim) = x.shape[0], self.shape
        groups, each = (inner, (1, inner)) if self.tiled else (outer, (outer, 1))
        flat, gate, rate, time = self._projected(x)
        flat = self.activation(self.conv1d(flat, recent))
        keys = groups * key_dim
        query, key, value = F.split(flat, [keys, keys, outer * inner * value_dim])
        time = F.softplus(time + F.reshape(self.time_bias, (outer, inner)))
        kept = F.exp(time * -F.exp(F.reshape(self.log_decay, (outer, inner))))
        one = (rows, outer, inner, 1, 1)
        inputs = [
            F.reshape(kept, one),
            F.reshape(F.sigmoid(rate), one),
            # Only queries are scaled: a scaled key would change what the delta rule takes out of
            # the state.
            F.reshape(_unit(query, groups) * key_dim**-0.5, (rows, *each, key_dim, 1)),
            F.reshape(_unit(key, groups), (rows, *each, key_dim, 1)),
            F.reshape(value, (rows, outer, inner, 1, value_dim)),
        ]
        found = states.recurrent(_advance, inputs, self.shape)  # (N, K, R, 1, V), or (N, R, K, ..)
        # Gated after the norm, unlike Mamba 2.
        found = self.norm(F.reshape(found, (rows, outer * inner, value_dim)))
        found = found * F.silu(F.reshape(gate, found.shape))
        return self.out_proj(F.reshape(found, (rows, outer * inner * value_dim)))

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return joined keys, queries and values; gates; rates [N, K, R]; times [N, K, R]."""
        rows, (outer, inner, key_dim, value_dim) = x.shape[0], self.shape
        width, one = inner * value_dim, (rows, outer, inner)
        flat, *rest = (each(x) for each in self.into)
        if self.parted:
            gate, *rest = rest
        else:
            # The rows of the joined matrix are grouped by key head: query, key, values and gates of
            # one head are adjacent.
            mixed = F.reshape(flat, (rows, outer, 2 * (key_dim + width)))
            *parts, gate = F.split(mixed, [key_dim, key_dim, width, width])
            flat = F.concat([F.reshape(each, (rows, -1)) for each in parts], axis=1)
        if self.joined:
            rest = F.split(F.reshape(rest[0], (rows, outer, 2 * inner)), 2)
        rate, time = (F.reshape(each, one) for each in rest)
        return flat, gate, rate, time


def _unit(x: Tensor, heads: int) -> Tensor:
    """L2-normalize the vectors of heads, [N, K * D] -> [N, K, D]."""
    x = F.reshape(x, (x.shape[0], heads, -1))
    # Epsilon is added to the sum of squares, unlike in `F.l2_normalize`, where it bounds the
    # length.
    return x * F.rsqrt(F.sum(x * x, axis=-1, keepdims=True) + _EPSILON)


def _advance(
    state: Tensor, kept: Tensor, rate: Tensor, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the next state, (K, R, D, V), and its output for the query, (K, R, 1, V)."""
    state = state * kept
    # Decayed before it is compared with the value (gated delta rule, Yang et al. 2025).
    missing = (value - F.sum(state * key, axis=2, keepdims=True)) * rate
    state = state + key * missing
    return state, F.sum(state * query, axis=2, keepdims=True)
