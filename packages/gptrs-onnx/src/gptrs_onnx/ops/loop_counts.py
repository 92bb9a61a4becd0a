"""How many iterations a loop has whose condition compares a counter with a bound: `while i < n`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import numpy as np

from gptrs.api import GptrsError
from gptrs.api.importers import is_number
from gptrs.api.models import Tensor
from gptrs_onnx.node import Bound, Node, numbers
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.search import NeedsKnownError

_MOST: Final = 64
"""Most nodes of a body that are read for its condition."""
_ENDLESS: Final = 2**31 - 1
"""Limits from here on stand for none: no size reaches them."""
_WHY: Final = "the condition of a loop"
_SAME: Final = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
_COMPARED: Final = {
    ("Less", False): (0, 0),
    ("LessOrEqual", False): (0, 1),
    ("Greater", False): (1, 0),
    ("GreaterOrEqual", False): (1, 1),
    ("Greater", True): (0, 1),
    ("GreaterOrEqual", True): (0, 0),
    ("Less", True): (1, 1),
    ("LessOrEqual", True): (1, 0),
}
"""Which input counts, and what the bound lacks, by the operator and whether it is negated."""


def iterations(
    node: Node, body: ir.Graph, states: Sequence[Bound | None], most: int | None
) -> int | None:
    """Return how many iterations a loop has that begins; None if its condition is other data.

    `most` is its own limit. The result may be a polynomial over symbols: a loop over an axis.
    """
    return _Condition(node, body, states).iterations(most)


class _UnknownCountError(Exception):
    """A condition is not one of those that are understood."""


class _Condition:
    """The condition that a body computes."""

    def __init__(self, node: Node, body: ir.Graph, states: Sequence[Bound | None]) -> None:
        self._conversion = node.conversion
        self._body = body
        self._maker = {each: source for source in body for each in source.outputs}
        self._origins = node.conversion.origins_of(node.source.inputs)
        self._count, going, *carried = body.inputs
        self._starts = dict(zip(carried, states, strict=True))
        self._starts[self._count] = np.asarray(0, np.int64)
        self._following = dict(zip(carried, body.outputs[1:], strict=False))
        node.conversion.bind(going, np.asarray(True))  # else there would be no iteration

    def iterations(self, most: int | None) -> int | None:
        try:
            for bound in self._bounds(self._body.outputs[0]):
                most = bound if most is None else _lesser(most, bound)
        except (_UnknownCountError, NeedsKnownError, GptrsError):
            return None
        return most

    def _bounds(self, value: ir.Value, negated: bool = False) -> list[int]:
        """Return numbers of iterations; a condition ends the loop after the least of them."""
        if self._is_fixed(value):
            return [] if bool(self._first(value)) is not negated else [1]
        source = self._source(value)
        first = source.inputs[0]
        assert first is not None, "operators of one input or two have it"
        if source.op_type in _SAME:
            return self._bounds(first, negated)
        if source.op_type == "Not":
            return self._bounds(first, not negated)
        if source.op_type == ("Or" if negated else "And"):
            parts = cast("Sequence[ir.Value]", source.inputs)
            return [bound for each in parts for bound in self._bounds(each, negated)]
        form = _COMPARED.get((source.op_type, negated))
        if form is None:
            raise _UnknownCountError
        counter, lack = form
        counted, limit = source.inputs[counter], source.inputs[1 - counter]
        if counted is None or limit is None or not self._counts(counted):
            raise _UnknownCountError
        if not self._is_fixed(limit):
            raise _UnknownCountError
        left = self._first(limit) + lack - self._first(counted)
        return [1 + (left if left >= 0 else 0)]

    def _source(self, value: ir.Value | None) -> ir.Node:
        """Return the node of the body that computes a value."""
        source = self._maker.get(cast("ir.Value", value))
        if source is None or source.domain not in ("", "ai.onnx") or not source.inputs:
            raise _UnknownCountError
        return source

    def _is_fixed(self, value: ir.Value) -> bool:
        """Return whether a value is the same in each iteration."""
        return all(
            each not in self._starts or self._same(self._following.get(each)) is each
            for each in self._behind(value)[1]
        )

    def _same(self, value: ir.Value | None) -> ir.Value | None:
        """Return what a value is a copy of."""
        while value in self._maker and self._maker[value].op_type == "Identity":
            value = self._maker[value].inputs[0]
        return value

    def _counts(self, value: ir.Value) -> bool:
        """Return whether a value grows by one with each iteration."""
        root = self._root(value)
        if root is self._count:
            return True
        following = self._following.get(root)
        if following is None or self._root(following) is not root:
            return False
        return self._first(following) - self._first(root) == 1

    def _root(self, value: ir.Value) -> ir.Value:
        """Return a value without summands that are the same in each iteration."""
        while value in self._maker:
            source = self._source(value)
            parts = [each for each in source.inputs if each is not None]
            if source.op_type in _SAME:
                value = parts[0]
            elif source.op_type == "Add" and self._is_fixed(parts[0]):
                value = parts[1]
            elif source.op_type in ("Add", "Sub") and self._is_fixed(parts[1]):
                value = parts[0]
            else:
                raise _UnknownCountError
        return value

    def _first(self, value: ir.Value) -> int:
        """Return a value in the first iteration."""
        nodes, inputs = self._behind(value)
        for each in inputs:
            if each in self._starts:
                start = self._starts[each]
                origins = frozenset[str]() if isinstance(start, np.ndarray) else self._origins
                self._conversion.bind(each, start, origins)
        ordered = [each for each in self._body if each in nodes]
        made = self._conversion.run_nodes(ordered, [self._body], value)
        found = self._conversion.from_sizes(value, _WHY) if isinstance(made, Tensor) else made
        if found is None or found.size != 1 or found.dtype.kind not in "biufO":
            raise _UnknownCountError
        if found.dtype.kind == "f" and not float(found.reshape(-1)[0]).is_integer():
            raise _UnknownCountError
        return numbers(found)[0]

    def _behind(self, value: ir.Value) -> tuple[set[ir.Node], list[ir.Value]]:
        """Return the nodes of the body that compute a value, and what they take from elsewhere."""
        nodes, inputs, waiting = set[ir.Node](), list[ir.Value](), [value]
        while waiting:
            value = waiting.pop()
            source = self._maker.get(value)
            if source is None:
                inputs.append(value)
            elif source not in nodes:
                if len(nodes) == _MOST or _has_graph(source):
                    raise _UnknownCountError
                nodes.add(source)
                waiting += [each for each in source.inputs if each is not None]
        return nodes, inputs


def _lesser(a: int, b: int) -> int:
    """Return the lesser number; those that stand for no limit are not compared with sizes."""
    if is_number(b) and b >= _ENDLESS:
        return a
    return b if is_number(a) and a >= _ENDLESS else min(a, b)


def _has_graph(source: ir.Node) -> bool:
    return any(each.type == ir.AttributeType.GRAPH for each in source.attributes.values())
