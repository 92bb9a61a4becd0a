"""The graph of an ONNX file: its declaration, its weights, and its conversion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import cast

import numpy as np
from msgspec import Struct

from gptrs.api import ExecutionError, ModelError
from gptrs.api.importers import ModelInput
from gptrs.api.models import Tensor
from gptrs.backend.weight_identity import WeightFile
from gptrs.quoting import listed
from gptrs_onnx import ops
from gptrs_onnx.block_weights import BlockSource, block_weights
from gptrs_onnx.conversion import Conversion, symbols_may_be_refused
from gptrs_onnx.element_types import HELD_IN
from gptrs_onnx.graph_file import GraphFile, NarrowType
from gptrs_onnx.inputs import Border, item_name
from gptrs_onnx.node import Items, Known, Narrow, as_tensor, constant, converts, is_weight
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.reading import InitializerSource
from gptrs_onnx.search import NeedsKnownError, Origins, shown
from gptrs_onnx.stages import Cut, Part, cut

assert ops  # its modules register the converters


class Graph(Struct, frozen=True, dict=True):
    """A graph that was read; `own` is its file, None if it is in memory."""

    model: ir.Model
    own: WeightFile | None = None
    part: Part | None = None
    """The stage of the graph that is converted; None for all of it."""

    @cached_property
    def weights(self) -> InitializerSource:
        """The initializers of all graphs, except small constants."""
        return weights_of(self.model, self.own)

    @cached_property
    def border(self) -> Border:
        """The inputs of calls and those of the program; the graph loses what lies between."""
        return Border.of(self.model)

    @cached_property
    def _narrow(self) -> dict[str, ir.DataType]:
        assert self.border, "without the functions of strings, which have made inputs of results"
        values = (*self.model.graph.inputs, *self.model.graph.outputs)
        types = ((str(each.name), each.dtype) for each in values)
        return {name: each for name, each in types if each is not None and each in HELD_IN}

    def declared(self) -> GraphFile:
        """Return its inputs, outputs and weights; UnsupportedError for types that PTIR lacks."""
        border = self.border
        narrow = {
            name: NarrowType(dtype.name, HELD_IN[dtype].numpy, dtype.numpy())
            for name, dtype in self._narrow.items()
        }
        return GraphFile(
            border.inputs,
            tuple([str(each.name) for each in self.model.graph.outputs]),
            lambda: self.weights,
            lambda: self,
            narrow,
            border if border.is_needed else None,
        )

    def convert(
        self,
        known: Mapping[str, np.ndarray],
        free: Mapping[str, Tensor],
        weight: Callable[[str], Tensor],
        symbols: Mapping[int, int],
        assume: Callable[[], None],
        seed: int | None,
    ) -> tuple[Tensor, ...]:
        """Return the outputs, see `Convertible`."""
        conversion = self._conversion(known, free, weight, seed)
        if not symbols:
            return self._converted(conversion)
        with symbols_may_be_refused(conversion, symbols):
            assume()
            return self._converted(conversion)

    def _converted(self, conversion: Conversion) -> tuple[Tensor, ...]:
        if self.part is None:
            return _outputs(conversion, self.model)
        part = self.part
        found = conversion.run_part(self.model.graph, part.nodes, part.outputs)
        return tuple(map(as_tensor, found))

    def cut(self, need: NeedsKnownError) -> Cut | None:
        """Return the graph in two stages between which a value is known; None if it has no such."""
        if self.border.is_needed or self._narrow:
            return None
        graph = self.model.graph
        whole = self.part or Part(tuple(graph), tuple(graph.inputs), tuple(graph.outputs))
        return cut(whole, need)

    def between(
        self, node: ir.Node, given: Mapping[str, Known], weight: Callable[[str], Tensor]
    ) -> dict[str, Known]:
        """Return the results of a node for the values that it takes, by name."""
        conversion = self._conversion({}, {}, weight, None)
        for value in node.inputs:
            if value is not None and (name := str(value.name)) in given:
                conversion.bind(value, given[name])
        wanted = [each for each in node.outputs if each.name]
        found = conversion.run_part(self.model.graph, [node], wanted)
        return {
            str(each.name): np.asarray(as_tensor(made).numpy())
            for each, made in zip(wanted, found, strict=True)
        }

    def unknown(
        self,
        known: Mapping[str, np.ndarray],
        free: Mapping[str, Tensor],
        weight: Callable[[str], Tensor],
        seed: int | None,
        others: Sequence[str],
    ) -> ExecutionError | None:
        """Return the error for a category that a node does not know, see `Convertible`."""
        conversion = self._conversion(known, free, weight, seed)
        conversion.run(self.model.graph)
        for each in conversion.lookups:
            wanted, table = np.unique(each.wanted.numpy()), each.table
            wanted = wanted[~np.isin(wanted, table)]
            if wanted.size:
                if each.are_strings:
                    wanted, table = (self.border.words.decoded(e, others) for e in (wanted, table))
                return ExecutionError(
                    f"{each.node} got {listed(map(str, wanted))}, and knows the categories"
                    f" {listed(map(str, table), 8)}",
                    hint="give one of them; with `zeros` of the node set to 1, others are all 0",
                )
        return None

    def _conversion(
        self,
        known: Mapping[str, Known],
        free: Mapping[str, Tensor],
        weight: Callable[[str], Tensor],
        seed: int | None,
    ) -> Conversion:
        """Return a conversion of the graph, with its inputs bound."""
        model = self.model
        conversion = Conversion(
            model.functions,
            dict(model.opset_imports),
            lambda name, _: weight(name),
            self.border.words,
            seed,
        )
        sequences = {each.name: each for each in self.border.sequences}
        for value in model.graph.inputs if self.part is None else self.part.inputs:
            name = str(value.name)
            narrow = self._narrow.get(name)
            if name in known:
                held = known[name]
                conversion.bind(value, held if narrow is None else Narrow(constant(held), narrow))
            elif name in free:
                found = free[name]
                conversion.bind(
                    value, found if narrow is None else Narrow(found, narrow), frozenset({name})
                )
            elif name in sequences:
                conversion.bind(value, *_items(sequences[name], known, free))
            elif name not in model.graph.initializers:
                conversion.bind(value, None)
        return conversion


def _items(
    sequence: ModelInput, known: Mapping[str, Known], free: Mapping[str, Tensor]
) -> tuple[Items | None, Origins]:
    """Return the tensors of a sequence, None if it is omitted, and the inputs that they are."""
    names: list[str] = []
    while (each := item_name(sequence.name, len(names))) in known or each in free:
        names.append(each)
    values = [known[each] if each in known else free[each] for each in names]
    if not values and sequence.optional:
        return None, frozenset()
    return Items(tuple(values)), frozenset(names)


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
    """Return the outputs, those of narrow types in the types that hold them.

    A sequence is a tuple of its tensors, as `jit` takes it.
    """
    results: list[Tensor] = []
    for output, found in zip(model.graph.outputs, conversion.run(model.graph), strict=True):
        held = output.type
        if isinstance(held, ir.OptionalType):
            held = held.elem_type
        if isinstance(found, Items) != isinstance(held, ir.SequenceType) and held is not None:
            kinds = ("is a sequence", "is a tensor")
            stated, is_it = kinds if isinstance(held, ir.SequenceType) else kinds[::-1]
            raise ModelError(
                f"the output `{shown(output.name)}` {is_it}, and the file says it {stated}"
            )
        if isinstance(found, Items):
            results.append(cast("Tensor", tuple(as_tensor(each) for each in found.values)))
            continue
        narrow = found.type if isinstance(found, Narrow) else None
        if narrow != (output.dtype if output.dtype in HELD_IN else None):
            stated, name = output.dtype.name if output.dtype else "nothing", shown(output.name)
            raise ModelError(
                f"the output `{name}` is stated to be {stated}, and is"
                f" {as_tensor(found).dtype if narrow is None else narrow.name}"
            )
        results.append(found.values if isinstance(found, Narrow) else as_tensor(found))
    return tuple(results)


def supported_operators() -> dict[str, list[str]]:
    """Return the operators that have their own converters, in order, by domain.

    Those that the standard defines by others (`NegativeLogLikelihoodLoss`) are converted as well.
    """
    found: dict[str, list[str]] = {}
    for operator in sorted(converts):
        domain, _, name = operator.rpartition(".")
        found.setdefault(domain or "ai.onnx", []).append(name)
    return found
