"""The base of causal language models: token ids in, logits of the next token out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import cached_property, partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from gptrs import functionals as F
from gptrs.backend.contract import Backend
from gptrs.capture.execute import eager, use_backend
from gptrs.capture.jitting.jit import Jitted, Lowered
from gptrs.capture.tensor import Tensor
from gptrs.errors import ContextLengthError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.nn.attention import LayerCache, whole_texts
from gptrs.nn.cache_spec import CacheSpec, cache_groups
from gptrs.nn.captured_once import closure_of
from gptrs.nn.greedy_steps import STEPS_AXES, Chosen, GreedySteps, run_greedy_steps
from gptrs.nn.layers import WATCHER, Computation, Module, adapter_rows
from gptrs.nn.page_buffers import LayerPools, PageBuffers
from gptrs.nn.ragged_step import RaggedStep, as_tensors, own_pages, ragged_step

Result = TypeVar("Result")
_Compiled = Jitted[[RaggedStep[Tensor], list[LayerPools]], tuple[Result, list[LayerPools]]]
Layers = tuple[int, ...]
"""Numbers of states in the order of `states`: 0 for the embeddings, n after block n."""
_Stated = Jitted[
    [RaggedStep[Tensor], list[LayerPools], tuple[Layers, ...]],
    tuple[Tensor, list[Tensor], list[LayerPools]],
]
_Adapted = Jitted[[RaggedStep[Tensor], list[LayerPools], Tensor], tuple[Tensor, list[LayerPools]]]
_Repeated = Jitted[[GreedySteps[Tensor], list[LayerPools]], tuple[Tensor, Tensor, list[LayerPools]]]
_AXES = RaggedStep[Any]._make([("N",), ("N",), ("B+1",), ("B",), ("B", "W"), ("N",)])
"""Names of the axes of a step; all page tables have the same width W."""


class CausalLMModule(Module):
    """Base class with the capabilities `causal_lm` and `hidden_states`.

    A model defines `cache_specs`, `states`, `final_norm` and `logits`. The base compiles them as
    steps that donate their pools; a whole text is a step over temporary pages.
    """

    capabilities = frozenset({"causal_lm", "hidden_states"})
    short_context: int | None = None
    """Length beyond which all keys and values of a text change. The step that takes a text past it
    must read the text from the start.
    """
    captures_on_disk: ClassVar[bool] = False
    """Whether captures of the model's steps may be kept for other processes. A class that sets it
    promises that its computation depends only on source code, the attributes of the model and its
    layers, and environment variables that start with `GPTRS_`, not on files or other variables.
    """

    def __init__(self, context_length: int, vocab_size: int) -> None:
        self._context_length = context_length
        self._vocab_size = vocab_size

    @property
    def context_length(self) -> int:
        """Most positions that the model can attend to."""
        return self._context_length

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self._vocab_size

    def forward(self, tokens: np.ndarray) -> np.ndarray:
        """Return the logits of every position, si64 [B, T] -> f32 [B, T, V].

        ContextLengthError if T is too large.
        """
        with self._on_backend():
            logits, _ = self._forward(*self._whole_texts(tokens))
        return logits.numpy().reshape(*tokens.shape, self.vocab_size)

    def hidden_states(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Return the embeddings and the state after each block, si64 [B, T] -> f32 [B, T, C].

        The state after the last block has been through the final norm. ContextLengthError if T is
        too large.
        """
        with self._on_backend():
            states, _ = self._collect(*self._whole_texts(inputs))
        names = ["embeddings", *(f"layer.{index}" for index in range(len(states) - 1))]
        return {
            name: state.numpy().reshape(*inputs.shape, -1)
            for name, state in zip(names, states, strict=True)
        }

    def computation(self) -> Computation:
        """Return the logits of whole texts of one length, computed without a cache."""
        inputs: dict[str, tuple[DType, tuple[int | str, ...]]] = {
            "input_ids": (dtypes.si64, ("batch", "sequence"))
        }
        return Computation(self._whole_logits, inputs, {})

    def whole_states(self, tokens: Tensor) -> list[Tensor]:
        """Return the embeddings and the state after each block of texts, computed without a cache.

        Tokens are [B, T], each state is [B, T, C]; the last one has been through the final norm.
        """
        step, caches = whole_texts(tokens, self.cache_specs())
        *states, last = self.states(step, caches)
        found = [*states, self.final_norm(last)]
        return [F.reshape(state, (*tokens.shape, state.shape[1])) for state in found]

    def _whole_logits(self, input_ids: Tensor) -> dict[str, Tensor]:
        return {"logits": self.logits(self.whole_states(input_ids)[-1])}

    def new_buffers(
        self, pages: Sequence[int], dtype: DType = dtypes.f32, states: int = 1
    ) -> PageBuffers:
        """Return empty pools of `dtype` with that many pages for each cache group.

        Layers with states keep the last `states` of a page; see `PageBuffers`.
        """
        return PageBuffers(self.cache_specs(), pages, dtype, self._backend, states)

    def step(self, step: RaggedStep, buffers: PageBuffers) -> np.ndarray:
        """Append the tokens of B texts to `buffers`; return f32 [B, V] after the last of each.

        ContextLengthError for a text that is too long, before any work.
        """
        self._require_context(max(step.lengths.tolist()))
        with self._on_backend():
            logits, buffers.pools = self._step(as_tensors(step), buffers.pools)
        return logits.numpy()

    def stated_step(
        self, step: RaggedStep, buffers: PageBuffers, wanted: tuple[Layers, ...]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Run `step`; return also the states of its tokens, f32 [N, S] for each entry of `wanted`.

        An entry numbers states of `states`, which are joined in the last axis; an empty one means
        the state after the final norm. Errors as for `step`.
        """
        self._require_context(max(step.lengths.tolist()))
        with self._on_backend():
            logits, found, buffers.pools = self._stated(as_tensors(step), buffers.pools, wanted)
        return logits.numpy(), [states.numpy() for states in found]

    def captured_step(
        self, texts: int, length: int, dtype: DType = dtypes.f32, cached: int = 0
    ) -> Lowered:
        """Return the program of `step` on pools of `dtype`, with the weights.

        Its parameters are the tensors of the step in order, and the pools. Sizes are free as far as
        the model's computation allows; the example has `texts` texts of `length` new tokens after
        `cached` ones.
        """
        table = own_pages(texts, cached + length)
        groups = len(cache_groups(self.cache_specs()))
        step = ragged_step(np.zeros((texts, length), np.int64), [cached] * texts, [table] * groups)
        buffers = self.new_buffers([table.size] * groups, dtype)
        with self._on_backend():
            return self._step.captured(as_tensors(step), buffers.pools)

    def greedy_steps(self, steps: GreedySteps, buffers: PageBuffers) -> Chosen:
        """Append the tokens of several steps to `buffers`; return the greedy choice after each.

        ContextLengthError for a text that is too long, before any work.
        """
        self._require_context(int(steps.rows.lengths.max()))
        rows, ends, limit = steps
        given = GreedySteps(as_tensors(rows), Tensor.of_array(ends), Tensor.of_array(limit))
        with self._on_backend():
            tokens, logits, buffers.pools = self._greedy_steps(given, buffers.pools)
        return Chosen(tokens.numpy(), logits.numpy())

    def adapted_step(
        self, step: RaggedStep, adapters: np.ndarray, buffers: PageBuffers
    ) -> np.ndarray:
        """Run `step` with adapter `adapters[n]`, si32 [N], for row n.

        Adapters of the linear layers are numbered from 1. Each row equals the result of a model
        with only its adapter. Errors as for `step`; ModelError if a layer takes rows other than the
        step's.
        """
        self._require_context(int(step.lengths.max()))
        rows = Tensor.of_array(adapters)
        with self._on_backend():
            logits, buffers.pools = self._adapted_step(as_tensors(step), buffers.pools, rows)
        return logits.numpy()

    @property
    def repeats_steps(self) -> bool:
        """Whether `greedy_steps` may replace repeated `step`s.

        False in eager mode, and while something watches each call of a module.
        """
        return not eager() and WATCHER.get() is None

    def cache_specs(self) -> Sequence[CacheSpec]:
        """Return what the cache of each block holds, in the order of the blocks."""
        raise NotImplementedError

    def states(self, step: RaggedStep[Tensor], caches: Sequence[LayerCache]) -> Iterator[Tensor]:
        """Yield the embeddings of the tokens of a step and the state after each block, [N, C].

        Each block calls `attend` of its cache with the queries, keys and values of the tokens.
        """
        raise NotImplementedError

    def final_norm(self, x: Tensor) -> Tensor:
        """Return the input of `logits`, [..., C] -> [..., C]; by default `x` itself."""
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of each vector, [..., C] -> [..., V]."""
        raise NotImplementedError

    @cached_property
    def _forward(self) -> _Compiled[Tensor]:
        return self._compiled(self._all_logits)

    @cached_property
    def _collect(self) -> _Compiled[list[Tensor]]:
        return self._compiled(self._all_states)

    @cached_property
    def _step(self) -> _Compiled[Tensor]:
        return self._compiled(self._next_logits)

    @cached_property
    def _stated(self) -> _Stated:
        axes = self._axes()
        return Jitted(self._stated_logits, donate=["pools"], static=["wanted"], dynamic=axes)

    @cached_property
    def _greedy_steps(self) -> _Repeated:
        dynamic = {"steps": STEPS_AXES, "pools": self._axes()["pools"]}
        describe = partial(closure_of, self._repeated) if self.captures_on_disk else None
        return Jitted(self._repeated, donate=["pools"], dynamic=dynamic, describe=describe)

    @cached_property
    def _adapted_step(self) -> _Adapted:
        dynamic = {**self._axes(), "adapters": ("N",)}
        return Jitted(self._adapted_logits, donate=["pools"], dynamic=dynamic)

    def _compiled(
        self,
        function: Callable[[RaggedStep[Tensor], list[LayerPools]], tuple[Result, list[LayerPools]]],
    ) -> _Compiled[Result]:
        """Compile a step for all numbers of rows, texts, and pages of a table and of the pools."""
        describe = partial(closure_of, function) if self.captures_on_disk else None
        return Jitted(function, donate=["pools"], dynamic=self._axes(), describe=describe)

    def _axes(self) -> dict[str, object]:
        """Return the names of the axes of a step and of its pools."""
        groups = enumerate(cache_groups(self.cache_specs()))
        pages = {layer: f"P{number}" for number, group in groups for layer in group.layers}
        return {"step": _AXES, "pools": [(pages[n], None, None, None) for n in sorted(pages)]}

    @property
    def _backend(self) -> Backend | None:
        """The backend of the weights, None for a model without weights."""
        return next((tensor.backend for _, tensor in self.named_tensors()), None)

    def _on_backend(self) -> AbstractContextManager[object]:
        """Scope in which eager ops without operands run on the backend of the weights."""
        backend = self._backend if eager() else None
        return nullcontext() if backend is None else use_backend(backend)

    def _require_context(self, length: int) -> None:
        if length > self.context_length:
            raise ContextLengthError(
                f"{length} tokens do not fit into the context of {self.context_length}",
                hint="shorten the prompt or ask for fewer tokens",
            )

    def _whole_texts(self, tokens: np.ndarray) -> tuple[RaggedStep[Tensor], list[LayerPools]]:
        """Return a step that reads texts [B, T] from the start, and pools for it."""
        batch, length = tokens.shape
        self._require_context(length)
        table = own_pages(batch, length)
        groups = cache_groups(self.cache_specs())
        step = ragged_step(tokens, [0] * batch, [table] * len(groups))
        buffers = self.new_buffers([table.size] * len(groups))
        return as_tensors(step), buffers.pools

    def _all_logits(
        self, step: RaggedStep[Tensor], pools: list[LayerPools]
    ) -> tuple[Tensor, list[LayerPools]]:
        states, pools = self._all_states(step, pools)
        with self._adapted(_first_adapter(step)):
            return self.logits(states[-1]), pools

    def _all_states(
        self, step: RaggedStep[Tensor], pools: list[LayerPools]
    ) -> tuple[list[Tensor], list[LayerPools]]:
        caches = self._caches(step, pools)
        with self._adapted(_first_adapter(step)):
            *states, last = self.states(step, caches)
            return [*states, self.final_norm(last)], [cache.pools for cache in caches]

    def _next_logits(
        self, step: RaggedStep[Tensor], pools: list[LayerPools]
    ) -> tuple[Tensor, list[LayerPools]]:
        return self._adapted_logits(step, pools, _first_adapter(step))

    def _stated_logits(
        self, step: RaggedStep[Tensor], pools: list[LayerPools], wanted: tuple[Layers, ...]
    ) -> tuple[Tensor, list[Tensor], list[LayerPools]]:
        caches = self._caches(step, pools)
        adapters = _first_adapter(step)
        with self._adapted(adapters):
            states = list(self.states(step, caches))  # (N, C) each
            # The final norm once more for all rows: `_row_logits` has the operations of `step`,
            # and so its bits.
            found = [
                F.concat([states[layer] for layer in layers], 1)
                if layers
                else self.final_norm(states[-1])
                for layers in wanted
            ]
        logits = self._row_logits(step, states[-1], adapters)
        found = [F.cast(each, dtypes.f32) for each in found]
        return logits, found, [cache.pools for cache in caches]

    def _repeated(
        self, steps: GreedySteps[Tensor], pools: list[LayerPools]
    ) -> tuple[Tensor, Tensor, list[LayerPools]]:
        return run_greedy_steps(self._next_logits, steps, pools)

    def _adapted_logits(
        self, step: RaggedStep[Tensor], pools: list[LayerPools], adapters: Tensor
    ) -> tuple[Tensor, list[LayerPools]]:
        caches = self._caches(step, pools)
        with self._adapted(adapters):
            *_, x = self.states(step, caches)  # (N, C)
        return self._row_logits(step, x, adapters), [cache.pools for cache in caches]

    def _row_logits(self, step: RaggedStep[Tensor], x: Tensor, adapters: Tensor) -> Tensor:
        """Return the logits [B, V] after the last token of each text, of states [N, C]."""
        last = last_rows(step)
        with self._adapted(F.take(adapters, last)):
            return self.logits(self.final_norm(F.take(x, last)))

    def _adapted(self, rows: Tensor) -> AbstractContextManager[object]:
        """Scope in which layers know the adapter of each row."""
        return adapter_rows((module for _, module in self.named_modules()), rows)

    def _caches(self, step: RaggedStep[Tensor], pools: list[LayerPools]) -> list[LayerCache]:
        specs = self.cache_specs()
        of_layer = {
            layer: number
            for number, group in enumerate(cache_groups(specs))
            for layer in group.layers
        }
        return [
            LayerCache(pair, step, of_layer[layer], spec.window)
            for layer, (spec, pair) in enumerate(zip(specs, pools, strict=True))
        ]


def last_rows(step: RaggedStep[Tensor]) -> Tensor:
    """Return the last row of each text, si32 [B]."""
    return F.take(step.row_starts, F.arange(1, step.lengths.shape[0] + 1)) - 1


def _first_adapter(step: RaggedStep[Tensor]) -> Tensor:
    """Return 1 for each row, si32 [N], for a number of rows unknown before the step runs."""
    return F.cast(step.tokens >= 0, dtypes.si32)


# Language models whose steps mix image vectors with tokens.


_Mixed = Jitted[
    [RaggedStep[Tensor], list[LayerPools], Tensor, Tensor], tuple[Tensor, list[LayerPools]]
]
_GIVEN: ContextVar[tuple[Tensor, Tensor] | None] = ContextVar("gptrs_given_vectors", default=None)
"""The vectors [N, C] of the step being captured, and the rows that have one, i1 [N]."""


class MixedCausalLMModule(CausalLMModule):
    """Base class of language models that also have the capability `image_lm`.

    A model passes its embeddings through `merged`.
    """

    capabilities = CausalLMModule.capabilities | {"image_lm"}

    def mixed_step(
        self, step: RaggedStep, vectors: np.ndarray, given: np.ndarray, buffers: PageBuffers
    ) -> np.ndarray:
        """Run `step` where row n is `vectors[n]`, f32 [N, C], if `given[n]`, i1 [N], says so.

        The other rows are the embeddings of their tokens. Errors as of `step`.
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
