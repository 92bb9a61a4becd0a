"""Language models whose steps have vectors of images among the tokens."""

from __future__ import annotations

from contextvars import ContextVar
from functools import cached_property

import numpy as np

from gptrs import functionals as F
from gptrs.capture.jitting.jit import Jitted
from gptrs.capture.tensor import Tensor
from gptrs.nn.causal_lm import CausalLMModule
from gptrs.nn.page_buffers import LayerPools, PageBuffers
from gptrs.nn.ragged_step import RaggedStep, as_tensors

_Mixed = Jitted[
    [RaggedStep[Tensor], list[LayerPools], Tensor, Tensor], tuple[Tensor, list[LayerPools]]
]
_GIVEN: ContextVar[tuple[Tensor, Tensor] | None] = ContextVar("gptrs_given_vectors", default=None)
"""The vectors [N, C] of the step that is captured, and which rows have one, i1 [N]."""


class MixedCausalLMModule(CausalLMModule):
    """Base class of language models with the capability `image_lm`, too.

    A model passes its embeddings through `merged`.
    """

    capabilities = CausalLMModule.capabilities | {"image_lm"}

    def mixed_step(
        self, step: RaggedStep, vectors: np.ndarray, given: np.ndarray, buffers: PageBuffers
    ) -> np.ndarray:
        """Run `step` where row n is `vectors[n]`, f32 [N, C], if `given[n]`, i1 [N], says so.

        The other rows are those of their tokens. Errors as of `step`.
        """
        self._require_context(int(step.lengths.max()))
        rows, which = Tensor.of_array(vectors), Tensor.of_array(given)
        with self._on_backend():
            logits, buffers.pools = self._mixed(as_tensors(step), buffers.pools, rows, which)
        return logits.numpy()

    def merged(self, x: Tensor) -> Tensor:
        """Return the embeddings of a step, [N, C], with given vectors in their rows."""
        found = _GIVEN.get()
        if found is None:
            return x
        vectors, given = found
        return F.where(F.expand_dims(given, 1), F.cast(vectors, x.dtype), x)

    @cached_property
    def _mixed(self) -> _Mixed:
        dynamic = {**self._axes(), "vectors": ("N", None), "given": ("N",)}
        return Jitted(self._mixed_logits, donate=["pools"], dynamic=dynamic)

    def _mixed_logits(
        self, step: RaggedStep[Tensor], pools: list[LayerPools], vectors: Tensor, given: Tensor
    ) -> tuple[Tensor, list[LayerPools]]:
        token = _GIVEN.set((vectors, given))
        try:
            return self._next_logits(step, pools)
        finally:
            _GIVEN.reset(token)
