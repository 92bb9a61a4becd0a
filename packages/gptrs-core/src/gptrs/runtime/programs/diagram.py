"""A program as boxes and arrows: the data that pictures of it are drawn from, whatever the format.

Every function is a panel and every region a box within its instruction, since nothing crosses the
border of a region. Names are those of the text form. What reads nothing, such as a constant, is
shown beside each instruction that reads it, and not at all where none does.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import dataclass

from gptrs.ir.literal import Literal
from gptrs.ir.op import Op
from gptrs.ir.program import Instruction, Program, Region, Value
from gptrs.ir.value_names import ValueNames

NodeKind = typing.Literal["parameter", "instruction", "constant", "result"]
_LONGEST = 44
"""Most characters of an attribute that a node shows."""


@dataclass(frozen=True, slots=True)
class DiagramNode:
    """A box: a title, lines of detail, the types that it gives, and the diagrams within it."""

    kind: NodeKind
    title: str
    details: tuple[str, ...]
    types: tuple[str, ...]
    inner: tuple[Diagram, ...] = ()


@dataclass(frozen=True, slots=True)
class Edge:
    """A value: from output `output` of node `source` to input `input` of node `target`."""

    source: int
    output: int
    target: int
    input: int


@dataclass(frozen=True, slots=True)
class Diagram:
    """One region: its nodes, each after those that it reads, and the edges between them."""

    name: str
    nodes: tuple[DiagramNode, ...]
    edges: tuple[Edge, ...]

    def size(self) -> int:
        """Return the number of nodes, those within nodes included."""
        return len(self.nodes) + sum(inner.size() for node in self.nodes for inner in node.inner)


def diagrams_of(program: Program) -> list[Diagram]:
    """Return a diagram of each function that `@main` reaches, `@main` first."""
    reached = sorted(program.reachable(), key=lambda function: function.name != "main")
    return [
        _Drawing(ValueNames(f"`@{function.name}`")).region(f"@{function.name}", function.body)
        for function in reached
    ]


class _Drawing:
    """Makes the diagrams of one function, whose values are named in the order of its text."""

    def __init__(self, names: ValueNames) -> None:
        self._names = names

    def region(self, name: str, region: Region) -> Diagram:
        """Return the diagram of a region."""
        sheet = _Sheet()
        names = self._names.define_params(region.params)
        for param_name, param in zip(names, region.params, strict=True):
            sheet.add(
                DiagramNode("parameter", f"%{param_name}", (), (str(param.type),)), (), (param,)
            )
        for instruction in region.instructions:
            node = self._instruction(instruction)
            sheet.add(node, instruction.operands, instruction.results)
        for position, value in enumerate(region.results):
            sheet.add(
                DiagramNode("result", f"result {position}", (), (str(value.type),)), (value,), ()
            )
        return Diagram(name, tuple(sheet.nodes), tuple(sheet.edges))

    def _instruction(self, instruction: Instruction) -> DiagramNode:
        op = instruction.op
        inner: list[Diagram] = []
        for name, region in zip(op.region_names, instruction.regions, strict=True):
            with self._names.inner_region():
                inner.append(self.region(name, region))
        results = ", ".join(f"%{name}" for name in self._names.define_results(instruction.results))
        types = tuple(str(value.type) for value in instruction.results)
        kind: NodeKind = "instruction" if instruction.operands or inner else "constant"
        return DiagramNode(kind, f"{results} = {op.name}", _attributes(op), types, tuple(inner))


class _Sheet:
    """The nodes and edges of one diagram while it is made."""

    def __init__(self) -> None:
        self.nodes: list[DiagramNode] = []
        self.edges: list[Edge] = []
        self._place: dict[Value, tuple[int, int]] = {}
        self._constants: dict[Value, tuple[DiagramNode, int]] = {}

    def add(self, node: DiagramNode, reads: Sequence[Value], gives: Sequence[Value]) -> None:
        """Add a node; a constant appears anew beside each node that reads it."""
        if node.kind == "constant":
            self._constants.update((value, (node, i)) for i, value in enumerate(gives))
            return
        here: dict[Value, int] = {}
        for value in reads:
            if value in self._constants and value not in here:
                here[value] = len(self.nodes)
                self.nodes.append(self._constants[value][0])
        for position, value in enumerate(reads):
            if value in here:
                source = (here[value], self._constants[value][1])
            else:
                source = self._place[value]
            self.edges.append(Edge(*source, len(self.nodes), position))
        self._place.update((value, (len(self.nodes), i)) for i, value in enumerate(gives))
        self.nodes.append(node)


def _attributes(op: Op) -> tuple[str, ...]:
    """`name = value` for each attribute that is not at its default, clipped."""
    texts = (f"{name} = {_shown(op, name, value)}" for name, value in op.attributes().items())
    return tuple(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..." for text in texts)


def _shown(op: Op, name: str, value: object) -> str:
    if isinstance(value, Literal) and value.type.size > _LONGEST and value.splat is None:
        return f"{value.type.nbytes} bytes"  # in text they would take twice as many
    return op.attribute_kinds[name].print(value)
