"""The captured graph: nodes that apply ops to sources, and its lowering to a program."""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Sequence
from typing import ClassVar

from msgspec import Struct, field

from gptrs.backend.contract import Backend, Buffer, InputRole
from gptrs.backend.sharding import Axes
from gptrs.capture.caching.program_key import KeyBuilder, ProgramKey
from gptrs.capture.outcome import Outcome
from gptrs.capture.parameter import Parameter
from gptrs.errors import UsageError
from gptrs.ir.builder import Builder, copy_region
from gptrs.ir.op import Op
from gptrs.ir.program import Function, Program, Region, Value
from gptrs.ir.tensor_type import TensorType

next_age = itertools.count().__next__
"""Returns the age of the next node: nodes are numbered in order of creation."""


class Stored(Struct, eq=False):
    """A value in memory: on `backend`, or a host array if that is None."""

    type: TensorType
    buffer: Buffer
    backend: Backend | None
    viewed: bool = False
    """Whether a host view exists or a step has bound it, so that a donation must copy first."""
    consumed: bool = False
    """Whether the buffer was donated and must not be read."""
    axes: Axes | None = None
    """The names of its axes for backends with a mesh; None if no axis is ever split."""
    outcome: Outcome | None = None
    """The outcome of the run that computes it, if still pending; readers check it."""
    abstract: ClassVar[bool] = False


class Argument(Struct, eq=False):
    """A placeholder for an input of a function that is being captured."""

    type: TensorType
    position: int
    backend: Backend | None
    abstract: ClassVar[bool] = True
    outcome: ClassVar[None] = None


class GraphNode(Struct, eq=False):
    """One application of an op; `stored` is filled when its results are computed."""

    op: Op
    operands: tuple[Source, ...]
    types: tuple[TensorType, ...]
    backend: Backend | None
    abstract: bool
    """Whether it depends on a placeholder and so has no value."""
    stored: list[Stored | None]
    regions: tuple[Region, ...] = ()
    functions: tuple[Function, ...] = ()
    """The functions that the op or its regions call, callees first."""
    constant: bool = False
    """Whether it depends on nothing at all."""
    age: int = field(default_factory=next_age)
    """Its number in order of creation: no node reads a later one."""


class Captured(Struct, eq=False):
    """Result number `index` of a node that has not run yet."""

    node: GraphNode
    index: int

    @property
    def type(self) -> TensorType:
        """The type of that result."""
        return self.node.types[self.index]

    @property
    def backend(self) -> Backend | None:
        """The backend of the leaves below, None if they have none."""
        return self.node.backend

    @property
    def abstract(self) -> bool:
        """Whether the node depends on a placeholder and so has no value."""
        return self.node.abstract


Leaf = Stored | Parameter | Argument
Source = Leaf | Captured


def resolve(source: Source) -> Source:
    """Return the stored value of `source` if it has been computed, else `source` itself."""
    if isinstance(source, Captured):
        return source.node.stored[source.index] or source
    return source


def make_node(
    op: Op,
    operands: Sequence[Source],
    regions: Sequence[Region] = (),
    functions: Sequence[Function] = (),
) -> GraphNode:
    """Check `op` on these operands and add it to the graph; UsageError when backends mix."""
    sources = tuple([resolve(operand) for operand in operands])
    bodies = [*regions, *_bodies(op, functions)]
    types = op.result_types(
        [source.type for source in sources], [body.signature for body in bodies]
    )
    abstract = any([source.abstract for source in sources])
    constant = all([isinstance(source, Captured) and source.node.constant for source in sources])
    backend = common_backend(sources, op.title)
    stored: list[Stored | None] = [None] * len(types)
    return GraphNode(
        op, sources, types, backend, abstract, stored, tuple(regions), tuple(functions), constant
    )


def _bodies(op: Op, functions: Sequence[Function]) -> list[Region]:
    names = op.callees()
    if not names:
        return []
    by_name = {function.name: function.body for function in functions}
    return [by_name[name] for name in names]


def emit_node(builder: Builder, node: GraphNode, operands: Sequence[Value]) -> tuple[Value, ...]:
    """Emit a node, with a copy of its regions; return its results."""
    regions = tuple(copy_region(region) for region in node.regions)
    return builder.emit_many(node.op, operands, regions).results


def common_backend(sources: Sequence[Source], what: str) -> Backend | None:
    """Return the backend of the sources, None if all are host values; UsageError for two."""
    found: Backend | None = None
    for source in sources:
        backend = source.backend
        if backend is not None and found is not None and backend is not found:
            raise UsageError(
                f"`{what}` got tensors of two backends, `{found.name}` and `{backend.name}`",
                hint="bring one over with `gptrs.tensor(x.numpy())`",
            )
        found = found or backend
    return found


class GraphSlice(Struct):
    """The part of a graph that the outputs need, in executable order."""

    outputs: Sequence[Source]
    leaves: list[Leaf] = field(default_factory=list[Leaf])
    nodes: list[GraphNode] = field(default_factory=list[GraphNode])
    _leaf_numbers: dict[Leaf, int] = field(default_factory=dict[Leaf, int])
    _node_numbers: dict[GraphNode, int] = field(default_factory=dict[GraphNode, int])

    def __post_init__(self) -> None:
        for output in self.outputs:
            self._visit(output)

    def _visit(self, root: Source) -> None:
        pending: list[tuple[Source, bool]] = [(root, False)]
        while pending:
            source, operands_done = pending.pop()
            source = resolve(source)
            if not isinstance(source, Captured):
                if source not in self._leaf_numbers:
                    self._leaf_numbers[source] = len(self.leaves)
                    self.leaves.append(source)
                continue
            node = source.node
            if node in self._node_numbers:
                continue
            if operands_done:
                self._node_numbers[node] = len(self.nodes)
                self.nodes.append(node)
            else:
                pending.append((source, True))
                pending.extend((operand, False) for operand in reversed(node.operands))

    def key(
        self,
        order: Sequence[Leaf],
        roles: Sequence[InputRole],
        backend: Backend,
        context: Hashable = (),
    ) -> ProgramKey:
        """Return the key of the program `lower(order)`, compiled with `roles` on `backend`.

        `context` is everything else that affects compilation. Inputs are numbered by identity, so
        `f(a, a)` and `f(a, b)` differ.
        """
        builder = KeyBuilder()
        for leaf, role in zip(order, roles, strict=True):
            weight = leaf.key if isinstance(leaf, Parameter) else None
            builder.add_input(leaf.type, role, weight)
        numbers = self._input_numbers(order)
        for number, node in enumerate(self.nodes):
            operands = [numbers[self._reference(operand)] for operand in node.operands]
            builder.add_instruction(node.op, operands, node.regions)
            for index in range(len(node.types)):
                numbers[number, index] = len(order) + len(numbers)
        for function in self._functions():
            builder.add_function(function)
        outputs = [numbers[self._reference(output)] for output in self.outputs]
        return builder.key(outputs, backend, context)

    def _input_numbers(self, order: Sequence[Leaf]) -> dict[tuple[int, int], int]:
        """Return the position in `order` of each leaf, by its reference."""
        known = self._leaf_numbers
        return {(-1, known[leaf]): at for at, leaf in enumerate(order) if leaf in known}

    def _functions(self) -> tuple[Function, ...]:
        # Captures of equal bodies are equal: names of functions end in a digest of the body.
        return tuple({f.name: f for node in self.nodes for f in node.functions}.values())

    def _reference(self, source: Source) -> tuple[int, int]:
        # A visited node stays a node even if another thread computes it meanwhile.
        if isinstance(source, Captured) and source.node in self._node_numbers:
            return self._node_numbers[source.node], source.index
        leaf = resolve(source)
        assert not isinstance(leaf, Captured), "visited above"
        return -1, self._leaf_numbers[leaf]

    def lower(self, order: Sequence[Leaf]) -> Program:
        """Return the program over the inputs `order`, which has each leaf once and may have unused
        ones."""
        builder = Builder(self._functions())
        values: dict[tuple[int, int], Value] = {}
        for position, leaf in enumerate(order):
            value = builder.param(leaf.type, _input_name(leaf, position))
            if leaf in self._leaf_numbers:
                values[-1, self._leaf_numbers[leaf]] = value
        for number, node in enumerate(self.nodes):
            operands = [values[self._reference(operand)] for operand in node.operands]
            results = emit_node(builder, node, operands)
            values.update({(number, i): value for i, value in enumerate(results)})
        return builder.program(*(values[self._reference(output)] for output in self.outputs))


_NO_NAME = re.compile("[^0-9A-Za-z]")


def _input_name(leaf: Leaf, position: int) -> str:
    wish = f"p{position}_{leaf.name}" if isinstance(leaf, Parameter) else f"arg{position}"
    return _NO_NAME.sub("_", wish)


def role_of(leaf: Leaf) -> InputRole:
    """Return the role of a leaf that is not donated."""
    return InputRole.PARAMETER if isinstance(leaf, Parameter) else InputRole.ARGUMENT
