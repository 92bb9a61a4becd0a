"""The graph of an ONNX file: its declaration, its weights, and its conversion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np
from msgspec import Struct

from gptrs.api import ModelError, UnsupportedError
from gptrs.api.importers import ModelInput
from gptrs.api.models import Tensor
from gptrs.backend.weight_identity import WeightFile
from gptrs_onnx import ops
from gptrs_onnx.block_weights import BlockSource, block_weights
from gptrs_onnx.conversion import Conversion, symbols_may_be_refused
from gptrs_onnx.element_types import HELD_IN, stored_dtype
from gptrs_onnx.graph_file import GraphFile, NarrowType
from gptrs_onnx.node import Items, Known, Narrow, as_tensor, converts, is_weight, refuse_sequence
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.reading import InitializerSource
from gptrs_onnx.search import shown

assert ops  # its modules register the converters


class Graph(Struct, frozen=True, dict=True):
    """A graph that was read; `own` is its file, None if it is in memory."""

    model: ir.Model
    own: WeightFile | None = None

    @cached_property
    def weights(self) -> InitializerSource:
        """The initializers of all graphs, except small constants."""
        return weights_of(self.model, self.own)

    @cached_property
    def _narrow(self) -> dict[str, ir.DataType]:
        values = (*self.model.graph.inputs, *self.model.graph.outputs)
        types = ((str(each.name), each.dtype) for each in values)
        return {name: each for name, each in types if each is not None and each in HELD_IN}

    def declared(self) -> GraphFile:
        """Return its inputs, outputs and weights; UnsupportedError for types that PTIR lacks."""
        graph = self.model.graph
        inner = set(graph.initializers)
        narrow = {
            name: NarrowType(dtype.name, HELD_IN[dtype].numpy, dtype.numpy())
            for name, dtype in self._narrow.items()
        }
        return GraphFile(
            tuple([slot_of(each) for each in graph.inputs if each.name not in inner]),
            tuple([str(each.name) for each in graph.outputs]),
            lambda: self.weights,
            lambda: self,
            narrow,
        )

    def convert(
        self,
        known: Mapping[str, np.ndarray],
        free: Mapping[str, Tensor],
        weight: Callable[[str], Tensor],
        symbols: Mapping[int, int],
        assume: Callable[[], None],
    ) -> tuple[Tensor, ...]:
        """Return the outputs, see `Convertible`."""
        conversion = self._conversion(known, free, weight)
        if not symbols:
            return _outputs(conversion, self.model)
        with symbols_may_be_refused(conversion, symbols):
            assume()
            return _outputs(conversion, self.model)

    def _conversion(
        self,
        known: Mapping[str, Known],
        free: Mapping[str, Tensor],
        weight: Callable[[str], Tensor],
    ) -> Conversion:
        """Return a conversion of the graph, with its inputs bound."""
        model = self.model
        conversion = Conversion(
            model.functions, dict(model.opset_imports), lambda name, _: weight(name)
        )
        for value in model.graph.inputs:
            name = str(value.name)
            if name in known:
                conversion.bind(value, known[name])
            elif name in free:
                narrow = self._narrow.get(name)
                found = free[name]
                conversion.bind(
                    value, found if narrow is None else Narrow(found, narrow), frozenset({name})
                )
            elif name not in model.graph.initializers:
                conversion.bind(value, None)
        return conversion


def weights_of(model: ir.Model, own: WeightFile | None) -> InitializerSource:
    """Return the initializers of all graphs of a model, except small constants."""
    stored = {
        name: value.const_value
        for part in model.graphs()
        for name, value in part.initializers.items()
        if value.const_value is not None and is_weight(value.const_value)
    }
    blocks = block_weights(model)
    return BlockSource(stored, own, blocks) if blocks else InitializerSource(stored, own)


def _outputs(conversion: Conversion, model: ir.Model) -> tuple[Tensor, ...]:
    """Return the outputs, those of narrow types in the types that hold them."""
    results: list[Tensor] = []
    for output, found in zip(model.graph.outputs, conversion.run(model.graph), strict=True):
        if isinstance(found, Items):
            refuse_sequence(f"`{shown(output.name)}`, an output of the graph,")
        narrow = found.type if isinstance(found, Narrow) else None
        if narrow != (output.dtype if output.dtype in HELD_IN else None):
            stated, name = output.dtype.name if output.dtype else "nothing", shown(output.name)
            raise ModelError(
                f"the output `{name}` is stated to be {stated}, and is"
                f" {as_tensor(found).dtype if narrow is None else narrow.name}"
            )
        results.append(found.values if isinstance(found, Narrow) else as_tensor(found))
    return tuple(results)


def slot_of(value: ir.Value) -> ModelInput:
    """Return the declaration of an input; UnsupportedError for types that PTIR lacks."""
    name = str(value.name)
    held = value.type
    optional = isinstance(held, ir.OptionalType)
    if isinstance(held, ir.OptionalType):
        held = held.elem_type
    if not isinstance(held, ir.TensorType):
        kind = type(held).__name__.removesuffix("Type").lower() if held else "unknown"
        raise UnsupportedError(f"the input `{shown(name)}` is a {kind}, only tensors are supported")
    dtype = stored_dtype(held.dtype, f"the input `{shown(name)}`")
    if value.shape is None or optional:
        return ModelInput(name, dtype, None, optional)
    dims = [_size_of(size, f"{name}_{place}") for place, size in enumerate(value.shape)]
    return ModelInput(name, dtype, tuple(dims))


def _size_of(size: int | ir.SymbolicDim, place: str) -> int | str:
    """Return a size or the name of a free one, by default that of its place.

    Negative numbers, `?` and the like are what exporters write for "any".
    """
    if isinstance(size, int):
        return size if size >= 0 else place
    stated = str(size.value or "")
    return stated if any(map(str.isalpha, stated)) else place


def supported_operators() -> dict[str, list[str]]:
    """Return the operators that have their own converters, in order, by domain.

    Those that the standard defines by others (`NegativeLogLikelihoodLoss`) are converted as well.
    """
    found: dict[str, list[str]] = {}
    for operator in sorted(converts):
        domain, _, name = operator.rpartition(".")
        found.setdefault(domain or "ai.onnx", []).append(name)
    return found
