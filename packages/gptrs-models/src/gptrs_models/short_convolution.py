"""Short convolutions with gates instead of attention (LFM2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from gptrs import functionals as F
from gptrs.api.models import Module, Params, Tensor
from gptrs.nn import CacheSpec, Linear, convolution_cache


class Remembers(Protocol):
    """Access to the last states of each text, as in `LayerCache`."""

    def recent(self, x: Tensor, count: int) -> Tensor:
        """Return the last `count` states up to each token, [N, C] -> [N, count, C]."""
        ...


class CausalConvolution(Module):
    """A causal depthwise convolution over the last `size` positions of a text."""

    def __init__(self, params: Params, width: int, size: int, bias: bool) -> None:
        self.weight = params.tensor("weight", (width, 1, size))
        self.bias = params.tensor("bias", (width,)) if bias else None
        self._size = size

    def __call__(self, x: Tensor, cache: Remembers) -> Tensor:
        """[N, C] -> [N, C]."""
        width = x.shape[1]
        weight = F.transpose(F.reshape(self.weight, (width, self._size)), (1, 0))  # (size, C)
        found = F.sum(cache.recent(x, self._size) * F.expand_dims(weight, 0), axis=1)
        return found if self.bias is None else found + self.bias


class ShortConvolution(Module):
    """`out(c * conv(b * x))`, where b, c and x are projections of the state."""

    def __init__(self, params: Params, width: int, size: int, bias: bool) -> None:
        self.in_proj = Linear(params / "in_proj", width, 3 * width, bias)
        self.conv = CausalConvolution(params / "conv", width, size, bias)
        self.out_proj = Linear(params / "out_proj", width, width, bias)

    def __call__(self, x: Tensor, positions: object, cache: Remembers) -> Tensor:
        """[N, C] -> [N, C]; only the order of positions matters."""
        del positions
        before, after, inner = F.split(self.in_proj(x), 3)
        return self.out_proj(after * self.conv(before * inner, cache))


class Convolution(Struct, frozen=True):
    """The layers with a short convolution instead of attention, for states of `width`."""

    layers: tuple[int, ...]
    width: int
    size: int
    bias: bool

    @property
    def caches(self) -> Sequence[CacheSpec]:
        """The cache of a layer."""
        return [convolution_cache(self.width, self.size)]

    def mixer(self, layer: Params, width: int, activation: str, epsilon: float) -> ShortConvolution:
        """Return the convolution of a layer with the weights in its scope."""
        del activation, epsilon
        return ShortConvolution(layer / "conv", width, self.size, self.bias)
