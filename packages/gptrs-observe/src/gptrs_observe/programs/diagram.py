"""A program as boxes and arrows: the data for pictures in any format.

Every function is a panel and every region a box within its instruction, since nothing crosses the
border of a region. Names are those of the text form. Instructions without operands, such as
constants, are shown next to each instruction that reads them, and not at all if unused. Equal
layers are one box, in which the first of them is drawn; so are the inputs that only they read.
"""

from __future__ import annotations

import typing
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from msgspec import Struct

from gptrs.ir.literal_text import Literal
from gptrs.ir.op import Op
from gptrs.ir.ops.control_flow import Call
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.printer import ValueNames
from gptrs.ir.program import Instruction, Program, Region, Value
from gptrs_observe.programs.op_work import op_title

# Equal layers of a program: stretches of instructions that follow one another and are alike.


LEAST = 3
"""Number of layers from which on they are one box."""
SHORTEST = 4
"""Instructions of a layer at least, unless it is a call: fewer are no layer."""
_TRIES = 4
"""Most periods tried at an instruction: distances to the next similar instructions."""


class Repeat(Struct, frozen=True):
    """`count` layers of `period` instructions each, from instruction `start` on."""

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """The number of the first instruction after it."""
        return self.start + self.period * self.count


def repeats_of(region: Region) -> list[Repeat]:
    """Return the equal layers of a region, in order.

    Layers are equal if their ops, attributes and types are, and if each instruction reads values at
    the same position in its layer, in an earlier one at the same distance, or before all layers. A
    layer is a call, or at least `SHORTEST` instructions.
    """
    found: list[Repeat] = []
    kinds = _kinds(region.instructions)
    origin = {value: at for at, each in enumerate(region.instructions) for value in each.results}
    at = 0
    while at < len(kinds):
        repeat = _repeat_at(at, region.instructions, kinds, origin)
        if repeat is None:
            at += 1
        else:
            if repeat.period >= SHORTEST or isinstance(region.instructions[at].op, Call):
                found.append(repeat)
            at = repeat.end
    return found


def _kinds(instructions: Sequence[Instruction]) -> list[int]:
    """Return a number for each instruction, equal for instructions that are alike in isolation."""
    numbers: dict[Hashable, int] = {}
    kinds: list[int] = []
    for at, each in enumerate(instructions):
        types = tuple(value.type for value in (*each.operands, *each.results))
        # Instructions with regions are compared by nothing: each is its own kind.
        key = at if each.regions else (each.op, types)
        kinds.append(numbers.setdefault(key, len(numbers)))
    return kinds


def _repeat_at(
    at: int, instructions: Sequence[Instruction], kinds: Sequence[int], origin: dict[Value, int]
) -> Repeat | None:
    tries = 0
    # A longer period would leave no room for a second layer.
    for other in range(at + 1, (at + len(kinds)) // 2 + 1):
        if kinds[other] != kinds[at]:
            continue
        period = other - at
        count = _count(at, period, instructions, kinds, origin)
        if count >= LEAST:
            return Repeat(at, period, count)
        tries += 1
        # A bound: the same op may occur thousands of times without being the start of a layer.
        if tries == _TRIES:
            return None
    return None


def _count(
    at: int,
    period: int,
    instructions: Sequence[Instruction],
    kinds: Sequence[int],
    origin: dict[Value, int],
) -> int:
    first = kinds[at : at + period]
    layers = [_wiring(at, at, period, instructions, origin)]
    while True:
        start = at + period * len(layers)
        if kinds[start : start + period] != first:
            return len(layers)
        wiring = _wiring(at, start, period, instructions, origin)
        if len(layers) == 1:
            pairs = zip(layers[0], wiring, strict=True)
            # The first layer reads from before all layers what the others read from the one before
            # them, so that the second one decides what is alike.
            same = all(one == two if two >= 0 else one == -1 for one, two in pairs)
        else:
            same = wiring == layers[1]
        if not same:
            return len(layers)
        layers.append(wiring)


def _wiring(
    first: int,
    start: int,
    period: int,
    instructions: Sequence[Instruction],
    origin: dict[Value, int],
) -> list[int]:
    """Return the origin of each operand of the layer at `start`.

    Within the layer, its index there; in an earlier layer, -1 minus the distance to it; before the
    `first` layer, -1.
    """
    indices = [
        origin.get(operand, -1)
        for each in instructions[start : start + period]
        for operand in each.operands
    ]
    return [
        index - start if index >= start else index - start - 1 if index >= first else -1
        for index in indices
    ]


NodeKind = typing.Literal["parameter", "instruction", "constant", "result"]
_LONGEST = 44
"""Most characters of an attribute that a node shows."""


class DiagramNode(Struct, frozen=True):
    """A box: a title, lines of detail, the types that it gives, and the diagrams within it."""

    kind: NodeKind
    title: str
    details: tuple[str, ...]
    types: tuple[str, ...]
    inner: tuple[Diagram, ...] = ()
    share: float | None = None
    """Its share of the time of a profile, 0 to 1; None without one."""


class Edge(Struct, frozen=True):
    """A value: from output `output` of node `source` to input `input` of node `target`."""

    source: int
    output: int
    target: int
    input: int


class Diagram(Struct, frozen=True):
    """One region: its nodes, each after those that it reads, and the edges between them."""

    name: str
    nodes: tuple[DiagramNode, ...]
    edges: tuple[Edge, ...]

    def size(self) -> int:
        """Return the number of nodes, those within nodes included."""
        return len(self.nodes) + sum(inner.size() for node in self.nodes for inner in node.inner)


Times = Mapping[Instruction, float]
"""The part of the time that instructions took, 0 to 1."""
_FEW = 3
"""From this number of inputs, or results, of equal layers on, one box represents all of them."""
_MOST_TYPES = 6
"""Lines with the types of such a box."""


def diagrams_of(program: Program, times: Times | None = None) -> list[Diagram]:
    """Return a diagram of each function that `@main` reaches, `@main` first."""
    reached = sorted(program.reachable(), key=lambda function: function.name != "main")
    return [
        _Drawing(ValueNames(f"`@{function.name}`"), times).region(
            f"@{function.name}", function.body
        )
        for function in reached
    ]


class _Drawing:
    """Makes the diagrams of one function, whose values are named in the order of its text."""

    def __init__(self, names: ValueNames, times: Times | None) -> None:
        self._names = names
        self._times = times

    def region(self, name: str, region: Region) -> Diagram:
        """Return the diagram of a region."""
        sheet = _Sheet()
        repeats = repeats_of(region)
        names = self._names.define_params(region.params)
        alone, groups = _grouped_params(region, repeats)
        for param_name, param in zip(names, region.params, strict=True):
            if param in alone:
                title = f"%{param_name}"
                sheet.add(DiagramNode("parameter", title, (), (str(param.type),)), (), (param,))
        for group in groups:
            sheet.add_many("parameter", f"{len(group)} inputs of the layers", group, ())
        folded = {repeat.start: repeat for repeat in repeats}
        at = 0
        while at < len(region.instructions):
            repeat = folded.get(at)
            if repeat is None:
                instruction = region.instructions[at]
                node = self._instruction(instruction)
                sheet.add(node, instruction.operands, instruction.results)
                at += 1
            else:
                self._fold(sheet, region, repeat)
                at = repeat.end
        self._results(sheet, region, repeats)
        return Diagram(name, tuple(sheet.nodes), tuple(sheet.edges))

    def _fold(self, sheet: _Sheet, region: Region, repeat: Repeat) -> None:
        """Add one box for equal layers."""
        members = region.instructions[repeat.start : repeat.end]
        first = members[: repeat.period]
        made = dict.fromkeys(value for each in members for value in each.results)
        reads = dict.fromkeys(v for each in members for v in each.operands if v not in made)
        gives = [value for value in made if value in _read_elsewhere(region, repeat)]
        inner: tuple[Diagram, ...] = ()
        if isinstance(first[0].op, Call) and repeat.period == 1:
            title = f"@{first[0].op.function} x{repeat.count}"
            nodes = [self._instruction(each) for each in members]
        else:
            title = f"{repeat.period} instructions x{repeat.count}"
            layer = _Sheet()
            # All of them, although only the first is shown: this numbers their values as the text
            # does.
            nodes = [self._instruction(each) for each in members]
            own = {value for each in first for value in each.results}
            outside = dict.fromkeys(v for each in first for v in each.operands if v not in own)
            for number, value in enumerate(outside):
                node = DiagramNode("parameter", f"input {number}", (), (str(value.type),))
                layer.add(node, (), (value,))
            for node, each in zip(nodes, first, strict=False):
                layer.add(node, each.operands, each.results)
            inner = (Diagram("the first of them", tuple(layer.nodes), tuple(layer.edges)),)
        share = None
        if self._times is not None:
            share = sum(node.share or 0.0 for node in nodes)
        sheet.add_many("instruction", title, gives, tuple(reads), inner, share)

    def _results(self, sheet: _Sheet, region: Region, repeats: Sequence[Repeat]) -> None:
        made = {
            value: repeat
            for repeat in repeats
            for each in region.instructions[repeat.start : repeat.end]
            for value in each.results
        }
        counts = Counter(made[value] for value in region.results if value in made)
        for position, value in enumerate(region.results):
            if value in made and counts[made[value]] >= _FEW:
                continue
            node = DiagramNode("result", f"result {position}", (), (str(value.type),))
            sheet.add(node, (value,), ())
        for repeat, count in counts.items():
            if count >= _FEW:
                values = [value for value in region.results if made.get(value) == repeat]
                sheet.add_many("result", f"{count} results of the layers", values, values)

    def _instruction(self, instruction: Instruction) -> DiagramNode:
        op = instruction.op
        inner: list[Diagram] = []
        for name, region in zip(op.region_names, instruction.regions, strict=True):
            with self._names.inner_region():
                inner.append(self.region(name, region))
        results = ", ".join(f"%{name}" for name in self._names.define_results(instruction.results))
        types = tuple(str(value.type) for value in instruction.results)
        kind: NodeKind = "instruction" if instruction.operands or inner else "constant"
        share = None if self._times is None else self._times.get(instruction)
        title = f"{results} = {op_title(op)}"
        details = (*_timed(share), *_attributes(op))
        return DiagramNode(kind, title, details, types, tuple(inner), share)


class _Sheet:
    """The nodes and edges of one diagram while it is made."""

    def __init__(self) -> None:
        self.nodes: list[DiagramNode] = []
        self.edges: list[Edge] = []
        self._index: dict[Value, tuple[int, int]] = {}
        self._constants: dict[Value, tuple[DiagramNode, int]] = {}

    def add(self, node: DiagramNode, reads: Sequence[Value], gives: Sequence[Value]) -> None:
        """Add a node; a constant appears again next to each node that reads it."""
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
                source = self._index[value]
            self.edges.append(Edge(*source, len(self.nodes), position))
        self._index.update((value, (len(self.nodes), i)) for i, value in enumerate(gives))
        self.nodes.append(node)

    def add_many(
        self,
        kind: NodeKind,
        title: str,
        shown: Sequence[Value],
        reads: Sequence[Value],
        inner: tuple[Diagram, ...] = (),
        share: float | None = None,
    ) -> None:
        """Add a node for many values: a line for each of their types, an arrow for each source."""
        counts = Counter(str(value.type) for value in shown)
        lines = [f"{count} x {type_}" if count > 1 else type_ for type_, count in counts.items()]
        if len(lines) > _MOST_TYPES:
            lines = [*lines[: _MOST_TYPES - 1], f"and {len(lines) - _MOST_TYPES + 1} more types"]
        sources = dict.fromkeys(self._index[value] for value in reads if value in self._index)
        for position, source in enumerate(sources):
            self.edges.append(Edge(*source, len(self.nodes), position))
        line_of = {type_: min(at, _MOST_TYPES - 1) for at, type_ in enumerate(counts)}
        if kind == "parameter":
            line_of = dict.fromkeys(line_of, 0)  # one arrow
        if kind != "result":
            indices = ((value, (len(self.nodes), line_of[str(value.type)])) for value in shown)
            self._index.update(indices)
        self.nodes.append(DiagramNode(kind, title, _timed(share), tuple(lines), inner, share))


def _grouped_params(
    region: Region, repeats: Sequence[Repeat]
) -> tuple[set[Value], list[list[Value]]]:
    """Return the parameters that get a box each, and those that share one as inputs of layers."""
    readers: dict[Value, set[Repeat | None]] = {param: set() for param in region.params}
    repeat_at = {at: repeat for repeat in repeats for at in range(repeat.start, repeat.end)}
    for at, each in enumerate(region.instructions):
        for operand in each.operands:
            if operand in readers:
                readers[operand].add(repeat_at.get(at))
    for value in region.results:
        if value in readers:
            readers[value].add(None)
    groups: dict[Repeat, list[Value]] = {}
    for param, who in readers.items():
        # A parameter that two stacks of layers read, or anything else, keeps its own box.
        (only,) = who if len(who) == 1 else (None,)
        if only is not None:
            groups.setdefault(only, []).append(param)
    shared = [group for group in groups.values() if len(group) >= _FEW]
    return set(region.params) - {param for group in shared for param in group}, shared


def _read_elsewhere(region: Region, repeat: Repeat) -> set[Value]:
    """Return all values that are read outside of equal layers."""
    outside = (*region.instructions[: repeat.start], *region.instructions[repeat.end :])
    return {*region.results, *(value for each in outside for value in each.operands)}


def _timed(share: float | None) -> tuple[str, ...]:
    return () if share is None else (f"{share:.1%} of the time",)


def _attributes(op: Op) -> tuple[str, ...]:
    """`name = value` for each attribute that is not at its default, clipped.

    Of custom calls without `results`, whose types are shown anyway.
    """
    given = op.attributes()
    if isinstance(op, CustomCall):
        given = {name: value for name, value in given.items() if name != "results"}
    texts = (f"{name} = {_shown(op, name, value)}" for name, value in given.items())
    return tuple(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..." for text in texts)


def _shown(op: Op, name: str, value: object) -> str:
    if isinstance(value, Literal) and value.type.size > _LONGEST and value.splat is None:
        return f"{value.type.nbytes} bytes"  # in text they would take twice as many
    return op.attribute_kinds[name].print(value)
