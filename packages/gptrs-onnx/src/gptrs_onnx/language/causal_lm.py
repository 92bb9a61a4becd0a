"""A language model of an ONNX file: its graph in steps over pages of keys and values."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from typing_extensions import Unpack, override

from gptrs.api import GptrsError
from gptrs.api.backends import Backend
from gptrs.api.importers import is_symbol
from gptrs.api.models import Params, Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs.nn import CacheSpec, CausalLMModule, LayerCache, PageBuffers, RaggedStep
from gptrs.nn.attention import Scores
from gptrs_onnx.conversion import Conversion
from gptrs_onnx.graph import Graph
from gptrs_onnx.language import fused_attention
from gptrs_onnx.language.cached_conversion import CachedConversion, Findings
from gptrs_onnx.language.carried_past import CarriedPast
from gptrs_onnx.language.decoder_graph import DecoderGraph, decoder_graph
from gptrs_onnx.language.graph_parts import GraphParts, graph_parts
from gptrs_onnx.language.trials import UnrecognizedError
from gptrs_onnx.model import OnnxModel, load
from gptrs_onnx.node import as_tensor
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.reading import read_model
from gptrs_onnx.search import NeedsKnownError, shown

_WITH_PAST: Final = "_with_past"
"""Distinguishes the name of a file with a past from the one for the first step."""
_LOG = logging.getLogger("gptrs")


class OnnxCausalLM(CausalLMModule):
    """The capability `causal_lm` of a graph with inputs and outputs for its past.

    Where its attention is recognized, texts share steps over pages, as those of other kinds do.
    Else each text runs by itself: its past is read from pages, and what the graph adds is written
    to them.
    """

    capabilities = frozenset({"causal_lm"})

    def __init__(
        self,
        decoder: DecoderGraph,
        graph: OnnxModel,
        params: Params,
        first: Callable[[], OnnxModel | None],
    ) -> None:
        super().__init__(decoder.context_length, decoder.vocab_size)
        self._decoder = decoder
        self._graph = graph
        self._params = params
        self._first = first
        self._parts: GraphParts = graph_parts(decoder)
        self._findings: dict[int, Findings] = {}
        self._carried: CarriedPast | None = None

    @property
    @override
    def _backend(self) -> Backend:
        return self._params.backend

    @property
    @override
    def repeats_steps(self) -> bool:
        return self._carried is None and super().repeats_steps

    @override
    def cache_specs(self) -> Sequence[CacheSpec]:
        return self._decoder.specs

    @override
    def forward(self, tokens: np.ndarray) -> np.ndarray:
        if self._carried is None:
            try:
                return super().forward(tokens)
            except UnrecognizedError as reason:
                self._carry(reason)
        self._require_context(tokens.shape[1])
        assert self._carried is not None
        return self._carried.forward(tokens)

    @override
    def step(self, step: RaggedStep, buffers: PageBuffers) -> np.ndarray:
        if self._carried is None:
            try:
                return super().step(step, buffers)
            except UnrecognizedError as reason:
                self._carry(reason)
        self._require_context(int(step.lengths.max()))
        assert self._carried is not None
        with self._on_backend():
            return self._carried.step(step, buffers)

    def _carry(self, reason: UnrecognizedError) -> None:
        """Run texts one by one from now on, and log why."""
        _LOG.info(
            "the attention of %s is not recognized (%s): each text runs by itself, and its keys and"
            " values are copied in every step",
            shown(self._graph.name),
            reason,
        )
        self._carried = CarriedPast(self._decoder, self._graph, self._first())

    @override
    def states(self, step: RaggedStep[Tensor], caches: Sequence[LayerCache]) -> Iterator[Tensor]:
        rows = step.tokens.shape[0]
        if not is_symbol(rows):  # a size by that number would be taken for one of tokens
            raise UnrecognizedError("ops run one by one, so that the sizes of steps are numbers")

        def cache_of(index: int, window: int | None) -> LayerCache:
            return _WindowedCache(caches[index], step, window)

        # Kept by the symbol of the step: a later conversion for the same sizes needs no trials.
        findings = self._findings.setdefault(rows, Findings())
        conversion = CachedConversion(self._decoder, self._weight, step, cache_of, findings)
        try:
            found = conversion.run_to(self._parts.states, self._parts.body, self._parts.graphs)
        except (GptrsError, NeedsKnownError, RecursionError) as error:
            raise UnrecognizedError(str(error)) from error
        if found.rank != 3 or found.shape[:2] != (1, rows):
            raise UnrecognizedError(f"the states before the logits are `{found.type}`")
        yield F.reshape(found, (rows, found.shape[2]))

    @override
    def logits(self, x: Tensor) -> Tensor:
        if not self._parts.head:
            return F.cast(x, dtypes.f32)
        model = self._decoder.model
        conversion = Conversion(model.functions, dict(model.opset_imports), self._weight)
        conversion.bind(self._parts.states, F.reshape(x, (1, *x.shape)))
        parts = self._parts
        made = as_tensor(conversion.run_nodes(parts.head, parts.graphs, parts.logits))
        return F.cast(F.reshape(made, (x.shape[0], made.shape[-1])), dtypes.f32)

    def _weight(self, name: str, stored: ir.TensorProtocol) -> Tensor:
        del stored
        return self._params.tensor(name, floating=False)


class _WindowedCache(LayerCache):
    """The cache of a layer with the window that its graph has; new pools go to `cache`."""

    def __init__(self, cache: LayerCache, step: RaggedStep[Tensor], window: int | None) -> None:
        super().__init__(cache.pools, step, 0, window)
        self._cache = cache

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, **scores: Unpack[Scores]) -> Tensor:
        found = super().attend(query, key, value, **scores)
        self._cache.pools = self.pools
        return found


class DecoderFile:
    """A language model in an .onnx file, before it is known where it runs."""

    def __init__(self, path: Path) -> None:
        self._origin = str(path)
        self._first = path.with_name(path.name.replace(_WITH_PAST, ""))
        self._graph = Graph(*read_model(path))
        self.weights = self._graph.weights

    def build(self, settings: Mapping[str, object], params: Params) -> OnnxCausalLM:
        """Return the model for the settings of its config.json; errors as `decoder_graph`."""
        decoder = decoder_graph(self._graph.model, settings, self._origin)
        graph = OnnxModel(self._graph.declared(), params.backend, self._origin, params)
        return OnnxCausalLM(decoder, graph, params, partial(self._without_past, params.backend))

    def _without_past(self, backend: Backend) -> OnnxModel | None:
        """Return the other file of a decoder in two: older exporters trace it with one token."""
        is_other = str(self._first) != self._origin and self._first.is_file()
        return load(self._first, backend) if is_other else None


def open_file(path: Path) -> DecoderFile:
    """Open the file of a language model; errors as `gptrs_onnx.load`."""
    return DecoderFile(path)


assert fused_attention  # it registers the operators
