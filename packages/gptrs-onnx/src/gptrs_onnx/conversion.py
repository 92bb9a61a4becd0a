"""A graph of ONNX becomes calls of functionals: values in order, node by node."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Final, NoReturn, TypeAlias, cast

import numpy as np

from gptrs.api import GptrsError, ModelError, UnsupportedError
from gptrs.api.backends import SizeGuards
from gptrs.api.models import Tensor
from gptrs.ir.symbolic_dim import ASSUMPTIONS
from gptrs_onnx import known_ops
from gptrs_onnx.element_types import HELD_IN, narrow_type, stored_dtype
from gptrs_onnx.fractional_sizes import sizes_behind
from gptrs_onnx.node import (
    Bound,
    Items,
    Known,
    Lookup,
    Narrow,
    Node,
    Value,
    as_tensor,
    body_of,
    constant,
    converts,
    cut_before,
    has_body,
    is_weight,
    numbers,
    refuse_sequence,
    stored_array,
    strings,
)
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.search import NeedsKnownError, Origins, SymbolsRefusedError, shown
from gptrs_onnx.size_facts import MOST_DIMS, Refused
from gptrs_onnx.strings import Words, texts_of

# Operators of the standard that are not converted: why, and what to do about it.


_REFUSED = {
    "strings that a program computes": (
        *("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"),
    ),
    "maps": ("CastMap", "DictVectorizer"),
}
"""Operators by their subjects, which programs lack."""
_INSTEAD = {
    **dict.fromkeys(
        ("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"),
        (
            "searches for a text with a decoder inside the graph",
            "export the encoder and the decoder without it, as optimum does, and search outside of"
            " the graph: `gptrs generate --model FOLDER` does so for a decoder with a tokenizer",
        ),
    ),
    "SparseAttention": (
        "attends to some blocks of the keys",
        "export the model with its attention written out, or as `GroupQueryAttention`",
    ),
}
"""Operators of ONNX Runtime without a converter: what they do, and what to do about it."""


def is_refused(node: Node) -> bool:
    """Return whether an operator is refused even if the standard gives a body for it."""
    return kind_of(node.domain, node.op_type) is not None


def refuse(node: Node) -> NoReturn:
    """Raise UnsupportedError for an operator without a converter; it says what to do."""
    kind = kind_of(node.domain, node.op_type)
    if kind is not None:
        node.refuse(f"is about {kind}, and values are tensors of numbers", hint=cut_before(node))
    if node.domain == "com.microsoft" and node.op_type in _INSTEAD:
        reason, hint = _INSTEAD[node.op_type]
        node.refuse(f"{reason}, which gptrs-onnx does not convert", hint=hint)
    if node.domain in ("ai.onnx.contrib", "com.microsoft.extensions"):
        node.refuse(
            "is Python or C++ code of onnxruntime-extensions, for texts, images and sounds",
            hint=cut_before(node),
        )
    converts.refuse(node)


def kind_of(domain: str, op_type: str) -> str | None:
    """Return the subject of a refused operator; None for an unknown one."""
    if domain not in ("", "ai.onnx.ml"):
        return None
    return next((kind for kind, names in _REFUSED.items() if op_type in names), None)


Results: TypeAlias = "Bound | Sequence[Bound | None] | None"

MAX_DEPTH: Final = 64
"""Functions, branches and loops inside one another."""
MAX_NODES: Final = 200_000
"""Most nodes; those of a function count once per call."""


@contextmanager
def symbols_may_be_refused(conversion: Conversion, free: Mapping[int, int]) -> Generator[None]:
    """Scope of a conversion with symbols: any error of gptrs in it is a SymbolsRefusedError.

    `free` are the numbers of a graph's free sizes for the symbols of the program.
    """
    try:
        yield
    except NeedsKnownError as need:
        if isinstance(need.__cause__, GptrsError):
            need.refused = conversion.refused(need.__cause__, free)
        raise
    except GptrsError as error:
        guards = ASSUMPTIONS.get()  # None where a size is 0, for which no symbol stands
        always = isinstance(guards, SizeGuards) and not guards.guards
        raise SymbolsRefusedError(conversion.refused(error, free), always) from error


class Conversion:
    """The values of a graph so far. `weight` gives the large initializers as tensors by name."""

    def __init__(
        self,
        functions: Mapping[ir.OperatorIdentifier, ir.Function],
        opsets: Mapping[str, int],
        weight: Callable[[str, ir.TensorProtocol], Tensor],
        words: Words | None = None,
        seed: int | None = None,
    ) -> None:
        self._words = words
        self._seed = seed
        self._draws = 0
        self.repeats = 0
        """How many loops of the program are being converted, one inside the other."""
        self.lookups: list[Lookup] = []
        """Nodes that fail for values that a table lacks."""
        self._functions = functions
        self._opsets = opsets
        self._weight = weight
        self._values: dict[ir.Value, Bound | None] = {}  # None: an optional left out
        self._origins: dict[ir.Value, Origins] = {}
        self._attributes: Mapping[str, ir.Attr] = {}
        self._depth = 0
        self._nodes = 0
        self._refused: Sequence[Sequence[int]] | None = None

    def refused(self, error: GptrsError, free: Mapping[int, int]) -> Refused:
        """Return the first node that raised an error, which ended the conversion.

        `free` are the numbers of a graph's free sizes for the symbols of the program.
        """
        return Refused(error, self._refused or (), self._nodes, free)

    def bind(self, value: ir.Value, found: Bound | None, origins: Origins = frozenset()) -> None:
        """Bind a value of the graph, None if it is omitted, and the inputs it is computed from."""
        if isinstance(found, np.ndarray) and (narrow := narrow_type(found.dtype)) is not None:
            found = Narrow(constant(found.astype(HELD_IN[narrow].numpy)), narrow)
        self._values[value] = found
        self._origins[value] = origins

    def run(self, graph: ir.Graph | ir.Function, repeats: bool = False) -> list[Bound]:
        """Convert all nodes of a graph whose inputs are bound; return its outputs.

        `repeats`: the program runs them in a loop.
        """
        # A file may have a function that calls itself; Python's own limit would end in a stack
        # overflow of the C code beneath.
        if self._depth == MAX_DEPTH:
            raise UnsupportedError(f"graphs and functions nest more than {MAX_DEPTH} deep")
        self._depth += 1
        self.repeats += repeats
        try:
            if isinstance(graph, ir.Graph):
                self._bind_initializers(graph)
            for source in graph:
                self._convert(source)
            return [self._present(each, "an output of the graph") for each in graph.outputs]
        finally:
            self._depth -= 1
            self.repeats -= repeats

    def run_nodes(
        self, nodes: Sequence[ir.Node], graphs: Sequence[ir.Graph], wanted: ir.Value
    ) -> Value:
        """Convert some nodes of graphs, in order; return one of their results."""
        for graph in graphs:
            self._bind_initializers(graph)
        for source in nodes:
            self._convert(source)
        return self._found(wanted, "a result of these nodes")

    def run_part(
        self, graph: ir.Graph, nodes: Sequence[ir.Node], wanted: Sequence[ir.Value]
    ) -> list[Bound]:
        """Convert some nodes of a graph, in order; return these of their results."""
        self._bind_initializers(graph)
        for source in nodes:
            self._convert(source)
        return [self._present(each, "a result of these nodes") for each in wanted]

    def origins_of(self, values: Sequence[ir.Value | None]) -> Origins:
        """Return the inputs of the graph that any of these values is computed from."""
        found = (self._origins.get(each, frozenset()) for each in values if each is not None)
        return frozenset[str]().union(*found)

    def known(self, value: ir.Value, why: str) -> Known:
        """Return a value as an array; NeedsKnownError if it depends on inputs that are not."""
        held = self.from_sizes(value, why)
        if held is not None:
            return held
        origins = self._origins.get(value, frozenset())
        if origins:
            raise NeedsKnownError(origins, why, value)
        if value.const_value is not None:
            return stored_array(value.const_value, why)
        return cast("Known", cast("Tensor", self._found(value, why)).numpy())

    def from_sizes(self, value: ir.Value, why: str) -> Known | None:
        """Return a value as an array if it is one or follows from sizes, else None."""
        found = self._found(value, why)
        if not isinstance(found, Tensor):
            return found
        if self._origins.get(value):
            return None
        return sizes_behind(value, self._values.get, self._node)

    def codes(self, texts: Sequence[str]) -> Known:
        """Return strings of the file as their codes [count]."""
        if self._words is None:
            raise UnsupportedError("a language model has strings, which only other graphs may have")
        return self._words.codes(texts)

    def random_key(self, own: float | None) -> tuple[int, int] | None:
        """Return a new key and counter for random numbers, by a node's `own` seed.

        None if the model has no seed.
        """
        if self._seed is None:
            return None
        if own is not None:  # nodes with one seed make the same numbers, as in ONNX Runtime
            return int(np.float32(own).view(np.uint32)), 0
        self._draws += 1
        return self._seed % 2**64, self._draws << 48

    def _bind_initializers(self, graph: ir.Graph) -> None:
        for name, value in graph.initializers.items():
            if value in self._values or value.const_value is None:
                continue
            stored = value.const_value
            held = stored_dtype(stored.dtype, f"the initializer `{shown(name)}`")
            if stored.dtype == ir.DataType.STRING:
                codes = self.codes(texts_of(stored))
                self.bind(value, strings(codes.reshape(stored.shape.numpy())))
            elif is_weight(stored):
                weight = self._weight(name, stored)
                is_narrow = HELD_IN.get(stored.dtype) == held
                self.bind(value, Narrow(weight, stored.dtype) if is_narrow else weight)
            else:
                self.bind(value, stored_array(stored, f"the initializer `{shown(name)}`"))

    def _found(self, value: ir.Value, what: str) -> Value:
        found = self._present(value, what)
        if isinstance(found, Items):
            refuse_sequence(f"`{shown(value.name)}`, {what},")
        return as_tensor(found) if isinstance(found, Narrow) else found

    def _present(self, value: ir.Value, what: str) -> Bound:
        found = self._given(value, what)
        if found is None:
            raise UnsupportedError(f"`{shown(value.name)}`, {what}, is an optional that is absent")
        return found

    def _given(self, value: ir.Value, what: str) -> Bound | None:
        if value not in self._values:
            raise ModelError(f"the value `{shown(value.name)}`, {what}, is computed by no node")
        return self._values[value]

    def _convert(self, source: ir.Node) -> None:
        self._nodes += 1
        # Functions that call others twice, thirty deep, are a billion nodes in a file of a
        # kilobyte.
        if self._nodes > MAX_NODES:
            raise UnsupportedError(f"the graph has more than {MAX_NODES} nodes with its functions")
        node = self._node(source)
        inputs = [each if each is not None and each.name else None for each in source.inputs]
        try:
            results = self._results(node, inputs)
        except NeedsKnownError as need:
            need.node = source  # the outermost node is the last to say so
            raise
        except GptrsError:
            if self._refused is None:  # else it is a node inside this one
                values = [each for each in inputs if each is not None]
                self._refused = [_dims_of(self._values.get(each)) for each in values]
            raise
        several = isinstance(results, (list, tuple))
        made = list(results) if several else [cast("Bound | None", results)]
        # Outputs without a name are left out; some exporters list more than the operator defines.
        if len(made) < sum(bool(each.name) for each in source.outputs):
            node.malformed(f"has {len(source.outputs)} outputs, at most {len(made)} are defined")
        origins = self.origins_of([*inputs, *outer_values(source)])
        for value, found in zip(source.outputs, made, strict=False):
            # Sizes that follow from a shape do not depend on the values of inputs, whatever
            # computed them.
            is_known = isinstance(found, np.ndarray)
            self.bind(value, found, frozenset() if is_known else origins)

    def _node(self, source: ir.Node) -> Node:
        words = (source.op_type, source.domain, *source.attributes)
        if not all(isinstance(word, str) for word in cast("Sequence[object]", words)):
            raise ModelError(f"the name of a node `{shown(source.op_type)}` is not UTF-8")
        domain = "" if source.domain == "ai.onnx" else source.domain
        version = self._opsets.get(domain, self._opsets.get("ai.onnx", 0) if not domain else 1)
        attributes: dict[str, ir.Attr] = {}
        for name, attribute in source.attributes.items():
            if attribute.is_ref():
                given = self._attributes.get(attribute.ref_attr_name or "")
                if given is not None:
                    attributes[name] = given
            else:
                attributes[name] = attribute
        return Node(source, version, attributes, self)

    def _results(self, node: Node, inputs: Sequence[ir.Value | None]) -> Results:
        function = self._functions.get((node.source.domain, node.op_type, node.source.overload))
        if function is not None:
            return self._call(node, function, inputs, self._opsets)
        what = f"an input of {node}"
        values = [None if each is None else self._given(each, what) for each in inputs]
        # Before converters: arithmetic on shapes stays numbers, with which `Reshape` and `Slice`
        # need no tensors of sizes.
        known = known_ops.evaluated(node, values)
        if known is not None:
            return known
        converter = converts.get(node.name)
        if converter is not None:
            results = converter(node, values)
            return results if node.moved is None else _as_narrow(results, node.moved)
        if is_refused(node) or not has_body(node.domain, node.op_type, node.version):
            refuse(node)
        values = [
            None if each is None or value is None else self._found(each, what)
            for each, value in zip(inputs, values, strict=True)
        ]
        body = body_of(node, values)
        if body is None:
            refuse(node)
        function, opsets = body
        return self._call(node, function, inputs, opsets)

    def _call(
        self,
        node: Node,
        function: ir.Function,
        inputs: Sequence[ir.Value | None],
        opsets: Mapping[str, int],
    ) -> list[Bound]:
        """Convert the body of a function in place of a node that calls it."""
        outer = self._attributes, self._opsets
        defaults = {
            each.name: each for each in function.attributes.values() if each.value is not None
        }
        own = {name: node.given[name] for name in function.attributes if name in node}
        for formal, actual in zip_longest(function.inputs, inputs):
            if formal is None:
                node.malformed(f"has {len(inputs)} inputs, its function takes fewer")
            given = None if actual is None else self._given(actual, f"an input of {node}")
            self.bind(formal, given, self.origins_of([actual]))
        try:
            self._attributes = {**defaults, **own}
            self._opsets = {**opsets, **function.opset_imports}
            return self.run(function)
        finally:
            self._attributes, self._opsets = outer


def _as_narrow(results: Results, narrow: ir.DataType) -> Results:
    """Return the results of a node that moved numbers of a narrow type."""
    if isinstance(results, (list, tuple)):
        return [None if each is None else Narrow(as_tensor(each), narrow) for each in results]
    return Narrow(as_tensor(cast("Tensor", results)), narrow)


def _dims_of(value: Bound | None) -> Sequence[int]:
    """Return the dims of a value, or its elements if it may be a shape."""
    if isinstance(value, Tensor):
        return value.shape
    if isinstance(value, Narrow):
        return value.values.shape
    if value is None or isinstance(value, Items):
        return ()
    is_shape = value.ndim == 1 and value.dtype.kind in "iO" and len(value) <= MOST_DIMS
    return numbers(value) if is_shape else value.shape


def outer_values(source: ir.Node) -> list[ir.Value]:
    """Return all values that the graphs inside a node read, from inside and outside of it."""
    found: list[ir.Value] = []
    for attribute in source.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            inner = attribute.as_graph()
            found.extend(each for node in inner.all_nodes() for each in node.inputs if each)
            found.extend(inner.outputs)
    return found
