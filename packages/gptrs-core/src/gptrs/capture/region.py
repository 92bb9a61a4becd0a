"""Turns a Python function of tensors into a region, the body of a loop or branch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from gptrs.capture.graph import (
    Argument,
    Captured,
    GraphNode,
    Source,
    common_backend,
    emit_node,
    next_age,
    resolve,
)
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.ir.builder import Builder
from gptrs.ir.printer import print_region
from gptrs.ir.program import Function, Region, Value
from gptrs.ir.tensor_type import TensorType

Body = Callable[..., Tensor | Sequence[Tensor]]
"""A function of tensors that returns one or several."""


class CapturedBody(Struct, frozen=True, eq=False):
    """A function called with placeholders: its arguments, results and nodes."""

    name: str
    arguments: tuple[Argument, ...]
    results: tuple[Source, ...]
    nodes: tuple[GraphNode, ...]
    """The nodes that the region computes itself, in executable order."""
    outside: tuple[Source, ...]
    """Closed-over sources, which become operands of the instruction."""

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions that the region calls, callees first."""
        return tuple({f.name: f for node in self.nodes for f in node.functions}.values())

    def region(
        self,
        outside: Sequence[Source],
        after: int | None = None,
        returned: Sequence[Source] = (),
    ) -> Region:
        """Return the region, with parameters for the arguments and for `outside`.

        The parameters for `outside` follow the first `after` arguments (default: all). `returned`,
        a part of `outside`, is inserted likewise after the first `after` results.
        """
        split = len(self.arguments) if after is None else after
        params: list[Source] = [*self.arguments[:split], *outside, *self.arguments[split:]]
        builder = Builder(self.functions)
        values: dict[Source | tuple[GraphNode, int], Value] = {
            _key(source): builder.param(source.type) for source in params
        }
        for node in self.nodes:
            operands = [values[_key(operand)] for operand in node.operands]
            for index, value in enumerate(emit_node(builder, node, operands)):
                values[node, index] = value
        results = [*self.results[:split], *returned, *self.results[split:]]
        return builder.region(*(values[_key(source)] for source in results))


def capture_body(name: str, function: Body, types: Sequence[TensorType]) -> CapturedBody:
    """Call `function` with placeholders of `types`; UsageError if it does not return tensors.

    `name` describes the function in errors.
    """
    arguments = tuple(Argument(type_, position, None) for position, type_ in enumerate(types))
    first = next_age()
    returned = function(*map(Tensor, arguments))
    results = tuple(resolve(tensor.source) for tensor in _tensors(name, returned))
    return _BodyCapture(name, arguments, results, first).captured()


def capture_block(
    name: str, function: Callable[[Sequence[Tensor]], Sequence[Tensor]], sources: Sequence[Source]
) -> tuple[CapturedBody, tuple[int, ...]]:
    """Call `function` with placeholders for all of `sources`; return the body and the indices used.

    The body's arguments are only the tensors that it uses.
    """
    arguments = [
        Argument(source.type, position, source.backend) for position, source in enumerate(sources)
    ]
    first = next_age()
    results = tuple([resolve(tensor.source) for tensor in function([*map(Tensor, arguments)])])
    body = _BodyCapture(name, tuple(arguments), results, first).captured()
    read = {*results, *(operand for node in body.nodes for operand in node.operands)}
    used = tuple([argument for argument in arguments if argument in read])
    return replace(body, arguments=used), tuple([argument.position for argument in used])


def _tensors(name: str, returned: object) -> list[Tensor]:
    several = isinstance(returned, tuple | list)
    values = list(cast("Sequence[object]", returned)) if several else [returned]
    tensors = [value for value in values if isinstance(value, Tensor)]
    for value in values:
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise UsageError(f"`{name}` must return tensors, got a value of type `{kind}`")
    return tensors


def as_function(body: CapturedBody) -> Function:
    """Return the body as a function named by its content; closed-over sources come last."""
    region = body.region(body.outside)
    digest = hashlib.blake2b(print_region(region).encode(), digest_size=8).hexdigest()
    return Function(f"{_identifier(body.name)}_{digest}", region)


def _identifier(name: str) -> str:
    kept = "".join(char if char.isalnum() and char.isascii() else "_" for char in name)
    return kept if kept[:1].isalpha() else f"f{kept}"


def outside_of(bodies: Sequence[CapturedBody]) -> tuple[Source, ...]:
    """Return the closed-over sources of several bodies, each once."""
    found = {_key(source): source for body in bodies for source in body.outside}
    return tuple(found.values())


def _key(source: Source) -> Source | tuple[GraphNode, int]:
    """Return the identity of a source; of a captured result, its node and index."""
    return (source.node, source.index) if isinstance(source, Captured) else source


_Kind = Literal["constant", "varying", "outside"]


class _BodyCapture:
    """Decides for each node below the results whether the region computes it or gets it as an
    operand.

    The region computes values that depend on its arguments, and the constants that it needs. Values
    that depend only on the enclosing region are computed there, once. `first` is the age of the
    first node that can depend on an argument.
    """

    def __init__(
        self, name: str, arguments: tuple[Argument, ...], results: tuple[Source, ...], first: int
    ) -> None:
        self._first = first
        self._name = name
        self._arguments = arguments
        self._results = results
        self._own = set[Source](arguments)
        self._kinds: dict[GraphNode, _Kind] = {}

    def captured(self) -> CapturedBody:
        """Return the body with its nodes and closed-over sources."""
        for result in self._results:
            self._visit(result)
        nodes = self._needed()
        read = (*(operand for node in nodes for operand in node.operands), *self._results)
        outside = {_key(source): source for source in read if self._kind(source) == "outside"}
        sources = tuple(outside.values())
        common_backend(sources, self._name)
        return CapturedBody(self._name, self._arguments, self._results, tuple(nodes), sources)

    def _kind(self, source: Source) -> _Kind:
        if isinstance(source, Captured):
            return self._kinds[source.node]
        return "varying" if source in self._own else "outside"

    def _visit(self, root: Source) -> None:
        pending: list[tuple[Source, bool]] = [(root, False)]
        while pending:
            source, operands_done = pending.pop()
            if not isinstance(source, Captured) or source.node in self._kinds:
                continue
            node = source.node
            if node.age < self._first and not node.constant:
                # Older than the body, so not walked: the graph below it may be a whole model.
                self._kinds[node] = "outside"
                continue
            if not operands_done:
                pending.append((source, True))
                pending.extend((operand, False) for operand in reversed(node.operands))
                continue
            kinds = {self._kind(operand) for operand in node.operands}
            # dicts preserve the executable order
            self._kinds[node] = (
                "varying"
                if "varying" in kinds
                else "outside"
                if kinds - {"constant"}
                else "constant"
            )

    def _needed(self) -> list[GraphNode]:
        """Return the nodes of the region that a result needs, in executable order."""
        needed = {source.node for source in self._results if isinstance(source, Captured)}
        for node in reversed(self._kinds):
            if node in needed and self._kinds[node] != "outside":
                captured = (operand for operand in node.operands if isinstance(operand, Captured))
                needed.update(operand.node for operand in captured)
        return [node for node in self._kinds if node in needed and self._kinds[node] != "outside"]
