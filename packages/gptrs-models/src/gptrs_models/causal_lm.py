"""What language models have in common: token ids in, logits of the next token out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gptrs import functionals as F
from gptrs.api import (
    CacheLayer,
    CachePosition,
    KVCache,
    LayerCache,
    Module,
    Tensor,
    dtypes,
    jit,
    tensor,
)

Layer = Callable[[Tensor, LayerCache | None], tuple[Tensor, LayerCache | None]]
"""[B, T, C] and what it has kept of the tokens before to [B, T, C] and that with these tokens."""


class CausalLM(Module):
    """The base of language models; see `gptrs.plugins.capabilities.CausalLM`.

    A model says in `embed` and `blocks` what is computed of the tokens, in `final_norm` and
    `unembed` what makes logits of that, and in `cache_layers` what its blocks keep.
    """

    capabilities = frozenset({"causal_lm", "hidden_states"})

    def __init__(self, context_length: int, vocab_size: int) -> None:
        self._context_length = context_length
        self._vocab_size = vocab_size
        # Texts may be of any length up to the context, and each length is a program.
        self._forward = jit(self._all_logits, signatures=context_length)
        self._collect = jit(self._all_states, signatures=context_length)
        self._step = jit(self._next_logits, donate=[2])

    @property
    def context_length(self) -> int:
        """Most positions that the model can attend to."""
        return self._context_length

    @property
    def vocab_size(self) -> int:
        """Number of tokens it knows."""
        return self._vocab_size

    def forward(self, tokens: np.ndarray, left_padding: np.ndarray | None = None) -> np.ndarray:
        """Logits of every position, si64 [B, T] -> f32 [B, T, V]."""
        return self._forward(tensor(tokens), CachePosition.at(0, left_padding)).numpy()

    def hidden_states(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Tokens si64 [B, T] -> f32 [B, T, C] of the embeddings and after each block.

        What the last block makes has been through the final norm.
        """
        states = self._collect(tensor(inputs), CachePosition.at(0))
        names = ["embeddings", *(f"layer.{index}" for index in range(len(states) - 1))]
        return {name: state.numpy() for name, state in zip(names, states, strict=True)}

    def new_cache(self, batch: int, left_padding: np.ndarray | None = None) -> KVCache:
        """Return an empty cache for `batch` texts with `left_padding` [B] tokens before each."""
        layers = self.cache_layers()
        return KVCache(layers, batch, self.context_length, dtypes.f32, left_padding)

    def step(self, tokens: np.ndarray, cache: KVCache) -> np.ndarray:
        """Append tokens, si64 [B, T] with T >= 1, to `cache`; f32 [B, V] logits of the last one."""
        return cache.append(tokens, self._step).numpy()

    def cache_layers(self) -> Sequence[CacheLayer]:
        """What each block keeps of the tokens before, in the order of `blocks`."""
        raise NotImplementedError

    def embed(self, tokens: Tensor, position: CachePosition) -> Tensor:
        """What the first block is given, si64 [B, T] -> f32 [B, T, C]."""
        raise NotImplementedError

    def blocks(self, position: CachePosition, count: int) -> Sequence[Layer]:
        """The blocks in their order, for `count` tokens at `position`."""
        raise NotImplementedError

    def final_norm(self, x: Tensor) -> Tensor:
        """What is done to each vector before it is unembedded, [..., C] -> [..., C]."""
        raise NotImplementedError

    def unembed(self, x: Tensor) -> Tensor:
        """The logits of each vector, [..., C] -> [..., V]."""
        raise NotImplementedError

    def _all_logits(self, tokens: Tensor, position: CachePosition) -> Tensor:
        return self.unembed(self._all_states(tokens, position)[-1])

    def _all_states(self, tokens: Tensor, position: CachePosition) -> list[Tensor]:
        *states, last = self._run(tokens, position, None)[0]
        return [*states, self.final_norm(last)]

    def _next_logits(
        self, tokens: Tensor, position: CachePosition, caches: Sequence[LayerCache]
    ) -> tuple[Tensor, list[LayerCache]]:
        states, updated = self._run(tokens, position, caches)
        batch, length, width = states[-1].shape
        last = F.reshape(F.slice_axis(states[-1], 1, length - 1, 1), (batch, width))
        return self.unembed(self.final_norm(last)), updated

    def _run(
        self, tokens: Tensor, position: CachePosition, caches: Sequence[LayerCache] | None
    ) -> tuple[list[Tensor], list[LayerCache]]:
        """What goes into each block and out of the last, and the caches with the new positions."""
        states, updated = [self.embed(tokens, position)], list[LayerCache]()
        for index, block in enumerate(self.blocks(position, tokens.shape[1])):
            x, cache = block(states[-1], caches[index] if caches else None)
            states.append(x)
            if cache is not None:
                updated.append(cache)
        return states, updated
