"""The base of causal language models: token ids in, logits of the next token out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gptrs import functionals as F
from gptrs.capture.jitting.jit import jit
from gptrs.capture.tensor import Tensor, tensor
from gptrs.ir import dtypes
from gptrs.nn.attention import CachePosition, LayerBuffers, LayerCache
from gptrs.nn.cache_spec import CacheSpec
from gptrs.nn.kv_cache import KVCache
from gptrs.nn.module import Module


class CausalLMModule(Module):
    """Base class with the capabilities `causal_lm` and `hidden_states`.

    A model defines `cache_specs`, `states`, `final_norm` and `logits`. The base compiles them:
    one program for each length of a whole text, and steps whose cache buffers are donated.
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
        """Number of token ids."""
        return self._vocab_size

    def forward(self, tokens: np.ndarray, left_padding: np.ndarray | None = None) -> np.ndarray:
        """Return the logits of every position, si64 [B, T] -> f32 [B, T, V]."""
        return self._forward(tensor(tokens), CachePosition.at(0, left_padding)).numpy()

    def hidden_states(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Return the embeddings and the state after each block, si64 [B, T] -> f32 [B, T, C].

        The state after the last block has been through the final norm.
        """
        states = self._collect(tensor(inputs), CachePosition.at(0))
        names = ["embeddings", *(f"layer.{index}" for index in range(len(states) - 1))]
        return {name: state.numpy() for name, state in zip(names, states, strict=True)}

    def new_cache(self, batch: int, left_padding: np.ndarray | None = None) -> KVCache:
        """Return an empty cache for `batch` texts with `left_padding` [B] tokens before each."""
        specs = self.cache_specs()
        return KVCache(specs, batch, self.context_length, dtypes.f32, left_padding)

    def step(self, tokens: np.ndarray, cache: KVCache) -> np.ndarray:
        """Append tokens, si64 [B, T] with T >= 1, to `cache`; return f32 [B, V] of the last one.

        ContextLengthError if they do not fit, UsageError for other shapes, before any work.
        """
        logits: Tensor | None = None
        for piece in cache.pieces(tokens):
            logits, buffers = self._step(piece, cache.position, cache.buffers)
            cache.advance(piece.shape[1], buffers)
        assert logits is not None, "there is at least one piece"
        return logits.numpy()

    def cache_specs(self) -> Sequence[CacheSpec]:
        """Return what the cache of each block holds, in the order of the blocks."""
        raise NotImplementedError

    def states(
        self, tokens: Tensor, position: CachePosition, caches: Sequence[LayerCache]
    ) -> Iterator[Tensor]:
        """Yield the embeddings of tokens [B, T] and the state after each block, [B, T, C].

        Each block calls `update` of its cache with the keys and values of the tokens.
        """
        raise NotImplementedError

    def final_norm(self, x: Tensor) -> Tensor:
        """Return what `logits` takes, [..., C] -> [..., C]: `x` itself."""
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of each vector, [..., C] -> [..., V]."""
        raise NotImplementedError

    def _all_logits(self, tokens: Tensor, position: CachePosition) -> Tensor:
        return self.logits(self._all_states(tokens, position)[-1])

    def _all_states(self, tokens: Tensor, position: CachePosition) -> list[Tensor]:
        caches = [LayerCache(position, spec.window) for spec in self.cache_specs()]
        *states, last = self.states(tokens, position, caches)
        return [*states, self.final_norm(last)]

    def _next_logits(
        self, tokens: Tensor, position: CachePosition, buffers: Sequence[LayerBuffers]
    ) -> tuple[Tensor, list[LayerBuffers]]:
        caches = [
            LayerCache(position, spec.window, pair)
            for spec, pair in zip(self.cache_specs(), buffers, strict=True)
        ]
        *_, x = self.states(tokens, position, caches)
        batch, length, width = x.shape
        last = F.reshape(F.slice_axis(x, 1, length - 1, 1), (batch, width))  # (B, C)
        updated = [cache.buffers for cache in caches if cache.buffers is not None]
        return self.logits(self.final_norm(last)), updated
