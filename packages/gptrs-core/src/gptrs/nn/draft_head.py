"""The base of draft heads: a few layers that guess further tokens from the states of a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from typing_extensions import override

from gptrs import functionals as F
from gptrs.capture.jitting.jit import Jitted
from gptrs.capture.tensor import Tensor
from gptrs.ir import dtypes
from gptrs.nn.attention import LayerCache
from gptrs.nn.causal_lm import CausalLMModule, Layers, last_rows
from gptrs.nn.page_buffers import LayerPools, PageBuffers
from gptrs.nn.ragged_step import RaggedStep, as_tensors

_Guided = Jitted[
    [RaggedStep[Tensor], list[LayerPools], Tensor], tuple[Tensor, Tensor, list[LayerPools]]
]


class DraftHead(CausalLMModule):
    """Base class of draft heads (multi-token prediction, DeepSeek-AI 2024; EAGLE, Li et al. 2024).

    A head reads the tokens of a text from the second one on, each with a guide: the state of its
    model at the token before. Its logits guess the token after. Beyond what the model has read, the
    guides are the head's own states.

    A head defines `cache_specs`, `guided` and `logits`. It has a key/value cache of its own.
    """

    capabilities = frozenset[str]()
    reads: Layers = ()
    """The states of the model that form a guide; see `CausalLMModule.stated_step`."""

    def guides(self, states: np.ndarray) -> np.ndarray:
        """Return guides f32 [N, C] of states of the model, f32 [N, S]; by default the same."""
        return states

    def guided(
        self, step: RaggedStep[Tensor], guides: Tensor, caches: Sequence[LayerCache]
    ) -> Tensor:
        """Return the state after the last block for the tokens of a step, [N, C].

        `guides` are [N, C]; caches as in `states`.
        """
        raise NotImplementedError

    def next_guides(self, x: Tensor) -> Tensor:
        """Return the guides of the tokens that follow, of states after the last block; by default
        these."""
        return x

    def vocabulary_logits(self, logits: np.ndarray) -> np.ndarray:
        """Return logits f32 [B, V] of all tokens of the model; by default the same."""
        return logits

    def guided_step(
        self, step: RaggedStep, guides: np.ndarray, buffers: PageBuffers
    ) -> tuple[np.ndarray, np.ndarray]:
        """Append the tokens of B texts to `buffers`, with guides f32 [N, C].

        Return the logits f32 [B, V] after the last token of each text, and the guide f32 [B, C] of
        the token that follows. ContextLengthError for a text that is too long, before any work.
        """
        self._require_context(max(step.lengths.tolist()))
        given = Tensor.of_array(guides)
        with self._on_backend():
            logits, found, buffers.pools = self._guided(as_tensors(step), buffers.pools, given)
        return self.vocabulary_logits(logits.numpy()), found.numpy()

    @cached_property
    def _guided(self) -> _Guided:
        dynamic = {**self._axes(), "guides": ("N", None)}
        return Jitted(self._guided_logits, donate=["pools"], dynamic=dynamic)

    def _guided_logits(
        self, step: RaggedStep[Tensor], pools: list[LayerPools], guides: Tensor
    ) -> tuple[Tensor, Tensor, list[LayerPools]]:
        caches = self._caches(step, pools)
        x = F.take(self.guided(step, guides, caches), last_rows(step))
        found = F.cast(self.next_guides(x), dtypes.f32)
        return self.logits(self.final_norm(x)), found, [cache.pools for cache in caches]

    @override
    def step(self, step: RaggedStep, buffers: PageBuffers) -> np.ndarray:
        raise NotImplementedError("a draft head reads guides, see `guided_step`")
