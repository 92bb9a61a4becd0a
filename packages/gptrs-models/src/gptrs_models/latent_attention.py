"""Latent attention (DeepSeek-V2): the KV cache has one short vector per position for all heads."""

from __future__ import annotations

import math
from typing import Protocol

from msgspec import Struct

from gptrs import functionals as F
from gptrs.api.models import Module, Params, Tensor
from gptrs.nn import HookPoint, Linear, RMSNorm, merge_heads, split_heads
from gptrs_models.llama_positions import Positions

EPSILON = 1e-6
"""Epsilon of the norms of latent vectors, whatever config.json says about other norms."""


class Latent(Struct, frozen=True):
    """Sizes of latent attention: the latent vectors of keys and queries, and the parts of heads.

    `query_rank` None: queries are projected directly. `rotated` components of a head are rotated by
    the position, `plain` ones are not; values have `value` components.
    """

    rank: int
    query_rank: int | None
    plain: int
    rotated: int
    value: int

    @property
    def width(self) -> int:
        """Components per position in the cache."""
        return self.rank + self.rotated


class AttendsToOne(Protocol):
    """Attention of queries [N, H, D] to keys and values [N, 1, D], as in `LayerCache`."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None = None
    ) -> Tensor:
        """Return the mixed values [N, H, D]."""
        ...


class LatentAttention(Module):
    """Causal self-attention with keys and values computed from one latent vector per position.

    Since `q . (K c) = (K^T q) . c`, and a mix of `V c` is V times a mix of c, all heads attend to
    the latent vectors themselves, and to a shared rotated key.
    """

    def __init__(
        self, latent: Latent, params: Params, width: int, n_heads: int, scale: float, bias: bool
    ) -> None:
        self.latent, self.n_heads, self.scale = latent, n_heads, scale
        queries = n_heads * (latent.plain + latent.rotated)
        if latent.query_rank is None:
            self.q_proj = Linear(params / "q_proj", width, queries, bias=False)
        else:
            rank = latent.query_rank
            self.q_a_proj = Linear(params / "q_a_proj", width, rank, bias)
            self.q_a_layernorm = RMSNorm(params / "q_a_layernorm", rank, EPSILON)
            self.q_b_proj = Linear(params / "q_b_proj", rank, queries, bias=False)
        self.kv_a_proj = Linear(params / "kv_a_proj_with_mqa", width, latent.width, bias)
        self.kv_a_layernorm = RMSNorm(params / "kv_a_layernorm", latent.rank, EPSILON)
        self.apart = "k_b_proj.weight" in params  # in files of llama.cpp
        if self.apart:
            shape = (n_heads, latent.rank, latent.plain)
            self.k_b_proj = (params / "k_b_proj").tensor("weight", shape)
            shape = (n_heads, latent.value, latent.rank)
            self.v_b_proj = (params / "v_b_proj").tensor("weight", shape)
        else:
            outputs = n_heads * (latent.plain + latent.value)
            shape = (outputs, latent.rank)
            self.kv_b_proj = (params / "kv_b_proj").tensor("weight", shape, use="linear")
        self.o_proj = Linear(params / "o_proj", n_heads * latent.value, width, bias)
        # No head has keys or values of its own: there is nothing for `hook_k` and `hook_v`.
        self.hook_q, self.hook_rot_q, self.hook_rot_k = HookPoint(), HookPoint(), HookPoint()

    def __call__(self, x: Tensor, positions: Positions, cache: AttendsToOne) -> Tensor:
        """[N, C] -> [N, C]."""
        latent = self.latent
        plain, rotated = F.split(self.hook_q(self._queries(x)), [latent.plain, latent.rotated])
        keys, values = self._keys_and_values()
        turned = F.swap_axes(F.matmul(F.swap_axes(plain, 0, 1), keys), 0, 1)  # (N, H, rank)
        query = F.concat([turned, self.hook_rot_q(positions.rotate(rotated))], axis=2)
        compressed, shared = F.split(self.kv_a_proj(x), [latent.rank, latent.rotated])
        kept = split_heads(self.kv_a_layernorm(compressed), 1)  # (N, 1, rank)
        shared = self.hook_rot_k(positions.rotate(split_heads(shared, 1)))  # (N, 1, R)
        key = F.concat([kept, shared], axis=2)
        # The pools of keys and values have vectors of one size, and keys are longer by the rotated
        # part.
        value = F.pad(kept, [(0, 0), (0, 0), (0, latent.rotated)])
        mixed = F.slice_axis(cache.attend(query, key, value, scale=self.scale), 2, 0, latent.rank)
        mixed = F.matmul(F.swap_axes(mixed, 0, 1), F.swap_axes(values, 1, 2))  # (H, N, V)
        return self.o_proj(merge_heads(F.swap_axes(mixed, 0, 1)))

    def _keys_and_values(self) -> tuple[Tensor, Tensor]:
        """Return the matrices of heads that make keys [H, D, rank] and values [H, V, rank]."""
        if self.apart:
            return F.swap_axes(self.k_b_proj, 1, 2), self.v_b_proj
        latent = self.latent
        both = F.reshape(self.kv_b_proj, (self.n_heads, latent.plain + latent.value, latent.rank))
        keys, values = F.split(both, [latent.plain, latent.value], 1)
        return keys, values

    def _queries(self, x: Tensor) -> Tensor:
        """[N, C] -> [N, H, D]."""
        if self.latent.query_rank is None:
            return split_heads(self.q_proj(x), self.n_heads)
        return split_heads(self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))), self.n_heads)


def scale_of(head_dim: int, factor: float, all_dims: float) -> float:
    """Return the factor of scores; `mscale_all_dim` of YaRN increases it with the context."""
    # Squared below, since YaRN's temperature applies to queries and keys (Peng et al. 2023).
    growth = 0.1 * all_dims * math.log(factor) + 1.0 if all_dims and factor > 1 else 1.0
    return head_dim**-0.5 * growth * growth
